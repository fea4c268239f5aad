"""The log beside plain files in the same run: append, gather, sync, read, search, open.

    python -m bench.log [--records N] [--topics N] [--open-gigabytes N]

append os     ready batches of 1,000 records of 100 bytes into a segment log, beside `pwrite` of the same bytes
gather os     single records put into the tick's open batch by a compiled loop, 1,000 a tick, beside the same `pwrite`
append sync   one batch and one sync at a time, beside `pwrite` + `fdatasync`; ours as a share of it
read          a dedicated log from page cache in pieces of 1 MiB, beside `pread` of the same files
search        one topic, and a filter that means 1 %, of a shared log of N records and N topics (10 M and 1 M)
memory        what a topic costs: dictionary and index
open          a cleanly closed directory of N gigabytes; left out unless asked for, since making it takes a while

Ours and the baseline take turns at being first; the best of five rounds is kept of each, since whatever else runs only slows
them down. One core does the work; files go to the temporary folder.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from bench.compiling import compiled
from bench.machine import ceiling, figure
from mainstem.broker.topics.reading import Chosen
from mainstem.codec.batch import BatchBuilder, read_batch_head
from mainstem.log.gather import TopicRef
from mainstem.log.log import Log
from mainstem.log.logs import Logs
from mainstem.log.stamps import Stamps
from mainstem.model.clock import SystemClock
from mainstem.model.origin import Origin

BATCH_RECORDS, RECORD_BYTES = 1_000, 100
ROUNDS = 5
APPEND_BATCHES, SYNC_BATCHES, GATHER_TICKS = 3_000, 150, 2_000
READ_BYTES = 1 << 20
POLICY = {"segment_bytes": 64 << 20, "durability": "os"}


@contextmanager
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="mainstem-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def logs_at(path: Path) -> Logs:
    stamps = Stamps(SystemClock(), reserved_end=0, reserve=lambda end, clean: None)
    return Logs(path / "logs", stamps, lambda log: None)


def new_log(path: Path, *, shared: bool = False) -> Log:
    return logs_at(path).open(1, engine="segment", shared=shared, policy=POLICY)


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of the processor."""
    cpu = time.process_time()
    return seconds(work), time.process_time() - cpu


def alternating(ours: Callable[[Path], object], plain: Callable[[Path], object]) -> tuple[float, float, float]:
    """The best seconds of ours, of the plain file and of ours by the processor's time; each round in a fresh folder."""
    times: dict[Callable[[Path], object], list[tuple[float, float]]] = {ours: [], plain: []}
    for number in range(ROUNDS):
        for work in (ours, plain) if number % 2 else (plain, ours):
            with folder() as path:
                times[work].append(timed(lambda work=work, path=path: work(path)))  # type: ignore[misc]
    return min(times[ours])[0], min(times[plain])[0], min(cpu for _, cpu in times[ours])


def ready_batch() -> bytes:
    builder = BatchBuilder()
    for _ in range(BATCH_RECORDS):
        builder.add(b"sensor/1", os.urandom(RECORD_BYTES - 8), (), 1_700_000_000_000)
    return builder.seal_batch(0)


def write_plain(path: Path, data: bytes, times: int, *, sync: bool = False) -> None:
    fd = os.open(path / "plain", os.O_RDWR | os.O_CREAT)
    for number in range(times):
        os.pwrite(fd, data, number * len(data))
        if sync:
            os.fdatasync(fd)
    os.close(fd)


# -- writing -----------------------------------------------------------------------------------------------------------


def bench_append() -> None:
    batch, head = ready_batch(), read_batch_head(ready_batch())
    data = bytes(48) + batch

    def ours(path: Path, times: int = APPEND_BATCHES, sync: bool = False) -> None:
        log = new_log(path)
        route = TopicRef(b"t", 1, log)
        for _ in range(times):
            log.append_batch(batch, head, route, origin=Origin.KAFKA, topic_id=1)
            log.write()
            if sync:
                log.sync()
            log.mark_stable(log.written)

    took, plain, cpu = alternating(ours, lambda path: write_plain(path, data, APPEND_BATCHES))
    records = APPEND_BATCHES * BATCH_RECORDS / 1e6
    figure(
        "append os, batches of 1,000",
        records / took,
        "M records/s",
        baseline=records / plain,
        cpu=records / cpu,
        target=10,
    )
    took, plain, _ = alternating(
        lambda path: ours(path, SYNC_BATCHES, True), lambda path: write_plain(path, data, SYNC_BATCHES, sync=True)
    )
    figure("append sync, a batch at a time", SYNC_BATCHES / took, "syncs/s", baseline=SYNC_BATCHES / plain)
    figure("append sync, share of the plain file's rate", plain / took * 100, "%", target=60)


def bench_gather(loop: ModuleType) -> None:
    topic = b"factory/line-3/t"
    value = os.urandom(RECORD_BYTES - len(topic))
    plain_data = bytes((RECORD_BYTES + 10) * BATCH_RECORDS)

    def ours(path: Path, shared: bool) -> None:
        log = new_log(path, shared=shared)
        number = log.index.topics.number(topic) if log.index is not None else 1
        routes = [TopicRef(topic, number, log)] * BATCH_RECORDS
        for _ in range(GATHER_TICKS):
            loop.publish_each(routes, value, Origin.MQTT, 1_700_000_000_000)
            log.write()
            log.mark_stable(log.written)

    records = GATHER_TICKS * BATCH_RECORDS / 1e6
    for name, shared in (("dedicated", False), ("shared, with its index", True)):
        took, plain, cpu = alternating(
            lambda path, shared=shared: ours(path, shared),  # type: ignore[misc]
            lambda path: write_plain(path, plain_data, GATHER_TICKS),
        )
        figure(
            f"gather os, single records, {name}",
            records / took,
            "M records/s",
            baseline=records / plain,
            cpu=records / cpu,
            target=4,
        )


# -- reading -----------------------------------------------------------------------------------------------------------


def bench_read() -> None:
    batch, head = ready_batch(), read_batch_head(ready_batch())
    with folder() as path:
        log = new_log(path)
        route = TopicRef(b"t", 1, log)
        for _ in range(6_000):
            log.append_batch(batch, head, route, origin=Origin.KAFKA, topic_id=1)
            log.write()
        files = sorted((path / "logs" / "1").glob("*.log"))
        ours, plain = [], []
        for _ in range(ROUNDS):
            ours.append(timed(lambda: _read_all(log)))
            plain.append(seconds(lambda: _read_files(files)))
        size = log.engine.stat().size_bytes / 1e9
        fast, cpu = size / min(ours)[0], size / min(cpu for _, cpu in ours)
        figure("read a dedicated log, page cache", fast, "GB/s", baseline=size / min(plain), cpu=cpu, target=1.5)


def _read_all(log: Log) -> int:
    offset = size = 0
    while (piece := log.read_now(offset, READ_BYTES)) is not None:
        size += len(piece.data)
        offset = piece.end_offset
    return size


def _read_files(files: list[Path]) -> int:
    size = 0
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        at = 0
        while chunk := os.pread(fd, READ_BYTES, at):
            at += len(chunk)
        os.close(fd)
        size += at
    return size


def bench_search(loop: ModuleType, records: int, topics: int) -> None:
    with folder() as path:
        log = new_log(path, shared=True)
        assert log.index is not None
        assert log.bitmaps is not None
        names = [b"fleet/%06d/%s" % (n, b"rare" if n % 100 == 0 else b"temp") for n in range(topics)]
        routes = [TopicRef(name, log.index.topics.number(name), log) for name in names]
        random.Random(1).shuffle(routes)
        value = bytes(RECORD_BYTES - 20)
        began = time.perf_counter()
        for _ in range(max(1, records // topics)):
            for at in range(0, topics, BATCH_RECORDS):
                loop.publish_each(routes[at : at + BATCH_RECORDS], value, Origin.MQTT, 1_700_000_000_000)
                log.write()
                log.mark_stable(log.written)
                if len(log.index.waiting) > 1:
                    log.index.checkpoint()
        print(f"  wrote {records:,} records of {topics:,} topics in {time.perf_counter() - began:.1f} s")
        _search_one(log, records, topics)
        _search_filter(log, records)
        size = (log.index.topics.memory_bytes() + log.index.memory_bytes()) / topics
        ceiling("memory of a topic: dictionary and index", size, "bytes", target=300)


def _search_one(log: Log, records: int, topics: int) -> None:
    assert log.index is not None
    rng, times = random.Random(2), []
    for _ in range(50):
        name = b"fleet/%06d/" % (n := rng.randrange(topics)) + (b"rare" if n % 100 == 0 else b"temp")
        chosen = Chosen(log, {}, number=log.index.topics.find(name))
        begin = time.perf_counter()
        found: list[object] = []
        offset = 0
        while offset < log.stable:
            some, offset = chosen.records(offset, log.stable, 1 << 20)
            found += some
        times.append(time.perf_counter() - begin)
        assert len(found) == records // topics
    ceiling(f"one topic's {records // topics} records of {records:,}", statistics.median(times) * 1e3, "ms", target=10)


def _search_filter(log: Log, records: int) -> None:
    assert log.index is not None
    assert log.bitmaps is not None
    began = time.perf_counter()
    bitmap = log.bitmaps.of(b"fleet/+/rare")
    looked = time.perf_counter() - began
    print(f"  the filter's topics were looked up in {looked * 1e3:.0f} ms, kept from then on")
    began = time.perf_counter()
    offsets, _ = log.index.find_many(bitmap, 0, log.stable)
    searched = records / (time.perf_counter() - began) / 1e6
    figure(f"a filter that means {len(offsets) / records:.1%}: search", searched, "M scanned/s", target=10)
    chosen = Chosen(log, {}, bitmap=bitmap)

    def read() -> None:
        offset = found = 0
        while offset < log.stable:
            some, offset = chosen.records(offset, log.stable, 1 << 20)
            found += len(some)
        assert found == len(offsets)

    took, cpu = timed(read)
    rate, by_cpu = records / took / 1e6, records / cpu / 1e6
    figure("the same, with every record read and decoded", rate, "M scanned/s", cpu=by_cpu, target=10)


def bench_open(gigabytes: int) -> None:
    if not gigabytes:
        print("open: left out; ask for it with --open-gigabytes 10")
        return
    batch, head = ready_batch(), read_batch_head(ready_batch())
    with folder() as path:
        logs = logs_at(path)
        log = logs.open(1, engine="segment", shared=False, policy=POLICY)
        route = TopicRef(b"t", 1, log)
        for _ in range(gigabytes * (1 << 30) // len(batch)):
            log.append_batch(batch, head, route, origin=Origin.KAFKA, topic_id=1)
            log.write()
            log.mark_stable(log.written)
        logs.close()
        took = seconds(lambda: new_log(path))
        ceiling(f"open {gigabytes} GB, closed cleanly", took, "s", target=1)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--topics", type=int, default=1_000_000)
    parser.add_argument("--open-gigabytes", type=int, default=0)
    options = parser.parse_args()
    loop = compiled("_gather_loop")
    bench_append()
    bench_gather(loop)
    bench_read()
    bench_search(loop, options.records, options.topics)
    bench_open(options.open_gigabytes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
