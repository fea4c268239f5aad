"""Clients' own suites that a public registry's package carries, to their end: what does not pass is named, with its reason.

docs/kafka.md has the others, which want a checkout.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.peers.kafka_suites import LIBRDKAFKA
from tests.peers.packages import Unavailable, build, crate, source_of_python

ROOT = Path(__file__).parents[3]
RDKAFKA, KAFKA_PYTHON = "4.10.0+2.12.1", "3.0.12"
SUITE_S_MAX = 5_400
LIBRDKAFKA_FAILS = {
    "0052",  # these five start Kafka's own tools
    "0077",
    "0109",
    "0115",
    "0119",
    "0081",  # makes ACLs for users that are not there
    "0103",  # asks for a replication factor of 3
    "0129",  # asks for segments of 20 kB, where Kafka 4 wants a megabyte, too
}
KAFKA_PYTHON_FAILS = {
    "test_create_describe_delete_acls",  # there are no rules without users, as in Kafka without an authorizer
    "test_create_partitions",  # gives the new ones to node 0, which is 1 here
    "test_kafka_version_infer",  # expects the version that it was started for
}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(SUITE_S_MAX + 1_000)]


def run(name: str, checkout: Path, said: Path) -> str:
    """What it said; in a file, which is there to look at while it runs, and when it was cut off."""
    command = [sys.executable, "-m", "tests.peers.kafka_suites", name, str(checkout)]
    with said.open("wb") as file:
        subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, timeout=SUITE_S_MAX, check=False)
    return said.read_text(errors="replace")


def test_librdkafkas_own_tests(tmp_path: Path) -> None:
    try:
        sources = crate("rdkafka-sys", RDKAFKA) / "librdkafka"
        build(sources, sources / "tests" / "test-runner", *LIBRDKAFKA)
    except Unavailable as reason:
        pytest.skip(str(reason))
    output = run("librdkafka", sources, tmp_path / "said")
    (last,) = [line for line in output.splitlines() if line.startswith("failed: ")]
    assert set(last.split()[1:]) - {"none"} <= LIBRDKAFKA_FAILS, output[-5_000:]


def test_kafka_pythons_own_tests(tmp_path: Path) -> None:
    try:
        sources = source_of_python("kafka-python", KAFKA_PYTHON)
    except Unavailable as reason:
        pytest.skip(str(reason))
    output = run("kafka-python", sources, tmp_path / "said")
    assert " passed" in output, output[-5_000:]
    failed = {
        line.split()[1].rpartition("::")[2] for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))
    }
    assert failed <= KAFKA_PYTHON_FAILS, output[-5_000:]
