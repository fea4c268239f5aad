"""What someone asks by mistake is told as a problem, and nothing half-done stays behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

HUGE = 10**30


@pytest.fixture(autouse=True)
def asked(http: httpx.Client) -> None:
    """There is a topic to ask about."""
    http.post("/v1/messages", json={"topic": "asked/a", "value": "1"})


def problem(answer: httpx.Response, status: int = 400) -> str:
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    detail: str = answer.json()["detail"]
    return detail


@pytest.mark.parametrize("start", ["²", "@²", "-²", "ts:²", f"@{HUGE}", f"0.{HUGE}", "0.-5", "foo"])
def test_a_start_that_cannot_be_is_told_as_a_problem(http: httpx.Client, start: str) -> None:
    for path in ("/v1/messages", "/v1/series"):
        problem(http.get(path, params={"topic": "asked/a", "from": start}))


def test_a_page_after_something_that_was_never_told_is_a_problem(http: httpx.Client) -> None:
    assert "is not where a page ended" in problem(http.get("/v1/topics", params={"after": "s/²/1"}))
    assert http.get("/v1/cursors", params={"after": "-5"}).status_code == 200


def test_a_body_nested_a_hundred_thousand_times_is_a_problem(http: httpx.Client) -> None:
    answer = http.post("/v1/messages", content=b"[" * 100_000, headers={"content-type": "application/json"})
    assert problem(answer) == "the body is nested too deeply"


def test_a_body_that_told_no_length_and_is_too_long_is_a_problem_of_its_own(http: httpx.Client) -> None:
    pieces = (b" " * (1 << 20) for _ in range(22))
    answer = http.post("/v1/messages", content=pieces, headers={"content-type": "application/json"})
    assert "body_bytes_max" in problem(answer, 413)


@pytest.mark.parametrize("value", ["[" * 60_000, "1" + "0" * 400])
def test_a_value_that_python_cannot_read_as_json_is_shown_and_left_out_of_charts(
    http: httpx.Client, value: str
) -> None:
    topic = f"asked/odd/{value[0]}"
    http.post("/v1/messages", json={"topic": topic, "value": value})
    (shown,) = http.get("/v1/messages", params={"topic": topic}).json()["items"]
    assert shown["value"] == value
    assert http.get("/v1/series", params={"topic": topic}).json()["time"] == []


def test_a_method_that_is_not_possible_is_told_with_those_that_are(http: httpx.Client) -> None:
    answer = http.put("/v1/overview", json={})
    problem(answer, 405)
    assert {"GET", "HEAD"} <= {one.strip() for one in answer.headers["allow"].split(",")}


def test_pages_of_one_partition_end_at_its_end(http: httpx.Client) -> None:
    assert http.post("/v1/topics", json={"name": "parts", "settings": {"partitions": 3}}).status_code == 200
    for number in range(12):
        http.post("/v1/messages", json={"topic": "parts", "key": f"k{number}", "value": str(number)})
    for partition in range(3):
        answer = http.get("/v1/messages", params={"topic": "parts", "partition": partition}).json()
        assert {one["partition"] for one in answer["items"]} == {partition}
        assert answer["next"] is None
    assert "no partition 3" in problem(http.get("/v1/messages", params={"topic": "parts", "partition": 3}), 404)


def test_partitions_are_never_taken_away(http: httpx.Client) -> None:
    http.post("/v1/topics", json={"name": "shrunk", "settings": {"partitions": 3}})
    assert "not taken away" in problem(http.patch("/v1/topics/shrunk", json={"settings": {"partitions": 2}}))
    assert http.patch("/v1/topics/shrunk", json={"settings": {"retention_ms": 1000}}).json()["partitions"] == 3


@pytest.mark.parametrize(
    "settings",
    [
        {"partitions": "x"},
        {"partitions": 2.5},
        {"partitions": None},
        {"partitions": True},
        {"retention_ms": "7d"},
        {"retention_ms": -5},
        {"retention_ms": HUGE},
        {"retention_ms": [1]},
        {"segment_bytes": "x"},
        {"message_bytes_max": "x"},
        {"durability": 5},
        {"keep_until_archived": "maybe"},
        {"timestamp_type": "x"},
    ],
    ids=str,
)
def test_settings_of_a_topic_that_cannot_be_kept_are_refused(http: httpx.Client, settings: dict[str, Any]) -> None:
    problem(http.post("/v1/topics", json={"name": "odd-settings", "settings": settings}))
    assert http.get("/v1/topics/odd-settings").status_code == 404
    http.post("/v1/topics", json={"name": "plain-settings"})
    problem(http.patch("/v1/topics/plain-settings", json={"settings": settings}))


LIMITS = [
    *({name: value} for name in ("message_ttl_ms", "lock_ms") for value in (-1, HUGE, 2**63 - 1)),
    *({name: value} for name in ("length_max", "deliveries_max") for value in (-1, HUGE)),
]


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_limits_of_a_queue_that_cannot_be_are_refused(http: httpx.Client, limit: dict[str, int]) -> None:
    problem(http.post("/v1/queues", json={"name": "odd-queue", "filter": "odd/#", **limit}))
    assert http.get("/v1/queues/odd-queue").status_code == 404
    http.post("/v1/queues", json={"name": "plain-queue", "filter": "odd/#"})
    problem(http.patch("/v1/queues/plain-queue", json=limit))


def test_a_queue_begins_at_one_end_or_the_other(http: httpx.Client) -> None:
    problem(http.post("/v1/queues", json={"name": "begun", "filter": "odd/#", "from": "erliest"}))


def test_a_queue_whose_name_has_slashes_is_altered_purged_and_redriven(http: httpx.Client) -> None:
    assert http.post("/v1/queues", json={"name": "a/b", "filter": "slashed/#"}).status_code == 200
    assert http.patch("/v1/queues/a%2Fb", json={"length_max": 5}).json()["settings"]["length_max"] == 5
    assert http.post("/v1/queues/a%2Fb/purge", json={}).json() == {"purged": 0}
    assert http.get("/v1/queues/a%2Fb/dead").json()["items"] == []
    assert http.post("/v1/queues/a%2Fb/redrive", json={}).json() == {"redriven": 0}


def test_nothing_is_made_without_a_name(http: httpx.Client) -> None:
    assert "must have a name" in problem(http.post("/v1/queues", json={"name": "", "filter": "a/#"}))
    assert "must have a name" in problem(http.post("/v1/groups", json={"name": "", "topic": "asked.a"}))


def test_an_empty_place_does_not_rewind_a_group(http: httpx.Client) -> None:
    http.post("/v1/groups", json={"name": "kept", "topic": "asked.a", "from": "latest"})
    assert problem(http.post("/v1/groups-reset", json={"group": "kept", "to": ""})) == "to is empty"


def test_a_group_is_not_set_beyond_the_end(http: httpx.Client) -> None:
    assert http.post("/v1/groups", json={"name": "ahead", "topic": "asked.a", "from": f"@{2**63 - 1}"}).is_success
    (offset,) = http.get("/v1/groups/ahead").json()["offsets"]
    assert offset["offset"] <= offset["end_offset"]
    problem(http.post("/v1/groups", json={"name": "further", "topic": "asked.a", "from": f"@{HUGE}"}))
    problem(http.post("/v1/groups-reset", json={"group": "ahead", "to": f"@{HUGE}"}))
    assert http.get("/v1/groups/further").status_code == 404


@pytest.mark.parametrize("topic", ["", "a/#"])
def test_trying_a_name_that_is_no_topic_is_a_problem(http: httpx.Client, topic: str) -> None:
    problem(http.post("/v1/try", json={"protocol": "mqtt", "topic": topic}))


def test_a_backup_that_cannot_be_written_says_where_and_why(http: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    detail = problem(http.post("/v1/backup", json={"directory": str(tmp_path / "file" / "backup")}))
    assert detail.endswith("file/backup cannot be written: Not a directory")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/messages?topic=asked/a&form=latest", "did you mean 'from'?"),
        ("/v1/topics?serach=a", "did you mean 'search'?"),
        ("/v1/overview?color=red", "known are namespace"),
        ("/v1/messages?topic=asked/a&limit=0", "at least 1"),
        ("/v1/messages?topic=asked/a&view=v", "not topic and view"),
    ],
)
def test_a_parameter_that_nobody_reads_or_can_keep_is_refused(http: httpx.Client, path: str, words: str) -> None:
    assert words in problem(http.get(path))


def test_a_partition_below_none_is_not_there(http: httpx.Client) -> None:
    problem(http.get("/v1/messages?topic=asked/a&partition=-1"), 404)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/topics", {"name": "$SYS/x"}),
        ("/v1/views", {"name": "$share/x", "filter": "a/#"}),
        ("/v1/try", {"protocol": "mqtt", "topic": "$SYS/x"}),
    ],
)
def test_names_of_the_brokers_own_are_refused(http: httpx.Client, path: str, body: dict[str, str]) -> None:
    assert "the broker's own" in problem(http.post(path, json=body))


def test_a_queue_has_a_name_that_its_protocols_can_say(http: httpx.Client) -> None:
    assert "at most 255 bytes" in problem(http.post("/v1/queues", json={"name": "ü" * 128, "filter": "a/#"}))


def test_a_dead_letter_that_is_not_there_is_not_redriven(http: httpx.Client) -> None:
    http.post("/v1/queues", json={"name": "living", "filter": "living/#"})
    assert "no dead letter at 5" in problem(http.post("/v1/queues/living/redrive", json={"position": 5}), 404)


def test_a_directory_that_cannot_be_is_a_problem(http: httpx.Client) -> None:
    assert "absolute path" in problem(http.post("/v1/backup", json={"directory": "/tmp/\0"}))


def test_a_change_of_nothing_is_a_problem(http: httpx.Client) -> None:
    assert "nothing to change" in problem(http.patch("/v1/topics/asked/a", json={"settings": {}}))
    assert not http.get("/v1/topics/asked/a").json()["declared"]
