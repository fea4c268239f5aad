"""Scans, by HTTP as Spark's tasks call them: each user reads the topics that its rules allow, of its own namespace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from mainstem.codec.batch import BatchBuilder, decode_frames
from mainstem.codec.staged import StagedBatch, encode_staged
from mainstem.testing import Broker

ROOT, ANN, BEN, EVE = ("root", "secret"), ("ann", "pass word"), ("ben", "pass word"), ("eve", "pass word")
TOPICS = ("a/1", "a/2", "a/secret", "b/1", "own/a", "own/b", "$audit")


def rule(filter_: str, *actions: str, allow: bool = True, match: str = "pattern") -> dict[str, Any]:
    return {"allow": allow, "actions": list(actions or ("consume",)), "filter": filter_, "match": match}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Ann has a/# but not a/secret, and own/a; Ben b/# and a view of a/#; Eve has everything in a namespace of her own."""
    with Broker(engine="segment") as one, httpx.Client(base_url=one.http_url, timeout=20) as http:
        http.post("/v1/users", json={"name": "root", "password": "secret", "admin": True}).raise_for_status()
        http.auth = httpx.BasicAuth(*ROOT)
        http.post("/v1/namespaces", json={"name": "t2"}).raise_for_status()
        rules = {
            "ann": [rule("a/#"), rule("a/secret", allow=False), rule("own/a"), rule("mine/#", "publish", "create")],
            "ben": [rule("b/#"), rule("odd"), rule("mine/#", "publish"), rule("own/", match="prefix")],
            "eve": [rule("#", "consume", "publish")],
        }
        for name, given in rules.items():
            place = {"namespace": "t2"} if name == "eve" else {}
            http.post("/v1/users", json={"name": name, "password": "pass word", **place}).raise_for_status()
            for each in given:
                http.post(f"/v1/users/{name}/rules", json=each).raise_for_status()
        for name in ("own/a", "own/b"):
            http.post("/v1/topics", json={"name": name, "settings": {"layout": "dedicated"}}).raise_for_status()
        http.post("/v1/topics", json={"name": "b/declared"}).raise_for_status()
        http.post("/v1/views", json={"name": "odd", "filter": "a/#", "where": "header.n = '1'"}).raise_for_status()
        for number in range(6):
            for topic in (*TOPICS[:-1], "b/declared"):
                message = {"topic": topic, "value": f"{topic} {number}", "headers": {"n": str(number % 2)}}
                http.post("/v1/messages", json=message).raise_for_status()
        http.post("/v1/messages?namespace=t2", json={"topic": "a/1", "value": "of t2"}).raise_for_status()
        yield one


class Scan:
    """What a task does: asks for partitions, a plan, and frames for each slice."""

    def __init__(self, broker: Broker, user: tuple[str, str]) -> None:
        self.http = httpx.Client(base_url=broker.http_url, auth=user, timeout=20)

    def partitions(self, select: dict[str, Any], **at: int) -> httpx.Response:
        return self.http.post("/v1/scan/lanes", json={"select": select, "at": at})

    def plan(self, select: dict[str, Any], **options: Any) -> dict[str, Any]:
        found = self.partitions(select).raise_for_status().json()["lanes"]
        ranges = [[one["topic"], one["partition"], one["start"], one["end"]] for one in found]
        answer = self.http.post("/v1/scan/plan", json={"select": select, "ranges": ranges, **options})
        return dict(answer.raise_for_status().json())

    def values(self, select: dict[str, Any]) -> set[bytes]:
        plan = self.plan(select)
        found: set[bytes] = set()
        for one in plan["slices"]:
            asked = {"log": one["log"], "start": one["start"], "end": one["end"]}
            if plan["selection"]["view"]:
                asked["view"] = plan["selection"]["view"]
            data = self.http.get("/v1/scan/frames", params=asked).raise_for_status().content
            ids = {int(number): name.encode() for number, name in plan["selection"]["ids"].items()}
            for record in decode_frames(data, one["log"], inflated_bytes_max=1 << 20, topic_of=ids):
                found.add(record.value or b"")
        return found


def of(*topics: str, numbers: range = range(6)) -> set[bytes]:
    return {f"{topic} {number}".encode() for topic in topics for number in numbers}


def filtered(filter_: str) -> dict[str, Any]:
    return {"kind": "filter", "filter": filter_}


def named(*topics: str) -> dict[str, Any]:
    return {"kind": "topics", "topics": list(topics)}


@pytest.mark.parametrize(
    ("user", "select", "shown"),
    [
        (ANN, filtered("#"), of("a/1", "a/2", "own/a")),
        (ANN, filtered("a/+"), of("a/1", "a/2")),
        (ANN, {"kind": "pattern", "pattern": ".*"}, of("a/1", "a/2", "own/a")),
        (ANN, named("own/a"), of("own/a")),
        (ANN, named("own.a"), of("own/a")),
        (BEN, filtered("#"), of("b/1", "b/declared", "own/a", "own/b")),
        (BEN, {"kind": "view", "view": "odd"}, of("a/1", "a/2", "a/secret", numbers=range(1, 6, 2))),
        (EVE, filtered("#"), {b"of t2"}),
    ],
)
def test_frames_hold_what_a_user_may_consume_and_nothing_else(
    broker: Broker, user: tuple[str, str], select: dict[str, Any], shown: set[bytes]
) -> None:
    """All topics but those with logs of their own lie in one."""
    assert Scan(broker, user).values(select) & of(*TOPICS, "b/declared") == shown - {b"of t2"}
    assert (b"of t2" in Scan(broker, user).values(select)) == (user is EVE)


@pytest.mark.parametrize("name", ["a/1", "a.1"])
def test_a_topic_of_a_shared_log_is_read_without_its_neighbours(broker: Broker, name: str) -> None:
    """Its slice is a stretch of the shared log, of which the other topics that Ann may consume are sent too."""
    assert of("a/1") <= Scan(broker, ANN).values(named(name)) <= of("a/1", "a/2")


def test_what_is_named_and_denied_is_refused_with_the_command_that_allows_it(broker: Broker) -> None:
    scan = Scan(broker, ANN)
    missing = [named("b/none"), {"kind": "view", "view": "nothing"}, {"kind": "view", "view": "odd"}]
    partitions = {"kind": "partitions", "partitions": {"own.b": [0]}}
    for select in (named("a/secret"), named("a/1", "b/1"), partitions, filtered("b/#"), *missing):
        answer = scan.partitions(select)
        assert answer.status_code == 403, select
        assert answer.json()["fix"].startswith("mainstem user allow ann consume '"), select
    assert scan.partitions(named("a/secret")).json()["fix"] == "mainstem user allow ann consume 'a/secret'"
    assert scan.partitions(named("a/none")).status_code == 404, "what it may consume it may know of"
    assert (
        scan.partitions(named("$audit")).status_code == Scan(broker, EVE).partitions(named("$audit")).status_code == 403
    )


def test_a_plan_tells_of_no_file_and_of_no_other_topic(broker: Broker) -> None:
    plan = Scan(broker, ANN).plan(filtered("#"), ranged=True)
    assert not any("path" in one or "object" in one for one in plan["slices"])
    assert sum(one["rows"] for one in plan["slices"]) == 18, "what it may not read is not counted either"
    assert set(plan["selection"]["ids"].values()) == {"own/a"}
    cut = f"/v1/scan/plans/{plan['plan']}/slices"
    piece = plan["slices"][0]
    asked = {"log": piece["log"], "start": piece["start"], "end": piece["end"]}
    slices = Scan(broker, ANN).http.get(cut, params=asked).raise_for_status().json()["slices"]
    assert slices and not any("path" in one or "object" in one for one in slices)
    whole = Scan(broker, ROOT).plan(filtered("#"))
    assert any("path" in one for one in whole["slices"])


def test_frames_are_refused_of_a_log_that_holds_another_topic_only(broker: Broker) -> None:
    pieces = {one["lanes"][0][2]: one for one in Scan(broker, ROOT).plan(filtered("own/#"))["slices"]}
    piece = pieces["own/b"]
    asked = {"log": piece["log"], "start": piece["start"], "end": piece["end"]}
    ann = Scan(broker, ANN).http
    assert ann.get("/v1/scan/frames", params=asked).status_code == 403
    assert ann.get("/v1/scan/frames", params={**asked, "view": "odd"}).status_code == 403
    assert Scan(broker, EVE).http.get("/v1/scan/frames", params=asked).status_code == 404
    assert httpx.get(f"{broker.http_url}/v1/scan/frames", params=asked).status_code == 401


def test_a_name_behind_a_number_is_told_to_who_may_consume_it(broker: Broker) -> None:
    ids = Scan(broker, ROOT).plan(filtered("#"))["selection"]["ids"]
    number = next(number for number, name in ids.items() if name == "b/declared")
    assert Scan(broker, BEN).http.get("/v1/scan/topics", params={"number": number}).json()["name"] == "b/declared"
    refused = Scan(broker, ANN).http.get("/v1/scan/topics", params={"number": number})
    assert refused.status_code == 403 and "declared" not in refused.text
    assert Scan(broker, EVE).http.get("/v1/scan/topics", params={"number": number}).status_code == 404


def test_a_right_that_is_taken_away_counts_at_once(broker: Broker) -> None:
    root, ben = Scan(broker, ROOT), Scan(broker, BEN)
    assert b"b/1 0" in ben.values(filtered("b/#"))
    root.http.post("/v1/users/ben/rules", json=rule("b/1", allow=False)).raise_for_status()
    try:
        assert ben.values(filtered("b/#")) == of("b/declared")
        assert ben.partitions(named("b/1")).status_code == 403
    finally:
        root.http.request("DELETE", "/v1/users/ben/rules", params={"filter": "b/1"}).raise_for_status()
    assert b"b/1 0" in ben.values(filtered("b/#"))


# -- writing


BINARY = {"content-type": "application/octet-stream"}


def staged(topic: bytes, inside: bytes | None = None) -> bytes:
    """A batch for a topic, whose records name their topic, or another."""
    batch = BatchBuilder()
    batch.add(None, b"x", [(b"ms-topic", inside or topic)], time_ms=1)
    return encode_staged([StagedBatch(topic, 0, True, batch.seal_batch(0))])


def stage(user: Scan, data: bytes, query: str = "anns") -> httpx.Response:
    place = {"query": query, "sink": "s", "batch": 0, "run": f"run of {user}", "task": 0, "attempt": 0}
    return user.http.put("/v1/stage/data", params=place, content=data, headers=BINARY)


def test_a_job_writes_to_the_topics_that_its_user_may_publish_to(broker: Broker) -> None:
    ann = Scan(broker, ANN)
    asked = {"topics": ["mine/x", "a/1"], "each": True}
    told = ann.http.post("/v1/stage/topics", json=asked).raise_for_status().json()
    assert list(told["topics"]) == ["mine/x"] and told["refused"] == {"a/1": "user ann may not publish a/1"}
    assert ann.http.post("/v1/stage/topics", json={"topics": ["a/1"]}).status_code == 403
    made = {"topics": ["mine/made"], "declare": True}
    assert Scan(broker, BEN).http.post("/v1/stage/topics", json=made).status_code == 403, "no right to create it"
    assert ann.http.post("/v1/stage/topics", json=made).status_code == 200
    assert stage(ann, staged(b"a/1")).status_code == 403
    assert stage(ann, staged(b"mine/x", inside=b"a/1")).status_code == 403, "its records say that they are another's"
    assert stage(Scan(broker, EVE), staged(b"_schemas")).status_code == 403
    assert stage(ann, staged(b"mine/x")).status_code == 200


def test_a_jobs_batches_are_committed_and_dropped_by_who_began_it(broker: Broker) -> None:
    ann, ben, root = (Scan(broker, user) for user in (ANN, BEN, ROOT))
    assert stage(ann, staged(b"mine/y"), "theirs").status_code == 200
    place = {"query": "theirs", "sink": "s", "batch": 0}
    body = {**place, "run": f"run of {ann}", "parts": [[0, 0, 0]]}
    assert stage(ben, staged(b"mine/y"), "theirs").status_code == 403
    for path in ("commit", "abort"):
        assert ben.http.post(f"/v1/stage/{path}", json=body).status_code == 403
    assert ben.http.get("/v1/stage/last", params=place).status_code == 403
    assert ann.http.post("/v1/stage/commit", json=body).json() == {"committed": True, "records": 1}
    assert ann.http.get("/v1/stage/last", params=place).json() == {"batch": 0}
    assert root.http.get("/v1/stage/last", params=place).json() == {"batch": 0}
    assert root.http.get("/v1/messages", params={"topic": "mine/y"}).json()["items"][0]["value"] == "x"
