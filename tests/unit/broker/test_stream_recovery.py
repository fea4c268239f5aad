"""A start finds a stream as it was, by what the journal says of it: it looks at few messages, and removes none for it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mainstem.broker.broker import Broker
from mainstem.broker.streams import registry
from mainstem.broker.streams.stream import Stream
from mainstem.model.clock import ManualClock
from mainstem.model.origin import Origin
from mainstem.model.record import Record
from tests.unit.broker.kit import durable, running, until

HOUR_MS = 3_600_000
TTL = b"NATS/1.0\r\nNats-TTL: 1h\r\n\r\n"
SCHEDULE = b"NATS/1.0\r\nNats-Schedule: @every 1h\r\nNats-Schedule-Target: s.fired\r\n\r\n"


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The stretches of which a start read the messages."""
    found: list[tuple[int, int]] = []
    before = Stream.walk_readable

    def walk(self: Stream, start: int, end: int, unknown: str) -> Iterator[Record]:
        if start < end:
            found.append((start, end))
        return before(self, start, end, unknown)

    monkeypatch.setattr(Stream, "walk_readable", walk)
    monkeypatch.setattr(registry, "COUNT_EVERY", 10)
    return found


async def made(broker: Broker, **config: Any) -> Stream:
    return await broker.streams.create(broker.namespace("/"), {"name": "s", "subjects": ["s.>"], **config})


def stream_of(broker: Broker) -> Stream:
    return broker.streams.of(broker.namespace("/")).by_name["s"]


async def publish(broker: Broker, count: int, size: int = 100, block: bytes = b"", topic: bytes = b"s/1") -> None:
    headers = [(b"ms-nats", block)] if block else []
    tickets = [
        broker.namespace("/").publish(topic, bytes(size), headers=headers, origin=Origin.NATS) for _ in range(count)
    ]
    await durable(tickets[-1])


def what_is_kept(stream: Stream) -> tuple[int, int, int, int]:
    return stream.first, stream.messages, stream.last_seq, stream.stored_bytes


@pytest.mark.parametrize("limit", [{"max_bytes": 20_000}, {"max_msgs": 60}, {"max_msgs_per_subject": 40}])
async def test_a_start_after_a_kill_does_not_count_what_the_limits_removed(tmp_path: Path, limit: Any) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    async with running(data) as broker:
        await made(broker, **limit)
        await publish(broker, 100)
        await until(lambda: stream_of(broker).messages < 100 or stream_of(broker).stored_bytes <= 20_000)
    async with running(data) as broker:
        for _ in range(3):
            await publish(broker, 50, size=30)
        before = what_is_kept(stream_of(broker))
        await durable(broker.journal.put("test", b"", b""))
        shutil.copytree(data, copy)
    async with running(copy) as broker:
        assert what_is_kept(stream_of(broker)) == before


async def test_a_start_looks_at_no_message_that_the_journal_counted(
    tmp_path: Path, walked: list[tuple[int, int]]
) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    async with running(data) as broker:
        stream = await made(broker, allow_msg_ttl=True)
        await publish(broker, 55, block=TTL)
        broker.streams._on_checkpoint()
        await publish(broker, 5, block=TTL)
        await durable(broker.journal.put("test", b"", b""))
        before = what_is_kept(stream)
        shutil.copytree(data, copy)
    async with running(copy) as broker:
        assert walked == [(55, 60), (55, 60)]
        assert what_is_kept(stream_of(broker)) == before
    walked.clear()
    async with running(copy) as broker:
        assert not walked, "a clean stop told of all"
        assert what_is_kept(stream_of(broker)) == before


@pytest.mark.parametrize("stop", ["clean", "kill"])
async def test_messages_that_were_not_looked_at_end_in_time(
    tmp_path: Path, walked: list[tuple[int, int]], stop: str
) -> None:
    clock = ManualClock()
    data, copy = tmp_path / "data", tmp_path / "copy"
    async with running(data, clock=clock) as broker:
        await made(broker, allow_msg_ttl=True)
        await publish(broker, 30, block=TTL)
        await publish(broker, 1)
        broker.streams._on_checkpoint()
        await durable(broker.journal.put("test", b"", b""))
        shutil.copytree(data, copy)
    async with running(copy if stop == "kill" else data, clock=clock) as broker:
        assert not walked
        stream = stream_of(broker)
        assert stream.messages == 31
        clock.advance_ms(HOUR_MS + 1)
        stream.expire_single()
        assert stream.messages == 1 and stream.first == 30


@pytest.mark.parametrize("stop", ["clean", "kill"])
async def test_schedules_that_were_not_looked_at_fire(tmp_path: Path, walked: list[tuple[int, int]], stop: str) -> None:
    clock = ManualClock()
    data, copy = tmp_path / "data", tmp_path / "copy"
    async with running(data, clock=clock) as broker:
        await made(broker, allow_msg_schedules=True)
        await publish(broker, 20)
        await publish(broker, 1, block=SCHEDULE, topic=b"s/when")
        broker.streams._on_checkpoint()
        await durable(broker.journal.put("test", b"", b""))
        shutil.copytree(data, copy)
    async with running(copy if stop == "kill" else data, clock=clock) as broker:
        assert not walked
        stream = stream_of(broker)
        clock.advance_ms(HOUR_MS + 1)
        stream.run_schedules()
        await until(lambda: stream.last_of(b"s/fired") > 21)
