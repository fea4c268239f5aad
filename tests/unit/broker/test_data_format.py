"""Data of format 1, as the version before left it when it was killed: taken over, kept, and written back."""

from __future__ import annotations

import asyncio
import shutil
import tarfile
from pathlib import Path

import pytest

from mainstem.broker.broker import Broker
from mainstem.broker.groups.registry import Commit
from mainstem.model.errors import ConfigError
from mainstem.server.config import load_config
from mainstem.server.downgrade import downgrade
from mainstem.storage.directory import BEFORE, FORMAT_FILE, DataDirectory
from tests.unit.broker.kit import running

FIXTURE = Path(__file__).parents[2] / "fixtures" / "data-1.tar.gz"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Written by 18550ee: a session with five deliveries in flight, a retained message, a queue, a group."""
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path, filter="data")
    path = tmp_path / "data-1"
    path.chmod(0o700)
    return path


def check_state(broker: Broker) -> None:
    session = broker.session_keeper.sessions.find(b"/\0sub")
    assert session is not None
    assert [(packet_id, state) for packet_id, state, _ in session.flight] == [(2, 3), (3, 1), (4, 2), (5, 1), (6, 2)]
    assert list(session.subscriptions) == [b"a/#"]
    namespace = broker.namespace("/")
    found = broker.session_keeper.retained(namespace).find(b"state/+")
    assert [topic for topic, _ in found] == [b"state/lamp"]
    record = broker.session_keeper.retained(namespace).read_one(*found[0])
    assert record is not None and record.value == b"on"
    queue = broker.queues.of(namespace).get("work")
    assert (queue.ready, queue.unacked) == (3, 0)
    assert broker.coordinator.groups.offset("readers", ("a", 0)) == Commit(3)


def format_of(data: Path) -> str:
    return (data / FORMAT_FILE).read_text().strip()


async def test_format_1_is_taken_over_whole_and_only_once(data: Path) -> None:
    before = (data / "state.snapshot").read_bytes()
    for _ in range(3):
        async with running(data) as broker:
            check_state(broker)
    assert format_of(data) == "mainstem data 2"
    assert not (data / "state.snapshot").exists()
    assert (data / BEFORE / "state.snapshot").read_bytes() == before
    assert (data / BEFORE / "metadata.sqlite").exists()


async def test_a_crash_at_any_step_of_taking_over_begins_it_again(data: Path, tmp_path: Path) -> None:
    async with running(data) as broker:
        check_state(broker)
    half = tmp_path / "half"
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(half, filter="data")
    half /= "data-1"
    shutil.copytree(data / "state", half / "state")  # written, and the old snapshot is still there
    async with running(half) as broker:
        check_state(broker)
    async with running(half) as broker:
        check_state(broker)


def test_the_way_back_is_read_by_the_version_before_and_taken_over_again(data: Path) -> None:
    async def look() -> None:
        async with running(data) as broker:
            check_state(broker)

    asyncio.run(look())
    downgrade(load_config(flags=[f"data.directory={data}"]))
    assert format_of(data) == "mainstem data 1"
    assert (data / "state.snapshot").read_bytes()[:8] == b"MSSNAP1\n"
    assert not list((data / "state").glob("*.snapshot")) and not (data / BEFORE).exists()
    asyncio.run(look())
    assert format_of(data) == "mainstem data 2"


def test_a_newer_format_is_refused(data: Path) -> None:
    (data / FORMAT_FILE).write_text("mainstem data 3\n")
    with pytest.raises(ConfigError, match="knows formats up to 2"):
        DataDirectory(data)
