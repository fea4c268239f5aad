"""kill -9 while parts are indexed: a search finds every record each time, and in the end the indexes are whole."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest

from mainstem.log.search_index import index_path, is_whole
from mainstem.testing.process import BrokerProcess
from mainstem_ask.search.engine import Asked, Search, connection_of
from tests.ask.conftest import produce

RECORDS, KILLS = 4_000, 4
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def sealed(data: Path) -> list[Path]:
    return [part for log in (data / "logs").iterdir() for part in sorted(log.glob("*.log"))[:-1]]


def found(broker: BrokerProcess, query: str) -> list[int]:
    asked = Asked(query, "killed", limit=RECORDS)
    events = Search(asked, connection_of(broker.http_url)).events()
    return [one["hit"]["offset"] for one in events if "hit" in one]


def test_a_kill_while_indexing_hides_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data) as broker:
        settings = {"layout": "dedicated", "segment_bytes": 64 << 10}
        httpx.post(f"{broker.http_url}/v1/topics", json={"name": "killed", "settings": settings}).raise_for_status()
        produce(
            broker,
            [("killed", None, b"common word%d %s" % (n, b"filler " * 40), 1_700_000_000_000) for n in range(RECORDS)],
        )
        for kill in range(KILLS):
            deadline = time.monotonic() + 60  # some are indexed, not all: or, the first time, none yet
            while kill and not any(index_path(part).exists() for part in sealed(data)):
                assert time.monotonic() < deadline
                time.sleep(0.001)
            broker.kill()
            for part in sealed(data)[kill::KILLS]:  # as a kill, or a disk, may leave them
                index_path(part).parent.mkdir(parents=True, exist_ok=True)
                index_path(part).with_suffix(".part").write_bytes(b"MSSRCH02 cut off")
                if index_path(part).exists():
                    index_path(part).write_bytes(index_path(part).read_bytes()[: 40 + 100 * kill])
            broker.start()
            for number in (0, 77, RECORDS // 2, RECORDS - 1):
                assert found(broker, f"word{number}") == [number]
            assert len(found(broker, "common")) == RECORDS
        deadline = time.monotonic() + 90
        while not all(is_whole(index_path(part)) for part in sealed(data)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
