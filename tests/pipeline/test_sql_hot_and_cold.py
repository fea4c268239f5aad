"""SQL over topics, views and tables: for what is archived, cold rows from Iceberg and newer ones from the log, each once."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from mainstem.model.condition import parse_condition
from mainstem.model.errors import InvalidArgument, MainstemError, NotFound
from mainstem.model.topic_filter import matches
from mainstem.testing.broker import Broker
from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.client import BrokerClient
from mainstem_pipeline.lake.catalog import LakeOptions
from mainstem_pipeline.query.predicates import condition_sql, topic_sql
from mainstem_pipeline.query.shell import SqlShell, name_parts, renamed
from tests.pipeline.conftest import create_topic, delete_topic, eventually, produce, publish, stream
from tests.pipeline.lake_kit import ArchiveRun, archive, is_prefix, rows_of, sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def lake(tmp_path: Path) -> LakeOptions:
    return LakeOptions(str(tmp_path / "lake"))


def test_archived_and_new_rows_are_one_answer(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions
) -> None:
    publish(broker, [(f"{topic}/d{n % 3}", b"%d" % n) for n in range(30)])
    archive(spark, broker, lake, f"{topic}/#", "raw.t")
    publish(broker, [(f"{topic}/d{n % 3}", b"%d" % n) for n in range(30, 60)])
    every = f"select cast(cast(value as string) as int), canonical_topic from `{topic}/#`"
    found = sql(spark, broker, lake, every)
    assert is_prefix([row[0] for row in found])
    assert len(found) == 60
    one = sql(spark, broker, lake, f"select cast(value as string), levels[1], topic from `{topic}/d2` order by offset")
    assert one == [(str(n), "d2", f"{topic}.d2") for n in range(60) if n % 3 == 2], "a topic within the archive"
    by_kafka = sql(spark, broker, lake, f"select count(*) from {topic}.d1")
    assert by_kafka == [(20,)], "in Kafka's spelling, unquoted"
    narrower = sql(spark, broker, lake, f"select count(*), count(distinct offset) from `{topic}/+`")
    assert narrower == [(60, 60)]
    assert sql(spark, broker, lake, "select count(*) from raw.t") == [(30,)], "the table is what is archived"


def test_names_that_differ_only_in_where_their_dots_are_stay_apart(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions
) -> None:
    publish(broker, [(f"{topic}/a_b/c", b"1"), (f"{topic}/a/b_c", b"2")])
    both = f"select cast(x.value as string), cast(y.value as string) from {topic}.a_b.c x, {topic}.a.b_c y"
    assert sql(spark, broker, lake, both) == [("1", "2")]


def test_names_that_differ_only_in_case_stay_apart(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions
) -> None:
    publish(broker, [(topic, b"1"), (topic.upper(), b"2"), (f"{topic}/x", b"3"), (f"{topic.upper()}/x", b"4")])
    one, other = topic, topic.upper()
    both = f"select cast({one}.value as string), cast({other}.value as string) from {one}, `{other}`"
    assert sql(spark, broker, lake, both) == [("1", "2")]
    both = f"select cast(a.value as string), cast(b.value as string) from `{one}/+` a join `{other}/+` b"
    assert sql(spark, broker, lake, both) == [("3", "4")]
    both = f"select cast(a.value as string), cast(b.value as string) from {one}.x a, {other}.x b"
    assert sql(spark, broker, lake, both) == [("3", "4")]
    assert sql(spark, broker, lake, f"select cast({other}.value as string) from {one}") == [("1",)], "as Spark's names"
    with pytest.raises(NotFound, match=f"'{topic}/X' is not a table"):
        sql(spark, broker, lake, f"select * from `{topic}/x` a, `{topic}/X` b")


def test_a_topic_that_was_made_anew_behind_its_archive_is_told(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions
) -> None:
    create_topic(broker, topic, 1)
    produce(broker, topic, [b"old"] * 3)
    archive(spark, broker, lake, topic, "raw.t")
    delete_topic(broker, topic)
    create_topic(broker, topic, 1)
    produce(broker, topic, [b"new"])
    with pytest.raises(MainstemError, match="read up to offset 3 and ends at 1 now"):
        sql(spark, broker, lake, f"select value from {topic}")
    produce(broker, topic, [b"new"] * 4)
    with pytest.raises(MainstemError, match="read up to offset 3 and ends at 5 now"):
        sql(spark, broker, lake, f"select value from {topic}")


def test_a_view_within_an_archive_keeps_its_condition(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions
) -> None:
    for part in range(2):
        for region in ("eu", "us"):
            headers = [("region", region.encode()), ("region", b"eu")]
            produce(broker, f"{topic}.a", [b"%d" % part], key=lambda n: b"dev-1", headers=headers)
        if part == 0:
            archive(spark, broker, lake, f"{topic}/#", "raw.t")
    where = "key ^= 'dev-' and header.region = 'eu' and header.region exists and header.none != 'x'"
    BrokerClient(broker.http_url).post("/v1/views", {"name": f"v-{topic}", "filter": f"{topic}/#", "where": where})
    assert sql(spark, broker, lake, f"select cast(value as string) from `v-{topic}` order by 1") == [("0",), ("1",)]


def test_a_topic_with_partitions_is_archived_by_name(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions
) -> None:
    create_topic(broker, topic, 3)
    produce(broker, topic, [b"%d" % n for n in range(60)])
    archive(spark, broker, lake, topic, "raw.t")
    produce(broker, topic, [b"%d" % n for n in range(60, 90)])
    found = sql(spark, broker, lake, f"select cast(cast(value as string) as int), partition, offset from {topic}")
    assert is_prefix([row[0] for row in found])
    assert len(found) == len({row[1:] for row in found}) == 90


def test_a_stream_starts_exactly_where_a_table_ends(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions, tmp_path: Path
) -> None:
    publish(broker, [(f"{topic}/a", b"%d" % n) for n in range(20)])
    archive(spark, broker, lake, f"{topic}/#", "raw.t")
    publish(broker, [(f"{topic}/b", b"%d" % n) for n in range(20, 35)])
    seen: list[bytes] = []
    options = {"filter": f"{topic}/#", "startingOffsets": "table:raw.t", "warehouse": lake.warehouse}
    query = (
        stream(spark, broker, **options)
        .writeStream.foreachBatch(lambda frame, batch: seen.extend(bytes(row.value) for row in frame.collect()))
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(100)
    assert sorted(seen) == sorted(b"%d" % n for n in range(20, 35))
    with pytest.raises(Exception, match=r"(?s)there is no table 'raw.none'"):
        stream(spark, broker, **{**options, "startingOffsets": "table:raw.none"}).writeStream.foreachBatch(
            lambda frame, batch: None
        ).trigger(availableNow=True).start().awaitTermination(100)


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[Broker]:
    """A broker whose topics below `kept/` are dropped a moment after they are archived, whenever the test says so."""
    settings = (
        "policies.kept/#.retention_ms=1",
        "policies.kept/#.segment_bytes=65536",
        "policies.kept/#.segment_ms=1",
        "policies.kept/#.keep_until_archived=true",
    )
    with Broker(*settings, engine="segment", data=tmp_path / "data") as broker:
        yield broker


def forget(broker: Broker) -> None:
    """A round of retention, now."""
    assert broker.app is not None
    assert broker.loop is not None
    asyncio.run_coroutine_threadsafe(broker.app.broker.maintenance.round(), broker.loop).result(60)


def start_of(broker: Broker, topic_filter: str) -> int:
    lanes = BrokerClient(broker.http_url).post("/v1/scan/lanes", {"select": {"kind": "filter", "filter": topic_filter}})
    return max(one["start"] for one in lanes["lanes"])


def report(broker: Broker, run: ArchiveRun, topic_filter: str) -> None:
    """What the runner tells the broker after a batch."""
    ends = [one.written["ends"] for one in run.run.results.values()]
    if ends:
        BrokerClient(broker.http_url).post("/v1/archives/raw.kept", {"ends": ends[-1], "filter": topic_filter})


def test_rows_dropped_from_the_log_are_still_answered(
    spark: SparkSession, forgetful: Broker, lake: LakeOptions
) -> None:
    sent = [(f"kept/{n % 4}", b"%d" % n + b"." * 500) for n in range(800)]
    publish(forgetful, sent)  # type: ignore[arg-type]
    forget(forgetful)
    assert start_of(forgetful, "kept/#") == 0, "nothing is archived yet, so nothing is dropped"
    run = ArchiveRun(spark, forgetful, lake, "kept/#", "raw.kept")
    assert run.wait()["rows"] == 800
    report(forgetful, run, "kept/#")
    forget(forgetful)
    assert start_of(forgetful, "kept/#") > 0, "archived, so dropped"
    number = "cast(split(cast(value as string), '[.]')[0] as int)"
    found = sql(spark, forgetful, lake, f"select {number} from `kept/#`")
    assert is_prefix([row[0] for row in found])
    assert len(found) == 800
    assert sql(spark, forgetful, lake, "select count(*) from `kept/3`") == [(200,)]
    with pytest.raises(NotFound, match="is not a table, view or topic"):
        sql(spark, forgetful, lake, "select * from `kept/never-was`")


def test_answers_equal_a_full_scan_while_data_arrives_is_archived_and_dropped(
    spark: SparkSession, forgetful: Broker, lake: LakeOptions
) -> None:
    """Each answer is exactly the records 0..k: all that were acknowledged before the question, none twice."""
    acked, stop = 0, threading.Event()
    failures: list[BaseException] = []

    def publishing() -> None:
        nonlocal acked
        try:
            while not stop.is_set() and acked < 20_000:
                publish(forgetful, [(f"kept/{n % 4}", b"%d" % n + b"." * 400) for n in range(acked, acked + 100)])  # type: ignore[arg-type]
                acked += 100
        except BaseException as error:
            failures.append(error)

    publisher = threading.Thread(target=publishing)
    publisher.start()
    number = "cast(split(cast(value as string), '[.]')[0] as int)"
    starts: list[int] = []
    try:
        for _ in range(4):
            run = ArchiveRun(spark, forgetful, lake, "kept/#", "raw.kept")
            run.wait()
            report(forgetful, run, "kept/#")
            forget(forgetful)
            starts.append(start_of(forgetful, "kept/#"))
            before = acked
            found = sql(spark, forgetful, lake, f"select {number} from `kept/#`")
            assert is_prefix([row[0] for row in found])
            assert before <= len(found) <= acked + 100
    finally:
        stop.set()
        publisher.join(60)
    assert not failures
    assert starts == sorted(starts)
    assert starts[-1] > 0, "segments were dropped on the way"
    assert is_prefix([int(row["value"].split(b".")[0]) for row in rows_of(lake, "raw.kept").to_pylist()])


# -- results, names and predicates


def test_results_come_as_table_csv_json_and_parquet(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions, tmp_path: Path
) -> None:
    produce(broker, topic, [b"a,b", b"\xff\n", None], key=lambda n: None, time_ms=lambda n: 1_700_000_000_000)
    shell = SqlShell.over(spark, {"url": broker.http_url}, lake)
    statement = f"select offset, value, timestamp from {topic} order by offset;"

    def result(form: str) -> str:
        shell.run(statement, form=form, output=tmp_path / form, limit=2)
        return (tmp_path / form).read_text()

    table = result("table")
    assert table.splitlines()[0].split() == ["offset", "value", "timestamp"]
    assert table.splitlines()[-1] == "(2 rows; more than 2, see --limit)"
    assert result("csv").splitlines()[:2] == ["offset,value,timestamp", '0,"a,b",2023-11-14T22:13:20']
    lines = [json.loads(line) for line in result("json").splitlines()]
    assert [line["value"] for line in lines] == ["a,b", "\\xff\n", None]
    shell.run(statement, form="parquet", output=tmp_path / "parquet", limit=1)
    assert pq.read_table(tmp_path / "parquet").column("value").to_pylist() == [b"a,b", b"\xff\n", None]
    with pytest.raises(InvalidArgument, match="Parquet needs a folder"):
        shell.run(statement, form="parquet", output=None, limit=1)


def test_what_is_wrong_with_a_statement_is_said_in_one_line(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions
) -> None:
    produce(broker, topic, [b"1"])
    for statement, words in (
        ("select * from `never/was`", "'never/was' is not a table, view or topic"),
        (f"select nothing from {topic}", "UNRESOLVED_COLUMN"),
        (f"select * form {topic}", "PARSE_SYNTAX_ERROR"),
        (f"select raise_error('as told') from {topic}", "as told"),
    ):
        with pytest.raises(MainstemError, match=words) as caught:
            sql(spark, broker, lake, statement)
        assert len(str(caught.value).splitlines()) == 1


def test_names_keep_their_meaning_however_they_are_quoted() -> None:
    assert name_parts("`a`.`b/#`") == ["a", "b/#"]
    assert name_parts("`wei``rd`") == ["wei`rd"]
    text = "select raw.t.x, 'raw.t', `raw`.`t`.y from raw . t join `raw`.t on \"raw.t\" = raw.table"
    assert renamed(text, ["raw", "t"], "v") == "select v.x, 'raw.t', v.y from v join v on \"raw.t\" = raw.table"
    assert renamed("select RAW.t.x from raw.t", ["raw", "t"], "v") == "select v.x from v", "before a column"
    assert renamed("select 1 from Raw.t, raw.t", ["raw", "t"], "v") == "select 1 from Raw.t, v", "another topic"
    with pytest.raises(InvalidArgument, match=r"cannot find 'a.b'"):
        renamed("select 'a.b'", ["a", "b"], "v")


TOPICS = ("a", "a/b", "a/b/c", "b/a", "/a", "a/", "a//b", "$sys/a", "a.b/c", "a'b/\\c", "x/a/b", "*", "a/*")
FILTERS = (
    "#",
    "a/#",
    "+",
    "+/b",
    "a/+/c",
    "#/b",
    "+/#",
    "a/>",
    "a",
    "a'b/\\c",
    "#/a/#",
    "a.b/+",
    "a/+",
    "%2A",
    "$sys/#",
)


def test_filters_mean_the_same_topics_in_sql_as_in_the_broker(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(topic,) for topic in TOPICS], "t string")
    for one in FILTERS:
        found = {row.t for row in frame.where(topic_sql(one.encode(), "t")).collect()}
        assert found == {topic for topic in TOPICS if matches(one.encode(), topic.encode())}, one


def test_conditions_hold_for_the_same_rows_in_sql_as_in_the_broker(spark: SparkSession) -> None:
    rows: list[tuple[Any, Any]] = [
        (b"dev-1", [("r", b"eu"), ("r", b"us")]),
        (b"dev", [("r", b"us")]),
        (None, None),
        (b"", [("r", None), ("it's", b"x")]),
    ]
    schema = "key binary, headers array<struct<key:string,value:binary>>"
    frame = spark.createDataFrame(rows, schema)
    for text in ("key ^= 'dev-'", "key != 'dev'", "key exists", "header.r = 'eu'", "header.r != 'eu'", "header.r exists",
                 "header.r ^= 'e'", "header.'it''s' = 'x' and key = ''"):  # fmt: skip
        condition = parse_condition(text)
        assert condition is not None
        wanted = [key for key, headers in rows if condition.holds(key, [(n.encode(), v) for n, v in headers or ()])]
        found = [None if row.key is None else bytes(row.key) for row in frame.where(condition_sql(text)).collect()]
        assert found == wanted, text


@pytest.mark.slow
def test_the_prompt_answers_and_remembers(broker: BrokerProcess, topic: str, lake: LakeOptions, tmp_path: Path) -> None:
    import os
    import pty
    import subprocess
    import sys

    produce(broker, topic, [b"1", b"2", b"3"])
    ours, theirs = pty.openpty()
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "TERM": "dumb"}
    command = [sys.executable, "-m", "mainstem", "sql", "--url", broker.http_url, "--warehouse", lake.warehouse]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, close_fds=True)
    os.close(theirs)
    said = bytearray()

    def reading() -> None:
        while True:
            try:
                chunk = os.read(ours, 4096)
            except OSError:
                return
            if not chunk:
                return
            said.extend(chunk)

    reader = threading.Thread(target=reading, daemon=True)
    reader.start()
    try:
        eventually(lambda: b"mainstem> " in said, "the prompt", 110)
        os.write(ours, f"select count(*) as\nn from {topic};\n".encode())
        eventually(lambda: b"(1 row)" in said, "an answer", 60)
        os.write(ours, b"select * from nothing_at_all;\n")
        eventually(lambda: b"error[MS-1001]" in said, "an error, and the prompt goes on", 60)
        os.write(ours, b"\\q\n")
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    history = (tmp_path / "state" / "mainstem" / "sql-history").read_text()
    assert f"n from {topic};" in history
