"""Declared pipelines, run: real Spark, real broker, real clients."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType

from mainstem.model.errors import ConfigError, MainstemError
from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.client import BrokerClient, BrokerUnreachable
from mainstem_pipeline.lake.catalog import LakeOptions, open_catalog
from mainstem_pipeline.lake.commits import ensure_table
from mainstem_pipeline.lake.tables import read_table
from mainstem_pipeline.pipeline.checks import load_pipeline
from mainstem_pipeline.pipeline.failures import exit_code
from mainstem_pipeline.pipeline.progress import FlowProgress
from mainstem_pipeline.pipeline.runner import PipelineFailed, Runner, RunOptions
from mainstem_pipeline.pipeline.validation import validated
from tests.pipeline.conftest import create_topic, eventually, produce, publish, read, values_of

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"


class Told:
    """A display that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.flows: list[FlowProgress] = []

    def batch(self, flow: FlowProgress) -> None: ...

    def within(self, flow: FlowProgress) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)

    def close(self, flows: list[FlowProgress], seconds: float) -> None:
        self.flows = flows


@pytest.fixture
def run(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, broker: BrokerProcess) -> Any:
    """Run a file's flows once, in the shared session."""
    monkeypatch.setenv("MAINSTEM_URL", broker.http_url)

    def runs(path: Path, **options: Any) -> Told:
        told = Told()
        made = RunOptions(**{"once": True, **options})
        assert Runner(load_pipeline(path), made, told, spark).run() == 0
        return told

    return runs


def example(name: str, folder: Path) -> Path:
    shutil.copytree(EXAMPLES / name, folder / name)
    return folder / name / "pipeline.yaml"


def pipeline(folder: Path, text: str) -> Path:
    path = folder / "pipeline.yaml"
    path.write_text("name: p\nlake: {warehouse: ./lake}\n" + dedent(text))
    return path


def table(spark: SparkSession, folder: Path, name: str) -> Sequence[Row]:
    return read_table(spark, LakeOptions(str(folder / "lake")), name).collect()


# -- the examples


def reading(device: str, celsius: object, at: str) -> bytes:
    return json.dumps({"device": device, "celsius": celsius, "at": at}).encode()


def test_telemetry_goes_from_devices_to_tables_and_back_as_alerts(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, run: Any
) -> None:
    import paho.mqtt.client as mqtt

    alerts: list[tuple[str, bytes]] = []
    device = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    device.on_message = lambda c, u, message: alerts.append((message.topic, message.payload))
    device.connect(broker.host, broker.mqtt_port)
    device.loop_start()
    device.subscribe("alerts/#", 1)
    eventually(device.is_connected, "the device's connection")
    path = example("telemetry", tmp_path)
    folder = path.parent
    good = [
        (f"sensors/north/d{n % 5}/reading", reading(f"d{n % 5}", n % 85, f"2026-11-15T{n // 100:02d}:00:00Z"))
        for n in range(400)
    ]
    bad = [
        ("sensors/north/d1/reading", b"not json"),
        ("sensors/north/d1/reading", reading("d1", "warm", "2026-11-15T00:00:00Z")),
        ("sensors/north/d1/reading", reading("d1", 999, "2026-11-15T00:00:00Z")),
        ("sensors/north/d1/reading", b'{"celsius": 20}'),
    ]
    publish(broker, good + bad)
    run(path)
    assert len(table(spark, folder, "iot.readings")) == 400
    dead = table(spark, folder, "iot.dead_readings")
    assert sorted(row.reason for row in dead) == [
        'field celsius: expected double, found string "warm"',
        "rule named: device is not null",
        "rule plausible: celsius between -60 and 120",
        "the value is not json: Expecting value at character 0: not json",
    ]
    assert {(row.topic, row.origin, row.flow) for row in dead} == {("sensors/north/d1/reading", "mqtt", "readings")}
    letters = read(spark, broker, subscribe="sensors/dead", includeHeaders="true").collect()
    assert sorted(bytes(row.value) for row in letters) == sorted(payload for _, payload in bad)
    origins = [{one.key: bytes(one.value) for one in row.headers}["dead-topic"] for row in letters]
    assert origins == [b"sensors/north/d1/reading"] * 4
    hot = [(f"d{n % 5}", n % 85) for n in range(400) if n % 85 > 80]
    eventually(lambda: len(alerts) >= len(hot) + 1, "alerts at the devices")
    assert sorted(topic for topic, _ in alerts) == sorted(["alerts/d1", *(f"alerts/{name}" for name, _ in hot)])
    device.disconnect()
    device.loop_stop()

    publish(
        broker, [("sensors/south/d9/reading", reading("d9", 20, "2026-11-15T23:00:00Z"))]
    )  # the hours before are over
    run(path)
    assert len(table(spark, folder, "iot.readings")) == 401
    hours = table(spark, folder, "iot.hourly")
    assert sum(row.readings for row in hours) == 400 + 1  # 999 degrees is a reading here: this flow has no rule
    assert len({(row.device, row.hour) for row in hours}) == len(hours) == 20


@pytest.mark.slow
def test_orders_of_kafka_and_amqp_are_joined_with_a_table(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, run: Any
) -> None:
    import pika

    produce(
        broker,
        "orders.web",
        [b'{"id": "1", "customer": " C1", "amount": 10.50}', b'{"id": "2", "customer": "c9", "amount": 2000}'],
    )
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    channel.confirm_delivery()
    for body in (b'{"id": "3", "customer": "c2", "amount": 5}', b'{"id": "4", "customer": "c3", "amount": -1}'):
        channel.basic_publish("amq.topic", "orders.shop", body, pika.BasicProperties(delivery_mode=2))
    connection.close()
    path = example("orders", tmp_path)
    run(path)
    run(path)
    rows = sorted(
        (r.id, str(r.amount), r.channel, r.customer, r.country) for r in table(spark, path.parent, "shop.orders")
    )
    assert rows == [
        ("1", "10.50", "web", "Ada", "GB"),
        ("2", "2000.00", "web", None, "unknown"),
        ("3", "5.00", "shop", "Emmy", "DE"),
    ]
    assert read(spark, broker, subscribe="orders-enriched").count() == 3
    large = read(spark, broker, subscribe="orders-large").collect()
    assert [json.loads(row.value)["id"] for row in large] == ["2"]
    assert [bytes(row.key) for row in large] == [b"2"]
    assert values_of(read(spark, broker, subscribe="orders-dead")) == [b'{"id": "4", "customer": "c3", "amount": -1}']


def test_a_month_of_logs_is_searched(spark: SparkSession, broker: BrokerProcess, tmp_path: Path, run: Any) -> None:
    from mainstem_pipeline.query.shell import SqlShell

    lines = [b"INFO ok %d" % n if n % 10 else b"ERROR timeout %d" % n for n in range(200)]
    publish(broker, [(f"logs/web/h{n % 3}", line) for n, line in enumerate(lines)])
    path = example("logs", tmp_path)
    run(path)
    publish(broker, [("logs/web/h0", b"ERROR timeout late")])
    shell = SqlShell.over(spark, {"url": broker.http_url}, LakeOptions(str(path.parent / "lake")))
    archived = shell.query(
        "select cast(value as string) line from raw.logs where cast(value as string) like '%timeout%'"
    )
    assert archived.count() == 20
    both = shell.query(
        "select count(*) n, count(distinct offset) d from `logs/#` where cast(value as string) like '%timeout%'"
    ).first()
    assert both is not None
    assert (both.n, both.d) == (21, 21)
    errors = spark.read.parquet(str(path.parent / "errors"))
    assert errors.count() == 20
    assert {row.host for row in errors.collect()} == {"h0", "h1", "h2"}


def test_dead_letters_that_a_wildcard_means_are_not_read_again(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path, run: Any
) -> None:
    """Each would be bad again, and its letter too, for ever. Whoever names their topic reads them."""
    publish(broker, [(f"{topic}/a", b'{"n": 1}'), (f"{topic}/a", b"bad")])
    flow = """
          - name: {name}
            from: {{{source}}}
            decode: {{format: json, schema: "n int"}}
            to: {{table: t.{name}}}
            dead_letters: {{topic: {topic}/dead}}
    """
    both = [("wild", f'filter: "{topic}/#"'), ("other", f'filter: "{topic}/+"')]
    path = pipeline(tmp_path, "flows:\n" + "".join(flow.format(name=n, source=s, topic=topic) for n, s in both))
    for _ in range(2):
        told = run(path)
    assert [(one.state, one.bad_total) for one in told.flows] == [("done", 0), ("done", 0)]
    assert values_of(read(spark, broker, subscribe=f"{topic}/dead")) == [b"bad", b"bad"], "one of each flow"
    (known,) = [one for one in BrokerClient(broker.http_url).get("/v1/pipelines")["items"] if one["name"] == "p"]
    assert {(one["reads"], one["writes"]) for one in known["flows"]} == {
        (f"{topic}/#", f"{topic}/dead"),
        (f"{topic}/+", f"{topic}/dead"),
    }, "other pipelines look there for loops"


# -- decoding, transforms, sinks


def test_avro_csv_raw_and_inferred_json_are_decoded(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path, run: Any
) -> None:
    import io

    import fastavro

    schema = {
        "type": "record",
        "name": "r",
        "fields": [{"name": "id", "type": "string"}, {"name": "n", "type": ["null", "long"]}],
    }
    (tmp_path / "r.avsc").write_text(json.dumps(schema))
    packed = io.BytesIO()
    fastavro.schemaless_writer(packed, fastavro.parse_schema(schema), {"id": "a", "n": 7})
    produce(broker, f"{topic}-avro", [packed.getvalue(), b"\xff\xff"])
    produce(broker, f"{topic}-csv", [b"x;1.5", b"y;2.5"])
    produce(broker, f"{topic}-json", [b'{"a": 1, "b": {"c": "deep"}}'])
    produce(broker, f"{topic}-raw", [b"raw"])
    path = pipeline(
        tmp_path,
        f"""
        flows:
          - name: avro
            from: {{topic: {topic}-avro}}
            decode: {{format: avro, schema: r.avsc}}
            sql: select id, n from input
            to: {{table: t.avro}}
            dead_letters: {{max_ratio: 1}}
          - name: csv
            from: {{topic: {topic}-csv}}
            decode: {{format: csv, schema: "id string, x double", options: {{sep: ";"}}}}
            sql: select id, x from input
            to: {{table: t.csv}}
          - name: json
            from: {{topic: {topic}-json}}
            decode: {{format: json, infer: true}}
            sql: select a, b.c from input
            to: {{table: t.json}}
          - name: raw
            from: {{topic: {topic}-raw}}
            sql: select cast(_value as string) v, _origin o from input
            to: {{table: t.raw}}
        """,
    )
    told = run(path)
    assert [tuple(row) for row in table(spark, tmp_path, "t.avro")] == [("a", 7)]
    assert sorted(tuple(row) for row in table(spark, tmp_path, "t.csv")) == [("x", 1.5), ("y", 2.5)]
    assert [tuple(row) for row in table(spark, tmp_path, "t.json")] == [(1, "deep")]
    assert [tuple(row) for row in table(spark, tmp_path, "t.raw")] == [("raw", "kafka")]
    assert {flow.flow: flow.bad_total for flow in told.flows} == {"avro": 1, "csv": 0, "json": 0, "raw": 0}


def test_a_backfill_runs_a_range_once_however_often_it_is_asked_for(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path, run: Any
) -> None:
    create_topic(broker, topic)
    produce(broker, topic, [b"%d" % n for n in range(10)], time_ms=lambda n: 1_000_000 + n * 1000)
    path = pipeline(
        tmp_path,
        f"""
        flows:
          - name: f
            from: {{topic: {topic}}}
            sql: select cast(cast(_value as string) as int) n from input
            to: [{{table: t.n}}, {{topic: {topic}-out}}]
        """,
    )
    for _ in range(2):
        run(path, once=False, backfill_from="1003000", backfill_to="1007000")
    assert sorted(row.n for row in table(spark, tmp_path, "t.n")) == [3, 4, 5, 6]
    assert read(spark, broker, subscribe=f"{topic}-out").count() == 4
    run(path, once=False, backfill_from="1007000")
    assert sorted(row.n for row in table(spark, tmp_path, "t.n")) == [3, 4, 5, 6, 7, 8, 9]


def test_a_table_is_a_source_and_its_new_rows_are_read_once(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path, run: Any
) -> None:
    """The second flow reads what the first writes: it waits for it, each time."""
    sql = "select cast(cast(_value as string) as int) n from input"
    first = f'{{name: a, from: {{topic: {topic}}}, sql: "{sql}", to: {{table: t.a}}}}'
    rest = f'rules: {{small: "n < 90"}}, to: {{table: t.b}}, dead_letters: {{topic: {topic}-dead}}'
    second = f'{{name: b, from: {{table: t.a}}, sql: "select n * 2 as n from input", {rest}}}'
    path = pipeline(tmp_path, f"flows: [{first}, {second}]")
    produce(broker, topic, [b"1", b"2"])
    assert validated(path, offline=False) == []
    run(path)
    produce(broker, topic, [b"3", b"99"])
    run(path)
    assert sorted(row.n for row in table(spark, tmp_path, "t.b")) == [2, 4, 6]
    assert values_of(read(spark, broker, subscribe=f"{topic}-dead")) == [b'{"n":99}']


@pytest.mark.slow
def test_counts_over_time_are_updated_on_a_topic(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path, run: Any
) -> None:
    path = pipeline(
        tmp_path,
        f"""
        flows:
          - name: counts
            from: {{topic: {topic}}}
            decode: {{format: json, schema: "k string"}}
            sql: "select k, count(*) as n from input group by k"
            mode: update
            to: {{topic: {topic}-counts, key: k}}
            dead_letters: {{topic: {topic}-dead, max_ratio: 1}}
        """,
    )
    produce(broker, topic, [b'{"k": "a"}', b'{"k": "a"}', b'{"k": "b"}', b"?"])
    run(path)
    produce(broker, topic, [b'{"k": "a"}', b"??"])
    run(path)
    rows = read(spark, broker, subscribe=f"{topic}-counts").orderBy("offset").collect()
    last = {bytes(row.key).decode(): json.loads(row.value)["n"] for row in rows}
    assert last == {"a": 3, "b": 1}
    assert len(rows) == 3
    assert values_of(read(spark, broker, subscribe=f"{topic}-dead")) == [b"?", b"??"]


def test_rows_that_a_sink_refuses_by_themselves_are_dead_letters_and_the_others_arrive(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path, run: Any
) -> None:
    BrokerClient(broker.http_url).post("/v1/views", {"name": f"{topic}/view", "filter": "none/#"})
    devices = ["a", "b", "c#", "d/+/x", None, "view", "x" * 70_000]
    produce(broker, topic, [json.dumps({"device": one}).encode() for one in devices] + [b"bad"])
    path = pipeline(
        tmp_path,
        f"""
        flows:
          - name: f
            from: {{topic: {topic}}}
            decode: {{format: json, schema: "device string"}}
            sql: select device from input
            to: [{{topic: "{topic}/{{device}}"}}, {{table: t.all}}]
            dead_letters: {{topic: {topic}-dead, table: t.dead, max_ratio: 1}}
        """,
    )
    for _ in range(2):
        told = run(path)
    assert [row.device for row in table(spark, tmp_path, "t.all")].count(None) == 1, "this sink takes all rows"
    assert len(table(spark, tmp_path, "t.all")) == 7
    arrived = read(spark, broker, filter=f"{topic}/+").collect()
    assert sorted(row.canonical_topic for row in arrived) == [f"{topic}/a", f"{topic}/b"]
    assert read(spark, broker, subscribe=f"{topic}-dead").count() == 6
    reasons = {bytes(row.value).decode()[:40]: row.reason for row in table(spark, tmp_path, "t.dead")}
    assert len(reasons) == 6
    assert reasons['{"device":"view"}'].endswith("is a view; write to a topic that it shows")
    assert "topic is null" in reasons["{}"]
    assert topic in reasons['{"device":"c#"}']
    assert "topic" in reasons['{"device":"d/+/x"}']
    assert [one.bad_total for one in told.flows] == [0], "the second run had nothing new"


def test_a_record_too_large_for_its_topic_is_a_dead_letter(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path, run: Any
) -> None:
    create_topic(broker, f"{topic}-out", **{"max.message.bytes": "2000"})
    produce(broker, topic, [b"small", b"x" * 3000])
    to = f"to: {{topic: {topic}-out, value: _value}}, dead_letters: {{topic: {topic}-dead}}"
    told = run(pipeline(tmp_path, f"flows: [{{name: f, from: {{topic: {topic}}}, {to}}}]\n"))
    assert values_of(read(spark, broker, subscribe=f"{topic}-out")) == [b"small"]
    assert values_of(read(spark, broker, subscribe=f"{topic}-dead")) == [b"x" * 3000], "the record itself, as it came"
    assert [one.bad_total for one in told.flows] == [1]


SIDE = """
name: p
lake: {{warehouse: ./lake}}
tables: {{sites: {{{side}}}}}
flows:
  - name: counts
    from: {{topic: {topic}}}
    decode: {{format: json, schema: "k string"}}
    sql: "select s.site, count(*) as n from input i join sites s on s.k = i.k group by s.site"
    mode: update
    to: {{topic: {topic}-counts, key: site}}
"""


@pytest.mark.parametrize(
    "kind", ["table", *(pytest.param(one, marks=pytest.mark.slow) for one in ("csv", "json", "parquet"))]
)
def test_a_flow_with_state_joins_each_batch_with_the_side_table_as_it_is_then(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
    from pyiceberg.schema import assign_fresh_schema_ids

    monkeypatch.setenv("MAINSTEM_URL", broker.http_url)
    place = tmp_path / f"sites.{kind}"

    def sites(rows: list[tuple[str, str]], *, first: bool) -> None:
        arrow = pa.table({"k": [k for k, _ in rows], "site": [site for _, site in rows]})
        if kind == "table":
            schema = assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(arrow.schema))
            ensure_table(open_catalog(LakeOptions(str(tmp_path / "lake"))), "t.sites", schema).append(arrow)
        elif kind == "parquet":
            place.mkdir(exist_ok=True)
            pq.write_table(arrow, place / f"{'first' if first else 'second'}.parquet")
        elif kind == "csv":
            with place.open("a") as file:
                file.write("".join([*(["k,site\n"] if first else []), *(f"{k},{site}\n" for k, site in rows)]))
        else:
            with place.open("a") as file:
                file.write("".join(json.dumps({"k": k, "site": site}) + "\n" for k, site in rows))

    sites([("a", "north")], first=True)
    side = {"table": "table: t.sites", "csv": f'csv: {place.name}, schema: "k string, site string"'}
    path = tmp_path / "pipeline.yaml"
    path.write_text(SIDE.format(topic=topic, side=side.get(kind, f"{kind}: {place.name}")))
    produce(broker, topic, [b'{"k": "a"}'])
    made = Runner(load_pipeline(path), RunOptions(), Told(), spark)
    running = threading.Thread(target=made.run)
    running.start()

    def counts() -> dict[str, int]:
        rows = read(spark, broker, filter=f"{topic}-counts").orderBy("offset").collect()
        return {bytes(row.key).decode(): json.loads(row.value)["n"] for row in rows}

    try:
        eventually(lambda: counts() == {"north": 1}, "the first batch", 90)
        sites([("b", "south")], first=False)
        produce(broker, topic, [b'{"k": "b"}', b'{"k": "a"}'])
        eventually(lambda: counts() == {"north": 2, "south": 1}, "a batch with the new row of the side table", 90)
    finally:
        made.stop()
        running.join(60)


# -- failures


def failure(spark: SparkSession, path: Path) -> MainstemError:
    with pytest.raises(MainstemError) as caught:
        Runner(load_pipeline(path), RunOptions(once=True), Told(), spark).run()
    return caught.value


WINDOWS = """
            watermark: {column: at, delay: 1m}
            sql: select window.start as hour, count(*) as n from input group by window(at, '1 hour')"""
COUNTS = """
            mode: update
            sql: select x, count(*) as n from input group by x"""


@pytest.mark.parametrize(
    ("steps", "sink"),
    [
        pytest.param("sql: select x from input", "table: t.x", id="batch by batch"),
        pytest.param(WINDOWS, "table: t.x", id="windows", marks=pytest.mark.slow),
        pytest.param(COUNTS, "topic: {topic}-x", id="counts", marks=pytest.mark.slow),
    ],
)
def test_a_poisoned_flow_stops_with_three_examples_and_writes_nothing(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path, run: Any, steps: str, sink: str
) -> None:
    good = [b'{"x": 1, "at": "2026-11-15T%02d:00:00Z"}' % (n % 20) for n in range(80)]
    produce(broker, topic, good + [b"poison %d" % n for n in range(40)])
    path = pipeline(
        tmp_path,
        f"""
        flows:
          - name: f
            from: {{topic: {topic}}}
            decode: {{format: json, schema: "x int, at timestamp"}}
            {steps}
            to: {{{sink.format(topic=topic)}}}
            dead_letters: {{topic: {topic}-dead, max_ratio: 0.1}}
        """,
    )
    error = failure(spark, path)
    assert isinstance(error, PipelineFailed)
    assert error.exit_code == 4
    assert "40 of 120 records cannot be used, the limit is 10%" in str(error)
    assert str(error).count("\n  ") == 3
    assert "the value is not json: Expecting value at character 0: poison" in str(error)
    if sink.startswith("table"):
        with pytest.raises(MainstemError, match="no table"):
            table(spark, tmp_path, "t.x")
    written = BrokerClient(broker.http_url).post("/v1/scan/lanes", {"select": {"kind": "filter", "filter": "#"}})
    assert not {f"{topic}-dead", f"{topic}-x"} & {one["topic"] for one in written["lanes"]}

    path.write_text(path.read_text().replace("max_ratio: 0.1", "max_ratio: 0.5"))  # then it goes on, and loses nothing
    told = run(path)
    assert [(flow.rows_total, flow.bad_total) for flow in told.flows] == [(120, 40)]
    assert read(spark, broker, subscribe=f"{topic}-dead").count() == 40


JSON = 'decode: {format: json, schema: "x int"}, '
X = 'sql: "select x from input"'


@pytest.mark.parametrize(
    ("flow", "words"),
    [
        (JSON + 'sql: "select colour from input"', "UNRESOLVED_COLUMN.*colour.*Did you mean"),
        (JSON + 'sql: "select * from input join nowhere using (x)"', "TABLE_OR_VIEW_NOT_FOUND.*nowhere"),
        (JSON + 'sql: "selec x from input"', "PARSE_SYNTAX_ERROR"),
        (JSON + 'rules: {r: "y > 1"}', "UNRESOLVED_COLUMN.*y"),
        (
            JSON + 'watermark: {column: at, delay: 1s}, sql: "select x from input"',
            "no column 'at' for the watermark.*one of x",
        ),
        (
            'decode: {format: json, schema: "x nonsense"}, sql: "select x from input"',
            "schema 'x nonsense' cannot be read.*write it as Spark does",
        ),
        (JSON + X + ', to: {topic: o, where: "y > 1"}', "UNRESOLVED_COLUMN.*y"),
        (JSON + X + ', to: {topic: "o/{y}"}', "UNRESOLVED_COLUMN.*y"),
        (JSON + X + ", to: {table: t.n, partition_by: day(y)}", "partition_by 'day.y.': no such column.*one of x"),
        (JSON + X + ", to: {table: t.there}", "table t.there is there with another schema.*cast the column"),
        (
            JSON + 'sql: "select null as v from input", to: {table: t.n}',
            "column v of type null.*cast it in the flow's SQL",
        ),
        ("from: {table: t.none}, " + X, "no table 't.none' in the lake.*mainstem lake ls"),
    ],
)
def test_what_cannot_run_is_told_with_its_line_and_a_fix_before_anything_runs(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, run: Any, flow: str, words: str
) -> None:
    if "t.there" in flow:
        fields = Schema(NestedField(1, "x", StringType()))
        ensure_table(open_catalog(LakeOptions(str(tmp_path / "lake"))), "t.there", fields)
    rest = ", ".join(
        text for word, text in (("from:", "from: {filter: none/#}"), ("to:", "to: {console: true}")) if word not in flow
    )
    path = pipeline(tmp_path, f"flows:\n  - {{name: f, {flow}, {rest}}}\n".replace(", }", "}"))
    with pytest.raises(ConfigError, match=f"(?s)pipeline.yaml:4: .*{words}") as caught:
        Runner(load_pipeline(path), RunOptions(once=True), Told(), spark).run()
    assert exit_code(caught.value) == 2
    assert "Traceback" not in str(caught.value)
    assert "SQLSTATE" not in str(caught.value)


def test_a_topic_that_is_not_there_is_told_with_how_to_make_it(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path, run: Any
) -> None:
    path = pipeline(tmp_path, f"flows:\n  - {{name: f, from: {{topic: {topic}}}, to: {{console: true}}}}\n")
    error = failure(spark, path)
    assert str(error) == f"flow f: no topic '{topic}'"
    assert f"mainstem topic create {topic}" in error.fix


def test_a_broker_that_is_not_there_is_told_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSTEM_URL", "http://127.0.0.1:9")
    path = pipeline(tmp_path, "flows:\n  - {name: f, from: {topic: a}, to: {console: true}}\n")
    with pytest.raises(BrokerUnreachable, match=r"no broker answers at http://127\.0\.0\.1:9") as caught:
        Runner(load_pipeline(path), RunOptions(once=True), Told()).run()
    assert exit_code(caught.value) == 69
    assert "mainstem up" in caught.value.fix


def test_a_full_disk_is_told_once_with_what_to_do(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        produce(broker, "in", [b"x"])
    with BrokerProcess(tmp_path / "data", "data.space_low_bytes=900TiB") as broker:
        monkeypatch.setenv("MAINSTEM_URL", broker.http_url)
        eventually(lambda: "publishes are refused" in broker.log(), "the broker's look at its disk")
        path = pipeline(tmp_path, "flows:\n  - {name: f, from: {topic: in}, to: {topic: out}}\n")
        error = failure(spark, path)
    assert isinstance(error, PipelineFailed)
    assert "free space" in f"{error} {error.fix}"
    assert error.exit_code == 5
