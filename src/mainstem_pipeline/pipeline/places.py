"""Whether driver and executors can all reach the state and the lake: asked once, before the first batch.

Executors write table files, and the state of windows and counts, by themselves. A folder that only the driver's machine has
would be filled on each machine with a part of it, and a table would name files that nobody else finds.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from mainstem.model.errors import ConfigError
from mainstem_pipeline.pipeline.model import Pipeline
from mainstem_pipeline.pipeline.store import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS_PER_CORE = 2  # so that every executor gets one, most likely
HADOOP_AWS = "org.apache.hadoop:hadoop-aws:{version}"


def check_places(spark: SparkSession, pipeline: Pipeline) -> None:
    """ConfigError, with the fix, for a place that some of them cannot reach."""
    state = open_store(pipeline.state, pipeline.store_properties).spark_url
    if "://" in state:
        _check_scheme(spark, state)
    if (spark.sparkContext.master or "").startswith("local"):
        return
    lake = (
        pipeline.lake.location.removeprefix("file://") if pipeline.lake is not None and pipeline.lake.is_local else ""
    )
    for word, place in (("state", state if "://" not in state else ""), ("lake.warehouse", lake)):
        if place:
            _check_folder(spark, word, Path(place))


def _check_scheme(spark: SparkSession, url: str) -> None:
    """Hadoop must have a file system for it."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    try:
        place = jvm.org.apache.hadoop.fs.Path(url)
        place.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).mkdirs(place)
    except Exception as error:
        said = str(error)
        if "ClassNotFoundException" in said or "No FileSystem for scheme" in said:
            package = HADOOP_AWS.format(version=jvm.org.apache.hadoop.util.VersionInfo.getVersion())
            fix = f"spark: {{spark.jars.packages: {package}}}" if url.startswith("s3") else "add its Hadoop file system"
            raise ConfigError(
                f"Spark has no file system for the state {url}", fix=f"{fix}; or name a shared folder"
            ) from None
        reason = next((line for line in said.splitlines() if "Exception: " in line), said).partition("Exception: ")[2]
        raise ConfigError(
            f"Spark cannot write to the state {url}: {reason or said}", fix="check credentials and rights"
        ) from None


def _check_folder(spark: SparkSession, word: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".seen-{uuid.uuid4().hex}"
    probe.touch()
    path = str(probe)

    def blind(_: Iterable[int]) -> Iterable[str]:
        import pathlib
        import socket

        return [] if pathlib.Path(path).exists() else [socket.gethostname()]

    try:
        context = spark.sparkContext
        tasks = max(context.defaultParallelism, 1) * TASKS_PER_CORE
        hosts = sorted(set(context.parallelize(range(tasks), tasks).mapPartitions(blind).collect()))
    finally:
        probe.unlink()
    if hosts:
        raise ConfigError(
            f"{word} {folder} is a folder of this machine, and executors on {', '.join(hosts[:3])} do not see it",
            fix=f"{word}: a folder that all machines share, or s3://bucket/path",
        )
