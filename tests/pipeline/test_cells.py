"""Spark over two cells: one job reads and writes namespaces of two owners through one broker, and goes on when one fails,
as does an archive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mainstem_pipeline.lake.catalog import LakeOptions
from mainstem_pipeline.options import read_options
from mainstem_pipeline.scans import Scan
from mainstem_pipeline.slices import ScanTask
from tests.cluster.kit import Cluster
from tests.contract.postgres_server import PostgresServer, binaries
from tests.pipeline.conftest import eventually, produce, read, stream, values_of
from tests.pipeline.lake_kit import ArchiveRun, orphans, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # of a busy machine
POLICY = ("layout=dedicated", "segment_bytes=64KiB", "tier=s3", "local_retention_bytes=0")
LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.password": "any"}
VALUES = [b"%06d" % n + b"." * 200 for n in range(2_000)]
NAMESPACES = ("", "tenant")  # the first cell's, and the other's


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if binaries() is None:
        pytest.skip("no PostgreSQL server is installed (apt install postgresql)")
    server = PostgresServer()
    try:
        settings = ("cluster.moves_per_hour=0", *(f"policies.t/#.{one}" for one in POLICY))
        with Cluster(tmp_path, server, "a", "b", settings=settings) as started:
            started.run("namespace", "add", "tenant", "--cell", "new")
            assert (started.owner(), started.owner_of("tenant")) == ("a", "b")
            yield started
    finally:
        server.remove()


def publish(cluster: Cluster, namespace: str, topic: str, values: list[bytes], by: str = "a") -> None:
    login = {**LOGIN, "sasl.username": f"{namespace}:device"} if namespace else {}
    produce(cluster[by], topic, values, **{"batch.num.messages": "50", **login})


def named(namespace: str) -> dict[str, str]:
    return {"namespace": namespace} if namespace else {}


def planned(cluster: Cluster, namespace: str) -> list[ScanTask]:
    url = cluster["a"].http_url
    scan = Scan(read_options({"url": url, "subscribe": "t.a", **named(namespace)}, streaming=False))
    try:
        return list(scan.plan(*scan.batch_range()))
    finally:
        scan.close()


def objects_in(tasks: list[ScanTask]) -> list[str]:
    found = (piece.get("object") for task in tasks for piece in task.slices)
    return [one["store"]["url"] for one in found if one]


def test_one_job_plans_over_two_owners_and_reads_cold_parts_from_the_store(
    cluster: Cluster, spark: SparkSession
) -> None:
    sent = {name: [name.encode() + one for one in VALUES] for name in NAMESPACES}
    for number, namespace in enumerate(NAMESPACES, 1):
        publish(cluster, namespace, "t.a", sent[namespace])
        eventually(lambda n=namespace: objects_in(planned(cluster, n)), "sealed segments are in the store")
        places = set(objects_in(planned(cluster, namespace)))
        assert all(f"/cells/{number}/" in one for one in places), "each owner names objects of its own cell"
    first, second = (read(spark, cluster["a"], subscribe="t.a", **named(one)) for one in NAMESPACES)
    assert values_of(first.union(second)) == sorted(sent[""] + sent["tenant"])
    cluster["b"].kill()
    cluster.until(lambda: cluster.owner_of("tenant") == "a")
    assert values_of(first.union(second)) == sorted(sent[""] + sent["tenant"]), "planned over the next owner"


def test_a_stream_from_one_cell_into_another_is_exact_across_a_failover(
    cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    publish(cluster, "", "t.a", VALUES[:1000])
    rows = stream(spark, cluster["a"], subscribe="t.a", startingOffsets="earliest", maxOffsetsPerTrigger="400")
    query = (
        rows.select("value")
        .writeStream.format("mainstem")
        .options(url=cluster["a"].http_url, namespace="tenant", topic="copied")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    try:
        eventually(lambda: query.lastProgress is not None, "a first batch", 120)
        cluster["b"].kill()  # it owns the cell that is written
        publish(cluster, "", "t.a", VALUES[1000:])

        def copied() -> bool:
            assert query.exception() is None
            return len(values_of(read(spark, cluster["a"], subscribe="copied", namespace="tenant"))) >= len(VALUES)

        eventually(copied, "all rows", 180)
    finally:
        query.stop()
    assert values_of(read(spark, cluster["a"], subscribe="copied", namespace="tenant")) == sorted(VALUES)


def test_an_archive_goes_on_at_the_next_owner_and_has_each_record_once(
    cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    lake = LakeOptions(str(tmp_path / "lake"))
    publish(cluster, "", "t.a", VALUES[:1000], by="b")
    running = ArchiveRun(spark, cluster["b"], lake, "t/#", "raw.t", once=False)
    try:
        eventually(lambda: running.query.lastProgress is not None, "a first batch", 120)
        cluster["a"].kill()  # it owns the cell that is archived
        publish(cluster, "", "t.a", VALUES[1000:], by="b")

        def archived() -> bool:
            assert running.query.exception() is None
            return rows_of(lake, "raw.t").num_rows >= len(VALUES)

        eventually(archived, "all rows", 180)
    finally:
        running.query.stop()
    assert rows_of(lake, "raw.t").column("value").to_pylist() == VALUES
    assert not orphans(lake, "raw.t")
