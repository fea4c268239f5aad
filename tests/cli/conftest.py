"""One broker for all tests of a module."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from mainstem.testing import Broker


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Tests that run as a job in the background ignore SIGINT, and so would what they start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def address(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command means the module's broker."""
    monkeypatch.setenv("MAINSTEM_URL", broker.http_url)
