"""A scan as the driver sees it: where its partitions stand, how far the next batch goes, and the plan for its tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from mainstem.model.errors import InvalidArgument, NotFound
from mainstem.model.topic import kafka_name
from mainstem_pipeline.offsets import IDS, Offsets, copied, is_another, pairs
from mainstem_pipeline.options import EARLIEST, LATEST, Position, ReadOptions
from mainstem_pipeline.slices import ScanTask, data_loss

STEM = "#"  # a shared log seen through a filter
ROWS_ALL = 1 << 60
SLICE_BYTES = 32 << 20
TASKS_ENOUGH = (
    16  # more of them, smaller than SLICE_BYTES, would not be faster; on many cores set minPartitions or taskBytes
)
TASK_BYTES_MAX = 128 << 20  # as Spark's own for files
PLANS_KEPT = 2  # a batch may be planned again while the one before it still runs
BYTES_PER_ROW_GUESS = 200
LOST_SHOWN = 3


def _kafka_spelled(given: Mapping[str, Mapping[str, int]], known: Offsets) -> Mapping[str, Mapping[str, int]]:
    """By the partitions' names: a topic may be given as MQTT spells it."""
    return {
        topic if topic in known or "/" not in topic else kafka_name(topic.encode()): parts
        for topic, parts in given.items()
    }


def _offsets(partitions: list[dict[str, Any]], offset_of: Callable[[dict[str, Any]], int]) -> Offsets:
    found: Offsets = {}
    for one in partitions:
        found.setdefault(one["topic"], {})[str(one["partition"])] = offset_of(one)
        if one["topic_id"] is not None:
            found.setdefault(IDS, {})[one["topic"]] = one["topic_id"]
    return found


class Scan:
    def __init__(self, options: ReadOptions, *, ranged: bool = False) -> None:
        """`ranged`: its tasks are read by `read_task`, which has the ranges of a large plan cut."""
        self._options, self._ranged = options, ranged
        self._client = options.connection.client()
        self._plans: list[str] = []
        self._bytes_per_row = float(BYTES_PER_ROW_GUESS)

    def close(self) -> None:
        self._client.close()

    # -- positions

    def _partitions(self, **at: int) -> list[dict[str, Any]]:
        partitions: list[dict[str, Any]] = self._client.post(
            "/v1/scan/lanes", {"select": dict(self._options.select), "at": at}
        )["lanes"]
        return partitions

    def _all(self, field: str, **at: int) -> Offsets:
        return _offsets(self._partitions(**at), lambda one: one[field])

    def latest_offsets(self) -> Offsets:
        return self._all("end")

    def aged_out(self, start: Offsets, end: Offsets) -> bool:
        """Whether the log now begins behind what is to be read: then a batch must tell the loss, although it has no rows."""
        if start == end:
            return False
        first = self._all("start")
        return any(offset < first.get(t, {}).get(p, offset) for t, p, offset in pairs(start))

    def initial_offsets_of(self, word: str) -> Offsets:
        return self._at(Position(word), starting=True)

    def initial_offsets(self) -> Offsets:
        return self._at(self._options.start, starting=True)

    def batch_range(self) -> tuple[Offsets, Offsets]:
        end = self._at(self._options.end, starting=False)
        start = self._at(self._options.start, starting=True)
        if self._options.clip.time_ms > 0:
            self._pass_older(start)
        for topic, partition, offset in pairs(start):
            stop = end.get(topic, {}).get(partition)
            if stop is not None and offset > stop:
                end[topic][partition] = offset  # nothing of it: it starts behind its end
        return start, end

    def _pass_older(self, start: Offsets) -> None:
        """Begin no earlier than the first record of the time that a pushed-down filter asks for."""
        for one in self._partitions(time_ms=self._options.clip.time_ms):
            topic, partition = one["topic"], str(one["partition"])
            known = start.get(topic, {}).get(partition)
            if known is not None:
                start[topic][partition] = max(known, one["end"] if one["at"] is None else one["at"])

    def _at(self, position: Position, *, starting: bool) -> Offsets:
        if position.time_ms is not None:
            return self._at_time(position.time_ms, starting)
        if position.times_ms:
            return self._at_times(position.times_ms, starting)
        if position.offsets:
            return self._at_given(position.offsets, starting)
        if position.word.startswith("stamp:"):
            return self._all("at", stamp=int(position.word[6:]) * 1000)
        if position.word.startswith("table:"):
            from mainstem_pipeline.lake.tables import next_offsets

            known = self._all("start")  # a topic may have gone since it was archived
            ends = next_offsets(self._options, position.word[6:])
            latest = self._all("end")  # after the table: what it holds was in the log
            given = {
                topic: {p: o for p, o in parts.items() if p in known.get(topic, {})} for topic, parts in ends.items()
            }
            for topic, partition in self._made_anew(given, latest):
                del given[topic][partition]
            return self._at_given(given, starting, rest=EARLIEST)
        return self._all("start" if position.word == "earliest" else "end")

    def _at_time(self, time_ms: int, starting: bool) -> Offsets:
        return _offsets(self._partitions(time_ms=time_ms), lambda one: self._offset_at(one, time_ms, starting))

    def _offset_at(self, one: Mapping[str, Any], time_ms: int, starting: bool) -> int:
        if one["at"] is None and starting and not self._options.latest_if_no_time:
            raise InvalidArgument(
                f"topic {one['topic']} partition {one['partition']} has no record at or after {time_ms}",
                fix='.option("startingOffsetsByTimestampStrategy", "latest")',
            )
        return int(one["end"] if one["at"] is None else one["at"])

    def _at_times(self, times: Mapping[str, Mapping[str, int]], starting: bool) -> Offsets:
        found = self._all("start" if starting else "end")
        times = _kafka_spelled(times, found)
        partitions: dict[int, list[dict[str, Any]]] = {}
        for topic, partition, time_ms in pairs(times):
            self._check_known(found, topic, partition)
            if time_ms not in partitions:
                partitions[time_ms] = self._partitions(time_ms=time_ms)
            for one in partitions[time_ms]:
                if (one["topic"], str(one["partition"])) == (topic, partition):
                    found[topic][partition] = self._offset_at(one, time_ms, starting)
        return found

    def _at_given(self, given: Mapping[str, Mapping[str, int]], starting: bool, *, rest: int | None = None) -> Offsets:
        """As Kafka's source: every partition must be named, -2 and -1 are its earliest and latest."""
        earliest, latest = self._all("start"), self._all("end")
        given = _kafka_spelled(given, earliest)
        for topic, partition, _ in pairs(given):
            self._check_known(earliest, topic, partition)
        found: Offsets = {IDS: earliest[IDS]} if IDS in earliest else {}
        for topic, partition, first in pairs(earliest):
            offset = given.get(topic, {}).get(partition, rest)
            if offset is None:
                side = "startingOffsets" if starting else "endingOffsets"
                raise InvalidArgument(
                    f"{side} must name every partition; {topic} {partition} is missing (-2, -1 will do)"
                )
            if offset in (EARLIEST, LATEST):
                offset = first if offset == EARLIEST else latest[topic][partition]
            found.setdefault(topic, {})[partition] = offset
        return found

    @staticmethod
    def _check_known(known: Offsets, topic: str, partition: str) -> None:
        if partition not in known.get(topic, {}):
            names = ", ".join(f"{t} {p}" for t, p, _ in list(pairs(known))[:10])
            raise NotFound(f"topic {topic!r} partition {partition} is not part of this read ({names})")

    # -- how far the next batch goes

    def advanced(self, start: Offsets, latest: Offsets) -> Offsets:
        """The ends for a batch that starts at `start`: new partitions from their beginning, no partition backwards.

        But one that was made anew, if its loss may be passed over: it goes to its beginning, to be read from there.
        """
        end = copied(start)
        if IDS in latest:
            end.setdefault(IDS, {}).update(latest[IDS])
        anew = self._made_anew(start, latest)
        firsts = self._all("start") if anew else {}
        for topic, partition, offset in pairs(latest):
            before = start.get(topic, {}).get(partition)
            if (topic, partition) in anew:
                end[topic][partition] = firsts.get(topic, {}).get(partition, 0)
            elif before is None or offset > before:
                end.setdefault(topic, {})[partition] = offset
        return end

    def _made_anew(self, known: Offsets, latest: Offsets) -> set[tuple[str, str]]:
        """Partitions whose topic was deleted and recreated: another id, or an end before where it is known to have been.

        DataLoss, if that is to be told: what it held is gone, and its new records have the old ones' offsets.
        """
        anew = [
            (topic, partition, offset)
            for topic, partition, offset in pairs(known)
            if partition in latest.get(topic, {})
            and (offset > latest[topic][partition] or is_another(topic, known, latest))
        ]
        if anew and self._options.fail_on_data_loss:
            topic, partition, offset = anew[0]
            raise data_loss(
                f"{topic} {partition} was read up to offset {offset} and ends at {latest[topic][partition]} now: "
                f"it was deleted and recreated"
            )
        return {(topic, partition) for topic, partition, _ in anew}

    def limited(
        self, start: Offsets, end: Offsets, *, rows_max: int | None = None, bytes_max: int | None = None
    ) -> tuple[Offsets, int]:
        """Ends so that at most about so many rows are meant, shared out by what each partition has; and how many there are.

        Rows are counted where the log knows its topics, offsets elsewhere, as Kafka counts.
        """
        rows = rows_max if rows_max is not None else ROWS_ALL
        if bytes_max is not None:
            rows = min(rows, max(int(bytes_max / self._bytes_per_row), 1))
        ranges = self._ranges(start, end)
        if not ranges:
            return end, 0
        told = self._client.post(
            "/v1/scan/limit", {"select": dict(self._options.select), "ranges": ranges, "rows": rows}
        )
        limited = copied(end)
        for topic, partition, offset in told["ends"]:
            limited[topic][str(partition)] = offset
        return limited, told["rows"]

    def _ranges(self, start: Offsets, end: Offsets) -> list[list[Any]]:
        """[topic, partition, start, end] of every partition with something in it; one new since starts at its beginning."""
        unknown = [(t, p) for t, p, _ in pairs(end) if p not in start.get(t, {})]
        firsts = self._all("start") if unknown else {}
        ranges = []
        for topic, partition, stop in pairs(end):
            first = start.get(topic, {}).get(partition)
            if first is None:
                first = firsts.get(topic, {}).get(partition, stop)
            if first < stop:
                ranges.append([topic, int(partition), first, stop])
        return [one for one in map(self._clipped, ranges) if one is not None]

    def _clipped(self, one: list[Any]) -> list[Any] | None:
        """What pushed-down filters leave of a range. A stem's rows are of many topics, all of partition 0."""
        clip, (topic, partition, first, stop) = self._options.clip, one
        if topic != STEM and clip.topics is not None and topic not in clip.topics:
            return None
        if clip.partitions is not None and (0 if topic == STEM else partition) not in clip.partitions:
            return None
        first, stop = max(first, clip.first), min(stop, clip.end)
        return [topic, partition, first, stop] if first < stop else None

    # -- plans

    def plan(self, start: Offsets, end: Offsets) -> list[ScanTask]:
        return self._planned(self._ranges(start, end), end)

    def _planned(self, ranges: list[list[Any]], end: Offsets) -> list[ScanTask]:
        if not ranges:
            return []
        options = self._options
        plan = self._client.post(
            "/v1/scan/plan",
            {
                "select": dict(options.select),
                "ranges": ranges,
                "slices_min": options.slices_min,
                "slice_bytes": options.task_bytes or SLICE_BYTES,
                "rows_max": options.slice_rows_max,
                "files": options.direct,
                "ranged": self._ranged,
            },
        )
        self._remember(plan["plan"])
        anew = {topic for topic, *_ in ranges if is_another(topic, end, {IDS: plan["topic_ids"]})}
        if anew and options.fail_on_data_loss:
            raise data_loss(f"{min(anew)} was deleted and recreated since this batch began")
        if anew:  # the next batch begins with them
            return self._planned([one for one in ranges if one[0] not in anew], end)
        if plan["lost"] and options.fail_on_data_loss:
            raise data_loss(_lost_words(plan["lost"]))
        return self._tasks(plan)

    def _tasks(self, plan: Mapping[str, Any]) -> list[ScanTask]:
        options, planned_s = self._options, time.time()
        rows = sum(one["rows"] for one in plan["slices"])
        if rows:
            self._bytes_per_row = max(sum(one["bytes"] for one in plan["slices"]) / rows, 1.0)
        return [
            ScanTask(
                options.connection,
                plan["plan"],
                slices,
                plan["selection"],
                plan["aborted"],
                options.direct,
                options.fail_on_data_loss,
                options.batch_rows,
                planned_s,
                tuple(options.clip.keys) if options.clip.keys is not None else None,
            )
            for slices in grouped(plan["slices"], task_bytes(plan, options), options.slices_min, options.slice_rows_max)
        ]

    def _remember(self, plan: str) -> None:
        """Keep the leases of the last two plans; the one before is done with."""
        self._plans.append(plan)
        while len(self._plans) > PLANS_KEPT:
            self._client.delete(f"/v1/scan/plans/{self._plans.pop(0)}")

    def committed(self, end: Offsets) -> None:
        """A batch is done: the leases of older plans can go."""
        while len(self._plans) > 1:
            self._client.delete(f"/v1/scan/plans/{self._plans.pop(0)}")


def task_bytes(plan: Mapping[str, Any], options: ReadOptions) -> int:
    """Much to read makes larger tasks: each has a price of its own, and with some sinks a file."""
    total = sum(one["bytes"] for one in plan["slices"])
    return options.task_bytes or min(max(total // TASKS_ENOUGH, SLICE_BYTES), TASK_BYTES_MAX)


def grouped(
    slices: list[dict[str, Any]], task_bytes: int, tasks_min: int, rows_max: int = 0
) -> list[list[dict[str, Any]]]:
    """Slices to tasks: small neighbours together up to `task_bytes` and `rows_max`, but no fewer than `tasks_min` tasks."""
    total = sum(one["bytes"] for one in slices)
    limit = min(task_bytes, max(total // tasks_min, 1)) if tasks_min else task_bytes
    tasks: list[list[dict[str, Any]]] = []
    size = rows = 0
    for one in slices:
        fits = size + one["bytes"] <= limit and (not rows_max or rows + one["rows"] <= rows_max)
        if not tasks or not fits:
            tasks.append([])
            size = rows = 0
        tasks[-1].append(one)
        size, rows = size + one["bytes"], rows + one["rows"]
    return tasks


def _lost_words(lost: list[list[Any]]) -> str:
    shown = "; ".join(
        f"{topic} {partition}: offsets {first} to {last}" for topic, partition, first, last in lost[:LOST_SHOWN]
    )
    more = f" and {len(lost) - LOST_SHOWN} more" if len(lost) > LOST_SHOWN else ""
    return f"retention or deletion removed what this read asks for ({shown}{more})"
