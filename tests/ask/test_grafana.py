"""What Grafana's JSON data source sends (recorded from its protocol), and what it gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from mainstem.admin.api.grafana import shaped
from mainstem.testing import Broker
from tests.ask.conftest import produce

BASE_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z
PANEL: dict[str, Any] = {
    "app": "dashboard",
    "requestId": "Q100",
    "timezone": "browser",
    "range": {"from": "2023-11-14T22:13:20.000Z", "to": "2023-11-14T22:14:20.000Z", "raw": {"from": "now-1m"}},
    "interval": "10s",
    "intervalMs": 10_000,
    "maxDataPoints": 600,
    "scopedVars": {},
}


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with Broker(engine="segment") as broker, httpx.Client(base_url=broker.http_url, timeout=60) as client:
        values = [(f"g.{'ab'[n % 2]}", None, b'{"n": %d}' % n, BASE_MS + n * 1000) for n in range(90)]
        produce(broker, values)
        yield client


def asked(http: httpx.Client, *targets: dict[str, Any]) -> Any:
    answer = http.post("/grafana/query", json={**PANEL, "targets": list(targets)})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_time_and_a_number_are_series_within_the_panels_range(http: httpx.Client) -> None:
    sql = (
        "select time_bucket($__interval, timestamp) as t, topic, count(*) as n from 'g/#' where $__timeFilter "
        "group by 1, 2 order by 1, 2"
    )
    found = asked(http, {"refId": "A", "target": sql})
    assert [(one["target"], one["refId"]) for one in found] == [("g.a", "A"), ("g.b", "A")]
    for one in found:
        assert [value for value, _ in one["datapoints"]] == [5] * 6
        assert [at for _, at in one["datapoints"]] == [BASE_MS + n * 10_000 for n in range(6)]


def test_anything_else_is_a_table_and_a_hidden_target_is_not_asked(http: httpx.Client) -> None:
    sql = "select topic, count(*) as n from 'g/#' where timestamp < to_timestamp($__to / 1000) group by 1 order by 1"
    hidden = {"refId": "B", "target": "not sql", "hide": True}
    (table,) = asked(http, {"refId": "A", "payload": {"sql": sql}}, hidden)
    assert table["columns"] == [{"text": "topic", "type": "string"}, {"text": "n", "type": "number"}]
    assert table["rows"] == [["g.a", 30], ["g.b", 30]]


def test_variables_health_and_wrong_sql(http: httpx.Client) -> None:
    assert http.get("/grafana").status_code == 200
    assert http.post("/grafana/metrics", json={"metric": ""}).json() == []
    told = http.post("/grafana/variable", json={"payload": {"target": "select distinct topic from 'g/#' order by 1"}})
    assert told.json() == [{"__text": "g.a", "__value": "g.a"}, {"__text": "g.b", "__value": "g.b"}]
    wrong = http.post("/grafana/query", json={**PANEL, "targets": [{"target": "drop table x"}]})
    assert wrong.status_code == 400 and "SELECT" in wrong.json()["detail"]
    bad = http.post("/grafana/query", json={"range": {"from": "soon"}, "targets": [{"target": "select 1"}]})
    assert bad.status_code == 400 and "not a time" in bad.json()["detail"]


def test_several_numbers_are_several_series() -> None:
    told = {
        "columns": [
            {"name": "t", "type": "timestamp[us, tz=UTC]"},
            {"name": "x", "type": "double"},
            {"name": "y", "type": "int64"},
        ],
        "items": [{"t": "2023-11-14T22:13:20", "x": 1.5, "y": None}],
    }
    assert [(one["target"], one["datapoints"]) for one in shaped(told, {})] == [
        ("x", [[1.5, BASE_MS]]),
        ("y", [[None, BASE_MS]]),
    ]
    assert shaped(told, {"type": "table"})[0]["rows"] == [[BASE_MS, 1.5, None]]
