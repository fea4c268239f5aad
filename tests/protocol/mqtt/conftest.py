"""One broker for all MQTT tests that do not kill or configure theirs; each uses topics and client ids of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mainstem.testing.broker import Broker


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker() as one:
        yield one


@pytest.fixture
def port(broker: Broker) -> int:
    return broker.mqtt_port
