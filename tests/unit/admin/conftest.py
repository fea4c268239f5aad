"""One broker for all tests of a module, and a client of its HTTP API."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from mainstem.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def http(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.http_url) as client:
        yield client
