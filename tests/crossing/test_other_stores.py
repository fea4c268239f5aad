"""Azure's store, by its emulator Azurite (npm install azurite).

MAINSTEM_AZURITE names its command where it is not on the path.

Google's store is untried: of its emulators one was tried, fake-gcs-server 1.56, which answers our library's PUT with
"invalid uploadType".
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from mainstem.model.errors import ConfigError
from mainstem.storage.tier.store import ObjectMissing, ObjectStore, StoreSettings
from mainstem.testing.process import BrokerProcess
from tests.crossing.test_object_storage import POLICY, VALUES, eventually, local_bytes, publish, read_kafka
from tests.s3_server import free_ports

ACCOUNT = "devstoreaccount1"  # Azurite's, as its documentation gives it
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
BUCKET = "box"
START_S_MAX = 60.0


@contextmanager
def azure(folder: Path) -> Iterator[StoreSettings]:
    command = os.environ.get("MAINSTEM_AZURITE") or shutil.which("azurite-blob")
    if command is None:
        pytest.skip("Azurite is not installed: npm install azurite")
    (port,) = free_ports(1)
    flags = ["--blobPort", str(port), "--location", str(folder), "--skipApiVersionCheck", "--disableTelemetry"]
    with server([command, *flags, "--silent"], folder):
        endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        until(lambda: make_container(endpoint))
        yield StoreSettings(f"az://{BUCKET}/{uuid.uuid4().hex}", endpoint)


def make_container(endpoint: str) -> None:
    now = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = {"x-ms-date": now, "x-ms-version": "2021-08-06"}
    told = "".join(f"{name}:{value}\n" for name, value in headers.items())
    signed = "PUT" + "\n" * 12 + told + f"/{ACCOUNT}/{ACCOUNT}/{BUCKET}\nrestype:container"
    signature = hmac.digest(base64.b64decode(ACCOUNT_KEY), signed.encode(), hashlib.sha256)
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}"
    httpx.put(f"{endpoint}/{BUCKET}?restype=container", headers=headers).raise_for_status()


@contextmanager
def server(command: list[str], folder: Path) -> Iterator[None]:
    with (folder / "server.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield
        finally:
            process.kill()


def until(call: object) -> None:
    assert callable(call)
    deadline = time.monotonic() + START_S_MAX
    while True:
        with contextlib.suppress(httpx.TransportError):
            call()
            return
        assert time.monotonic() < deadline, "it does not answer"
        time.sleep(0.2)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreSettings]:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", ACCOUNT_KEY)
    (tmp_path / "store").mkdir()
    with azure(tmp_path / "store") as settings:
        yield settings


def test_what_the_tier_asks_of_a_store_is_answered(store: StoreSettings) -> None:
    there = ObjectStore(store)
    there.put("a/b", b"0123456789")
    assert there.get("a/b", 3, 4) == b"3456"
    assert there.get_all("a/b") == b"0123456789"
    assert there.size("a/b") == 10
    there.delete("a/b")
    there.delete("a/b")
    with pytest.raises(ObjectMissing):
        there.get("a/b", 0, 1)
    elsewhere = ObjectStore(StoreSettings(store.url.replace(BUCKET, "nowhere"), store.endpoint))
    with pytest.raises(ConfigError) as refused:
        elsewhere.put("a", b"x")
    assert "make the bucket nowhere" in refused.value.fix


def test_a_topic_rests_there_and_is_read_whole(store: StoreSettings, tmp_path: Path) -> None:
    rules = (f"policies.t/#.{one}" for one in POLICY)
    settings = (f"tier.store={store.url}", f"tier.endpoint={store.endpoint}", *rules)
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        publish(broker, "t.a")
        eventually(lambda: local_bytes(broker) == 0, "every sealed segment is in the store only")
        broker.kill()
        broker.start()
        assert read_kafka(broker, "t.a") == VALUES
