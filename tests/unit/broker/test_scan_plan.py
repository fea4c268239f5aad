"""Plans over a real log while retention and rewriting change its files: every record exactly once."""

from __future__ import annotations

import asyncio
import json
import random
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mainstem.broker.broker import Broker, BrokerOptions
from mainstem.broker.scans import plan as plan_module
from mainstem.broker.scans.gaps import Gaps
from mainstem.broker.scans.plan import LEASE_MS, LEASE_MS_MAX
from mainstem.broker.scans.selection import ScanPartition, Selection
from mainstem.broker.topics.policy import Policy
from mainstem.codec.batch import frame_heads
from mainstem.codec.columns import Column, ColumnDecoder, TopicRow
from mainstem.codec.compression import inflate
from mainstem.model.clock import ManualClock
from mainstem.model.errors import NotFound, OffsetOutOfRange
from mainstem.model.origin import Origin
from mainstem.storage.engine import Part

SEGMENT_BYTES = 64 << 10


async def opened(folder: Path, clock: ManualClock | None = None) -> Broker:
    broker = Broker(BrokerOptions(folder, Policy(segment_bytes=SEGMENT_BYTES, durability="os")), clock)
    await broker.open()
    broker.recover_journal()
    return broker


def publish(broker: Broker, values: range, topics: int = 3) -> None:
    namespace = broker.namespace("/")
    for number in values:
        namespace.publish(b"s/%d" % (number % topics), b"%06d" % number * 20, origin=Origin.MQTT)
        if number % 7 == 0:
            broker.ticker.tick()
    broker.ticker.tick()


def wanted(topic: bytes | int) -> TopicRow | None:
    assert isinstance(topic, bytes)
    return (topic, topic, (topic,), 0, 0, (1 << 62)) if topic.startswith(b"s/") else None


async def offsets_of(broker: Broker, piece: dict[str, Any]) -> list[int]:
    """A slice as a task reads it: the file if the frame named stands there, else through the broker."""
    path, data = Path(piece["path"]) if "path" in piece else None, b""
    if path is not None and path.exists():
        data = path.read_bytes()[piece["at"] : piece["at"] + piece["bytes"]]
        assert int.from_bytes(data[16:24], "big") == piece["frame"]
    else:
        start = piece["start"]
        while start < piece["end"]:
            frames, start = await broker.scans.frames(broker.namespace("/"), piece["log"], start, piece["end"], 1 << 20)
            data += frames
    decoder = ColumnDecoder(
        int(Column.OFFSET),
        wanted,
        lambda method, packed: inflate(method, packed, 1 << 20),
        start=piece["start"],
        end=piece["end"],
        log_id=piece["log"],
    )
    decoder.feed(data)
    decoder.decode(1 << 30, 1 << 40)
    return list(memoryview(bytes(decoder.take()[Column.OFFSET][0])).cast("q"))


SELECT = {"kind": "filter", "filter": "s/#"}


async def planned(broker: Broker, start: int, end: int, **options: Any) -> dict[str, Any]:
    stem = next(iter(broker.namespace("/").stems.values()))
    return await broker.scans.plan(broker.namespace("/"), SELECT, [["#", stem.id, start, end]], **options)


@pytest.mark.parametrize("seed", range(12))
async def test_slices_hold_every_record_once_while_files_go(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    broker = await opened(tmp_path)
    stem = next(iter(broker.namespace("/").stems.values()))
    written = 0
    for _ in range(6):
        count = chance.randrange(1, 900)
        publish(broker, range(written, written + count))
        written += count
        start = chance.randrange(stem.start_offset, stem.stable)
        end = chance.randrange(start, stem.stable + 1)
        plan = await planned(
            broker, start, end, slice_bytes=chance.choice([1, 100_000]), files=chance.random() < 0.8,
            slices_min=chance.choice([0, 5]),
        )  # fmt: skip
        assert plan["lost"] == []
        publish(broker, range(written, written + 50))  # the plan's end stays where it was
        written += 50
        sealed = [part for part in stem.engine.stat().parts if part.sealed]
        if sealed and chance.random() < 0.7:
            stem.move_start(sealed[0].end_offset)
            stem.trim(sealed[0].end_offset)  # leased files outlive it
        found: list[int] = []
        try:
            for piece in plan["slices"]:
                found += await offsets_of(broker, piece)
        except OffsetOutOfRange:  # read through the broker, and aged out meanwhile: told, never silent
            assert stem.start_offset > start
        else:
            assert found == list(range(start, end))
        broker.scans.release(plan["plan"])
    await broker.close()


async def test_a_lease_keeps_files_until_it_ends_and_not_longer(tmp_path: Path) -> None:
    clock = ManualClock()
    broker = await opened(tmp_path, clock)
    publish(broker, range(3000))
    stem = next(iter(broker.namespace("/").stems.values()))
    plan = await planned(broker, 0, stem.stable)
    first = Path(plan["slices"][0]["path"])
    stem.engine.roll()
    stem.move_start(stem.written)
    stem.trim(stem.written)
    assert first.exists()
    for _ in range(5):
        clock.advance_ms(LEASE_MS - 1)
        broker.scans.renew(plan["plan"])
        assert first.exists()
    clock.advance_ms(LEASE_MS_MAX)
    broker.scans.expire()
    assert not first.exists()
    with pytest.raises(NotFound, match="has ended"):
        broker.scans.renew(plan["plan"])
    await broker.close()


async def test_beyond_the_limit_the_plan_that_was_renewed_longest_ago_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_module, "PLANS_MAX", 2)
    clock = ManualClock()
    broker = await opened(tmp_path, clock)
    publish(broker, range(10))
    plans = []
    for _ in range(2):
        plans.append((await planned(broker, 0, 10))["plan"])
        clock.advance_ms(1_000)
    broker.scans.renew(plans[0])
    plans.append((await planned(broker, 0, 10))["plan"])
    with pytest.raises(NotFound, match="has ended"):
        broker.scans.renew(plans[1])
    assert broker.scans.renew(plans[0]) and broker.scans.renew(plans[2])
    await broker.close()


@pytest.mark.parametrize("files", [True, False])
@pytest.mark.parametrize("rows_max", [1, 7, 400, 10_000])
async def test_slices_are_cut_after_as_many_rows_as_a_task_may_have(tmp_path: Path, rows_max: int, files: bool) -> None:
    broker = await opened(tmp_path)
    namespace = broker.namespace("/")
    for number in range(0, 1500, 100):
        publish(broker, range(number, number + 100))
        namespace.publish(b"other", b"x" * 200, origin=Origin.MQTT)
    broker.ticker.tick()
    stem = next(iter(namespace.stems.values()))
    plan = await planned(broker, 5, stem.stable, rows_max=rows_max, files=files)
    rows, found = 0, list[int]()
    for piece in plan["slices"]:
        offsets = await offsets_of(broker, piece)
        assert len(offsets) == piece["rows"] <= rows_max
        rows += piece["rows"]
        assert (rows - 1) // rows_max == (rows - piece["rows"]) // rows_max, "none lies across the end of a task"
        found += offsets
    assert found == sorted(set(found))
    assert len(found) == 1495
    await broker.close()


async def test_a_stamp_is_the_place_of_its_very_record(tmp_path: Path) -> None:
    """A read up to it has all that was written before, one from it nothing of that; within a frame too."""
    broker = await opened(tmp_path)
    publish(broker, range(50))
    namespace = broker.namespace("/")
    stem = next(iter(namespace.stems.values()))

    async def offset_at(stamp: int) -> int:
        found = (await broker.scans.partitions(namespace, SELECT, {"stamp": stamp}))["lanes"]
        (offset,) = [one["at"] for one in found if one["partition"] == stem.id]
        assert isinstance(offset, int)
        return offset

    piece = stem.read_now(0, 1 << 20)
    assert piece is not None
    heads = frame_heads(piece.data, stem.id)
    assert max(head.count for head in heads) > 1
    for head in heads:
        for i in range(head.count + 1):  # the last is between this frame and the next
            assert await offset_at(head.stamp + i) == head.base_offset + i
    assert await offset_at(0) == 0
    assert await offset_at(stem.last_stamp + 1_000_000) == stem.stable
    await broker.close()


async def test_what_aged_out_is_told(tmp_path: Path) -> None:
    broker = await opened(tmp_path)
    publish(broker, range(3000))
    stem = next(iter(broker.namespace("/").stems.values()))
    stem.engine.roll()
    edge = stem.engine.stat().parts[0].end_offset
    stem.move_start(edge)
    stem.trim(edge)
    plan = await planned(broker, 0, stem.stable)
    assert plan["lost"] == [["#", stem.id, 0, edge]]
    with pytest.raises(OffsetOutOfRange):
        await broker.scans.frames(broker.namespace("/"), stem.id, 0, 10, 1000)
    await broker.close()


async def test_stretches_without_a_match_are_not_planned(tmp_path: Path) -> None:
    broker = await opened(tmp_path)
    namespace = broker.namespace("/")
    publish(broker, range(10))
    for number in range(3000):
        namespace.publish(b"other", b"x" * 200, origin=Origin.MQTT)
        if number % 50 == 0:
            broker.ticker.tick()
    publish(broker, range(10))
    stem = next(iter(namespace.stems.values()))
    plan = await planned(broker, 0, stem.stable, slice_bytes=1)
    assert sum(piece["rows"] for piece in plan["slices"]) == 20
    assert sum(piece["bytes"] for piece in plan["slices"]) < stem.engine.stat().size_bytes // 2
    await asyncio.sleep(0)
    await broker.close()


@pytest.mark.parametrize("seed", range(4))
async def test_ranges_of_a_large_plan_are_cut_by_who_reads_them_and_hold_every_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(plan_module, "SLICES_FINE_MAX", 8)
    monkeypatch.setattr(plan_module, "RANGES_MAX", 8)
    dice = random.Random(seed)
    broker = await opened(tmp_path)
    publish(broker, range(6000))
    stem = next(iter(broker.namespace("/").stems.values()))
    start, end = dice.randrange(3000), stem.stable
    plan = await planned(broker, start, end, slice_bytes=SEGMENT_BYTES, ranged=True)
    ranges = plan["slices"]
    assert 2 <= len(ranges) <= 10
    assert all(one["ranged"] and "path" not in one for one in ranges)
    assert [one["start"] for one in ranges[1:]] == [one["end"] for one in ranges[:-1]]
    assert sum(one["rows"] for one in ranges) == end - start
    found: list[int] = []
    for one in ranges:
        cut = broker.scans.cut(broker.namespace("/"), plan["plan"], one["log"], one["start"], one["end"], SEGMENT_BYTES)
        for piece in cut["slices"]:
            assert "path" in piece
            found += await offsets_of(broker, piece)
    assert found == list(range(start, end))
    broker.scans.release(plan["plan"])
    with pytest.raises(NotFound, match="has ended"):
        broker.scans.cut(broker.namespace("/"), plan["plan"], stem.id, start, end, SEGMENT_BYTES)
    await broker.close()


async def test_ten_terabytes_are_planned_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulated list of parts: 160,000 segments of 64 MiB, in a log that has none of them."""
    segments, size, records = 160_000, 64 << 20, 100_000
    broker = await opened(tmp_path)
    topic = broker.create_topic(broker.namespace("/"), b"big", Policy(layout="dedicated"))
    log = topic.partitions[0].log
    parts = tuple(Part(f"{n}.log", 0, n * records, (n + 1) * records, n, n, size, sealed=True) for n in range(segments))
    stat = replace(log.engine.stat(), parts=parts, size_bytes=segments * size, end_offset=segments * records)
    whole = ScanPartition("big", 0, b"big", 0, segments * records, [(log, 0, segments * records)], topic.id)
    monkeypatch.setattr(type(log.engine), "stat", lambda _: stat)
    monkeypatch.setattr(broker.scans, "_select", lambda *_: Selection([whole]))
    monkeypatch.setattr(broker.scans, "_gaps", Gaps())
    monkeypatch.setattr(Gaps, "load", lambda *_: None)
    tracemalloc.start()
    plan = await broker.scans.plan(broker.namespace("/"), {}, [["big", 0, 0, segments * records]], ranged=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    ranges = plan["slices"]
    assert len(ranges) <= plan_module.RANGES_MAX
    assert (ranges[0]["start"], ranges[-1]["end"]) == (0, segments * records)
    assert [one["start"] for one in ranges[1:]] == [one["end"] for one in ranges[:-1]]
    assert sum(one["rows"] for one in ranges) == segments * records
    assert len(json.dumps(plan)) < 4 << 20
    assert peak < 32 << 20
    monkeypatch.undo()
    await broker.close()
