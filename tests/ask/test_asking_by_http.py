"""`POST /v1/query` and `/v1/search`: answered by a process of its own, of what the caller may consume and nothing else."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from mainstem.admin import asking
from mainstem.broker.rights.rules import Rule
from mainstem.testing import Broker

ROOT, ANN = ("root", "pass word"), ("ann", "pass word")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with (
        Broker("http.asks_max=1", engine="segment") as one,
        httpx.Client(base_url=one.http_url, timeout=60) as http,
    ):
        http.post("/v1/users", json={"name": ROOT[0], "password": ROOT[1], "admin": True}).raise_for_status()
        http.auth = httpx.BasicAuth(*ROOT)
        http.post("/v1/users", json={"name": ANN[0], "password": ANN[1]}).raise_for_status()
        for name in ("logs/open", "logs/secret", "other"):
            for n in range(3):
                body = {"topic": name, "value_json": {"n": n, "word": "needle"}}
                http.post("/v1/messages", json=body).raise_for_status()
        http.post("/v1/views", json={"name": "shown", "filter": "#"}).raise_for_status()
        yield one


def rules(broker: Broker, *told: tuple[bool, str]) -> None:
    assert broker.app is not None and broker.loop is not None
    access = broker.app.broker.access
    made = [Rule.make(allow=allow, actions=["consume"], pattern=pattern) for allow, pattern in told]

    async def change() -> None:
        await access.set_rules(ANN[0], made)

    asyncio.run_coroutine_threadsafe(change(), broker.loop).result(30)


def query(broker: Broker, sql: str, user: tuple[str, str] = ANN, **body: Any) -> httpx.Response:
    return httpx.post(f"{broker.http_url}/v1/query", json={"sql": sql, **body}, auth=user, timeout=60)


def search(broker: Broker, user: tuple[str, str] = ANN, **body: Any) -> list[dict[str, Any]]:
    told = httpx.post(f"{broker.http_url}/v1/search", json=body, auth=user, timeout=60)
    assert told.status_code == 200, told.text
    return [json.loads(line) for line in told.text.splitlines()]


COUNTS = "select canonical_topic as t, count(*) as n from '#' group by 1 order by 1"


def test_a_query_answers_only_what_the_caller_may_consume(broker: Broker) -> None:
    everything = query(broker, COUNTS, ROOT).json()
    assert [tuple(row.values()) for row in everything["items"]] == [("logs/open", 3), ("logs/secret", 3), ("other", 3)]
    assert [one["name"] for one in everything["columns"]] == ["t", "n"]
    rules(broker)
    assert query(broker, COUNTS).json()["items"] == []
    rules(broker, (True, "logs/#"), (False, "logs/secret"))
    assert query(broker, COUNTS).json()["items"] == [{"t": "logs/open", "n": 3}]
    for name in ("logs/secret", "nothing"):
        refused = query(broker, f'select * from "{name}"')
        assert refused.status_code == 403, (name, refused.text)
    rules(broker, (True, "shown"), (False, "logs/secret"))
    seen = query(broker, "select distinct canonical_topic as t from shown order by 1").json()["items"]
    assert [row["t"] for row in seen] == ["logs/open", "other"], "through a view, what is not denied"


def test_a_search_answers_only_what_the_caller_may_consume(broker: Broker) -> None:
    rules(broker, (True, "logs/#"), (False, "logs/secret"))
    told = search(broker, query="needle n>=1", topic="#", histogram="1d", top="$.n")
    assert [(one["hit"]["topic"], json.loads(one["hit"]["value"])["n"]) for one in told if "hit" in one] == [
        ("logs/open", 2),
        ("logs/open", 1),
    ]
    assert sum(count for one in told for _, count in one.get("buckets", ())) == 2
    assert next(sorted(one["top"]) for one in told if "top" in one) == [["1", 1], ["2", 1]]
    assert told[-1]["done"]["hits"] == 2
    refused = httpx.post(f"{broker.http_url}/v1/search", json={"topic": "other"}, auth=ANN, timeout=60)
    assert refused.status_code == 403


def test_what_is_wrong_is_told_and_what_is_too_much_is_refused(broker: Broker) -> None:
    assert query(broker, "select from where", ROOT).status_code == 400
    assert query(broker, "drop table x", ROOT).status_code == 400
    assert query(broker, "select * from nothing_like_it", ROOT).status_code == 404
    assert query(broker, "select 1", ROOT, limit=-1).status_code == 400
    cut = query(broker, "select * from range(5000)", ROOT, limit=7).json()
    assert (len(cut["items"]), cut["more"]) == (7, True)
    wrong = httpx.post(f"{broker.http_url}/v1/search", json={"query": "(a"}, auth=ROOT, timeout=60)
    assert wrong.status_code == 400
    assert "column 3" in wrong.json()["detail"]


def test_a_question_that_never_ends_is_ended_and_the_next_is_answered(broker: Broker) -> None:
    assert broker.app is not None
    endless = "with recursive t(n) as (select 1 union all select n + 1 from t) select sum(n) from t"
    broker.app.config.http.ask_ms_max = 3_000
    try:
        stopped = query(broker, endless, ROOT)
    finally:
        broker.app.config.http.ask_ms_max = 60_000
    assert stopped.status_code >= 400
    assert stopped.json()["code"] in ("MS-8001", "MS-8002")
    assert query(broker, "select 1 as one", ROOT).json()["items"] == [{"one": 1}]


def test_only_so_many_questions_run_at_once_and_the_others_are_told_so(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more questions than may run and wait, some are refused; the broker answers everything else meanwhile."""
    monkeypatch.setattr(asking, "WAITING_MAX", 0)
    assert broker.app is not None
    endless = "with recursive t(n) as (select 1 union all select n + 1 from t) select sum(n) from t"
    settings = broker.app.config.http
    before = settings.ask_ms_max, settings.asks_max
    settings.ask_ms_max, settings.asks_max = 4_000, 1
    try:
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(query, broker, endless, ROOT)
            refused = query(broker, "select 1", ROOT)
            while refused.status_code == 200:  # the first had not begun, or was refused because this one had
                if running.done():
                    running = pool.submit(query, broker, endless, ROOT)
                refused = query(broker, "select 1", ROOT)
            assert refused.status_code in (429, 503), refused.text
            assert httpx.get(f"{broker.http_url}/v1/overview", auth=ROOT).status_code == 200
            assert running.result().status_code >= 400
    finally:
        settings.ask_ms_max, settings.asks_max = before
    assert query(broker, "select 1 as one", ROOT).json()["items"] == [{"one": 1}]


def test_the_commands_answer_a_caller_who_may_not_read_everything(broker: Broker) -> None:
    rules(broker, (True, "logs/#"), (False, "logs/secret"))
    url = broker.http_url.replace("//", f"//{ANN[0]}:{ANN[1].replace(' ', '%20')}@")

    def run(*words: str) -> list[Any]:
        command = [sys.executable, "-m", "mainstem", *words, "--url", url]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 0, ran.stderr
        return [json.loads(line) for line in ran.stdout.splitlines()]

    assert run("query", COUNTS, "--format", "json") == [{"t": "logs/open", "n": 3}]
    hits = run("search", "needle", "--json", "--limit", "2")
    found = [(one["topic"], json.loads(one["value"])["n"]) for one in hits if "topic" in one]
    assert found == [("logs/open", 2), ("logs/open", 1)]


def test_records_that_lie_in_no_file_are_asked_for_through_the_broker() -> None:
    with Broker(engine="memory") as broker:
        for n in range(3):
            httpx.post(f"{broker.http_url}/v1/messages", json={"topic": "m", "value": f"needle {n}"}).raise_for_status()
        hits = [one["hit"]["value"] for one in search(broker, ROOT, query="needle", topic="m") if "hit" in one]
        assert hits == ["needle 2", "needle 1", "needle 0"]
