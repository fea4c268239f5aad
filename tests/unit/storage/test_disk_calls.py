"""The disk's calls where they differ: macOS has no fdatasync."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from mainstem.storage import disk


def test_linux_syncs_the_data() -> None:
    assert disk.choose_sync() is os.fdatasync


def test_macos_syncs_through_the_cache_of_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, command: asked.append((fd, command)))
    disk.choose_sync()(7)
    assert asked == [(7, 51)]


def test_elsewhere_a_plain_fsync_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "fdatasync")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with (tmp_path / "x").open("wb") as file:
        disk.choose_sync()(file.fileno())
        assert synced == [file.fileno()]
