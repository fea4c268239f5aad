"""What the segment engine does per second, beside plain files in the same run: `python bench/storage.py [--gigabytes N]`.

append os    ready batches of 1,000 records of 100 bytes: framed (offset, epoch, head) and appended, never synced
append sync  the same, a sync after each batch, and after each ten
raw          `pwrite` and `fdatasync` of the same bytes into one plain file
read         all of it from page cache in pieces of 1 MiB, beside `pread` of the same files
open         a cleanly closed directory of N gigabytes (default 2)

Ours and raw alternate, three rounds each; the median is kept. Files go to the system's temporary folder.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mainstem.codec.batch import BatchBuilder, make_frame
from mainstem.storage.engine import Engine, FrameRef
from mainstem.storage.engines import open_engine

LOG_ID = 7
RECORDS, RECORD_BYTES = 1_000, 100
ROUNDS = 3
OS_BATCHES, SYNC_BATCHES, READ_BYTES = 5_000, 400, 1 << 20
TARGET_APPEND, TARGET_SYNC, TARGET_READ, TARGET_OPEN_S = 10_000_000, 0.6, 1.5e9, 1.0


def ready_batch() -> bytes:
    builder = BatchBuilder()
    for _ in range(RECORDS):
        builder.add(b"sensor/1", os.urandom(RECORD_BYTES - 8), (), 1_700_000_000_000)
    sealed: bytes = builder.seal_batch(0)
    return sealed


@contextmanager
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="mainstem-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def append(engine: Engine, batch: bytes, count: int, *, sync_every: int = 0) -> None:
    offset = engine.stat().end_offset
    for number in range(1, count + 1):
        head, body = make_frame(batch, LOG_ID, offset, 1 + offset, engine.durable_offset, 2, 0, 0)
        engine.append([head, body], [FrameRef(offset, RECORDS, 1 + offset, len(head) + len(body))])
        offset += RECORDS
        if sync_every and number % sync_every == 0:
            engine.sync()


def raw(path: Path, batch: bytes, count: int, *, sync_every: int = 0) -> None:
    fd = os.open(path / "raw", os.O_RDWR | os.O_CREAT)
    data = bytes(48) + batch
    for number in range(count):
        os.pwrite(fd, data, number * len(data))
        if sync_every and (number + 1) % sync_every == 0:
            os.fdatasync(fd)
    os.close(fd)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(batch: bytes, count: int, sync_every: int) -> tuple[float, float]:
    """Records per second, ours and raw."""
    ours, plain = [], []
    for _ in range(ROUNDS):
        with folder() as path:
            engine = open_engine("segment", path, LOG_ID)
            ours.append(seconds(lambda: append(engine, batch, count, sync_every=sync_every)))  # noqa: B023
            engine.close()
        with folder() as path:
            plain.append(seconds(lambda: raw(path, batch, count, sync_every=sync_every)))
    return count * RECORDS / statistics.median(ours), count * RECORDS / statistics.median(plain)


def read_all(engine: Engine) -> int:
    offset = total = 0
    while (piece := engine.read(offset, READ_BYTES)) is not None:
        total += piece.data.nbytes
        offset = piece.end_offset
    return total


def read_raw(path: Path) -> int:
    total = 0
    for file in sorted(path.glob("*.log")):
        fd = os.open(file, os.O_RDONLY)
        position = 0
        while data := os.pread(fd, READ_BYTES, position):
            position += len(data)
        total += position
        os.close(fd)
    return total


def verdict(reached: bool) -> str:
    return "" if reached else "   below target"


def bench_append(batch: bytes) -> None:
    ours, plain = compare(batch, OS_BATCHES, 0)
    note = verdict(ours >= TARGET_APPEND)
    print(f"append os            {ours / 1e6:8.2f} M records/s   raw {plain / 1e6:8.2f}   {ours / plain:4.0%}{note}")
    for every in (1, 10):
        ours, plain = compare(batch, SYNC_BATCHES * every, every)
        note = verdict(ours / plain >= TARGET_SYNC)
        label = f"append sync, each {every:2d}"
        print(f"{label} {ours / 1e6:8.2f} M records/s   raw {plain / 1e6:8.2f}   {ours / plain:4.0%}{note}")


def bench_read(batch: bytes) -> None:
    with folder() as path:
        engine = open_engine("segment", path, LOG_ID)
        append(engine, batch, OS_BATCHES)
        size = read_all(engine)
        ours = size / statistics.median(seconds(lambda: read_all(engine)) for _ in range(ROUNDS))
        plain = size / statistics.median(seconds(lambda: read_raw(path)) for _ in range(ROUNDS))
        engine.close()
    print(f"read                 {ours / 1e9:8.2f} GB/s          raw {plain / 1e9:8.2f}{verdict(ours >= TARGET_READ)}")


def bench_open(batch: bytes, gigabytes: float) -> None:
    with folder() as path:
        engine = open_engine("segment", path, LOG_ID)
        append(engine, batch, int(gigabytes * 1e9) // len(batch))
        size = engine.stat().size_bytes
        engine.close()
        opening = [seconds(lambda: open_engine("segment", path, LOG_ID)) for _ in range(ROUNDS)]
    took = statistics.median(opening)
    print(f"open {size / 1e9:5.1f} GB, clean {took * 1e3:8.1f} ms{verdict(took <= TARGET_OPEN_S)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    options = parser.parse_args()
    batch = ready_batch()
    print(f"batches of {RECORDS} records, {len(batch)} bytes; {os.cpu_count()} cores; files in {tempfile.gettempdir()}")
    bench_append(batch)
    bench_read(batch)
    bench_open(batch, options.gigabytes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
