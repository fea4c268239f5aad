"""`readStream`: checkpoints, admission control, partitions that appear, data that is gone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mainstem.testing.process import BrokerProcess
from tests.pipeline.conftest import create_topic, delete_topic, eventually, produce, publish, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Collected:
    """A foreachBatch sink that remembers rows by batch."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[str, int, bytes]]] = {}

    def __call__(self, frame: Any, batch: int) -> None:
        self.batches[batch] = [(r.topic, r.offset, bytes(r.value)) for r in frame.collect()]

    @property
    def values(self) -> list[bytes]:
        return sorted(value for rows in self.batches.values() for _, _, value in rows)


def run_once(
    spark: SparkSession, broker: BrokerProcess, checkpoint: Path, collected: Collected, **options: str
) -> list[int]:
    """One run with availableNow; returns the rows of its batches."""
    query = (
        stream(spark, broker, **options)
        .writeStream.foreachBatch(collected)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def test_a_restarted_stream_goes_on_without_loss_or_repetition(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    collected = Collected()
    options = {"filter": f"{topic}/#", "startingOffsets": "earliest"}
    for part in range(3):
        publish(broker, [(f"{topic}/{n % 5}", b"%d-%d" % (part, n)) for n in range(50)])
        run_once(spark, broker, tmp_path / "checkpoint", collected, **options)
    assert collected.values == sorted(b"%d-%d" % (part, n) for part in range(3) for n in range(50))


def test_a_trigger_reads_no_more_rows_than_allowed(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    create_topic(broker, topic, 2)
    produce(broker, topic, [b"%d" % n for n in range(100)])
    publish(broker, [(f"other-{topic}/x", b"noise")] * 200)
    collected = Collected()
    rows = run_once(
        spark, broker, tmp_path / "c", collected, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="30"
    )
    assert max(rows) <= 30
    assert len(collected.values) == 100


def test_a_limit_counts_matching_rows_of_a_shared_log_not_its_offsets(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    publish(broker, [(f"{topic}/a" if n % 10 == 0 else f"{topic}-noise/b", b"%d" % n) for n in range(400)])
    collected = Collected()
    rows = run_once(
        spark,
        broker,
        tmp_path / "c",
        collected,
        filter=f"{topic}/#",
        startingOffsets="earliest",
        maxOffsetsPerTrigger="20",
    )
    assert rows == [20, 20]


def test_topics_and_logs_that_appear_later_are_read_from_their_beginning(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    collected = Collected()
    options = {"filter": f"{topic}/#", "startingOffsets": "earliest"}
    publish(broker, [(f"{topic}/a", b"1")])
    run_once(spark, broker, tmp_path / "c", collected, **options)
    create_topic(broker, f"{topic}.own", 3)
    produce(broker, f"{topic}.own", [b"%d" % n for n in range(10, 40)])
    run_once(spark, broker, tmp_path / "c", collected, **options)
    assert collected.values == sorted([b"1", *(b"%d" % n for n in range(10, 40))])


def test_latest_means_from_now_on(spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    publish(broker, [(f"{topic}/a", b"before")])
    collected = Collected()
    query = (
        stream(spark, broker, filter=f"{topic}/#")
        .writeStream.foreachBatch(collected)
        .option("checkpointLocation", str(tmp_path / "c"))
        .start()
    )
    try:
        eventually(lambda: query.lastProgress is not None, "the query's first progress")
        publish(broker, [(f"{topic}/a", b"after")])
        eventually(lambda: collected.values == [b"after"], "the row published after the start")
        progress = query.lastProgress
        assert progress is not None
        assert progress.sources[0].latestOffset is not None
    finally:
        query.stop()


def test_offsets_that_are_gone_stop_the_stream_unless_it_may_lose_data(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    create_topic(broker, topic, 1)
    produce(broker, topic, [b"%02d" % n for n in range(20)], key=lambda n: None)
    collected = Collected()
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "5"}
    run_once(spark, broker, tmp_path / "c", collected, **options)
    produce(broker, topic, [b"%02d" % n for n in range(20, 60)], key=lambda n: None)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.delete_records([TopicPartition(topic, 0, 50)]).values():
        future.result(30)
    with pytest.raises(Exception, match=r"(?s)offsets 20 to \d+.*failOnDataLoss"):
        run_once(spark, broker, tmp_path / "c", collected, **options)
    run_once(spark, broker, tmp_path / "c", collected, **options, failOnDataLoss="false")
    assert collected.values == [b"%02d" % n for n in (*range(20), *range(50, 60))]


def test_a_topic_that_was_made_anew_stops_the_stream_or_is_read_from_its_beginning(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    """Its new records have the old ones' offsets: a stream that only waits for higher ones would pass them over."""
    create_topic(broker, topic, 1)
    produce(broker, topic, [b"old-%d" % n for n in range(10)])
    collected = Collected()
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    run_once(spark, broker, tmp_path / "c", collected, **options)
    delete_topic(broker, topic)
    create_topic(broker, topic, 1)
    produce(broker, topic, [b"new-%d" % n for n in range(5)])
    with pytest.raises(Exception, match=r"(?s)read up to offset 10 and ends at 5 now.*failOnDataLoss"):
        run_once(spark, broker, tmp_path / "c", collected, **options)
    run_once(spark, broker, tmp_path / "c", collected, **options, failOnDataLoss="false")
    assert collected.values == sorted([b"old-%d" % n for n in range(10)] + [b"new-%d" % n for n in range(5)])


def test_a_topic_that_was_made_anew_and_has_outgrown_the_old_one_is_no_continuation_of_it(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    create_topic(broker, topic, 2)
    produce(broker, topic, [b"old-%d" % n for n in range(10)])
    collected = Collected()
    options = {"filter": f"{topic}/#", "startingOffsets": "earliest"}
    run_once(spark, broker, tmp_path / "c", collected, **options)
    delete_topic(broker, topic)
    create_topic(broker, topic, 2)
    produce(broker, topic, [b"new-%d" % n for n in range(40)])
    with pytest.raises(Exception, match=r"(?s)it was deleted and recreated.*failOnDataLoss"):
        run_once(spark, broker, tmp_path / "c", collected, **options)
    run_once(spark, broker, tmp_path / "c", collected, **options, failOnDataLoss="false")
    assert collected.values == sorted([b"old-%d" % n for n in range(10)] + [b"new-%d" % n for n in range(40)])
    produce(broker, topic, [b"newer"])
    run_once(spark, broker, tmp_path / "c", collected, **options)
    assert collected.values.count(b"newer") == 1
    assert len(collected.values) == 51
