"""Fixtures every folder shares. `mainstem` (a broker in this process, in memory) is the testing kit's."""

from __future__ import annotations

import tracemalloc  # noqa: F401  pytest imports it when an exception is lost, in whichever thread: two at once find half of it
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis  # noqa: F401  imported when a run ends, it is parsed while brokers are collected: CPython 3.11 fails on that
import pytest

from mainstem.testing import BrokerProcess

pytest_plugins = ["mainstem.testing.pytest_plugin"]

StartBroker = Callable[..., BrokerProcess]


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """`start_broker("topics.durability=os")`: a broker process on a directory of its own; stopped at the end."""
    started: list[BrokerProcess] = []

    def start(*settings: str, engine: str = "segment", data: Path | None = None, **environment: str) -> BrokerProcess:
        directory = data or tmp_path / f"broker-{len(started)}"
        broker = BrokerProcess(directory, *settings, engine=engine, environment=environment)
        started.append(broker)
        return broker.start()

    yield start
    for broker in started:
        broker.__exit__()


@pytest.fixture
def broker_process(start_broker: StartBroker) -> BrokerProcess:
    """A broker process with segment files, durability sync; `kill()`, `start()`, `stop()` as you like."""
    return start_broker()
