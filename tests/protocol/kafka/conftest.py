"""One broker for the Kafka tests: segment files, so that fetches come from them. Tests use topics of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mainstem.testing import Broker


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker(engine="segment") as running:
        yield running
