"""One broker for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mainstem.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def address(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command means the module's broker."""
    monkeypatch.setenv("MAINSTEM_URL", broker.http_url)
