"""kcat in a shell: librdkafka 2.0 as Debian ships it, an old client with old habits."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from mainstem.testing import Broker
from tests.protocol.kafka.clients import create_topic, unique

pytestmark = pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed (apt-get install kcat)")


def shell(command: str, stdin: str = "") -> str:
    done = subprocess.run(["bash", "-c", command], input=stdin, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_go_in_and_come_out(broker: Broker, codec: str) -> None:
    topic = create_topic(broker, unique("kcat"))
    shell(f"kcat -b {broker.bootstrap_servers} -P -t {topic} -K: -z {codec} -H trace=abc", "k1:one\nk2:two\n")
    out = shell(f"kcat -b {broker.bootstrap_servers} -C -t {topic} -o beginning -e -q -f '%k=%s %h\\n'")
    assert out == "k1=one trace=abc\nk2=two trace=abc\n"


def test_an_old_client_compresses_because_produce_is_advertised_from_version_0(broker: Broker) -> None:
    """KAFKA-18659: librdkafka before 2.8 sends uncompressed if a broker's Produce begins at version 3."""
    from tests.protocol.kafka.raw import RawClient

    topic = create_topic(broker, unique("kcat-gzip"))
    shell(f"kcat -b {broker.bootstrap_servers} -P -t {topic} -z gzip", "a" * 2_000 + "\n")
    with RawClient(broker) as raw:
        records = raw.fetch(topic, 0).responses[0].partitions[0].records
    assert bytes(records)[22] & 7 == 1


def test_metadata_and_queries(broker: Broker) -> None:
    topic = create_topic(broker, unique("kcat-meta"), 3)
    listed = json.loads(shell(f"kcat -b {broker.bootstrap_servers} -L -J -t {topic}"))
    assert [len(one["partitions"]) for one in listed["topics"] if one["topic"] == topic] == [3]
    shell(f"kcat -b {broker.bootstrap_servers} -P -t {topic} -p 1", "one\n")
    assert f"{topic} [1] offset 1" in shell(f"kcat -b {broker.bootstrap_servers} -Q -t {topic}:1:-1")


def test_a_balanced_group(broker: Broker) -> None:
    topic, group = create_topic(broker, unique("kcat-group"), 2), unique("g")
    shell(f"kcat -b {broker.bootstrap_servers} -P -t {topic}", "a\nb\nc\n")
    command = f"kcat -b {broker.bootstrap_servers} -G {group} -X auto.offset.reset=earliest -c 3 -q {topic}"
    assert sorted(shell(command).split()) == ["a", "b", "c"]
