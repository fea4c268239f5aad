"""Asking the log: search and SQL over 10 million JSON records.

Records of a web log as JSON (about 300 bytes, Kafka batches of 500, not compressed) lie in one topic, one with a needle;
the search indexes of its sealed parts are made before anything is measured. Each question is asked three times, the best is
told: the newest hundred with a frequent word, the one needle in all of it, a phrase that no record holds though each block
has its words (so the index excludes nothing: a full scan), counts over time of a condition, the most frequent values of a
field, a group-by in SQL, and the needle in SQL by its field and by a part of its text. Times are taken in a process that has
imported everything; whole commands, from their start to the next prompt, are told as well. A speed per core is values by
processor time.

Beside them, over the same values on the same machine: `grep -c` of the values as lines of a file, `zstdgrep -c` of that file
packed, and DuckDB over the same rows as Parquet (zstd). Grafana Loki is not among them: `go install` of its v3/cmd/loki is
refused, because its go.mod replaces a module by a folder; without that line the module proxy gives all of it, but on two
cores it had not built after a quarter of an hour.

python -m bench search, or python -m bench.search [--records 10000000]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.machine import ceiling, figure, settle_machine
from mainstem.codec.batch import BatchBuilder
from mainstem.log.search_index import build_index, index_path
from mainstem.testing.process import BrokerProcess
from mainstem_ask.search.engine import Asked, Search, connection_of
from mainstem_ask.sql.engine import Engine, Place
from tests.protocol.kafka.raw import RawClient

RECORDS, BATCH_ROWS, BATCHES, TIMES = 10_000_000, 500, 400, 3
GROUP_BATCHES = 200  # batches of records in a row group of Parquet
INDEXED_S = 180.0  # to wait for
SPACE_BYTES_A_RECORD = 1_000  # log, lines, packed lines and Parquet, with room
NEEDLE = "needle-7f3a9c"
NOWHERE = '"timeout upstream"'  # the words stand everywhere, never so
GROUPED = "select json->>'$.service' as service, count(*) as n from weblog group by 1"
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


def fill(broker: BrokerProcess, records: int, folder: Path) -> int:
    """The topic, and the same values as lines and as Parquet; returns their bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    chance = random.Random(1)
    made = [[line(chance, number * BATCH_ROWS + row) for row in range(BATCH_ROWS)] for number in range(BATCHES)]
    columns = [pa.array([value.decode() for value in values]) for values in made]
    httpx.post(
        f"{broker.http_url}/v1/topics", json={"name": "weblog", "settings": {"partitions": 1, "durability": "os"}}
    ).raise_for_status()
    count, size, group = records // BATCH_ROWS, 0, list[Any]()
    schema = pa.schema([("text", pa.string())])
    with (
        RawClient(broker) as client,
        (folder / "lines.json").open("wb") as lines,
        pq.ParquetWriter(folder / "rows.parquet", schema, compression="zstd") as parquet,
    ):
        for number in range(count):
            values, column = made[number % BATCHES], columns[number % BATCHES]
            if number == count // 2:
                values = [*values[:-1], values[-1][:-1] + b', "n": "%s"}' % NEEDLE.encode()]
                column = pa.array([value.decode() for value in values])
            builder = BatchBuilder()
            for value in values:
                builder.add(None, value, (), 1_700_000_000_000 + number)
            client.produce("weblog", bytes(builder.seal_batch(0)))
            told = b"\n".join(values) + b"\n"
            lines.write(told)
            size += len(told) - len(values)
            group.append(column)
            if len(group) == GROUP_BATCHES or number == count - 1:
                parquet.write_table(pa.table({"text": pa.chunked_array(group)}), row_group_size=1 << 20)
                group = []
    return size


def wait_for_indexes(data: Path) -> tuple[int, int]:
    """Until each sealed part has its index: bytes of these parts, and of the indexes."""
    until = time.monotonic() + INDEXED_S
    while True:
        sealed = [part for log in (data / "logs").iterdir() for part in sorted(log.glob("*.log"))[:-1]]
        missing = [part for part in sealed if not index_path(part).exists()]
        if not missing:
            return sum(part.stat().st_size for part in sealed), sum(index_path(part).stat().st_size for part in sealed)
        if time.monotonic() > until:
            raise SystemExit(f"no search index of {len(missing)} parts after {INDEXED_S:.0f} s")
        time.sleep(0.5)


def index_speed(data: Path) -> float:
    """Bytes of a part indexed in a second of processor time."""
    part = max((data / "logs").rglob("*.log"), key=lambda path: path.stat().st_size)
    began = time.process_time()
    build_index(part, part.stat().st_size)
    return part.stat().st_size / (time.process_time() - began)


@dataclass(frozen=True, slots=True)
class Best:
    seconds: float
    cpu_s: float
    answer: Any


def best(ask: Callable[[], Any]) -> Best:
    took = []
    for _ in range(TIMES):
        cpu, began = time.process_time(), time.monotonic()
        answer = ask()
        took.append(Best(time.monotonic() - began, time.process_time() - cpu, answer))
    return min(took, key=lambda one: one.seconds)


def searched(broker: BrokerProcess, **asked: Any) -> dict[str, Any]:
    first_s, began, hits = None, time.monotonic(), 0
    for event in Search(Asked(topic="weblog", **asked), connection_of(broker.http_url)).events():
        if "hit" in event:
            hits += 1
            first_s = first_s or time.monotonic() - began
    return {"hits": hits, "first_s": first_s}


def queried(broker: BrokerProcess, statement: str) -> list[Any]:
    rows: list[Any] = []
    with Engine(Place({"url": broker.http_url})) as engine:
        engine.answer(statement, lambda answer: rows.extend(answer.toLocalIterator()))
    return rows


def ran(*command: str) -> Best:
    return best(lambda: subprocess.run(command, capture_output=True, check=True))


def ours(broker: BrokerProcess, size: int) -> None:
    newest = best(lambda: searched(broker, query="timeout", limit=100))
    ceiling("first of the newest 100 with a frequent word", newest.answer["first_s"] * 1000, "ms", target=100)
    needle = best(lambda: searched(broker, query=NEEDLE))
    assert needle.answer["hits"] == 1
    ceiling("the needle in all of it", needle.seconds, "s", target=1)
    scan = best(lambda: searched(broker, query=NOWHERE))
    assert scan.answer["hits"] == 0
    figure("a full scan for a phrase", size / scan.cpu_s / 1e9, "GB/s a core", target=1)
    plain("a full scan for a phrase", scan.seconds, size)
    counted = best(lambda: searched(broker, query="status>=500", limit=0, bucket_ms=60_000))
    plain("counts over time of status>=500 (--histogram)", counted.seconds, size)
    top = best(lambda: searched(broker, query="", limit=0, top="$.service"))
    plain("the most frequent values of a field (--top)", top.seconds, size)
    grouped = best(lambda: queried(broker, GROUPED))
    assert len(grouped.answer) == 20
    ceiling("group by a JSON field (mainstem query)", grouped.seconds, "s", target=3)
    for name, condition in (
        ("its field", f"(json->>'$.n') = '{NEEDLE}'"),
        ("contains()", f"contains(text, '{NEEDLE}')"),
    ):
        found = best(lambda: queried(broker, f"select offset from weblog where {condition}"))  # noqa: B023
        assert len(found.answer) == 1
        plain(f"the needle by {name} (mainstem query)", found.seconds, size)
    where = ("--url", broker.http_url)
    command = (sys.executable, "-m", "mainstem")
    whole = ran(*command, "search", "timeout", "--topic", "weblog", "--limit", "20", *where)
    ceiling("`mainstem search`, from command to prompt", whole.seconds, "s", target=0.5)
    plain(
        "`mainstem search` of the needle, from command to prompt", ran(*command, "search", NEEDLE, *where).seconds, size
    )
    last = ran(*command, "query", "select max(offset) from weblog where timestamp > now() - interval 1 hour", *where)
    plain("`mainstem query`, from command to prompt", last.seconds)


def others(folder: Path, size: int) -> None:
    import duckdb

    lines, parquet = str(folder / "lines.json"), str(folder / "rows.parquet")
    plain("`grep -c` of the needle in the lines", ran("grep", "-c", NEEDLE, lines).seconds, size)
    if shutil.which("zstdgrep"):
        subprocess.run(["zstd", "-q", "-1", "-T0", lines], check=True)
        plain("`zstdgrep -c` of the needle in the packed lines", once("zstdgrep", "-c", NEEDLE, f"{lines}.zst"), size)
    else:
        print("zstdgrep is not installed (apt install zstd)")
    like = f"select count(*) from '{parquet}' where contains(text, '{NEEDLE}')"
    plain("DuckDB: the needle in Parquet", best(lambda: duckdb.sql(like).fetchall()).seconds, size)
    plain("DuckDB: group by over Parquet", best(lambda: duckdb.sql(PARQUET.format(parquet)).fetchall()).seconds, size)


def once(*command: str) -> float:
    began = time.monotonic()
    subprocess.run(command, capture_output=True, check=True)
    return time.monotonic() - began


def plain(name: str, seconds: float, size: int = 0) -> None:
    print(f"{name:<58}{seconds:>10.2f} s" + (f"{'':11} {size / seconds / 1e9:>8.2f} GB/s" if size else ""), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=RECORDS)
    records = parser.parse_args(arguments).records
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < records * SPACE_BYTES_A_RECORD:
        raise SystemExit(
            f"{records:,} records need {records * SPACE_BYTES_A_RECORD >> 30} GiB in {tempfile.gettempdir()}"
        )
    settle_machine()
    with tempfile.TemporaryDirectory(prefix="mainstem-bench-search-") as name:
        folder = Path(name)
        with BrokerProcess(folder / "data") as broker:
            size = fill(broker, records, folder)
            print(f"{records:,} records, {size / 1e6:,.0f} MB of values, best of {TIMES}\n")
            parts, indexes = wait_for_indexes(folder / "data")
            if parts:
                figure("search index built", index_speed(folder / "data") / 1e6, "MB/CPU s", target=200)
                ceiling("search indexes, share of what is stored", indexes * 100 / parts, "%", target=5)
            ours(broker, size)
            print(f"\nbeside, over the same values ({os.cpu_count()} cores)")
            others(folder, size)


if __name__ == "__main__":
    main()
