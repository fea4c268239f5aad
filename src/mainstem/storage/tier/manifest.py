"""What the bucket knows of itself, so that a lost local disk is not a lost tier.

    <prefix>/manifest     a gzipped tar, replaced whole (one PUT) at most every `manifest_ms` while something changes:
        tier.sqlite           the registry: every object, and the part it holds
        metadata.sqlite       topics, spans, policies, users
        catalog.sqlite        of Iceberg tables, if it is here
        stamps, state/        as in a backup: what the next start goes on from
        logs/<id>/reserved, start, tiered, object

    <prefix>/owner        {"id": the registry's, "incarnation": which of its copies may write}

`restore` makes a data directory of it. Each log goes on far behind every offset that was given out when the manifest was
made, so that no offset is ever given to two records; what was not uploaded by then is lost with the disk. Bundles of the
engine `object` that were stored since are found all the same (`object/catching_up.py`). The restored copy takes the prefix
over: a broker that comes back with the old disk is refused.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import tarfile
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

from mainstem.model.errors import ConfigError, StorageFault
from mainstem.storage.backup import METADATA, STAMPS, STATE, Progress, copy_database, make_empty, sync_tree
from mainstem.storage.directory import write_format
from mainstem.storage.disk import REAL_DISK
from mainstem.storage.engines import OBJECT
from mainstem.storage.log_state import RESERVED, START, FileState
from mainstem.storage.object.catching_up import catch_up
from mainstem.storage.object.pieces import Pieces
from mainstem.storage.reservation import Reservation
from mainstem.storage.segment.marks import Checkpoint
from mainstem.storage.tier.iceberg.tables import CATALOG
from mainstem.storage.tier.registry import FILE, Registry
from mainstem.storage.tier.store import ObjectMissing, ObjectStore, StoreSettings
from mainstem.storage.tier.tier import OWNER, TIERED, owner_document

MANIFEST = "manifest"
MARGIN = 1 << 30  # offsets that may have been given out since the manifest was made
_KNOWN = re.compile(rf"{re.escape(FILE)}|{re.escape(METADATA)}|{re.escape(CATALOG)}|{STAMPS}(\.previous)?|{STATE}/[\w.]+|"
                    rf"logs/\d+/({RESERVED}|{START}|{TIERED}|{OBJECT})(\.previous)?")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Restored:
    logs: int
    objects: int
    size_bytes: int
    caught_up: int = 0  # bundles that were stored after the manifest


def store_manifest(store: ObjectStore, registry: Registry, data: Path) -> int:
    """Returns its size. The registry is copied first: the metadata then knows every log that it names."""
    packed = io.BytesIO()
    with tempfile.TemporaryDirectory(prefix="manifest-", dir=data) as scratch, _packing(packed) as tar:
        registry.copy_to(Path(scratch) / FILE)
        tar.add(Path(scratch) / FILE, FILE)
        for name in (METADATA, CATALOG):
            if (data / name).exists():
                copy_database(data / name, Path(scratch) / name)
                tar.add(Path(scratch) / name, name)
        for path in _small_files(data):
            with contextlib.suppress(FileNotFoundError):  # replaced meanwhile: its previous one is there
                tar.add(path, str(path.relative_to(data)))
    store.put(MANIFEST, packed.getvalue())
    return len(packed.getvalue())


def _packing(packed: io.BytesIO) -> tarfile.TarFile:
    return tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1)


def _small_files(data: Path) -> list[Path]:
    found = [data / STAMPS, data / f"{STAMPS}.previous", *sorted((data / STATE).glob("*"))]
    for log in sorted((data / "logs").glob("*")):
        if log.name.isdigit():
            found += [
                log / f"{name}{suffix}" for name in (RESERVED, START, TIERED, OBJECT) for suffix in ("", ".previous")
            ]
    return [path for path in found if path.is_file() and _KNOWN.fullmatch(str(path.relative_to(data)))]


def restore(settings: StoreSettings, target: Path, progress: Progress = lambda done, total: None) -> Restored:
    """Make a data directory of what is in the bucket. `target` must be empty or not there yet. `progress` is told how many
    pieces are done, of how many: the manifest, bundles that are younger than it, logs."""
    store = ObjectStore(settings)
    try:
        packed = store.get_all(MANIFEST)
    except ObjectMissing:
        raise ConfigError(
            f"{store.url} has no manifest: no Mainstem broker keeps its segments there",
            fix="name its tier.store, with the prefix: mainstem restore s3://BUCKET/PREFIX DIRECTORY",
        ) from None
    make_empty(target)
    _unpack(packed, target, store.url)
    registry = Registry(target)
    try:
        logs = sorted(path for path in (target / "logs").glob("*") if path.name.isdigit())
        known = {int(log.name) for log in logs}
        caught_up = catch_up(store, registry, known, lambda done, of: progress(1 + done, 1 + of + len(logs)))
        for number, log in enumerate(logs, 1):
            _begin_behind(log, registry)
            progress(1 + caught_up + number, 1 + caught_up + len(logs))
        registry.set_fact("incarnation", uuid.uuid4().hex)
        registry.set_fact("store", store.url)
        store.put(OWNER, owner_document(registry))
        objects, size = registry.totals().get("live", (0, 0))
    finally:
        registry.close()
    sync_tree(target)
    write_format(target)
    return Restored(len(logs), objects, size, caught_up)


def _unpack(packed: bytes, target: Path, url: str) -> None:
    """Only files that we would have put there: a manifest is as foreign as any file."""
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as tar:
            for member in tar:
                if not member.isreg() or not _KNOWN.fullmatch(member.name):
                    raise StorageFault(f"{url}/{MANIFEST} holds {member.name!r}, which is not a file of a manifest")
                content = tar.extractfile(member)
                assert content is not None
                path = target / member.name
                REAL_DISK.make_dir(path.parent)
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(fd, "wb") as file:
                    file.write(content.read())
    except (tarfile.TarError, EOFError, OSError) as error:
        raise StorageFault(f"{url}/{MANIFEST} is damaged: {error}", fix="put an older version of it back") from error


def _begin_behind(log: Path, registry: Registry) -> None:
    """The log ends where its last object does, and goes on behind everything that was given out."""
    if (log / OBJECT).exists():
        placed = Pieces(registry).of_log(int(log.name))
        reservation = Reservation.open(log)
        behind = max(reservation.end_offset, placed[-1].piece.end_offset if placed else 0)
        reservation.extend(behind + MARGIN, reservation.epoch + 1)
        return
    parts = registry.parts_of(int(log.name))
    end = parts[-1].footer.end_offset if parts else 0
    stamp = parts[-1].footer.last_stamp if parts else 0
    reservation = Reservation.open(log)
    behind = max(reservation.end_offset, end)
    if parts or reservation.end_offset:
        reservation.extend(behind + MARGIN, reservation.epoch + 1)
        Checkpoint(int(log.name), end, end, end, stamp, None, 0, skips=[]).write(REAL_DISK, log)
        if parts:
            FileState(log).put(TIERED, {"id": registry.id})
