"""A million device topics under ten views: one log, one dictionary, every view read by every protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from mainstem.testing import BrokerProcess
from tests.crossing.commands import eventually, http
from tests.crossing.message import Message
from tests.crossing.speakers import speakers_of
from tests.protocol.mqtt.raw import Raw, publish_packet

REGIONS = 9
CHUNK = 10_000
RSS_BYTES_MAX = 1_500_000_000  # a bound against growth with topics, not a measurement


def topic_of(number: int) -> str:
    return f"fleet/r{number % REGIONS}/{number:07d}/temp"


def publish(port: int, count: int) -> None:
    """QoS 0 but for the last: acks leave in publish order, so its ack is everyone's."""
    with Raw.connected(port) as raw:
        raw.socket.settimeout(300)
        for start in range(0, count, CHUNK):
            numbers = range(start, min(start + CHUNK, count))
            raw.send(b"".join(publish_packet(topic_of(n), b"%d" % n) for n in numbers))
        raw.publish("fleet/end", b"", qos=1)


def rss_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024


def read_view(broker: BrokerProcess, view: str, count: int) -> list[Any]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": f"g-{view}",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe([view])
    found: list[Any] = []

    def enough() -> bool:
        found.extend(m for m in consumer.consume(10_000, 0.2) if m.error() is None)
        return len(found) >= count

    eventually(enough, f"{count} records of {view}")
    consumer.close()
    return found


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_device_topics_under_ten_views(start_broker: Any, count: int) -> None:
    broker: BrokerProcess = start_broker("limits.connections_max=1000")
    publish(broker.mqtt_port, count)
    views = {f"r{n}": f"fleet/r{n}/+/temp" for n in range(REGIONS)} | {"all": "fleet/+/+/temp"}
    for name, topic_filter in views.items():
        facts = http(broker, "POST", "/v1/views", {"name": name, "filter": topic_filter})
        expected = count if name == "all" else len(range(int(name[1:]), count, REGIONS))
        assert sum(part["records"] for part in facts["partitions"]) == expected
    assert rss_bytes(broker.pid) < RSS_BYTES_MAX
    wanted = range(3, count, REGIONS)
    found = read_view(broker, "r3", len(wanted))
    assert [m.value() for m in found] == [b"%d" % n for n in wanted]
    assert found[0].key() == topic_of(3).encode()
    speakers = speakers_of(broker)
    last = count - 1
    for reader in ("mqtt", "kafka", "amqp"):  # one device among all
        with speakers[reader].history(topic_of(last)) as ear:
            assert ear.hear(topic_of(last)).message.value == b"%d" % last, reader
    with speakers["amqp"].history("r3") as ear, speakers["mqtt"].listen("fleet/r3/+/temp") as live:
        assert ear.hear(topic_of(3)).message.value == b"3"
        speakers["kafka"].say(Message("fleet/r3/new/temp", b"new"))
        assert live.hear("fleet/r3/new/temp").message.value == b"new"
    broker.restart()
    facts = http(broker, "GET", "/v1/views/all")
    assert sum(part["records"] for part in facts["partitions"]) == count + 1
