"""A driver that a test may kill: copies what a filter means to a topic, under keys that say where each row came from.

python copy_job.py URL FILTER TOPIC CHECKPOINT [--stall FILE] [--slow] [--master URL]

--stall   after the sink's first commit took effect, touch FILE and wait for ever: Spark never learns of it
--slow    each task takes a while, so that there is time to kill it
--master  a cluster instead of this process
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mainstem_pipeline.session import SparkOptions, retried, start_session
from mainstem_pipeline.sink import StreamWriter, write_options
from mainstem_pipeline.source import MainstemSource

KEY_OF_SOURCE = "encode(concat(canonical_topic, ':', offset), 'utf-8') AS key"


class StallingWriter(StreamWriter):
    stall_file = ""

    def commit(self, messages: Any, batchId: int) -> None:
        super().commit(messages, batchId)
        Path(self.stall_file).touch()
        time.sleep(600)


class StallingSource(MainstemSource):
    @classmethod
    def name(cls) -> str:
        return "stalling"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        given = dict(self._given)
        stall_file = given.pop("stallfile")
        writer = StallingWriter(write_options(given, schema))
        writer.stall_file = stall_file
        return writer


def slowly(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        time.sleep(0.3)
        yield batch


def option(name: str, default: str) -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


# One executor a worker; a task may lose some of them.
CLUSTER_SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.task.maxFailures": "20",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


def main() -> None:
    url, topic_filter, topic, checkpoint = sys.argv[1:5]
    master, log = option("--master", "local[2,8]"), Path(checkpoint).parent / "job-spark.log"
    settings = CLUSTER_SETTINGS if "--master" in sys.argv else {}
    spark = start_session(SparkOptions(master=master, log=log, fast_start=True, settings=settings))
    rows = (
        spark.readStream.format("mainstem")
        .options(url=url, filter=topic_filter, startingOffsets="earliest", maxOffsetsPerTrigger="200")
        .options(taskBytes="70000", batchRows="50")
        .load()
        .selectExpr(KEY_OF_SOURCE, "value")
    )
    if "--slow" in sys.argv:
        rows = rows.mapInArrow(slowly, rows.schema)
    writer = rows.writeStream.format("mainstem")
    if "--stall" in sys.argv:
        spark.dataSource.register(StallingSource)
        writer = rows.writeStream.format("stalling").option("stallfile", option("--stall", ""))
    writer = writer.options(url=url, topic=topic, checkpointLocation=checkpoint)
    query = retried(lambda: writer.trigger(availableNow=True).start())
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
