"""One broker in memory for the tests that need no engine of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mainstem.testing import Broker
from tests.crossing.message import Speaker
from tests.crossing.speakers import speakers_of


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(scope="module")
def speakers(broker: Broker) -> Iterator[dict[str, Speaker]]:
    made = speakers_of(broker)
    yield made
    for speaker in made.values():
        speaker.close()
