"""Fixtures of several files here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mainstem.broker.identity import passwords
from mainstem.metadata.sqlite import SqliteStore


@pytest.fixture
def quick_hashing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "SCRAM_ITERATIONS", 16)


@pytest.fixture
def store() -> Iterator[SqliteStore]:
    store = SqliteStore(None)
    yield store
    store.close()
