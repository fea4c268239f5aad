"""A topic whose old parts are files of an Iceberg table in S3: one copy, read by every protocol, by pyiceberg and DuckDB."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import duckdb
import httpx
import pytest
from pyiceberg.catalog import load_catalog

from mainstem.testing.process import BrokerProcess
from tests.crossing.test_object_storage import (
    COUNT,
    DEADLINE_S,
    VALUES,
    StoreAt,
    eventually,
    local_bytes,
    publish,
    read_http,
    read_kafka,
    read_stream,
)
from tests.s3_server import s3_server

POLICY = ("tier=iceberg", "layout=dedicated", "segment_bytes=65536", "local_retention_bytes=0")


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreAt]:
    if request.param == "file":
        (tmp_path / "bucket").mkdir()
        yield StoreAt((f"tier.store=file://{tmp_path / 'bucket'}",))
        return
    with s3_server(tmp_path) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        url = f"tier.store=s3://bucket/{uuid.uuid4().hex}"
        yield StoreAt((url, f"tier.endpoint={server.endpoint}"), server.environment)


def test_every_protocol_and_other_engines_read_one_copy_hot_to_cold(store: StoreAt, tmp_path: Path) -> None:
    settings = (*store.settings, *(f"policies.t/#.{one}" for one in POLICY))
    with BrokerProcess(tmp_path / "data", *settings, environment=store.environment) as broker:
        publish(broker, "t.a")
        eventually(lambda: local_bytes(broker) == 0, "every sealed segment is in the table only")
        assert read_kafka(broker, "t.a") == VALUES
        assert read_stream(broker, "t/a") == VALUES
        assert read_http(broker, "t/a") == VALUES
        uri = f"sqlite:///{broker.data / 'catalog.sqlite'}"
        given = dict(one.split("=", 1) for one in settings)
        catalog = load_catalog("mainstem", type="sql", uri=uri, **{"s3.endpoint": given.get("tier.endpoint", "")})
        table = catalog.load_table(catalog.list_tables("mainstem")[0])
        rows = table.scan().to_arrow()
        in_table = sorted(zip(rows["offset"].to_pylist(), rows["value"].to_pylist(), strict=True))
        assert 0 < len(in_table) < COUNT
        assert in_table == list(enumerate(VALUES))[: len(in_table)]
        files = [task.file.file_path for task in table.scan().plan_files()]
        for number, path in enumerate(files):  # as plain Parquet files, for an engine of another kind
            with table.io.new_input(path).open() as source, (tmp_path / f"{number}.parquet").open("wb") as target:
                shutil.copyfileobj(source, target)
        asked = f'SELECT count(*), min("offset"), max("offset") FROM \'{tmp_path}/*.parquet\''
        assert duckdb.sql(asked).fetchone() == (len(in_table), 0, len(in_table) - 1)
        change = {"settings": {"tier": "s3"}}
        httpx.patch(f"{broker.http_url}/v1/topics/t%2Fa", json=change, timeout=DEADLINE_S).raise_for_status()
        publish(broker, "t.a")
        eventually(lambda: local_bytes(broker) == 0, "new parts go to the store as segments")
        broker.kill()
        broker.start()
        assert read_kafka(broker, "t.a", 2 * COUNT) == VALUES + VALUES
        assert len(table.refresh().scan().to_arrow()) == len(in_table)
        assert broker.stop() == 0
