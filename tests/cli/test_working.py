"""Long work tells how far it is and how long it will take: erasing, backups, restoring, repairing."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainstem.broker.upkeep.works import WORKS_MAX, Work, Works
from mainstem.server.cli import output, working
from mainstem.server.cli.api import Api
from mainstem.server.cli.output import Progress
from mainstem.storage.backup import backup, restore
from mainstem.testing import Broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker("topics.segment_bytes=64KiB", engine="segment", data=tmp_path / "data") as running:
        yield running


def fill(broker: Broker) -> None:
    with httpx.Client(base_url=broker.http_url) as http:
        for number in range(200):
            topic = ("kept", "erased")[number % 2]
            http.post("/v1/messages", json={"topic": topic, "value": "x" * 2_000}).raise_for_status()


def test_erasing_tells_the_bytes_it_went_through(broker: Broker) -> None:
    assert broker.app is not None and broker.loop is not None
    fill(broker)
    core, work = broker.app.broker, Work("erase", "erased", "me")
    erasing = core.erase_topic(core.namespace("/"), b"erased", work)
    assert asyncio.run_coroutine_threadsafe(erasing, broker.loop).result(30) == 100
    assert work.done == work.total > 100 * 2_000
    assert work.to_document()["left_s"] == 0


def test_backups_and_restoring_tell_theirs(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "backup"
    with Broker("topics.segment_bytes=64KiB", engine="segment", data=data) as broker:
        fill(broker)
    seen = list[tuple[int, int]]()

    def tell(done: int, total: int) -> None:
        seen.append((done, total))

    for run in (lambda: backup(data, copy, progress=tell), lambda: restore(copy, tmp_path / "restored", tell)):
        seen.clear()
        run()
        dones = [done for done, _ in seen]
        assert len(seen) > 3 and dones == sorted(dones)
        assert 400_000 < dones[-1] <= seen[0][1] and len({total for _, total in seen}) == 1


def test_a_command_shows_how_far_the_brokers_work_is(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert broker.app is not None
    shown = threading.Event()
    tell = Progress.set

    def told(self: Progress, done: int, total: int | None = None) -> None:
        tell(self, done, total)
        shown.set()

    monkeypatch.setattr(working, "SHOWN_AFTER_S", 0.0)
    monkeypatch.setattr(output, "PROGRESS_LINE_S", 0.0)
    monkeypatch.setattr(Progress, "set", told)

    def request() -> dict[str, int]:
        assert shown.wait(30)
        return {"records": 7}

    with broker.app.broker.works.begin("erase", "a/b", "anonymous") as work:
        work.set(50, 200)
        assert working.followed(Api(broker.http_url), "erase", "a/b", request) == {"records": 7}
    assert "25% of 200" in capsys.readouterr().err
    assert httpx.get(f"{broker.http_url}/v1/work").json()["items"] == []


def test_a_request_that_fails_fails_the_command(broker: Broker) -> None:
    def request() -> Any:
        raise ValueError("no such topic")

    with pytest.raises(ValueError, match="no such topic"):
        working.followed(Api(broker.http_url), "erase", "a", request)


def test_work_is_seen_by_who_began_it_and_bounded() -> None:
    works = Works()
    with works.begin("erase", "a", "ann"), works.begin("backup", "/b", "root"):
        assert [one["what"] for one in works.of("ann")] == ["a"]
        assert [one["what"] for one in works.of(None)] == ["a", "/b"]
        opened = [works.begin("erase", str(number), "ann") for number in range(WORKS_MAX)]
        for one in opened:
            one.__enter__()
        assert len(works.of(None)) == WORKS_MAX
        for one in opened:
            one.__exit__(None, None, None)
    assert works.of(None) == [] and json.dumps(works.of("ann")) == "[]"
