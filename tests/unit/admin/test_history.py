"""Figures over time: bounded in memory, kept over a restart as records of the log, shown to those who may see them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx

from mainstem.admin.history.keeper import FINE_TOPIC, full_at_s
from mainstem.admin.history.rings import COARSE_S, FINE_S, FINE_SLOTS, SERIES_MAX, Rings
from mainstem.model.histogram import Histogram
from mainstem.server.app import App
from mainstem.testing import Broker

DAY_S = 86_400


def most(points: list[float | None]) -> float:
    """Of the points where something was measured."""
    return max((one for one in points if one is not None), default=0)


def values_of(rings: Rings, name: str, since_s: float, until_s: float) -> list[float | None]:
    found = rings.select(lambda one: one if one == name else None, since_s, until_s, 10_000)
    series: list[float | None] = found["series"].get(name, [])
    return series


def test_a_week_is_kept_in_steps_of_five_minutes_and_six_hours_in_steps_of_ten_seconds() -> None:
    rings, began_s = Rings(), 1_800_000_000.0
    for second in range(0, 8 * DAY_S, FINE_S):
        rings.put(began_s + second, {"in.mqtt": float(second), "ack_p99": 2.0 if second % COARSE_S else 90.0})
    now_s = began_s + 8 * DAY_S - FINE_S
    fine = values_of(rings, "in.mqtt", now_s - 3_600, now_s)
    assert len(fine) == 361
    assert fine[-1] == 8 * DAY_S - FINE_S
    coarse = values_of(rings, "in.mqtt", now_s - 7 * DAY_S, now_s)
    assert len(coarse) == 7 * DAY_S // COARSE_S
    worst = values_of(rings, "ack_p99", now_s - 7 * DAY_S, now_s)
    assert set(worst) == {90.0}, "of a worst case the five minutes' worst is kept"


def test_memory_does_not_grow_with_series_or_points() -> None:
    rings = Rings()
    for number in range(3 * SERIES_MAX):
        rings.put(1_800_000_000.0 + number * FINE_S, {f"s{number}": 1.0})
    assert len(rings.fine.series) <= SERIES_MAX
    assert all(len(one) == FINE_SLOTS for one in rings.fine.series.values())


def test_a_gap_is_no_point_of_another_day() -> None:
    rings, began_s = Rings(), 1_800_000_000.0
    rings.put(began_s, {"a": 1.0})
    rings.put(began_s + FINE_S * FINE_SLOTS + 50, {"a": 2.0})
    now_s = began_s + FINE_S * FINE_SLOTS + 60
    assert values_of(rings, "a", now_s - 21_600, now_s) == [2.0]


def test_the_day_the_disk_is_full_is_where_its_line_ends() -> None:
    assert full_at_s([(0, 100), (3_600, 90), (7_200, 80)]) == 36_000
    assert full_at_s([(0, 100), (3_600, 100), (7_200, 101)]) is None
    assert full_at_s([(0, 100), (10, 90), (20, 80)]) is None, "half a minute tells nothing"


def test_percentiles_come_from_the_counts_of_a_histogram() -> None:
    histogram = Histogram([10, 100, 1_000])
    for value in [5] * 98 + [500, 500]:
        histogram.add(value)
    assert histogram.percentile(0.5) < 10
    assert 100 < histogram.percentile(0.99) <= 1_000
    assert Histogram([1]).percentile(0.5) == 0.0


def _app(broker: Broker) -> App:
    assert broker.app is not None
    return broker.app


def _loop(broker: Broker) -> asyncio.AbstractEventLoop:
    assert broker.loop is not None
    return broker.loop


def sample(broker: Broker) -> None:
    """As the keeper does each ten seconds, now."""
    asyncio.run_coroutine_threadsafe(_app(broker).history.sample(), _loop(broker)).result(30)


def history(broker: Broker, **asked: str) -> dict[str, Any]:
    answer = httpx.get(f"{broker.http_url}/v1/history", params=asked)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_restart_keeps_the_history(tmp_path: Path) -> None:
    with Broker(engine="segment", data=tmp_path) as broker:
        sample(broker)
        for number in range(20):
            body = {"topic": "a/b", "value": str(number)}
            assert httpx.post(f"{broker.http_url}/v1/messages", json=body).status_code == 200
        sample(broker)
        before = history(broker, figures="in,ack_p99", range="1h")
        assert most(before["series"]["in.http"]) > 0
        assert most(before["series"]["ack_p99"]) > 0
        names = [one["name"] for one in httpx.get(f"{broker.http_url}/v1/topics").json()["items"]]
        assert names == ["a/b"], "the broker's own topics are not listed"
    with Broker(engine="segment", data=tmp_path) as broker:
        deadline = time.monotonic() + 90
        while not set(before["time"]) <= set((after := history(broker, figures="in,ack_p99", range="1h"))["time"]):
            assert time.monotonic() < deadline, "it is restored point by point"
        assert most(after["series"]["in.http"]) > 0


def test_a_new_broker_has_two_points_within_twenty_seconds_and_figures_without_traffic_are_zero() -> None:
    with Broker() as broker:
        deadline = time.monotonic() + 60  # of a busy machine; the next ten seconds begin sooner
        while len((found := history(broker, figures="in,queue_ready,ack_p99"))["time"]) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert set(found["series"]["in"]) == set(found["series"]["queue_ready"]) == {0.0}
        assert "ack_p99" not in found["series"], "of what was not measured there is no percentile"
        app = _app(broker)
        while FINE_TOPIC not in app.broker.namespace("/").topics:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert httpx.get(f"{broker.http_url}/topics.json").json()["total"] == 0, "the broker's own are not counted"


def test_one_topic_queue_and_group_have_a_history_of_their_own() -> None:
    with Broker() as broker:
        http = httpx.Client(base_url=broker.http_url)
        http.post("/v1/queues", json={"name": "jobs", "filter": "jobs/#"}).raise_for_status()
        sample(broker)
        for _ in range(3):
            http.post("/v1/messages", json={"topic": "jobs/a", "value": "x"}).raise_for_status()
        sample(broker)
        assert most(history(broker, queue="jobs")["series"]["ready"]) == 3
        http.post("/v1/messages", json={"topic": "jobs/a", "value": "x"}).raise_for_status()
        sample(broker)
        assert most(history(broker, topic="jobs/a")["series"]["in"]) > 0
        for wrong in ({"range": "soon"}, {"topic": "a", "queue": "b"}):
            assert http.get("/v1/history", params=wrong).status_code == 400


def test_the_history_of_the_broker_is_for_admins_and_that_of_an_object_for_those_who_may_see_it() -> None:
    with Broker() as broker:
        for name, admin in (("root", True), ("ada", False)):
            body = {"name": name, "password": "secret-1", "admin": admin}
            httpx.post(f"{broker.http_url}/v1/users", json=body, auth=("root", "secret-1")).raise_for_status()
        rule = {"allow": True, "actions": ["describe"], "filter": "open/#"}
        url = f"{broker.http_url}/v1/history"
        httpx.post(f"{broker.http_url}/v1/users/ada/rules", json=rule, auth=("root", "secret-1")).raise_for_status()
        for asked, status in (({}, 403), ({"topic": "open/a"}, 200), ({"topic": "shut"}, 403), ({"queue": "q"}, 403)):
            assert httpx.get(url, params=asked, auth=("ada", "secret-1")).status_code == status, asked
        assert httpx.get(url, auth=("root", "secret-1")).status_code == 200


def test_what_somebody_else_wrote_to_the_history_is_not_shown(tmp_path: Path) -> None:
    with Broker(engine="segment", data=tmp_path) as broker:
        sample(broker)
        namespace = _app(broker).broker.namespace("/")
        forged = b'{"t": %d, "v": {"forged": 1}}' % time.time()
        _loop(broker).call_soon_threadsafe(lambda: namespace.publish(FINE_TOPIC, forged, origin=1))
        _loop(broker).call_soon_threadsafe(lambda: namespace.publish(FINE_TOPIC, b'{"t": "cut'))
        sample(broker)
    with Broker(engine="segment", data=tmp_path) as broker:
        deadline = time.monotonic() + 20
        while not (found := history(broker))["series"]:
            assert time.monotonic() < deadline
        assert "forged" not in found["series"]
