"""A task's memory is bounded by its batches, whatever the size of what it reads."""

from __future__ import annotations

import psutil
import pyarrow as pa
import pytest

from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.options import read_options
from mainstem_pipeline.scans import Scan
from mainstem_pipeline.slices import read_task
from tests.pipeline.conftest import produce

VALUE_BYTES, RECORDS = 64 << 10, 6_000
GROWTH_BYTES_MAX = 128 << 20  # a batch of 16 MiB that is read, one that is used, and buffers kept for the next


@pytest.mark.parametrize("direct", ["true", "false"])
def test_a_large_task_needs_no_more_memory_than_its_batches(broker: BrokerProcess, topic: str, direct: str) -> None:
    produce(broker, topic, (bytes(VALUE_BYTES) for _ in range(RECORDS)), **{"queue.buffering.max.kbytes": 65_536})
    given = {"url": broker.http_url, "subscribe": topic, "taskBytes": str(1 << 40), "direct": direct}
    scan = Scan(read_options(given, streaming=False))
    tasks = scan.plan(*scan.batch_range())
    scan.close()
    assert len(tasks) == 1
    process, rows = psutil.Process(), 0
    before = highest = process.memory_info().rss
    for batch in read_task(tasks[0], pa.schema([("offset", pa.int64()), ("value", pa.binary())])):
        rows += batch.num_rows
        highest = max(highest, process.memory_info().rss)
    assert rows == RECORDS
    assert highest - before < GROWTH_BYTES_MAX < RECORDS * VALUE_BYTES // 2
