"""Asking the log: search and SQL over JSON logs.

Records of a web log as JSON (about 300 bytes, Kafka batches of 500, not compressed) in one topic, one with a needle.
Each question is asked three times, the best is told: the newest hundred with a frequent word, the one needle in all of it, a
word that no record holds (a full scan), counts over time of a condition, and a group-by in SQL. Beside them, over the same
values: `grep -c` of the values as lines of a file, and DuckDB over the same rows as Parquet (zstd). Times of our own are
taken in a process that has imported everything; the last line is a whole command, from its start to its end.

python -m bench search, or python -m bench.search [--rows 10000000]
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from bench.machine import settle_machine
from mainstem.codec.batch import BatchBuilder
from mainstem.testing.process import BrokerProcess
from mainstem_ask.search.engine import Asked, Search, connection_of
from mainstem_ask.sql.engine import Engine, Place
from tests.protocol.kafka.raw import RawClient

ROWS, BATCH_ROWS, BATCHES, TIMES = 200_000, 500, 400, 3
NEEDLE = "needle-7f3a9c"
GROUPED = "select json->>'$.service' as service, count(*) as n from {} group by 1"
PARQUET = "select json_extract_string(text, '$.service') as service, count(*) as n from '{}' group by 1"


def line(chance: random.Random, number: int) -> bytes:
    told = {
        "time": 1_700_000_000_000 + number,
        "service": f"service-{chance.randrange(20):02d}",
        "level": chance.choice(("debug", "info", "info", "warning", "error")),
        "status": chance.choice((200, 200, 200, 204, 301, 404, 500, 503)),
        "path": f"/api/v1/things/{chance.randrange(10_000)}/parts/{chance.randrange(100)}",
        "trace": f"{chance.getrandbits(128):032x}",
        "user": {
            "id": chance.randrange(100_000),
            "agent": "Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/128.0",
        },
        "message": chance.choice(("request served", "connection reset by peer", "upstream timeout", "cache miss")),
    }
    return json.dumps(told).encode()


def fill(broker: BrokerProcess, rows: int, folder: Path) -> int:
    """The topic, and the same values as lines and as Parquet; returns their bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    chance = random.Random(1)
    made = [[line(chance, number * BATCH_ROWS + row) for row in range(BATCH_ROWS)] for number in range(BATCHES)]
    httpx.post(
        f"{broker.http_url}/v1/topics", json={"name": "weblog", "settings": {"partitions": 1, "durability": "os"}}
    ).raise_for_status()
    count, size = rows // BATCH_ROWS, 0
    with (
        RawClient(broker) as client,
        (folder / "lines.json").open("wb") as lines,
        pq.ParquetWriter(folder / "rows.parquet", pa.schema([("text", pa.string())]), compression="zstd") as parquet,
    ):
        for number in range(count):
            values = made[number % BATCHES]
            if number == count // 2:
                values = [*values[:-1], values[-1][:-1] + b', "n": "%s"}' % NEEDLE.encode()]
            builder = BatchBuilder()
            for value in values:
                builder.add(None, value, (), 1_700_000_000_000 + number)
            client.produce("weblog", bytes(builder.seal_batch(0)))
            lines.write(b"\n".join(values) + b"\n")
            parquet.write_batch(pa.record_batch([pa.array([value.decode() for value in values])], names=["text"]))
            size += sum(map(len, values))
    return size


def best(ask: Callable[[], Any]) -> tuple[float, Any]:
    took = []
    for _ in range(TIMES):
        began = time.monotonic()
        answer = ask()
        took.append((time.monotonic() - began, answer))
    return min(took, key=lambda one: one[0])


def searched(broker: BrokerProcess, **asked: Any) -> dict[str, Any]:
    first_s, began, hits = None, time.monotonic(), 0
    for event in Search(Asked(topic="weblog", **asked), connection_of(broker.http_url)).events():
        if "hit" in event:
            hits += 1
            first_s = first_s or time.monotonic() - began
    return {"hits": hits, "first_s": first_s}


def queried(broker: BrokerProcess) -> int:
    rows: list[Any] = []
    with Engine(Place({"url": broker.http_url})) as engine:
        engine.answer(GROUPED.format("weblog"), lambda answer: rows.extend(answer.toLocalIterator()))
    return len(rows)


def told(name: str, seconds: float, size: int, more: str = "") -> None:
    print(f"| {name} | {seconds * 1000:,.0f} ms | {size / seconds / 1e9:.2f} GB/s | {more} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=ROWS)
    rows = parser.parse_args().rows
    import duckdb

    settle_machine()
    with tempfile.TemporaryDirectory(prefix="mainstem-bench-search-") as name:
        folder = Path(name)
        with BrokerProcess(folder / "data") as broker:
            size = fill(broker, rows, folder)
            print(f"{rows:,} records, {size / 1e6:,.0f} MB of values\n")
            print(f"| question | best of {TIMES} | values | |\n|---|---:|---:|---|")
            seconds, answer = best(lambda: searched(broker, query="timeout", limit=100))
            told("newest 100 with a frequent word", seconds, size, f"first after {answer['first_s'] * 1000:,.0f} ms")
            seconds, answer = best(lambda: searched(broker, query=NEEDLE))
            assert answer["hits"] == 1
            told("the needle", seconds, size)
            seconds, _ = best(lambda: searched(broker, query="nowhere-at-all"))
            told("a word that is nowhere", seconds, size)
            seconds, _ = best(lambda: searched(broker, query="status>=500", limit=0, bucket_ms=60_000))
            told("counts over time of status>=500", seconds, size)
            seconds, answer = best(lambda: queried(broker))
            told("group by a JSON field (mainstem query)", seconds, size, f"{answer} groups")
            lines, parquet = str(folder / "lines.json"), str(folder / "rows.parquet")
            grep = ["grep", "-c", NEEDLE, lines]
            told("`grep -c` of the needle in a file", best(lambda: subprocess.run(grep, capture_output=True))[0], size)
            like = f"select count(*) from '{parquet}' where contains(text, '{NEEDLE}')"
            told("DuckDB, the needle in Parquet", best(lambda: duckdb.sql(like).fetchall())[0], size)
            grouped = PARQUET.format(parquet)
            told("DuckDB, group by over Parquet", best(lambda: duckdb.sql(grouped).fetchall())[0], size)
            command = [
                sys.executable,
                "-m",
                "mainstem",
                "search",
                NEEDLE,
                "--topic",
                "weblog",
                "--url",
                broker.http_url,
            ]
            told(
                "the command `mainstem search`, whole",
                best(lambda: subprocess.run(command, capture_output=True))[0],
                size,
            )


if __name__ == "__main__":
    main()
