"""`spark.read.format("mainstem")` against a real broker and real clients."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.client import BrokerClient
from mainstem_pipeline.options import read_options
from mainstem_pipeline.pushdown import pushed
from mainstem_pipeline.scans import Scan
from mainstem_pipeline.slices import read_task
from tests.pipeline.conftest import create_topic, produce, publish, read, values_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KAFKA_SCHEMA = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
)


def test_rows_have_the_kafka_sources_columns_and_values(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    produce(
        broker, topic, [b"zero", None, b""], key=lambda i: None if i == 0 else b"k%d" % i, time_ms=lambda i: 1000 + i
    )
    frame = read(spark, broker, subscribe=topic)
    assert frame.schema.simpleString() == KAFKA_SCHEMA
    rows = frame.orderBy("offset").collect()
    assert [(r.key, r.value, r.topic, r.partition, r.timestampType) for r in rows] == [
        (None, b"zero", topic, 0, 0),
        (b"k1", None, topic, 0, 0),
        (b"k2", b"", topic, 0, 0),
    ]
    assert [round(r.timestamp.timestamp() * 1000) for r in rows] == [1000, 1001, 1002]


def test_a_filter_reads_all_history_of_all_protocols(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    publish(broker, [(f"{topic}/{n % 3}/temp", b"m%d" % n) for n in range(30)])
    produce(broker, f"{topic}.kafka.temp", [b"k%d" % n for n in range(10)])
    frame = read(spark, broker, filter=f"{topic}/+/temp")
    counts = {
        (r.origin, r.canonical_topic): r["count"] for r in frame.groupBy("origin", "canonical_topic").count().collect()
    }
    assert counts == {("mqtt", f"{topic}/{n}/temp"): 10 for n in range(3)} | {("kafka", f"{topic}/kafka/temp"): 10}
    row = frame.where("origin = 'mqtt'").first()
    assert row is not None
    assert row.levels == row.canonical_topic.split("/")
    assert row.topic == row.canonical_topic.replace("/", ".")
    assert read(spark, broker, filter=f"{topic}/1/#").count() == 10


def test_pattern_and_assign_choose_topics_and_partitions(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker, f"{topic}-a", 3)
    produce(broker, f"{topic}-a", [b"%d" % n for n in range(30)])
    produce(broker, f"{topic}-b", [b"b"])
    assert read(spark, broker, subscribePattern=f"{topic}-.*").count() == 31
    assert read(spark, broker, subscribe=f"{topic}-a,{topic}-b").count() == 31
    by_partition = {
        r.partition: r["count"]
        for r in read(spark, broker, subscribe=f"{topic}-a").groupBy("partition").count().collect()
    }
    chosen = read(spark, broker, assign=json.dumps({f"{topic}-a": [0, 2]}))
    assert chosen.count() == by_partition[0] + by_partition[2]


def test_offsets_and_times_bound_a_read(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    create_topic(broker, topic, 2)
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for n in range(20):
        producer.produce(topic, b"%d" % n, partition=n % 2, timestamp=10_000 + n)
    assert producer.flush(30) == 0

    def count(**options: str) -> int:
        return read(spark, broker, subscribe=topic, **options).count()

    assert count(startingOffsets=json.dumps({topic: {"0": 4, "1": -2}})) == 6 + 10
    assert (
        count(
            startingOffsets=json.dumps({topic: {"0": 4, "1": 2}}), endingOffsets=json.dumps({topic: {"0": 7, "1": -1}})
        )
        == 3 + 8
    )
    assert count(startingTimestamp="10008", endingTimestamp="10016") == 8
    assert count(startingOffsetsByTimestamp=json.dumps({topic: {"0": 10_018, "1": 10_000}})) == 1 + 10
    with pytest.raises(Exception, match="no record at or after"):
        count(startingTimestamp="99999")


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_inflated(spark: SparkSession, broker: BrokerProcess, topic: str, codec: str) -> None:
    sent = [b"%06d" % n * 5 for n in range(500)]
    produce(broker, topic, sent, **{"compression.type": codec, "linger.ms": 100})
    assert values_of(read(spark, broker, subscribe=topic)) == sorted(sent)


def test_headers_and_content_types_cross_protocols(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    properties = Properties(PacketTypes.PUBLISH)
    properties.ContentType = "application/json"
    properties.UserProperty = [("site", "north"), ("site", "again")]
    publish(broker, [(f"{topic}/mqtt", b"{}")], properties=properties)
    produce(broker, f"{topic}.kafka", [b"x"], headers=[("content-type", b"text/csv"), ("site", b"south")])
    rows = {
        r.origin: r for r in read(spark, broker, filter=f"{topic}/+", columns="all", includeHeaders="true").collect()
    }
    assert rows["mqtt"].content_type == "application/json"
    assert rows["kafka"].content_type == "text/csv"
    sites = {origin: [bytes(h.value) for h in row.headers if h.key == "site"] for origin, row in rows.items()}
    assert sites == {"mqtt": [b"north", b"again"], "kafka": [b"south"]}


def test_a_user_schema_projects(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    produce(broker, topic, [b"%d" % n for n in range(10)])
    reader = spark.read.format("mainstem").option("url", broker.http_url).option("subscribe", topic)
    assert sorted(bytes(r.value) for r in reader.schema("value binary, offset bigint").load().collect())[0] == b"0"
    with pytest.raises(Exception, match="column 'value' is binary, not string; there is no column 'colour'"):
        reader.schema("value string, colour int").load().collect()


def test_sql_and_push_down_read_the_same_rows(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    publish(broker, [(f"{topic}/{n % 4}", b"%d" % n) for n in range(100)])
    spark.sql(
        f"create or replace temporary view v using mainstem options (url '{broker.http_url}', filter '{topic}/#')"
    )
    wanted = spark.sql(f"select value from v where topic = '{topic}.2' and offset >= 50 order by offset").collect()
    first = read(spark, broker, filter=f"{topic}/#", pushdown="true").where(f"topic = '{topic}.2' and offset >= 50")
    assert [r.value for r in first.orderBy("offset").collect()] == [r.value for r in wanted]


def test_a_filter_on_the_key_leaves_rows_out_where_they_are_decoded(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    from pyspark.sql.datasource import EqualTo, In

    produce(broker, topic, [b"%d" % n for n in range(40)], key=lambda n: b"k%d" % (n % 4) if n % 5 else None)
    options = {"subscribe": topic, "pushdown": "true"}
    rows = read(spark, broker, **options)
    wanted = sorted(b"%d" % n for n in range(40) if n % 5 and n % 4 in (1, 2))
    assert values_of(rows.where("key in (X'6b31', X'6b32')")) == wanted
    assert values_of(rows.where("key = cast('k1' as binary) and key = X'6b32'")) == []
    asked = read_options({"url": broker.http_url, **options}, streaming=False)
    narrowed, _ = pushed(asked, [In(("key",), (b"k1", b"k2")), EqualTo(("key",), b"k2")])
    scan = Scan(narrowed)
    (task,) = scan.plan(*scan.batch_range())
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
    assert {key.as_py() for batch in read_task(task, schema) for key in batch.column("key")} == {b"k2"}
    scan.close()


def test_rows_are_the_same_from_files_and_through_the_broker(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    publish(broker, [(f"{topic}/{n % 7}", b"%d" % n * 10) for n in range(2000)])
    straight = read(spark, broker, filter=f"{topic}/#").orderBy("offset").collect()
    assert len(straight) == 2000
    for compress in ("true", "false"):
        through = read(spark, broker, filter=f"{topic}/#", direct="false", compress=compress)
        assert through.orderBy("offset").collect() == straight


def test_many_tasks_read_one_partition(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    sent = [b"%08d" % n * 64 for n in range(4000)]
    produce(broker, topic, sent, **{"batch.size": 20_000})
    frame = read(spark, broker, subscribe=topic, minPartitions="6")
    assert frame.rdd.getNumPartitions() >= 5
    assert values_of(frame) == sorted(sent)
    small = read(spark, broker, subscribe=topic, taskBytes="200000", batchRows="100")
    assert values_of(small) == sorted(sent)


def test_aborted_transactions_are_not_there(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": f"tx-{topic}"})
    producer.init_transactions(30)
    for n, commits in enumerate([True, False, True, False]):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % n)
        producer.flush(30)
        producer.commit_transaction(30) if commits else producer.abort_transaction(30)
    assert values_of(read(spark, broker, subscribe=topic)) == [b"0", b"2"]


def test_a_view_with_a_condition_is_a_relation(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    produce(broker, f"{topic}.a", [b"1"], headers=[("region", b"eu")])
    produce(broker, f"{topic}.a", [b"2"], headers=[("region", b"us"), ("region", b"eu")])
    produce(broker, f"{topic}.b", [b"3"], headers=[("region", b"eu")])
    BrokerClient(broker.http_url).post(
        "/v1/views", {"name": f"view-{topic}", "filter": f"{topic}/#", "where": "header.region = 'eu'"}
    )
    assert values_of(read(spark, broker, view=f"view-{topic}")) == [b"1", b"3"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "never-made"}, "no topic 'never-made'.*mainstem topic ls"),
        ({"view": "never-made"}, "no view 'never-made'"),
        ({"filter": "a/#/b+"}, "must fill a whole level"),
        (
            {"subscribe": "x", "url": "http://127.0.0.1:9", "retrySeconds": "0.2"},
            "no broker answers at http://127.0.0.1:9.*mainstem up",
        ),
    ],
)
def test_errors_say_what_is_wrong_and_what_to_do(
    spark: SparkSession, broker: BrokerProcess, options: dict[str, str], words: str
) -> None:
    with pytest.raises(Exception, match=f"(?s){words}"):
        read(spark, broker, **options).count()


def test_nothing_to_read_is_no_error(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    assert read(spark, broker, filter=f"{topic}/none/#").collect() == []
