"""A driver that a test may kill: copies what a filter means to a topic.

python copy_job.py URL FILTER TOPIC CHECKPOINT [--stall FILE] [--slow]

--stall  after the sink's first commit took effect, touch FILE and wait for ever: Spark never learns of it
--slow   each task takes a while, so that there is time to kill it
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


def main() -> None:
    url, topic_filter, topic, checkpoint = sys.argv[1:5]
    spark = start_session(
        SparkOptions(master="local[2,8]", log=Path(checkpoint).parent / "job-spark.log", fast_start=True)
    )
    rows = (
        spark.readStream.format("mainstem")
        .options(url=url, filter=topic_filter, startingOffsets="earliest", maxOffsetsPerTrigger="200")
        .options(taskBytes="70000", batchRows="50")
        .load()
        .select("key", "value")
    )
    if "--slow" in sys.argv:
        rows = rows.mapInArrow(slowly, rows.schema)
    writer = rows.writeStream.format("mainstem")
    if "--stall" in sys.argv:
        spark.dataSource.register(StallingSource)
        writer = rows.writeStream.format("stalling").option("stallfile", sys.argv[sys.argv.index("--stall") + 1])
    writer = writer.options(url=url, topic=topic, checkpointLocation=checkpoint)
    query = retried(lambda: writer.trigger(availableNow=True).start())
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
