"""Scan plans: which bytes hold the records that a Spark job asks for, so that its tasks read them in parallel.

A plan lists slices. A task reads a slice straight from the segment file, or from the object of the store that holds it,
where it can reach it, and through the broker where it cannot: the same offsets either way. A plan of more than
SLICES_FINE_MAX slices names ranges of segments instead, at most about RANGES_MAX; a task has its range cut into slices when
it comes to it (`cut`). So the size of a plan, and the time to make it, are bounded however much there is to read. A plan is
a lease: the files it names are not unlinked for LEASE_MS, renewed up to LEASE_MS_MAX in all; a restart ends all leases,
and tasks then read through the broker. Plans end at the last stable offset.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainstem.broker.scans.gaps import Gaps
from mainstem.broker.scans.readers import Reader, Readers
from mainstem.broker.scans.selection import ScanPartition, Selection, select
from mainstem.broker.scans.slices import LogSlice, ranges_of, slices_of
from mainstem.broker.scans.times import TimeFinder
from mainstem.codec.batch import KIND_STATE, frame_heads
from mainstem.log.away import pool, when_local
from mainstem.log.log import Log
from mainstem.model.errors import InvalidArgument, NotFound, OffsetOutOfRange, Overloaded
from mainstem.storage.engine import FileParts, Part
from mainstem.storage.tier.iceberg.tables import is_rows
from mainstem.storage.tier.remote import RemoteReads

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker
    from mainstem.broker.namespaces.namespace import Namespace

LEASE_MS = 10 * 60_000
LEASE_MS_MAX = 60 * 60_000
PLANS_MAX = 1_000
SLICES_MAX = 100_000
SLICES_FINE_MAX = 10_000
RANGES_MAX = 10_000
SLICE_BYTES = 32 << 20
READ_BYTES_MAX = 16 << 20
SHOWN_BYTES_MAX = 1 << 20  # looked through, record by record, for a reader who may not see everything
EVERYTHING = Reader()
COUNT_STEP = 1 << 20  # offsets counted without a break: a chunk of the topic index

Aborted = tuple[int, int, int]  # producer id, first offset, last offset


@dataclass(slots=True)
class Lease:
    id: str
    born_ms: int
    expires_ms: int
    namespace: str = "/"
    held: list[tuple[FileParts, Part]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets [start, end) of a partition that a plan is asked for."""

    partition: ScanPartition
    start: int
    end: int  # what is there of it
    asked_end: int


class ScanPlans:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._leases: dict[str, Lease] = {}
        self._times = TimeFinder()
        self._gaps = Gaps()
        self.readers = Readers(broker.access)
        self._timer: asyncio.TimerHandle | None = None
        self.producers = broker.coordinator.producers

    def _select(self, namespace: Namespace, wanted: Mapping[str, Any], reader: Reader) -> Selection:
        """The selection, its partitions ending before the first transaction that is still open."""
        selection = select(namespace, wanted, reader)
        for partition in selection.partitions:
            partition.end = (
                min(partition.end, self.producers.committed_end(partition.spans[-1][0]))
                if partition.spans
                else partition.end
            )
        return selection

    async def _to_count(self, namespace: Namespace, wanted: Mapping[str, Any], reader: Reader) -> Selection:
        selection = self._select(namespace, wanted, reader)
        if selection.filter is not None and not reader.whole:  # many rules, many topics: not on the loop
            for log in [
                log for partition in selection.partitions for log, *_ in partition.spans if log.index is not None
            ]:
                await asyncio.to_thread(selection.bits, log)
        return selection

    # -- where partitions begin and end

    async def partitions(
        self, namespace: Namespace, wanted: Mapping[str, Any], at: Mapping[str, Any], reader: Reader = EVERYTHING
    ) -> dict[str, Any]:
        """Start, end and topic of each partition; with a time or stamp in `at` also the offset meant (null: none yet)."""
        selection = self._select(namespace, wanted, reader)
        found = []
        for partition in selection.partitions:
            told: dict[str, Any] = {
                "topic": partition.topic,
                "partition": partition.number,
                "start": partition.start,
                "end": partition.end,
                "topic_id": partition.topic_id,
            }
            if "time_ms" in at:
                told["at"] = await asyncio.to_thread(self._times.find, selection, partition, int(at["time_ms"]))
            elif "stamp" in at:
                told["at"] = await asyncio.to_thread(_offset_of_stamp, partition, int(at["stamp"]))
            found.append(told)
        return {"lanes": found}

    async def limit(
        self,
        namespace: Namespace,
        wanted: Mapping[str, Any],
        ranges: Sequence[Sequence[Any]],
        rows: int,
        reader: Reader = EVERYTHING,
    ) -> dict[str, Any]:
        """Ends of the ranges so that about `rows` rows are meant, shared out by how much each partition has."""
        selection = await self._to_count(namespace, wanted, reader)
        asked = [_range(selection, one) for one in ranges]
        chosen = [await when_local(partial(self._without_gap, one)) for one in asked]
        await self._find_gaps(chosen)
        counts = [await self._count(selection, one) for one in chosen]
        total = sum(counts)
        if total <= rows:
            ends = [one.end for one in chosen]
        else:
            shares = _shares(counts, rows)
            ends = [await self._end_after(selection, one, share) for one, share in zip(chosen, shares, strict=True)]
        kept = [[*one.partition.key, end] for one, end in zip(chosen, ends, strict=True)]
        return {"ends": kept, "rows": total}

    async def _find_gaps(self, chosen: Sequence[Range]) -> None:
        """Of the logs that are counted by offsets."""
        logs = {log for one in chosen for log, *_ in _stretches(one.partition, one.start, one.end) if log.index is None}
        for log in logs:
            await asyncio.to_thread(self._gaps.load, log)

    @staticmethod
    def _without_gap(one: Range) -> Range:
        """The range from its first stored record on: an unclean stop may leave many offsets unused, which are no rows."""
        for log, start, end in _stretches(one.partition, one.start, one.end):
            if log.index is not None:  # the topic index counts
                return one
            piece = log.read_now(start, 1, end)
            if piece is not None:
                return Range(one.partition, max(start, piece.base_offset), one.end, one.asked_end)
        return one

    async def _count(self, selection: Selection, one: Range) -> int:
        """Records in the range; exact for shared logs (they count topics), by offsets less the gaps for the others."""
        total = 0
        for log, start, end in _stretches(one.partition, one.start, one.end):
            for first, last in _steps(log, start, end):
                total += self._rows(selection, [one.partition], log, first, last)
                await asyncio.sleep(0)  # each step is a chunk of the topic index; others get their turn between them
        return total

    def _rows(self, selection: Selection, partitions: Sequence[ScanPartition], log: Log, start: int, end: int) -> int:
        """Of partitions that all lie in the log."""
        start = max(start, log.start_offset)
        if start >= end:
            return 0
        if log.index is None:
            return self._gaps.count(log, start, end)
        total = 0
        for partition in partitions:
            if partition.canonical is not None:
                number = log.index.topics.find(partition.canonical)
                total += log.index.count_one(number, start, end) if number else 0
            else:
                total += log.index.count(selection.bits(log), start, end)
        return total

    async def _end_after(self, selection: Selection, one: Range, rows: int) -> int:
        """The furthest end of the range with at most `rows` rows before it, but at least one offset on."""
        for log, start, end in _stretches(one.partition, one.start, one.end):
            for first, last in _steps(log, start, end):
                count = self._rows(selection, [one.partition], log, first, last)
                if count > rows:
                    found = self._end_within(selection, [one.partition], log, first, last, rows)
                    return max(found, min(one.start + 1, one.end))
                rows -= count
                await asyncio.sleep(0)
        return one.end

    def _end_within(
        self, selection: Selection, partitions: Sequence[ScanPartition], log: Log, start: int, end: int, rows: int
    ) -> int:
        if log.index is None:
            return self._gaps.end_after(log, max(start, log.start_offset), end, rows)
        low, high = start, end
        while low + 1 < high:
            middle = (low + high) // 2
            if self._rows(selection, partitions, log, start, middle) <= rows:
                low = middle
            else:
                high = middle
        return low

    # -- plans

    async def plan(
        self,
        namespace: Namespace,
        wanted: Mapping[str, Any],
        ranges: Sequence[Sequence[Any]],
        *,
        slices_min: int = 0,
        slice_bytes: int = SLICE_BYTES,
        rows_max: int = 0,
        files: bool = True,
        ranged: bool = False,
        reader: Reader = EVERYTHING,
    ) -> dict[str, Any]:
        """Slices over the ranges ([topic, partition, start, end] each), and a lease on their files, if it may read those.

        `ranged`: the caller can have entries of a large plan cut; else such a plan is refused.

        With `rows_max` they are cut after each so many rows: neighbours fit together into tasks of exactly that.
        """
        selection = await self._to_count(namespace, wanted, reader)
        files = files and reader.whole
        chosen = [_range(selection, one) for one in ranges]
        await self._find_gaps(chosen)
        if rows_max:  # most cuts by rows are then near a cut in the file, where reading can begin
            rows = sum([await self._count(selection, one) for one in chosen])
            slices_min = max(slices_min, -(-rows // rows_max))
        slice_bytes = self._slice_bytes(chosen, slices_min, slice_bytes)
        lease = self._open_lease(namespace.name)
        slices: list[dict[str, Any]] = []
        lost: list[list[Any]] = []
        room = rows_max
        stretches = self._by_log(chosen, lost)
        range_bytes = _range_bytes(stretches, slice_bytes) if ranged and not rows_max else 0
        for (log, start, end), partitions in stretches.items():
            read_by = [
                [partition.topic, partition.number, (partition.canonical or b"").decode()] for partition in partitions
            ]
            path = log.engine.stat().path
            for piece in self._cut(lease, log, start, end, slice_bytes, files, range_bytes):
                for part, rows in self._by_rows(selection, partitions, log, piece, room, rows_max):
                    told = _described(log, part, path) | (self._far(log, part) if files and not range_bytes else {})
                    if range_bytes:
                        told["ranged"] = True
                    slices.append({**told, "rows": rows, "lanes": read_by})
                    room = (room - rows) or rows_max
                    self._check_count(lease, len(slices))
                await asyncio.sleep(0)  # a plan may count millions of records: others get their turn
        return {
            "plan": lease.id,
            "lease_ms": LEASE_MS,
            "slices": slices,
            "lost": lost,
            "aborted": self._aborted(slices),
            "topic_ids": {
                one.partition.topic: one.partition.topic_id for one in chosen if one.partition.topic_id is not None
            },
            "selection": _selection_document(selection),
        }

    def _by_rows(
        self,
        selection: Selection,
        partitions: Sequence[ScanPartition],
        log: Log,
        piece: LogSlice,
        room: int,
        rows_max: int,
    ) -> Iterator[tuple[LogSlice, int]]:
        """The slice with its rows, if it has any; with `rows_max` cut after `room` of them, then after each so many."""
        rows = self._rows(selection, partitions, log, piece.start, piece.end)
        while rows_max and rows > room:
            cut = max(self._end_within(selection, partitions, log, piece.start, piece.end, room), piece.start + 1)
            yield replace(piece, end=cut), min(room, rows)
            piece, rows, room = replace(piece, start=cut), rows - room, rows_max
        if rows > 0:
            yield piece, rows

    def _check_count(self, lease: Lease, slices: int) -> None:
        if slices > SLICES_MAX:
            self.release(lease.id)
            raise Overloaded(
                f"the plan has more than {SLICES_MAX} slices",
                fix="set option taskBytes or maxRecordsPerPartition higher, or minPartitions lower",
            )

    @staticmethod
    def _slice_bytes(chosen: Sequence[Range], slices_min: int, slice_bytes: int) -> int:
        if not slices_min:
            return slice_bytes
        total = 0.0
        for one in chosen:
            for log, start, end in _stretches(one.partition, one.start, one.end):
                stat = log.engine.stat()
                stored = max(stat.end_offset - stat.start_offset, 1)
                total += stat.size_bytes * (end - start) / stored
        return min(slice_bytes, max(int(total / slices_min), 1))

    @staticmethod
    def _by_log(chosen: Sequence[Range], lost: list[list[Any]]) -> dict[tuple[Log, int, int], list[ScanPartition]]:
        """Stretches of logs to read, each once for all the partitions that lie in it; what is gone is told in `lost`."""
        found: dict[tuple[Log, int, int], list[ScanPartition]] = {}
        for one in chosen:
            if one.start < one.partition.start:
                lost.append([*one.partition.key, one.start, min(one.partition.start, one.asked_end)])
            if one.asked_end > one.partition.end:
                lost.append([*one.partition.key, max(one.start, one.partition.end), one.asked_end])
            for log, start, end in _stretches(one.partition, max(one.start, one.partition.start), one.end):
                found.setdefault((log, start, end), []).append(one.partition)
        return found

    def cut(
        self,
        namespace: Namespace,
        plan: str,
        log_id: int,
        start: int,
        end: int,
        slice_bytes: int,
        reader: Reader = EVERYTHING,
    ) -> dict[str, Any]:
        """A range of a plan as slices of files, which the plan's lease now holds; NotFound if that has ended."""
        lease = self._leases.get(plan)
        log = self._broker.logs.by_id.get(log_id)
        if lease is None or lease.namespace != namespace.name or log is None or not namespace.has_log(log):
            raise NotFound(f"scan plan {plan} has ended", fix="read through the broker, or make a new plan")
        start, end = max(start, log.start_offset), min(end, log.stable)
        pieces = self._cut(lease, log, start, end, slice_bytes, files=reader.whole)[:SLICES_FINE_MAX]
        path = log.engine.stat().path
        far = self._far if reader.whole else lambda log, piece: {}
        cut = [_described(log, piece, path) | far(log, piece) for piece in pieces]
        return {"slices": cut}

    def _far(self, log: Log, piece: LogSlice) -> dict[str, Any]:
        """Where in an object store the slice lies, if it lies there and in one object. Credentials are the reader's own; an
        object that goes meanwhile stays for the grace time, and is read through the broker if it does not. `far`: where the
        part's file lay, by which its search index is found."""
        engine, tier = log.engine, self._broker.logs.tier
        if piece.part is not None or tier is None or not isinstance(engine, RemoteReads):
            return {}
        found = engine.remote_at(piece.start, piece.end)
        if found is None:
            return {}
        if is_rows(found.object.key):
            return {"far": str(found.path)}
        place = {"key": found.object.key, "at": found.position, "size": found.size}
        index = {"index_at": found.index_position, "index_size": found.index_size}
        return {"object": {"store": asdict(tier.settings.store), **place, **index}, "far": str(found.path)}

    def _cut(
        self, lease: Lease, log: Log, start: int, end: int, slice_bytes: int, files: bool, range_bytes: int = 0
    ) -> list[LogSlice]:
        stat = log.engine.stat()
        engine = log.engine
        if range_bytes:
            return ranges_of(stat.parts, start, end, range_bytes=range_bytes)
        if not (files and stat.path is not None and isinstance(engine, FileParts)):
            return slices_of(stat.parts, start, end, slice_bytes=slice_bytes, cuts_of=None)
        held: dict[str, bool] = {}

        def cuts_of(part: Part, step: int) -> Sequence[tuple[int, int]]:
            if part.name not in held:
                held[part.name] = engine.hold(part)
                if held[part.name]:
                    lease.held.append((engine, part))
            return engine.cuts(part, step) if held[part.name] else ()

        return slices_of(stat.parts, start, end, slice_bytes=slice_bytes, cuts_of=cuts_of)

    def _aborted(self, slices: Sequence[Mapping[str, Any]]) -> dict[str, list[Aborted]]:
        ends: dict[int, tuple[int, int]] = {}
        for one in slices:
            start, end = ends.get(one["log"], (one["start"], one["end"]))
            ends[one["log"]] = min(start, one["start"]), max(end, one["end"])
        found = {
            str(log_id): [(one.producer_id, one.first_offset, one.last_offset) for one in aborted]
            for log_id, (start, end) in ends.items()
            if (aborted := self.producers.aborted_of(self._broker.logs.by_id[log_id], start, end))
        }
        return found

    # -- leases

    def _now_ms(self) -> int:
        return self._broker.clock.monotonic_ns() // 1_000_000

    def _open_lease(self, namespace: str) -> Lease:
        self.expire()
        if len(self._leases) >= PLANS_MAX:
            # A batch read never says that it has ended. Its tasks, if there still are any, read through the broker.
            self.release(min(self._leases.values(), key=lambda lease: lease.expires_ms).id)
        now = self._now_ms()
        lease = Lease(secrets.token_hex(8), now, now + LEASE_MS, namespace)
        self._leases[lease.id] = lease
        return lease

    def renew(self, plan: str, namespace: str = "/") -> int:
        """Another LEASE_MS from now, within LEASE_MS_MAX of the plan's making; returns what is left."""
        self.expire()
        lease = self._leases.get(plan)
        if lease is None or lease.namespace != namespace:
            raise NotFound(f"scan plan {plan} has ended", fix="read through the broker, or make a new plan")
        now = self._now_ms()
        lease.expires_ms = max(lease.expires_ms, min(now + LEASE_MS, lease.born_ms + LEASE_MS_MAX))
        return lease.expires_ms - now

    def end(self, plan: str, namespace: str) -> None:
        """Release it, if it is this namespace's."""
        lease = self._leases.get(plan)
        if lease is not None and lease.namespace == namespace:
            self.release(plan)

    def release(self, plan: str) -> None:
        lease = self._leases.pop(plan, None)
        for engine, part in lease.held if lease is not None else ():
            engine.release(part)

    def expire(self) -> int:
        """End the leases whose time is over; returns how many are left. Called before each plan, and by maintenance."""
        now = self._now_ms()
        for lease in [one for one in self._leases.values() if one.expires_ms <= now]:
            self.release(lease.id)
        return len(self._leases)

    # -- reading through the broker

    async def frames(
        self,
        namespace: Namespace,
        log_id: int,
        start: int,
        end: int,
        bytes_max: int,
        reader: Reader = EVERYTHING,
    ) -> tuple[bytes, int]:
        """Whole frames from `start` on, and where to go on; what aged out meanwhile is OffsetOutOfRange.

        Only of the namespace's own logs and what the reader may consume of them, and without the broker's state, which
        lies between the records of one of them.
        """
        log = self._broker.logs.by_id.get(log_id)
        if log is None or not namespace.has_log(log):
            raise NotFound(f"log {log_id} is gone: its topic was deleted", fix="mainstem topic ls")
        topic = namespace.topic_of_log.get(log)
        if topic is not None:
            reader.require(topic)
        end = min(end, log.stable)
        if start < log.start_offset:
            raise OffsetOutOfRange(start, log.start_offset, end)
        loop, size = asyncio.get_running_loop(), min(bytes_max, READ_BYTES_MAX if reader.whole else SHOWN_BYTES_MAX)
        threads = None if log.engine.is_local else pool()  # large and often cold: never on the loop
        piece = await loop.run_in_executor(threads, log.read_in_thread, start, size, end)
        if piece is None:
            return b"", end
        if reader.whole:
            data = await asyncio.to_thread(_without_state, piece.data, log)
        else:
            data = await asyncio.to_thread(reader.shown, piece.data, log, topic, namespace.topic_of)
        return data, min(piece.end_offset, end)


def _described(log: Log, piece: LogSlice, path: str | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "log": log.id,
        "start": piece.start,
        "end": piece.end,
        "bytes": piece.size_bytes,
        "last_stamp": log.last_stamp,
        "shared": log.index is not None,
    }
    if piece.part is not None and path is not None:
        told |= {
            "path": str(Path(path).absolute() / piece.part.name),
            "generation": piece.part.generation,
            "at": piece.at,
            "frame": piece.frame_offset,
        }
    return told


def _range_bytes(stretches: Mapping[tuple[Log, int, int], object], slice_bytes: int) -> int:
    """How much one entry of the plan should hold, if slices would be too many; else 0."""
    total = slices = 0
    for log, start, end in stretches:
        for part in log.engine.stat().parts:
            if part.end_offset > start and part.base_offset < end:
                total += part.size_bytes
                slices += max(part.size_bytes // slice_bytes, 1)
    return max(total // RANGES_MAX, slice_bytes) if slices > SLICES_FINE_MAX else 0


def _without_state(data: bytes | memoryview, log: Log) -> bytes:
    if log.index is None:
        return bytes(data)
    view = memoryview(data)
    heads = frame_heads(view, log.id)
    if all(head.kind != KIND_STATE for head in heads):
        return bytes(view)
    return b"".join(view[head.pos : head.pos + head.size] for head in heads if head.kind != KIND_STATE)


def _offset_of_stamp(partition: ScanPartition, stamp: int) -> int:
    """Of the partition's first record with that stamp or a later one."""
    for log, first, end in partition.spans:
        offset = max(_offset_in(log, stamp), first) if log.last_stamp >= stamp else end
        if offset < end:
            return max(offset, partition.start)
    return partition.end


def _offset_in(log: Log, stamp: int) -> int:
    """The log names the frame; record i of it has the frame's stamp + i."""
    offset = log.offset_of_stamp(stamp)
    piece = log.read_in_thread(offset, 1)
    if piece is None:
        return offset
    head = frame_heads(piece.data, log.id)[0]
    return head.base_offset + min(max(stamp - head.stamp, 0), head.count)


def _range(selection: Selection, asked: Sequence[Any]) -> Range:
    topic, number, start, end = asked
    partition = selection.partition(str(topic), int(number))
    if int(start) > int(end):
        raise InvalidArgument(f"{topic} {number}: the range {start} to {end} runs backwards")
    return Range(partition, int(start), min(int(end), partition.end), int(end))


def _stretches(partition: ScanPartition, start: int, end: int) -> list[tuple[Log, int, int]]:
    found = []
    for log, first, last in partition.spans:
        low, high = max(start, first), min(end, last)
        if low < high:
            found.append((log, low, high))
    return found


def _steps(log: Log, start: int, end: int) -> Iterator[tuple[int, int]]:
    if log.index is None:
        yield start, end
        return
    while start < end:
        last = min((start // COUNT_STEP + 1) * COUNT_STEP, end)
        yield start, last
        start = last


def _shares(counts: Sequence[int], rows: int) -> list[int]:
    """Proportional, rounded down, at least one where there is anything, so that no partition starves."""
    total = sum(counts)
    return [max(count * rows // total, 1) if count else 0 for count in counts]


def _selection_document(selection: Selection) -> dict[str, Any]:
    return {
        "filter": selection.filter.decode() if selection.filter is not None else None,
        "view": selection.reader.view.name.decode() if selection.reader.view is not None else None,
        "where": selection.condition.text if selection.condition is not None else "",
        "low_marks": {name.decode(): mark for name, mark in selection.low_marks.items()},
        "aliases": {name.decode(): alias for name, alias in selection.aliases.items()},
        "ids": {str(number): name.decode() for number, name in selection.ids.items()},
    }
