"""Archives: topics as Iceberg tables, exactly once, by one committer, with all it takes to build the log again."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mainstem.codec.batch import BatchBuilder, crc32c
from mainstem.model.errors import ConfigError
from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.lake.archive import Archive, Archived
from mainstem_pipeline.lake.catalog import LakeOptions, open_catalog
from mainstem_pipeline.lake.commits import Committer, Fenced, carried, next_offsets_of
from mainstem_pipeline.lake.rebuild import rebuilt_batches
from tests.pipeline.conftest import create_topic, delete_topic, produce, publish, read
from tests.pipeline.lake_kit import ArchiveRun, archive, orphans, rows_of, sql, stored_frames, table_of
from tests.protocol.kafka.raw import RawClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def lake(tmp_path: Path) -> LakeOptions:
    return LakeOptions(str(tmp_path / "lake"))


def test_a_table_has_each_record_once_and_goes_on_where_it_ended(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions
) -> None:
    create_topic(broker, f"{topic}.kafka", 2)
    for part in range(2):
        publish(broker, [(f"{topic}/{n % 3}", b"%d-%d" % (part, n)) for n in range(300)])
        produce(broker, f"{topic}.kafka", [b"%d:%d" % (part, n) for n in range(200)], headers=[("site", b"north")])
        assert archive(spark, broker, lake, f"{topic}/#", "raw.t")["rows"] == 500
    assert archive(spark, broker, lake, f"{topic}/#", "raw.t")["rows"] == 0
    columns = ("canonical_topic", "origin", "partition", "offset", "timestamp", "key", "value", "headers", "topic")
    hot = read(spark, broker, filter=f"{topic}/#", columns="all", includeHeaders="true").select(*columns).collect()
    cold = rows_of(lake, "raw.t").to_pylist()
    assert len(cold) == len(hot) == 1000
    seen = {(row["topic"], row["origin"], row["partition"], row["offset"], row["key"], row["value"]) for row in cold}
    assert seen == {(r[0], r[1], r[2], r[3], bytes(r[5]), bytes(r[6])) for r in hot}
    assert {row["kafka_topic"] for row in cold} == {row["topic"] for row in hot}
    kafka = next(row for row in cold if row["origin"] == "kafka")
    assert kafka["headers"] == [{"key": "site", "value": b"north"}]
    assert not orphans(lake, "raw.t")


def test_stored_batches_are_rebuilt_byte_for_byte(
    spark: SparkSession, own_broker: BrokerProcess, lake: LakeOptions
) -> None:
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    properties = Properties(PacketTypes.PUBLISH)
    properties.ContentType, properties.UserProperty = "text/plain", [("a", "1"), ("a", "2")]
    publish(own_broker, [(f"dev/{n % 5}", b"%d" % n) for n in range(400)], properties=properties)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        values = [b"%06d" % n * 9 if n % 7 else None for n in range(700)]
        produce(own_broker, "dev.kafka", values, headers=[("h", b""), ("é", b"x")], **{"compression.type": codec})
    create_topic(own_broker, "dev.appended", 2, **{"message.timestamp.type": "LogAppendTime"})
    produce(own_broker, "dev.appended", [b"%d" % n for n in range(50)], time_ms=lambda n: 1000 + n)
    _in_transactions(own_broker, "dev.tx")
    _queued(own_broker, "dev.amqp")
    archive(spark, own_broker, lake, "#", "raw.all")
    stored = stored_frames(own_broker, {"kind": "filter", "filter": "#"})
    rebuilt = list(rebuilt_batches(rows_of(lake, "raw.all")))
    assert all(one.is_exact for one in rebuilt)
    found = {(log, int.from_bytes(one.frame[16:24], "big")): one.frame for log, one in _with_logs(lake, rebuilt)}
    aborted = {place for place in stored if place not in found}
    assert len(aborted) == 1, "only the aborted transaction is not there"
    assert found == {place: frame for place, frame in stored.items() if place not in aborted}


def _with_logs(lake: LakeOptions, rebuilt: list[Any]) -> list[tuple[int, Any]]:
    rows = rows_of(lake, "raw.all").select(["log", "batch"]).to_pylist()
    return list(zip([row["log"] for row in rows if row["batch"] is not None], rebuilt, strict=True))


def _in_transactions(broker: BrokerProcess, topic: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "tx"})
    producer.init_transactions(30)
    for commits in (True, False, True):
        producer.begin_transaction()
        producer.produce(topic, b"in a transaction")
        producer.flush(30)
        producer.commit_transaction(30) if commits else producer.abort_transaction(30)


def _queued(broker: BrokerProcess, topic: str) -> None:
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    channel.confirm_delivery()
    for n in range(20):
        table = pika.BasicProperties(content_type="text/csv", headers={"n": n}, priority=3)
        channel.basic_publish("amq.topic", topic, b"%d" % n, table)
    connection.close()


def test_part_of_a_shared_log_is_rebuilt_as_that_part(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions
) -> None:
    publish(broker, [(f"{topic}/{'mine' if n % 2 else 'other'}", b"%d" % n) for n in range(100)])
    archive(spark, broker, lake, f"{topic}/mine", "raw.mine")
    rows = rows_of(lake, "raw.mine")
    values = [row["value"] for row in rows.to_pylist()]
    assert values == [b"%d" % n for n in range(100) if n % 2]
    assert sum(int.from_bytes(one.batch[57:61], "big") for one in rebuilt_batches(rows)) == 50


def test_a_bad_record_never_stops_a_table(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions
) -> None:
    create_topic(broker, topic, 1, **{"message.timestamp.after.max.ms": str(2**62)})
    good = BatchBuilder()
    good.add(b"k", b"fine", ((b"\xff\xfe", b"not text"),), 5)
    far = BatchBuilder()
    far.add(None, b"from the year 36 million", (), 2**60)
    unreadable = bytearray(_sealed(b"x" * 100, attributes=4))
    unreadable[70] ^= 0xFF
    struct.pack_into(">I", unreadable, 17, crc32c(bytes(unreadable[21:])))
    with RawClient(broker) as client:
        for batch in (good.seal_batch(0), far.seal_batch(0), bytes(unreadable), _sealed(b"after it")):
            assert client.produce(topic, bytes(batch)).error_code == 0
    assert archive(spark, broker, lake, topic, "raw.bad")["rows"] == 4
    rows = rows_of(lake, "raw.bad").to_pylist()
    assert [row["value"] for row in rows] == [b"fine", b"from the year 36 million", None, b"after it"]
    assert [row["flags"] for row in rows] == [0, 0, -1, 0]
    assert rows[1]["timestamp"].year == 9999
    stored = stored_frames(broker, {"kind": "topics", "topics": [topic]})
    assert [one.frame for one in rebuilt_batches(rows_of(lake, "raw.bad"))] == [stored[key] for key in sorted(stored)]
    values = sql(spark, broker, lake, f"select value from `{topic}` order by offset")
    assert [bytes(row[0]) for row in values] == [b"fine", b"from the year 36 million", b"after it"]
    with pytest.raises(Exception, match=r"(?s)offsets 2 to 2 cannot be read"):
        read(spark, broker, subscribe=topic).collect()
    assert read(spark, broker, subscribe=topic, failOnDataLoss="false").count() == 3


def _sealed(value: bytes, **head: int) -> bytes:
    builder = BatchBuilder()
    builder.add(None, value, (), 5)
    return bytes(builder.seal_batch(0, **head))


def test_columns_may_be_renamed_dropped_and_added_while_the_archive_goes_on(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions
) -> None:
    publish(broker, [(f"{topic}/a", b"before")])
    archive(spark, broker, lake, f"{topic}/#", "raw.t")
    with table_of(lake, "raw.t").update_schema() as update:
        update.rename_column("value", "payload")
        update.rename_column("headers.element.key", "name")
        update.delete_column("content_type")
        update.update_column("timestamp_type", _long())
        update.add_column("note", _string())
    publish(broker, [(f"{topic}/b", b"after")])
    archive(spark, broker, lake, f"{topic}/#", "raw.t")
    rows = rows_of(lake, "raw.t").to_pylist()
    assert [(row["payload"], row["timestamp_type"], row["note"]) for row in rows] == [
        (b"before", 0, None),
        (b"after", 0, None),
    ]
    publish(broker, [(f"{topic}/c", b"hot")])
    found = sql(spark, broker, lake, f"select value, content_type, timestampType from `{topic}/#` order by offset")
    assert [(bytes(v), c, t) for v, c, t in found] == [(b"before", None, 0), (b"after", None, 0), (b"hot", None, 0)]
    cold = sql(spark, broker, lake, "select payload, note from raw.t order by `offset`")
    assert [bytes(row[0]) for row in cold] == [b"before", b"after"]


def _long() -> Any:
    from pyiceberg.types import LongType

    return LongType()


def _string() -> Any:
    from pyiceberg.types import StringType

    return StringType()


def test_a_newer_committer_ends_an_older_one_and_clears_up_behind_it(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions, tmp_path: Path
) -> None:
    publish(broker, [(f"{topic}/a", b"%d" % n) for n in range(50)])
    old = Archive(lake, "raw.t", f"filter:{topic}/#")
    frame = _descriptors(spark, broker, f"{topic}/#")
    new = Archive(lake, "raw.t", f"filter:{topic}/#")
    assert new.epoch == old.epoch + 1
    with pytest.raises(Fenced, match="newer committer"):
        old.batch("query", frame, 0)
    assert not orphans(lake, "raw.t"), "what the older one wrote is gone"
    assert new.batch("query", frame, 0).rows == 50
    assert new.batch("query", frame, 0).rows == 0, "the same batch again"
    with pytest.raises(Fenced, match="would write from"):
        new.batch("another query", frame, 0)
    assert not orphans(lake, "raw.t")
    assert len(rows_of(lake, "raw.t")) == 50
    with pytest.raises(ConfigError, match="is the archive of"):
        Archive(lake, "raw.t", "filter:other/#")


def _descriptors(spark: SparkSession, broker: BrokerProcess, topic_filter: str) -> DataFrame:
    options = {"url": broker.http_url, "filter": topic_filter, "descriptors": "true"}
    return spark.read.format("mainstem").options(**options).load()


def test_an_archive_whose_state_is_lost_goes_on_where_its_table_ends(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions, tmp_path: Path
) -> None:
    publish(broker, [(f"{topic}/a", b"%d" % n) for n in range(30)])
    assert archive(spark, broker, lake, f"{topic}/#", "raw.t", tmp_path / "first")["rows"] == 30
    publish(broker, [(f"{topic}/a", b"%d" % n) for n in range(30, 50)])
    assert archive(spark, broker, lake, f"{topic}/#", "raw.t", tmp_path / "second")["rows"] == 20
    assert [row["value"] for row in rows_of(lake, "raw.t").to_pylist()] == [b"%d" % n for n in range(50)]


class DiesAfterCommit(Archive):
    """The lake has the batch, Spark does not know it: as if the driver had been cut off right there."""

    def batch(self, query: str, frame: DataFrame, batch: int) -> Archived:
        super().batch(query, frame, batch)
        raise RuntimeError("cut off between the lake's commit and Spark's")


def test_a_crash_between_the_lakes_commit_and_sparks_writes_nothing_twice(
    spark: SparkSession,
    broker: BrokerProcess,
    topic: str,
    lake: LakeOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish(broker, [(f"{topic}/a", b"%d" % n) for n in range(40)])
    with monkeypatch.context() as patched:
        patched.setattr("mainstem_pipeline.lake.archive.Archive", DiesAfterCommit)
        with pytest.raises(Exception, match="cut off between"):
            ArchiveRun(spark, broker, lake, f"{topic}/#", "raw.t").wait()
    publish(broker, [(f"{topic}/a", b"%d" % n) for n in range(40, 60)])
    assert archive(spark, broker, lake, f"{topic}/#", "raw.t") == {"rows": 20, "files": 1, "batches": 2}
    assert [row["value"] for row in rows_of(lake, "raw.t").to_pylist()] == [b"%d" % n for n in range(60)]
    assert not orphans(lake, "raw.t")


def test_files_of_a_batch_that_was_never_committed_are_removed_by_the_next_run(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(broker, [(f"{topic}/a", b"%d" % n) for n in range(40)])

    def dies(*_: Any, **__: Any) -> bool:
        raise RuntimeError("cut off before the lake's commit")

    with monkeypatch.context() as patched:
        patched.setattr(Committer, "commit", dies)
        with pytest.raises(Exception, match="cut off before"):
            ArchiveRun(spark, broker, lake, f"{topic}/#", "raw.t").wait()
    assert len(orphans(lake, "raw.t")) == 1
    assert archive(spark, broker, lake, f"{topic}/#", "raw.t")["rows"] == 40
    assert len(rows_of(lake, "raw.t")) == 40
    assert not orphans(lake, "raw.t")


def test_a_tables_end_moves_past_what_it_does_not_mean(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions
) -> None:
    """Or the log would have to keep the noise of others for ever, waiting for rows that never come."""
    publish(broker, [(f"{topic}-noise/a", b"x")] * 100)
    target = Archive(lake, "raw.t", f"filter:{topic}/#")
    done = target.batch("query", _descriptors(spark, broker, f"{topic}/#"), 0)
    assert (done.rows, done.files) == (0, 0)
    ((_, end),) = done.ends["#"].items()
    assert end >= 100
    assert next_offsets_of(table_of(lake, "raw.t")) == done.ends
    assert set(carried(table_of(lake, "raw.t"))) == {"mainstem.epoch", "mainstem.next", "mainstem.batch.query"}


@pytest.mark.parametrize("grown_to", [3, 40])
def test_an_archive_of_a_topic_that_was_made_anew_ends_unless_the_loss_is_accepted(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions, grown_to: int
) -> None:
    """Whether or not the new one has outgrown the old: they are other records, at the same offsets of another log."""
    create_topic(broker, topic)
    produce(broker, topic, [b"old-%d" % n for n in range(10)])
    assert archive(spark, broker, lake, topic, "raw.t")["rows"] == 10
    delete_topic(broker, topic)
    create_topic(broker, topic)
    produce(broker, topic, [b"new-%d" % n for n in range(grown_to)])
    with pytest.raises(Exception, match="it was deleted and recreated"):
        archive(spark, broker, lake, topic, "raw.t")
    assert ArchiveRun(spark, broker, lake, topic, "raw.t", accept_loss=True).wait()["rows"] == grown_to
    assert len(rows_of(lake, "raw.t")) == 10 + grown_to
    produce(broker, topic, [b"newer"])
    assert archive(spark, broker, lake, topic, "raw.t")["rows"] == 1
    assert len(sql(spark, broker, lake, f"select value from {topic}")) == 11 + grown_to


def test_tables_are_found_by_name_and_told_in_figures(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions
) -> None:
    from mainstem_pipeline.lake.commands import tables

    publish(broker, [(f"{topic}/a", b"%d" % n) for n in range(7)])
    archive(spark, broker, lake, f"{topic}/#", "raw.t")
    (told,) = tables(lake.warehouse, lake.catalog)
    assert (told["table"], told["rows"], told["files"]) == ("raw.t", 7, 1)
    assert open_catalog(lake).list_namespaces() == [("raw",)]
