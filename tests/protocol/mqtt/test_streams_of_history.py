import time

import pytest

from mainstem.protocols.mqtt.wire.properties import Property
from tests.protocol.mqtt.raw import Message, Raw, unique


def from_(offset: str) -> dict[int, object]:
    return {Property.USER_PROPERTY: [(b"stream-offset", offset.encode())]}


def user_properties(message: Message) -> dict[str, str]:
    found, at, data = {}, 0, message.properties
    while at < len(data):
        assert data[at] == Property.USER_PROPERTY
        size = int.from_bytes(data[at + 1 : at + 3], "big")
        name = data[at + 3 : at + 3 + size].decode()
        at += 3 + size
        size = int.from_bytes(data[at : at + 2], "big")
        found[name] = data[at + 2 : at + 2 + size].decode()
        at += 2 + size
    return found


@pytest.fixture
def history(port: int) -> tuple[str, list[int]]:
    """A topic with ten messages, and the µs before each was published."""
    topic, times = unique("history"), []
    with Raw.connected(port) as publisher:
        for n in range(10):
            times.append(time.time_ns() // 1000)
            publisher.publish(f"{topic}/{n % 2}", b"%d" % n, qos=1)
            time.sleep(0.002)
    return topic, times


def test_from_the_earliest_then_live_with_offset_and_append_time(port: int, history: tuple[str, list[int]]) -> None:
    topic, times = history
    with Raw.connected(port, version=5) as reader, Raw.connected(port) as publisher:
        assert reader.subscribe((f"$stream/{topic}/#", 1), properties=from_("earliest")) == [1]
        got = [reader.message() for _ in range(10)]
        publisher.publish(f"{topic}/live", b"10", qos=1)
        got.append(reader.message())
        assert [int(m.payload) for m in got] == list(range(11))
        offsets = [int(user_properties(m)["ms-offset"]) for m in got]
        assert offsets == sorted(set(offsets))
        appended = [int(user_properties(m)["ms-append-ts"]) for m in got]
        assert all(before <= then for before, then in zip(times, appended, strict=False))


def test_from_an_offset_a_time_a_stamp_and_the_latest(port: int, history: tuple[str, list[int]]) -> None:
    topic, times = history
    with Raw.connected(port, version=5) as reader:
        reader.subscribe((f"$stream/{topic}/#", 0))
        offset = user_properties([reader.message() for _ in range(10)][4])["ms-offset"]
    for start, first in ((offset, 4), (f"stamp:{times[6]}", 6), (f"ts:{times[0] // 1000 - 1}", 0)):
        with Raw.connected(port, version=5) as reader:
            reader.subscribe((f"$stream/{topic}/#", 1), properties=from_(start))
            assert [int(reader.message().payload) for _ in range(10 - first)] == list(range(first, 10))
            reader.nothing_more()
    with Raw.connected(port, version=5) as reader, Raw.connected(port) as publisher:
        reader.subscribe((f"$stream/{topic}/#", 1), properties=from_("latest"))
        publisher.publish(f"{topic}/x", b"new", qos=1)
        assert reader.message().payload == b"new"


def test_an_rfc_3339_time(port: int, history: tuple[str, list[int]]) -> None:
    topic, _ = history
    with Raw.connected(port, version=5) as reader:
        assert reader.subscribe((f"$stream/{topic}/#", 1), properties=from_("ts:2020-01-01T00:00:00Z")) == [1]
        assert reader.message().payload == b"0"


def test_clients_without_properties_write_the_offset_into_the_filter(port: int, history: tuple[str, list[int]]) -> None:
    topic, times = history
    with Raw.connected(port) as reader:
        reader.subscribe((f"$stream/@stamp:{times[7]}/{topic}/#", 1))
        assert [int(reader.message().payload) for _ in range(3)] == [7, 8, 9]


def test_nonsense_is_refused(port: int) -> None:
    with Raw.connected(port, version=5) as reader:
        assert reader.subscribe(("$stream/a", 1), properties=from_("yesterday"))[0] >= 0x80


def test_a_persistent_session_goes_on_where_it_stopped(port: int, history: tuple[str, list[int]]) -> None:
    topic, _ = history
    client_id = unique("reader")
    options: dict[str, object] = {"version": 5, "clean": False, "properties": {Property.SESSION_EXPIRY: 100}}
    with Raw.connected(
        port,
        client_id,
        **options,
    ) as reader:
        reader.subscribe((f"$stream/{topic}/#", 1))
        assert [int(reader.message().payload) for _ in range(6)] == list(range(6))
        for _ in range(4):
            reader.message(ack=False)
        reader.ping()
    with Raw.connected(port, client_id, **options) as reader:
        assert [int(reader.message().payload) for _ in range(4)] == [6, 7, 8, 9]


def test_a_long_history_at_qos_0_comes_whole_to_who_reads_as_fast_as_it_comes(port: int) -> None:
    """More than a connection collects at once, and the socket takes it all: nothing says that there is room again."""
    topic, count = unique("long"), 40
    with Raw.connected(port) as publisher:
        for n in range(count):
            publisher.publish(topic, b"%d" % n + b"." * 65_000, qos=1)
    with Raw.connected(port, version=5) as reader:
        reader.subscribe((f"$stream/{topic}", 0), properties=from_("earliest"))
        assert [int(reader.message().payload.rstrip(b".")) for _ in range(count)] == list(range(count))
