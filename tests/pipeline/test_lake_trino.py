"""Trino attaches to the broker's Iceberg REST catalog with one URL: reads, writes, deletes and makes tables of its own.

Unpack io.trino:trino-server (tar.gz, Maven Central; 470 was used) and name its folder, and a Java that is new enough (23):

    MAINSTEM_TRINO=FOLDER MAINSTEM_TRINO_JAVA=JDK/bin/java .venv/bin/python -m pytest tests/pipeline/test_lake_trino.py
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainstem.testing import Broker
from tests.pipeline.test_lake_catalog import NUMBERS, rest, rows
from tests.s3_server import s3_server

TRINO, JAVA = os.environ.get("MAINSTEM_TRINO", ""), os.environ.get("MAINSTEM_TRINO_JAVA", "java")
READY_S, ANSWER_S = 120, 60

Ask = Callable[[str], Any]


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def trino(folder: Path, catalog: str) -> Iterator[Ask]:
    """A server of one node with one catalog; yields how to ask it (rows, or the message of an error)."""
    port, settings = _free_port(), folder / "etc"
    (settings / "catalog").mkdir(parents=True)
    (settings / "catalog" / "lake.properties").write_text(catalog)
    (settings / "config.properties").write_text(
        f"coordinator=true\nnode-scheduler.include-coordinator=true\nhttp-server.http.port={port}\n"
        f"discovery.uri=http://127.0.0.1:{port}\n"
    )
    (folder / "plugin").mkdir()
    (folder / "plugin" / "iceberg").symlink_to(Path(TRINO) / "plugin" / "iceberg")  # the others take a minute to load
    command = [
        JAVA, "-Xmx2G", "-Djdk.attach.allowAttachSelf=true", "--add-modules=jdk.incubator.vector",
        "-Dnode.environment=test", "-Dnode.id=one", f"-Dnode.data-dir={folder / 'data'}",
        f"-Dconfig={settings / 'config.properties'}", f"-Dcatalog.config-dir={settings / 'catalog'}",
        f"-Dplugin.dir={folder / 'plugin'}", "-cp", f"{TRINO}/lib/*", "io.trino.server.TrinoServer",
    ]  # fmt: skip

    def ask(sql: str) -> Any:
        headers, found = {"X-Trino-User": "ann"}, []
        answer = httpx.post(
            f"http://127.0.0.1:{port}/v1/statement", content=sql, headers=headers, timeout=ANSWER_S
        ).json()
        while True:
            found += answer.get("data", [])
            if "error" in answer:
                return answer["error"]["message"]
            if "nextUri" not in answer:
                return found
            answer = httpx.get(answer["nextUri"], headers=headers, timeout=ANSWER_S).json()

    with (folder / "trino.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        deadline = time.monotonic() + READY_S
        while not _answers(ask):
            assert process.poll() is None and time.monotonic() < deadline, (folder / "trino.log").read_text()[-4000:]
            time.sleep(0.5)
        yield ask
    finally:
        process.kill()
        process.wait()


def _answers(ask: Ask) -> bool:
    try:
        return bool(ask("select 1") == [[1]])
    except httpx.TransportError:
        return False


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not TRINO, reason="MAINSTEM_TRINO does not name a folder with Trino's server")
def test_trino_reads_writes_deletes_and_makes_tables_through_one_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weed").mkdir()
    with s3_server(tmp_path / "weed") as store:
        for name, value in {**store.environment, "AWS_ENDPOINT_URL": store.endpoint}.items():
            monkeypatch.setenv(name, value)
        place = ("lake.warehouse=s3://bucket/lake", f"lake.catalog=sqlite:///{tmp_path / 'catalog.db'}")
        with Broker(*place, "lake.share_keys=writers") as broker:
            ours = rest(broker)
            ours.create_namespace("iot")
            ours.create_table("iot.numbers", NUMBERS).append(rows(1, 2))
            catalog = f"""connector.name=iceberg
iceberg.catalog.type=rest
iceberg.rest-catalog.uri={broker.http_url}/iceberg
iceberg.rest-catalog.vended-credentials-enabled=true
fs.native-s3.enabled=true
s3.endpoint={store.endpoint}
s3.region=us-east-1
s3.path-style-access=true
"""
            with trino(tmp_path / "trino", catalog) as ask:
                assert ask("show tables from lake.iot") == [["numbers"]]
                assert ask("select sum(n) from lake.iot.numbers") == [[3]]
                assert ask("insert into lake.iot.numbers values (3), (4)") == [[2]]
                assert ask("delete from lake.iot.numbers where n = 2") == [[1]]
                ours.load_table("iot.numbers").append(rows(5))
                assert ask("select n from lake.iot.numbers order by n") == [[1], [3], [4], [5]]
                made = "create table lake.iot.made as select n, cast(n as varchar) as text from lake.iot.numbers"
                assert ask(made) == [[4]]
                assert ask("alter table lake.iot.made add column more double") == []
                assert ask("update lake.iot.made set more = n / 2e0 where n > 3") == [[2]]
                assert ask("select text, more from lake.iot.made where n = 4") == [["4", 2.0]]
                assert ask('select count(*) from lake.iot."numbers$snapshots"') == [[4]]
                numbers = ours.load_table("iot.numbers").scan().to_arrow()["n"].to_pylist()
                assert sorted(numbers) == [1, 3, 4, 5]
                assert sorted(ours.load_table("iot.made").scan().to_arrow()["text"].to_pylist()) == ["1", "3", "4", "5"]
                assert ask("drop table lake.iot.made") == []
                assert ours.list_tables("iot") == [("iot", "numbers")]
