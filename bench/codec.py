"""What the codec does per second on this machine: `python bench/codec.py`. Best of three rounds, one core.

put         records of 100 bytes encoded by C callers, sealed every 1,000 (a busy loop turn)
skip        records that `decode_chosen` steps over, one of 1,000 being taken
decode      records made into objects by `decode_frames`
check_batch bytes of produced batches (1 MiB and 16 KiB) whose head and checksum are verified
columns     records of a shared log with 1,000 topics made into Arrow buffers of all twelve columns, by CPU time
"""

from __future__ import annotations

import gc
import sys
import time
from array import array
from collections.abc import Callable
from types import ModuleType

from bench.compiling import compiled
from mainstem.codec import _batch, _frames, _records
from mainstem.codec.columns import Column, ColumnDecoder, TopicRow

LOG_ID = 7
KEY, VALUE = b"factory/line-3/t", b"x" * 84
RECORDS, RECORDS_PER_BATCH = 1_000_000, 1_000
COLUMN_RECORDS, TOPICS, KEY_IS_TOPIC = 400_000, 1_000, 8
COLUMNS_TARGET = 5  # million records


def seconds(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def frames_of(loop: ModuleType) -> bytes:
    builder = _batch.BatchBuilder()
    parts = []
    for offset in range(0, RECORDS, RECORDS_PER_BATCH):
        loop.put_times(builder, KEY, VALUE, b"", 0, RECORDS_PER_BATCH)
        parts.append(builder.seal_frame(LOG_ID, offset, 1 + offset, 0, 1, 1, 0, 0))
    return b"".join(parts)


def shared_frames() -> bytes:
    parts: list[bytes] = []
    for base in range(0, COLUMN_RECORDS, RECORDS_PER_BATCH):
        builder = _batch.BatchBuilder()
        for number in range(base, base + RECORDS_PER_BATCH):
            builder.add(b"sensors/%d/temp" % (number * 7919 % TOPICS), VALUE, (), 1_700_000_000_000, KEY_IS_TOPIC)
        parts += map(bytes, _batch.make_frame(builder.seal_batch(base), LOG_ID, base, 1 + base, 0, 1, 0, 0))
    return b"".join(parts)


def columns_rate() -> float:
    """Rows a second of CPU time, the best of five."""
    data, wanted = shared_frames(), int(sum(column for column in Column if column < Column.FLAGS))

    def row(topic: bytes | int) -> TopicRow:
        assert isinstance(topic, bytes)
        return topic.replace(b"/", b"."), topic, topic.split(b"/"), 0, 0, 1 << 62

    best = float("inf")
    for _ in range(5):
        decoder = ColumnDecoder(wanted, row, lambda method, packed: packed, log_id=LOG_ID)
        decoder.feed(data)
        began, more = time.process_time(), True
        while more:
            more = decoder.decode(32_768, 4 << 20)
            decoder.take()
        best = min(best, time.process_time() - began)
    return COLUMN_RECORDS / best


def batch_of(size: int) -> bytes:
    builder = _batch.BatchBuilder()
    while builder.size < size:
        builder.add(KEY, VALUE, (), 1_700_000_000_000)
    sealed: bytes = builder.seal_batch(0)
    return sealed


def main() -> int:
    loop = compiled("_put_loop")
    gc.freeze()  # the build tools just imported are not what is measured

    def put() -> None:
        builder = _batch.BatchBuilder()
        for offset in range(0, RECORDS, RECORDS_PER_BATCH):
            loop.put_times(builder, KEY, VALUE, b"", 0, RECORDS_PER_BATCH)
            builder.seal_frame(LOG_ID, offset, 1 + offset, 0, 1, 1, 0, 0)

    print(f"{'put and seal':14} {RECORDS / seconds(put) / 1e6:8.1f} M records/s")
    frames = frames_of(loop)
    chosen = array("q", range(500, RECORDS, 1000))
    limit = 1 << 26

    def skip() -> None:
        assert len(_records.decode_chosen(frames, LOG_ID, chosen, inflated_bytes_max=limit)) == len(chosen)

    def decode() -> None:
        for start in range(0, 100_000, 10_000):  # about what one read of the log hands over
            end = start + 10_000
            _records.decode_frames(frames, LOG_ID, start_offset=start, end_offset=end, inflated_bytes_max=limit)

    print(f"{'skip':14} {RECORDS / seconds(skip) / 1e6:8.1f} M records/s")
    print(f"{'decode':14} {100_000 / seconds(decode) / 1e6:8.1f} M records/s")
    for size in (16 << 10, 1 << 20):
        batch, times = batch_of(size), (64 << 20) // size

        def check(batch: bytes = batch, times: int = times) -> None:
            for _ in range(times):
                _frames.check_batch(batch, bytes_max=limit)

        rate = len(batch) * times / seconds(check) / 1e9
        print(f"{'check_batch':14} {rate:8.1f} GB/s ({size >> 10} KiB)")
    rate = columns_rate() / 1e6
    verdict = "reached" if rate >= COLUMNS_TARGET else "MISSED"
    print(f"{'columns':14} {rate:8.1f} M records/s  target {COLUMNS_TARGET}: {verdict}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
