"""Spark's own Kafka connector against our Kafka port: batch and streaming reads, batch and streaming writes."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from mainstem.testing.process import BrokerProcess
from tests.pipeline.conftest import create_topic, produce, publish, read
from tests.pipeline.connector_kit import Connector, connector
from tests.protocol.kafka.java_clients import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
JOB_S_MAX = 300

# Arguments: servers, folder. Prints one JSON object.
JOB = """
import json
servers, folder = arguments

def batch(**options):
    return spark.read.format("kafka").option("kafka.bootstrap.servers", servers).options(**options).load()

def rows(frame):
    return sorted([r.topic, r.partition, r.offset, bytes(r.value).decode()] for r in frame.collect())

def copy(until, **options):
    stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).options(**options).load()
    writer = stream.select("key", "value", "headers").writeStream.format("kafka")
    writer = writer.option("kafka.bootstrap.servers", servers).option("topic", "streamed")
    query = writer.option("checkpointLocation", f"{folder}/{until}").trigger(availableNow=True).start()
    query.awaitTermination()
    return [one.numInputRows for one in query.recentProgress if one.numInputRows]

told = {}
told["all"] = rows(batch(subscribe="orders"))
some = {"orders": {"0": 2, "1": -2, "2": -2}}
told["some"] = rows(batch(subscribe="orders", startingOffsets=json.dumps(some)))
told["mqtt"] = rows(batch(subscribe="sensors.7,sensors.8"))
told["pattern"] = batch(subscribePattern="or.*s").count()
committed = {"kafka.isolation.level": "read_committed"}
told["committed"] = [value for *_, value in rows(batch(subscribe="transactions", **committed))]
told["timed"] = batch(subscribe="orders", startingTimestamp="1700000000500").count()
first = batch(subscribe="orders", includeHeaders="true").first()
told["headers"] = [[one.key, bytes(one.value).decode()] for one in first.headers]
writer = batch(subscribe="orders").select("key", "value").write.format("kafka")
writer.option("kafka.bootstrap.servers", servers).option("topic", "connector-copy").save()
options = dict(subscribe="orders", startingOffsets="earliest", includeHeaders="true", maxOffsetsPerTrigger="250")
told["batches"] = copy("once", **options)
told["again"] = copy("once", **options)
spark.stop()
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Connector:
    try:
        return connector(tmp_path_factory.mktemp("connector"))
    except Unavailable as error:
        pytest.skip(f"no Kafka connector for Spark to be had: {error}")


@pytest.fixture(scope="module")
def told(peer: Connector, broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Spark takes its time to start: one job does it all, the tests look at what it saw."""
    create_topic(broker, "orders", 3)
    time_ms = 1_700_000_000_000
    headers = [("trace", b"7")]
    produce(broker, "orders", VALUES, headers=headers, time_ms=lambda index: time_ms + index)
    publish(broker, [(f"sensors/{n}", b"%d" % n) for n in range(20)])
    transactions(broker)
    folder = tmp_path_factory.mktemp("job")
    command = peer.command(JOB, broker.bootstrap_servers, str(folder))
    done = subprocess.run(
        command, env=peer.environment(), capture_output=True, text=True, timeout=JOB_S_MAX, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


VALUES = [b"%04d" % number for number in range(1000)]


def transactions(broker: BrokerProcess) -> None:
    from confluent_kafka import Producer

    create_topic(broker, "transactions", 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t"})
    producer.init_transactions(30)
    for value, commits in ((b"yes", True), (b"no", False), (b"yes again", True)):
        producer.begin_transaction()
        producer.produce("transactions", value)
        assert producer.flush(30) == 0
        _ = producer.commit_transaction(30) if commits else producer.abort_transaction(30)


def test_a_batch_reads_every_record_of_every_partition(told: dict[str, Any]) -> None:
    assert sorted(value for *_, value in told["all"]) == [value.decode() for value in VALUES]
    assert {topic for topic, *_ in told["all"]} == {"orders"}
    for partition in range(3):
        offsets = [offset for _, number, offset, _ in told["all"] if number == partition]
        assert offsets == list(range(len(offsets)))


def test_a_batch_starts_where_it_is_told_to(told: dict[str, Any]) -> None:
    assert told["some"] == [row for row in told["all"] if not (row[1] == 0 and row[2] < 2)]
    assert told["timed"] == 500


def test_topics_of_mqtt_are_read_by_name_and_others_by_pattern(told: dict[str, Any]) -> None:
    assert [(topic, value) for topic, _, _, value in told["mqtt"]] == [("sensors.7", "7"), ("sensors.8", "8")]
    assert told["pattern"] == 1000


def test_aborted_transactions_are_left_out_and_headers_are_there(told: dict[str, Any]) -> None:
    assert told["committed"] == ["yes", "yes again"]
    assert told["headers"] == [["trace", "7"]]


def test_what_a_batch_wrote_is_there_once(told: dict[str, Any], broker: BrokerProcess, spark: SparkSession) -> None:
    found = read(spark, broker, subscribe="connector-copy").select("value").collect()
    assert sorted(bytes(row.value) for row in found) == VALUES


def test_a_stream_copies_in_batches_and_goes_on_where_it_ended(
    told: dict[str, Any], broker: BrokerProcess, spark: SparkSession
) -> None:
    assert sum(told["batches"]) == 1000
    assert max(told["batches"]) <= 250
    assert told["again"] == []
    found = read(spark, broker, subscribe="streamed", includeHeaders="true").select("value", "headers").collect()
    assert sorted(bytes(row.value) for row in found) == VALUES
    assert {(one.key, bytes(one.value)) for row in found for one in row.headers} == {("trace", b"7")}
