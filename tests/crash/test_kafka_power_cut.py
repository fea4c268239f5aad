"""The power is cut under a whole broker while Kafka clients write: what they were told was kept is there, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mainstem.testing import BrokerProcess
from mainstem.testing.power_cut import PowerCutMount, why_not
from tests.protocol.kafka.crash_loads import check_exactly_once, check_idempotent_producer

pytestmark = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")

Powered = tuple[BrokerProcess, Callable[[], None]]


@pytest.fixture
def powered(tmp_path: Path) -> Iterator[Powered]:
    """A broker on a file system of its own, and what cuts its power and starts it again."""
    with PowerCutMount(tmp_path, size_mib=1024) as mount:
        data = tmp_path / "data"
        data.symlink_to(mount.path / "data")  # so that the broker's own log lies beside the disk that is cut off
        (mount.path / "data").mkdir(mode=0o700)
        with BrokerProcess(data) as broker:

            def cut() -> None:
                mount.cut(broker.pid)
                broker.kill()
                broker.start()

            yield broker, cut


def test_an_idempotent_producer_loses_nothing_and_repeats_nothing(powered: Powered) -> None:
    check_idempotent_producer(*powered, 2)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_idempotent_producer_survives_twenty_power_cuts(powered: Powered) -> None:
    check_idempotent_producer(*powered, 20)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_read_process_write_is_exactly_once_across_power_cuts(powered: Powered) -> None:
    check_exactly_once(*powered, 6)
