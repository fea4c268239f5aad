"""Counts and copies a topic on a Spark master: cluster_job.py MASTER URL TOPIC OUT LOG; prints what it saw as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mainstem_pipeline.session import SparkOptions, start_session


def main() -> None:
    master, url, topic, out, log = sys.argv[1:6]
    settings = {"spark.executor.memory": "512m", "spark.cores.max": "2", "spark.driver.host": "127.0.0.1"}
    spark = start_session(SparkOptions(master=master, log=Path(log), settings=settings, fast_start=True))
    rows = spark.read.format("mainstem").options(url=url, subscribe=topic, minPartitions="4").load()
    count = rows.count()
    rows.select("key", "value").write.format("mainstem").mode("append").options(url=url, topic=out).save()
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1  # the driver is one of them
    print(json.dumps({"count": count, "executors": executors}))
    spark.stop()


if __name__ == "__main__":
    main()
