"""`write` and `writeStream` to topics: where rows go, and that they go there once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mainstem.codec.batch import BatchBuilder
from mainstem.codec.staged import StagedBatch, encode_staged
from mainstem.model.errors import MainstemError, NotAuthorized
from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.client import BrokerClient
from tests.pipeline.conftest import create_topic, eventually, publish, read, stream, values_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def write(frame: DataFrame, broker: BrokerProcess, **options: str) -> None:
    frame.write.format("mainstem").mode("append").option("url", broker.http_url).options(**options).save()


def test_rows_written_are_consumed_by_kafka_and_mqtt(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    import paho.mqtt.client as mqtt
    from confluent_kafka import Consumer

    received: list[tuple[str, bytes]] = []
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.on_message = lambda c, u, message: received.append((message.topic, message.payload))
    client.connect(broker.host, broker.mqtt_port)
    client.loop_start()
    client.subscribe(f"{topic}/#", 1)
    rows = spark.sql(
        "select cast(id as string) value, concat('k', id) key, timestamp_millis(1000 * id) timestamp, "
        "array(named_struct('key', 'h', 'value', cast('x' as binary))) headers from range(5)"
    )
    eventually(client.is_connected, "the MQTT client's connection")
    write(rows, broker, topic=f"{topic}/out")
    eventually(lambda: len(received) == 5, "five messages by MQTT")
    client.disconnect()
    client.loop_stop()
    assert sorted(received) == [(f"{topic}/out", b"%d" % n) for n in range(5)]
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([f"{topic}.out"])
    got = []
    deadline = time.monotonic() + 60
    while len(got) < 5 and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and not message.error():
            got.append((message.key(), message.value(), message.timestamp()[1], message.headers()))
    consumer.close()
    assert sorted(got) == [(b"k%d" % n, b"%d" % n, 1000 * n, [("h", b"x"), ("ms-origin", b"spark")]) for n in range(5)]


def test_a_topic_column_spreads_rows_and_keys_choose_kafkas_partitions(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker, f"{topic}-many", 5)
    rows = spark.range(200).selectExpr(
        "cast(id as string) value", "cast(id as string) key", f"concat('{topic}/', id % 3) topic"
    )
    write(rows, broker)
    counts = {
        r.canonical_topic: r["count"]
        for r in read(spark, broker, filter=f"{topic}/#").groupBy("canonical_topic").count().collect()
    }
    assert counts == {f"{topic}/0": 67, f"{topic}/1": 67, f"{topic}/2": 66}
    write(rows.drop("topic"), broker, topic=f"{topic}-many")
    from mainstem.model.partitioner import partition_of_key

    for row in read(spark, broker, subscribe=f"{topic}-many").collect():
        assert row.partition == partition_of_key(bytes(row.key), 5)
    write(spark.sql("select 'p' value, 3 partition"), broker, topic=f"{topic}-many")
    row = read(spark, broker, subscribe=f"{topic}-many").where("value = cast('p' as binary)").first()
    assert row is not None
    assert row.partition == 3


@pytest.mark.parametrize(
    ("query", "options", "words"),
    [
        ("select 1 x", {"topic": "t"}, "a column `value`.*column 'x' is not one of"),
        ("select 'a' value", {}, "where should rows go"),
        ("select 1 value", {"topic": "t"}, "'value' must be binary or string, not int"),
        ("select 'a' value, 7 partition", {"topic": "t"}, "no partition 7"),
        ("select 'a' value, cast(null as string) topic", {}, "topic is null"),
        ("select 'a' value", {"topic": "a/+"}, "wildcard"),
        ("select 'a' value", {"topic": "t", "compression": "brotli"}, "not one of none, gzip"),
    ],
)
def test_rows_that_cannot_be_written_say_why(
    spark: SparkSession, broker: BrokerProcess, query: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(Exception, match=f"(?s){words}"):
        write(spark.sql(query), broker, **options)


def test_overwriting_a_topic_is_refused(spark: SparkSession, broker: BrokerProcess) -> None:
    with pytest.raises(Exception, match="append-only"):
        spark.sql("select 'a' value").write.format("mainstem").mode("overwrite").option("url", broker.http_url).option(
            "topic", "t"
        ).save()


def test_a_stream_copies_a_topic_once_across_restarts(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    sent = []
    for part in range(2):
        messages = [(f"{topic}/{n}", b"%d-%d" % (part, n)) for n in range(60)]
        publish(broker, messages)
        sent += [payload for _, payload in messages]
        query = (
            stream(spark, broker, filter=f"{topic}/#", startingOffsets="earliest", maxOffsetsPerTrigger="25")
            .select("key", "value")
            .writeStream.format("mainstem")
            .option("url", broker.http_url)
            .option("topic", f"copy-{topic}")
            .option("compression", "zstd")
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
    assert values_of(read(spark, broker, subscribe=f"copy-{topic}")) == sorted(sent)


def test_foreach_batch_may_repeat_a_write_with_its_ids(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    for batch in (0, 0, 1, 1, 0):
        rows = spark.sql(f"select 'b{batch}' value")
        write(rows, broker, topic=topic, query=f"q-{topic}", batch=str(batch), sink="main", run="r")
        write(rows, broker, topic=f"{topic}-2", query=f"q-{topic}", batch=str(batch), sink="second", run="r")
    assert values_of(read(spark, broker, subscribe=topic)) == [b"b0", b"b1"]
    assert values_of(read(spark, broker, subscribe=f"{topic}-2")) == [b"b0", b"b1"]


# -- the protocol itself, without Spark


def staged(topic: str, *values: bytes) -> bytes:
    builder = BatchBuilder()
    for value in values:
        builder.add(None, value, [(b"ms-topic", topic.encode())])
    return encode_staged([StagedBatch(topic.encode(), 0, True, builder.seal_batch(0))])


class Sink:
    def __init__(self, broker: BrokerProcess, topic: str, run: str = "run") -> None:
        self.client = BrokerClient(broker.http_url, retry_s=0.5)
        self.topic, self.run = topic, run

    def stage(self, batch: int, task: int, attempt: int, *values: bytes) -> None:
        place = {"query": self.topic, "sink": "s", "batch": batch, "run": self.run, "task": task, "attempt": attempt}
        self.client.put_bytes("/v1/stage/data", staged(self.topic, *values), **place)

    def commit(self, batch: int, *parts: tuple[int, int]) -> bool:
        body = {"query": self.topic, "sink": "s", "batch": batch, "run": self.run}
        told = self.client.post("/v1/stage/commit", {**body, "parts": [[*part, 0] for part in parts]})
        return bool(told["committed"])

    def abort(self, batch: int) -> None:
        self.client.post("/v1/stage/abort", {"query": self.topic, "sink": "s", "batch": batch, "run": self.run})


def test_only_named_attempts_are_committed_and_only_once(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    sink = Sink(broker, topic)
    sink.stage(0, 0, 1, b"stale")
    sink.stage(0, 0, 2, b"good")
    sink.stage(0, 1, 3, b"also good")
    assert sink.commit(0, (0, 2), (1, 3))
    assert not sink.commit(0, (0, 2), (1, 3))
    sink.abort(0)  # Spark aborts where only the answer was lost
    assert values_of(read(spark, broker, subscribe=topic)) == [b"also good", b"good"]


def test_an_aborted_batch_leaves_nothing_and_may_be_staged_again(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    sink = Sink(broker, topic)
    sink.stage(0, 0, 1, b"first try")
    sink.abort(0)
    with pytest.raises(MainstemError, match="staged parts are gone"):
        sink.commit(0, (0, 1))
    sink.stage(0, 0, 9, b"second try")
    assert sink.commit(0, (0, 9))
    assert values_of(read(spark, broker, subscribe=topic)) == [b"second try"]


def test_an_older_run_is_fenced_by_a_newer_one(broker: BrokerProcess, topic: str) -> None:
    old, new = Sink(broker, topic, "old"), Sink(broker, topic, "new")
    old.stage(0, 0, 1, b"old")
    new.stage(0, 0, 1, b"new")
    with pytest.raises(NotAuthorized, match="fenced"):
        old.stage(1, 0, 1, b"old")
    with pytest.raises(NotAuthorized, match="fenced"):
        old.commit(0, (0, 1))
    assert new.commit(0, (0, 1))
    assert not new.commit(0, (0, 1))


def test_staged_rows_survive_a_killed_broker_and_are_committed_by_the_next(
    own_broker: BrokerProcess, spark: SparkSession
) -> None:
    sink = Sink(own_broker, "t")
    sink.stage(0, 0, 1, *(b"%03d" % n for n in range(500)))
    own_broker.kill()
    own_broker.start()
    sink = Sink(own_broker, "t")
    assert sink.commit(0, (0, 1))
    own_broker.kill()
    own_broker.start()
    assert not Sink(own_broker, "t").commit(0, (0, 1))
    assert values_of(read(spark, own_broker, subscribe="t")) == [b"%03d" % n for n in range(500)]
