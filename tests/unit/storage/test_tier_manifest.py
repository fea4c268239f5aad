"""A lost local disk is not a lost tier: what the bucket knows of itself makes a data directory again."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from mainstem.model.errors import ConfigError, StorageFault
from mainstem.storage.log_state import FileState
from mainstem.storage.reservation import Reservation
from mainstem.storage.tier.manifest import MANIFEST, MARGIN, restore, store_manifest
from mainstem.storage.tier.store import StoreSettings
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
