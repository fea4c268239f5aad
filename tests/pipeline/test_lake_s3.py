"""The lake in a bucket: SeaweedFS, a real S3-compatible store, and its own Iceberg REST catalog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mainstem.model.errors import ConfigError
from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.lake.catalog import LakeOptions, open_catalog
from mainstem_pipeline.lake.commands import archive_pipeline
from mainstem_pipeline.lake.maintain import compact, expire, remove_unreferenced
from mainstem_pipeline.lake.rebuild import rebuilt_batches
from mainstem_pipeline.pipeline.checks import load_pipeline
from mainstem_pipeline.pipeline.progress import Lines
from mainstem_pipeline.pipeline.runner import Runner, RunOptions
from mainstem_pipeline.pipeline.state import State
from tests.pipeline.conftest import publish
from tests.pipeline.lake_kit import archive, is_prefix, orphans, rows_of, sql, stored_frames, table_of
from tests.s3_server import KEY, SECRET, S3Server, s3_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("weed")) as server:
        yield server


@pytest.fixture
def credentials(store: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")


def check_lake(spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions, state: Path) -> None:
    """Archive, rebuild, ask, compact, expire: as with a folder."""
    for part in range(2):
        publish(broker, [(f"{topic}/{n % 3}", b"%d" % n) for n in range(part * 50, part * 50 + 50)])
        assert archive(spark, broker, lake, f"{topic}/#", "raw.t", state)["rows"] == 50
    assert archive(spark, broker, lake, f"{topic}/#", "raw.t", state / "lost")["rows"] == 0, "it asks the table"
    publish(broker, [(f"{topic}/0", b"%d" % n) for n in range(100, 120)])
    numbers = f"select cast(cast(value as string) as int) from `{topic}/#`"
    assert is_prefix([row[0] for row in sql(spark, broker, lake, numbers)])
    before = rows_of(lake, "raw.t")
    assert len(before) == 100
    stored = stored_frames(broker, {"kind": "filter", "filter": f"{topic}/#"})
    assert {one.frame_head for one in rebuilt_batches(before)} <= {frame[:48] for frame in stored.values()}
    catalog = open_catalog(lake)
    assert compact(spark, catalog, "raw.t", lake.file_properties(), 128 << 20).after == 1
    assert expire(catalog, "raw.t", 1, 0) >= 3
    assert remove_unreferenced(catalog, "raw.t", -60) >= 2
    assert not orphans(lake, "raw.t")
    assert rows_of(lake, "raw.t").equals(before)
    assert len(sql(spark, broker, lake, numbers)) == 120


def test_a_bucket_with_a_sql_catalog(
    spark: SparkSession, broker: BrokerProcess, topic: str, store: S3Server, credentials: None, tmp_path: Path
) -> None:
    store.make_bucket("lake")
    check_lake(
        spark, broker, topic, LakeOptions("s3://lake/wh", f"sqlite:///{tmp_path / 'catalog.db'}"), tmp_path / "state"
    )


@pytest.mark.slow
def test_a_bucket_with_a_rest_catalog(
    spark: SparkSession, broker: BrokerProcess, topic: str, store: S3Server, credentials: None, tmp_path: Path
) -> None:
    store.make_table_bucket("tables")
    check_lake(spark, broker, topic, LakeOptions("s3://tables", store.catalog), tmp_path / "state")


def test_a_rest_catalog_names_tables_and_fences_their_committers(store: S3Server, credentials: None) -> None:
    from mainstem_pipeline.lake.archive import Archive
    from mainstem_pipeline.lake.commits import Committer, Fenced

    store.make_table_bucket("fenced")
    lake = LakeOptions("s3://fenced", store.catalog)
    old = Archive(lake, "raw.t", "filter:x/#")
    new = Archive(lake, "raw.t", "filter:x/#")
    assert (old.epoch, new.epoch) == (1, 2)
    with pytest.raises(Fenced):
        Committer(open_catalog(lake), "raw.t", "query", epoch=old.epoch).commit(0, [])
    assert Committer(open_catalog(lake), "raw.t", "query", epoch=new.epoch).commit(0, [])
    assert table_of(lake, "raw.t").location() == "s3://fenced/raw/t"


def test_a_bucket_needs_a_catalog_and_a_place_for_the_state() -> None:
    with pytest.raises(ConfigError, match="its catalog must be named"):
        open_catalog(LakeOptions("s3://lake"))
    with pytest.raises(Exception, match="must keep its position elsewhere") as caught:
        archive_pipeline("a/#", None, url="", warehouse="s3://lake", catalog="sqlite:///x", state=None)
    assert caught.value.fix == "--state DIR"  # type: ignore[attr-defined]


def test_a_pipelines_state_lies_in_a_bucket_and_spark_without_its_jar_is_told(
    spark: SparkSession, broker: BrokerProcess, store: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.make_bucket("state")
    for name, value in (("ENDPOINT_URL", store.endpoint), ("ACCESS_KEY_ID", KEY), ("SECRET_ACCESS_KEY", SECRET)):
        monkeypatch.setenv(f"AWS_{name}", value)
    file = tmp_path / "p.yaml"
    file.write_text(
        f"name: p\nstate: s3://state/p\nbroker: {{url: {broker.http_url}}}\n"
        "flows: [{name: f, from: {filter: none/#}, to: {console: true}}]\n"
    )
    made = load_pipeline(file)
    first, second = State(made), State(made)
    first.take()
    with pytest.raises(ConfigError, match="is running already"):
        second.take()
    first.keep_status("f", {"state": "running"})
    first.remember(made.flows[0])
    assert [one["state"] for one in second.statuses()] == ["running"]
    first.release()
    assert [one["state"] for one in second.statuses()] == ["killed"]
    assert second.remembered(made.flows[0]) == {**made.flows[0].fingerprint(), **made.flows[0].batch_shape()}
    assert second.checkpoint("f") == "s3a://state/p/f/checkpoint"
    assert second.reset("f")
    assert second.remembered(made.flows[0]) is None
    with pytest.raises(ConfigError, match="Spark has no file system for the state s3a://state/p") as caught:
        Runner(made, RunOptions(once=True), Lines(), spark).run()
    assert "spark.jars.packages: org.apache.hadoop:hadoop-aws:3." in caught.value.fix
    assert not (tmp_path / "s3:").exists()
