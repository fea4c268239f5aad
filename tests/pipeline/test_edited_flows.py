"""A file edited between a failed batch and the run that finishes it: every sink has every row once, or it is told."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.client import BrokerClient
from mainstem_pipeline.lake.catalog import LakeOptions
from mainstem_pipeline.lake.tables import read_table
from mainstem_pipeline.pipeline.checks import load_pipeline
from mainstem_pipeline.pipeline.document import BadPipeline
from mainstem_pipeline.pipeline.runner import PipelineFailed, Runner, RunOptions
from mainstem_pipeline.pipeline.state import ChangedFlow
from tests.pipeline.conftest import produce, read, values_of
from tests.pipeline.test_pipelines import Told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Failed:
    """A flow whose batch is in its table and not in its topic, whose name a view has taken meanwhile."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, folder: Path, topic: str) -> None:
        self.spark, self.broker, self.folder, self.topic = spark, broker, folder, topic
        self.client = BrokerClient(broker.http_url)
        self.table, self.stuck = "{table: t.first}", f"{{topic: {topic}-second}}"
        self.write(f"[{self.table}, {self.stuck}]")
        produce(broker, topic, [b"1", b"2"])
        self.client.post("/v1/views", {"name": f"{topic}-second", "filter": "none/#"})
        with pytest.raises(PipelineFailed) as caught:
            self.run()
        assert caught.value.exit_code == 5
        self.client.delete(f"/v1/views/{topic}-second")

    def write(self, sinks: str, number: str = "n") -> None:
        (self.folder / "p.yaml").write_text(f"""
name: p
broker: {{url: {self.broker.http_url}}}
lake: {{warehouse: ./lake}}
flows:
  - name: f
    from: {{topic: {self.topic}}}
    sql: "select cast(cast(_value as string) as int) as {number} from input"
    to: {sinks}
""")

    def run(self, *accepted: str) -> None:
        options = RunOptions(once=True, accept_change=accepted)
        assert Runner(load_pipeline(self.folder / "p.yaml"), options, Told(), self.spark).run() == 0

    def in_table(self, name: str) -> list[int]:
        return sorted(row[0] for row in read_table(self.spark, LakeOptions(str(self.folder / "lake")), name).collect())

    def in_topic(self, name: str) -> list[bytes]:
        return values_of(read(self.spark, self.broker, subscribe=name))


@pytest.fixture
def failed(spark: SparkSession, broker: BrokerProcess, tmp_path: Path, topic: str) -> Failed:
    return Failed(spark, broker, tmp_path, topic)


def test_sinks_in_another_order_and_new_ones_beside_them_each_get_the_failed_batch_once(failed: Failed) -> None:
    failed.write(f"[{{table: t.new}}, {failed.stuck}, {failed.table}]")
    failed.run()
    produce(failed.broker, failed.topic, [b"3"])
    failed.run()
    assert failed.in_table("t.first") == failed.in_table("t.new") == [1, 2, 3]
    assert failed.in_topic(f"{failed.topic}-second") == [b'{"n":%d}' % n for n in (1, 2, 3)]


def test_a_sink_that_misses_the_failed_batch_is_not_forgotten_in_silence(failed: Failed) -> None:
    failed.write(f"[{{topic: {failed.topic}-third}}, {failed.table}]")
    with pytest.raises(ChangedFlow) as caught:
        failed.run()
    assert f"topic {failed.topic}-second does not have it and is gone from the file" in str(caught.value)
    assert "--accept-change f" in caught.value.fix
    assert "--reset f" in caught.value.fix
    failed.run("f")
    assert failed.in_table("t.first") == [1, 2]
    assert failed.in_topic(f"{failed.topic}-third") == [b'{"n":1}', b'{"n":2}']


def test_rows_made_in_another_way_are_not_mixed_into_the_failed_batch_in_silence(failed: Failed) -> None:
    failed.write(f"[{failed.table}, {failed.stuck}]", number="m")
    with pytest.raises(ChangedFlow, match=r"table t\.first has it, made by the former decode, rules or transforms"):
        failed.run()
    failed.write(f"[{failed.stuck}, {failed.table}]")
    failed.run()
    assert failed.in_topic(f"{failed.topic}-second") == [b'{"n":1}', b'{"n":2}']
    failed.write(f"[{failed.stuck}, {failed.table}]", number="m")  # the batch is done: rows may change between batches
    failed.run()
    assert failed.in_table("t.first") == [1, 2]


def test_two_sinks_of_one_target_need_names(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    text = "name: p\nflows:\n  - {name: f, from: {topic: a}, to: [{topic: b, where: x}, {topic: b}]}\n"
    file.write_text(text)
    with pytest.raises(BadPipeline, match=r"two sinks of this flow are 'topic:b'; give each a name of its own"):
        load_pipeline(file)
    file.write_text(text.replace("{topic: b}", "{topic: b, name: rest}"))
    assert [sink.name for sink in load_pipeline(file).flows[0].sinks] == ["topic:b", "rest"]
