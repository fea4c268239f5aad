"""A small file that is whole or absent: checkpoints, clean markers, reservations, the format version.

    mainstem <kind> <version> <crc32c of the JSON, 8 hex digits>\\n
    {"json": "on one line"}\\n

It is written beside its place, synced, and renamed over it; the file it replaces stays as `<name>.previous`. A crash
between the two renames leaves only the previous one, which is then the truth: the write had not returned.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mainstem.codec.batch import crc32c
from mainstem.model.errors import CorruptFrame
from mainstem.storage.disk import Disk, read_all, write_all

VERSION = 1
BYTES_MAX = 16 << 20  # a clean marker of a log with 100,000 parts is about 12 MiB
TEMPORARY = ".new"
PREVIOUS = ".previous"


def write_state(disk: Disk, path: Path, kind: str, value: Mapping[str, Any]) -> None:
    """Durable once this returns; before that the old content stays."""
    body = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    head = f"mainstem {kind} {VERSION} {crc32c(body):08x}\n".encode()
    temporary = path.with_name(path.name + TEMPORARY)
    remove(disk, temporary)  # of a write that a crash cut short
    fd = disk.open(temporary, create=True)
    try:
        write_all(disk, fd, [head, body, b"\n"], 0)
        disk.fsync(fd)
    finally:
        disk.close(fd)
    with contextlib.suppress(FileNotFoundError):
        disk.rename(path, path.with_name(path.name + PREVIOUS))
    disk.rename(temporary, path)
    disk.fsync_dir(path.parent)


def read_state(disk: Disk, path: Path, kind: str) -> dict[str, Any] | None:
    """The newest whole write, None if there never was one; CorruptFrame if it was damaged after it was written."""
    data = _read(disk, path)
    if data is None:
        path = path.with_name(path.name + PREVIOUS)
        data = _read(disk, path)
    return None if data is None else _parse(path, data, kind)


def remove(disk: Disk, path: Path) -> None:
    """No error if it is not there."""
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(path)


def _read(disk: Disk, path: Path) -> bytes | None:
    try:
        fd = disk.open(path, read_only=True)
    except FileNotFoundError:
        return None
    try:
        return read_all(disk, fd, 0, min(disk.size(fd), BYTES_MAX))
    finally:
        disk.close(fd)


def _parse(path: Path, data: bytes, kind: str) -> dict[str, Any]:
    head, _, body = data.partition(b"\n")
    body = body.removesuffix(b"\n")
    words = head.split(b" ")
    if len(words) != 4 or words[0] != b"mainstem" or words[1] != kind.encode():
        raise CorruptFrame(f"{path}: not a Mainstem {kind} file")
    if words[3] != f"{crc32c(body):08x}".encode():
        raise CorruptFrame(f"{path}: the {kind} file is damaged, its checksum does not match")
    if words[2] != str(VERSION).encode():
        raise CorruptFrame(f"{path}: written by a newer Mainstem (format {words[2].decode(errors='replace')})")
    value: dict[str, Any] = json.loads(body)
    return value
