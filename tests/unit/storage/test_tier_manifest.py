"""A lost local disk is not a lost tier: what the bucket knows of itself makes a data directory again."""

from __future__ import annotations

import io
import tarfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from mainstem.model.errors import ConfigError, StorageFault
from mainstem.storage.engines import SharedFiles
from mainstem.storage.log_state import FileState
from mainstem.storage.reservation import Reservation
from mainstem.storage.tier.manifest import MANIFEST, MARGIN, restore, store_manifest
from mainstem.storage.tier.store import ObjectStore, StoreSettings
from mainstem.storage.tier.tier import OWNER, Tier, TierSettings
from mainstem.testing import Broker
from tests.unit.storage.test_tier import LOG_ID, House


def moved(tmp_path: Path) -> tuple[House, list[tuple[int, bytes]]]:
    house = House(tmp_path)
    stored = house.fill()
    house.move()
    Reservation.open(house.log).extend(1_000, 3)
    store_manifest(house.tier.store, house.tier.registry, house.data)
    return house, stored


def restored(house: House, folder: Path) -> House:
    restore(house.tier.settings.store, folder / "data")
    again = House.__new__(House)
    again.data, again.bucket, again.log = folder / "data", house.bucket, folder / "data" / "logs" / str(LOG_ID)
    again.grace_ms = again.trimmed = 0
    again.open()
    return again


def test_everything_that_was_uploaded_is_read_after_the_disk_was_lost(tmp_path: Path) -> None:
    house, stored = moved(tmp_path)
    uploaded = [one for one in stored if one[0] < house.engine.local.start_offset]
    again = restored(house, tmp_path / "new")
    assert again.read() == uploaded
    reservation = Reservation.open(again.log)
    assert (reservation.end_offset, reservation.epoch) == (1_000 + MARGIN, 4), "no offset is given out twice"
    assert FileState(again.log).get("tiered") == {"id": house.tier.registry.id}


def test_the_old_disk_is_refused_and_deletes_nothing_once_the_bucket_was_restored(tmp_path: Path) -> None:
    house, _ = moved(tmp_path)
    again = restored(house, tmp_path / "new")
    house.engine.trim(1 << 40)
    with pytest.raises(ConfigError, match="restored elsewhere"):
        house.tier.sweep()
    with pytest.raises(ConfigError, match="restored elsewhere"):
        house.open()
    assert again.read()


def test_of_two_brokers_that_claim_a_prefix_at_the_same_moment_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both look before either has written."""
    (tmp_path / "bucket").mkdir()
    settings = TierSettings(StoreSettings(f"file://{tmp_path / 'bucket'}"))
    both, get_all, looked = threading.Barrier(2), ObjectStore.get_all, set[int]()

    def get(store: ObjectStore, key: str) -> bytes:
        try:
            return get_all(store, key)
        finally:
            if key == OWNER and id(store) not in looked:
                looked.add(id(store))
                both.wait(30)

    monkeypatch.setattr(ObjectStore, "get_all", get)

    def claim(name: str) -> str:
        (tmp_path / name).mkdir()
        tier = Tier(tmp_path / name, settings, SharedFiles().indexes)
        try:
            tier.claim()
        except ConfigError as error:
            return error.message
        finally:
            tier.close()
        return ""

    with ThreadPoolExecutor(2) as threads:
        said = sorted(threads.map(claim, ("a", "b")))
    assert said[0] == ""
    assert "belongs to another broker" in said[1]


@pytest.mark.parametrize("engine", ["tier", pytest.param("object", marks=pytest.mark.slow)])
def test_a_broker_that_runs_on_after_its_bucket_was_restored_elsewhere_replaces_nothing(
    tmp_path: Path, engine: str
) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    rules = {"tier": ("topics.tier=s3", "topics.segment_bytes=16KiB"), "object": ("policies.a/#.engine=object",)}
    settings = (f"tier.store=file://{bucket}", "tier.manifest_ms=0s", *rules[engine])
    with Broker(*settings, engine="segment", data=tmp_path / "data") as broker:

        def publish() -> bool:
            sent = {"topic": "a/b", "value": "x" * 1_000}
            return httpx.post(f"{broker.http_url}/v1/messages", json=sent, timeout=30).is_success

        for _ in range(20):
            assert publish()
        wait(lambda: (bucket / MANIFEST).exists(), "the manifest is stored")
        restore(StoreSettings(f"file://{bucket}"), tmp_path / "new")
        assert broker.app is not None
        tier = broker.app.broker.logs.tier
        assert tier is not None
        known = (bucket / MANIFEST).read_bytes()
        wait(lambda: not publish() or tier.lost is not None, "it notices")
        time.sleep(2.5)  # a round
        objects = {path for path in bucket.rglob("*") if path.is_file()}
        taken = [publish() for _ in range(40)]
        if engine == "object":
            assert not any(taken), "what nobody would find is refused"
        else:
            assert all(taken), "what is kept on the local disk is accepted"
        time.sleep(2.5)  # rounds in which it would upload
        assert (bucket / MANIFEST).read_bytes() == known
        assert {path for path in bucket.rglob("*") if path.is_file()} == objects


def wait(found: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not found():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_a_bucket_without_a_manifest_and_a_foreign_one_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    settings = StoreSettings(f"file://{tmp_path / 'bucket'}")
    with pytest.raises(ConfigError, match="no manifest"):
        restore(settings, tmp_path / "a")
    for name, kind in (("../../evil", tarfile.REGTYPE), ("stamps", tarfile.SYMTYPE), ("metadata.sqlite/x", b"0")):
        packed, member = io.BytesIO(), tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc/passwd"
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            tar.addfile(member)
        (tmp_path / "bucket" / MANIFEST).write_bytes(packed.getvalue())
        with pytest.raises(StorageFault, match="not a file of a manifest"):
            restore(settings, tmp_path / name.replace("/", "_"))
    (tmp_path / "bucket" / MANIFEST).write_bytes(packed.getvalue()[:20])
    with pytest.raises(StorageFault, match="damaged"):
        restore(settings, tmp_path / "b")
