"""A real Celery application against our port: worker, retry, ETA, chord, remote control, events, Flower."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainstem.testing.broker import Broker
from tests.protocol.amqp.conftest import eventually

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def environment(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    results = tmp_path_factory.mktemp("results")
    return {
        "MAINSTEM_TEST_BROKER": broker.amqp_url,
        "MAINSTEM_TEST_BACKEND": f"file://{results}",
        "MAINSTEM_TEST_QUEUE": "celery",
    }


@pytest.fixture(scope="module")
def application(environment: dict[str, str]) -> Iterator[Any]:
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    sys.path.insert(0, str(HERE))
    celery_application = importlib.import_module("celery_application")  # by the name its worker has

    yield celery_application
    sys.path.remove(str(HERE))
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)


def _celery(environment: dict[str, str], *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "celery", "-A", "celery_application", *arguments]
    return subprocess.Popen(
        command, cwd=HERE, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


@pytest.fixture(scope="module")
def worker(environment: dict[str, str], application: Any) -> Iterator[None]:
    process = _celery(environment, "worker", "--concurrency=2", "--pool=threads", "--loglevel=warning", "-n", "w1@test")
    try:
        eventually(lambda: application.app.control.inspect(timeout=0.5).ping(), 30)
        yield
    finally:
        process.terminate()
        process.wait(20)


pytestmark = [pytest.mark.usefixtures("worker"), pytest.mark.timeout(120)]


def test_a_task_is_run_and_its_result_comes_back(application: Any) -> None:
    assert application.add.delay(2, 3).get(timeout=20) == 5


def test_many_tasks_are_each_run_once(application: Any) -> None:
    results = [application.add.delay(n, n) for n in range(200)]
    assert [result.get(timeout=30) for result in results] == [2 * n for n in range(200)]


def test_a_failing_task_is_retried(application: Any) -> None:
    assert application.fail_twice.delay().get(timeout=20) == 2


def test_a_task_for_later_waits_unacked_until_it_is_time(application: Any) -> None:
    asked = time.time()
    later = application.moment.apply_async(countdown=1.0)
    others = [application.add.delay(n, 1) for n in range(20)]
    assert [result.get(timeout=20) for result in others] == list(range(1, 21))
    assert later.get(timeout=20) - asked >= 0.95


def test_a_chord_joins_its_parts(application: Any) -> None:
    from celery import chord

    assert chord(application.add.s(n, 1) for n in range(10))(application.total.s()).get(timeout=60) == sum(range(1, 11))


def test_remote_control_and_events_work(application: Any) -> None:
    inspect = application.app.control.inspect(timeout=5)
    assert set(inspect.stats()) == {"w1@test"}
    assert [queue["name"] for queue in inspect.active_queues()["w1@test"]] == ["celery"]
    seen: list[str] = []
    with application.app.connection() as connection:
        receiver = application.app.events.Receiver(connection, handlers={"*": lambda event: seen.append(event["type"])})
        with receiver.consumer_context() as (own, _, _):  # its queue is bound once this begins
            result = application.add.delay(1, 1)
            eventually(lambda: _drained(own, seen), 20)
        assert result.get(timeout=10) == 2


def _drained(connection: Any, seen: list[str]) -> bool:
    with contextlib.suppress(TimeoutError):
        connection.drain_events(timeout=0.2)
    return "task-succeeded" in seen


def test_flower_shows_the_queue_on_its_broker_page(environment: dict[str, str], broker: Broker) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    api = f"http://guest:guest@{broker.host}:{broker.http_port}/api/"
    environment = {**environment, "FLOWER_UNAUTHENTICATED_API": "true"}
    flower = _celery(
        environment, "flower", f"--port={port}", "--address=127.0.0.1", f"--broker-api={api}", "--logging=warning"
    )
    try:
        page = eventually(lambda: _page(f"http://127.0.0.1:{port}/broker"), 40)
        assert 'id="celery"' in page
        workers = eventually(lambda: _page(f"http://127.0.0.1:{port}/api/workers?refresh=true"), 30)
        assert "w1@test" in workers
    finally:
        flower.terminate()
        flower.wait(20)


def _page(url: str) -> str:
    try:
        answer = httpx.get(url, timeout=10)
    except httpx.HTTPError:
        return ""
    return answer.text if answer.status_code == 200 and ("broker" not in url or 'id="celery"' in answer.text) else ""
