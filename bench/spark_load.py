"""One reader of a topic in a Spark of its own: `python bench/spark_load.py JSON`; prints one JSON object per measurement.

Needs pyspark and nothing else, so that it runs in the environment of any Spark. The argument says
{"format": ..., "options": {...}, "jars": ..., "sinks": [...], "folder": ..., "broker": process id}. Each sink is written to
three to six times, until half a minute is over; the best is told. CPU seconds are those of the JVM, of its Python workers
and of the broker.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
RUNS_MIN, RUNS_MAX, SECONDS_ENOUGH = 3, 6, 30.0


def cpu_s(pid: int) -> float:
    """Of the process and of its children that ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def spent(jvm: int, broker: int) -> tuple[float, float, float]:
    return cpu_s(jvm), sum(map(cpu_s, descendants(jvm))), cpu_s(broker)


def session(asked: dict[str, Any]) -> Any:
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "3g",
        "spark.sql.session.timeZone": "UTC",
        **({"spark.jars": asked["jars"]} if asked.get("jars") else {}),
    }
    builder = builder.master("local[2]").appName("bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> None:
    asked = json.loads(sys.argv[1])
    spark = session(asked)
    jvm = int(spark.sparkContext._gateway.proc.pid)

    def noop() -> None:
        frame().write.format("noop").mode("overwrite").save()

    def parquet() -> None:
        frame().write.mode("overwrite").parquet(f"{asked['folder']}/parquet")

    def frame() -> Any:
        return spark.read.format(asked["format"]).options(**asked["options"]).load()

    sinks: dict[str, Callable[[], None]] = {"noop": noop, "parquet": parquet}
    for sink in asked["sinks"]:
        best: dict[str, Any] = {}
        first = time.monotonic()
        for run in range(RUNS_MAX):
            if run >= RUNS_MIN and time.monotonic() - first > SECONDS_ENOUGH:
                break
            before, began = spent(jvm, asked["broker"]), time.monotonic()
            sinks[sink]()
            wall_s, after = time.monotonic() - began, spent(jvm, asked["broker"])
            if not best or wall_s < best["wall_s"]:
                cpu = [late - early for early, late in zip(before, after, strict=True)]
                best = {"sink": sink, "wall_s": wall_s, "jvm_s": cpu[0], "python_s": cpu[1], "broker_s": cpu[2]}
        print(json.dumps({**best, "version": spark.version}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
