"""The pytest plugin: a fixture `mainstem` that is a running broker. Installed with Mainstem, nothing to import.

def test_mine(mainstem):
    producer = confluent_kafka.Producer({"bootstrap.servers": mainstem.bootstrap_servers})
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mainstem.testing.broker import Broker


@pytest.fixture
def mainstem(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A fresh broker in memory, all protocols on free ports; `@pytest.mark.mainstem("section.key=value")` sets it up."""
    from mainstem.testing.broker import Broker

    mark = request.node.get_closest_marker("mainstem")
    with Broker(*(mark.args if mark else ()), **(mark.kwargs if mark else {})) as broker:
        yield broker


@pytest.fixture(scope="session")
def mainstem_session() -> Iterator[Broker]:
    """One broker for the whole session: faster, and shared by every test that asks for it."""
    from mainstem.testing.broker import Broker

    with Broker() as broker:
        yield broker


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "mainstem(*settings, engine): settings of the `mainstem` fixture's broker")
