"""Where a read starts and ends, asked of the broker, without Spark."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from mainstem.model.errors import InvalidArgument
from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.offsets import Offsets, without_ids
from mainstem_pipeline.options import read_options
from mainstem_pipeline.scans import Scan
from mainstem_pipeline.slices import DataLoss, read_task
from tests.pipeline.conftest import create_topic, delete_topic, produce, publish


def ranges(broker: BrokerProcess, **options: str) -> tuple[Offsets, Offsets]:
    scan = Scan(read_options({"url": broker.http_url, **options}, streaming=False))
    try:
        start, end = scan.batch_range()
        return without_ids(start), without_ids(end)
    finally:
        scan.close()


def test_a_time_is_asked_of_its_own_partition_only(broker: BrokerProcess, topic: str) -> None:
    """That another topic has nothing as late as that is no mistake."""
    old, new = f"{topic}-old", f"{topic}-new"
    for name, time_ms in ((old, 1_000_000), (new, 5_000_000)):
        create_topic(broker, name)
        produce(broker, name, [b"x"] * 3, time_ms=lambda n, at=time_ms: at + n)  # type: ignore[misc]
    by_time = json.dumps({old: {"0": 1_000_001}, new: {"0": 5_000_002}})
    start, end = ranges(broker, subscribe=f"{old},{new}", startingOffsetsByTimestamp=by_time)
    assert start == {old: {"0": 1}, new: {"0": 2}}
    assert end == {old: {"0": 3}, new: {"0": 3}}
    late = json.dumps({old: {"0": 2_000_000}})
    with pytest.raises(InvalidArgument, match=f"{old} partition 0 has no record"):
        ranges(broker, subscribe=f"{old},{new}", startingOffsetsByTimestamp=late)


def test_offsets_are_given_by_either_spelling_of_a_topic(broker: BrokerProcess, topic: str) -> None:
    produce(broker, f"{topic}.a", [b"x"] * 3)
    for name in (f"{topic}/a", f"{topic}.a"):
        start, _ = ranges(broker, subscribe=f"{topic}/a", startingOffsets=json.dumps({name: {"0": 2}}))
        assert start == {f"{topic}.a": {"0": 2}}


def test_a_topic_that_is_declared_or_gets_a_log_of_its_own_is_still_the_same(broker: BrokerProcess, topic: str) -> None:
    """Its offsets go on: nothing was lost, and nothing begins again."""
    publish(broker, [(topic, b"x")] * 3)
    scan = Scan(read_options({"url": broker.http_url, "subscribe": topic}, streaming=True))
    before = scan.latest_offsets()
    create_topic(broker, topic)
    produce(broker, topic, [b"y"] * 2)
    end = scan.advanced(before, scan.latest_offsets())
    assert sum(slice["rows"] for task in scan.plan(before, end) for slice in task.slices) == 2
    scan.close()


def test_a_topic_that_is_made_anew_between_a_batch_and_its_plan_is_told_or_left_to_the_next(
    broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker, topic)
    produce(broker, topic, [b"old"] * 3)
    careful, careless = (
        Scan(read_options({"url": broker.http_url, "subscribe": topic, "failOnDataLoss": may_fail}, streaming=True))
        for may_fail in ("true", "false")
    )
    start = careful.initial_offsets()
    start[topic]["0"] = 1
    end = careful.latest_offsets()
    delete_topic(broker, topic)
    create_topic(broker, topic)
    produce(broker, topic, [b"new"] * 5)
    with pytest.raises(DataLoss, match="was deleted and recreated since this batch began"):
        careful.plan(start, end)
    assert careless.plan(start, end) == []
    after = careless.advanced(end, careless.latest_offsets())
    assert without_ids(after) == {topic: {"0": 0}}
    assert without_ids(careless.advanced(after, careless.latest_offsets())) == {topic: {"0": 5}}
    careful.close()
    careless.close()


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_task_has_no_more_rows_than_allowed(broker: BrokerProcess, topic: str, partitions: int) -> None:
    if partitions:
        create_topic(broker, topic, partitions)
        produce(broker, topic, [b"%d" % n for n in range(1000)])
    else:
        publish(broker, [(f"{topic}/{n % 3}", b"%d" % n) for n in range(1000)])
    select = {"subscribe": topic} if partitions else {"filter": f"{topic}/#"}
    scan = Scan(read_options({"url": broker.http_url, **select, "maxRecordsPerPartition": "300"}, streaming=False))
    tasks = scan.plan(*scan.batch_range())
    schema = pa.schema([("value", pa.binary())])
    rows = [[value for batch in read_task(task, schema) for value in batch.column(0).to_pylist()] for task in tasks]
    assert [len(one) for one in rows] == [300, 300, 300, 100]
    assert sorted(int(value) for one in rows for value in one) == list(range(1000))
    scan.close()


def test_offsets_that_an_unclean_stop_left_unused_are_no_rows(own_broker: BrokerProcess) -> None:
    create_topic(own_broker, "t")
    for _ in range(3):
        produce(own_broker, "t", [b"%d" % n for n in range(1000)])
        own_broker.kill()
        own_broker.start()
    produce(own_broker, "t", [b"last"])
    scan = Scan(read_options({"url": own_broker.http_url, "subscribe": "t"}, streaming=True))
    at, latest = {"t": {"0": 0}}, scan.latest_offsets()
    assert latest["t"]["0"] > 3001, "three gaps"
    assert scan.limited(at, latest)[1] == 3001
    batches = []
    while at["t"]["0"] < latest["t"]["0"]:
        end, _ = scan.limited(at, latest, rows_max=700)
        batches.append(scan.limited(at, end)[1])
        at = end
    assert batches == [700, 700, 700, 700, 201]
    tasks = scan.plan({"t": {"0": 0}}, latest)
    assert sum(piece["rows"] for task in tasks for piece in task.slices) == 3001
    scan.close()
