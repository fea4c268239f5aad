"""Requests to every route of the HTTP port with values nobody meant: each is answered, none is a mistake of the broker's.

`MAINSTEM_FUZZ_SEED` repeats a run.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from mainstem.admin.api import OPERATIONS
from mainstem.admin.console.pages import PAGES
from mainstem.admin.rabbit_api import ROUTES as RABBIT
from mainstem.admin.schema_api import ROUTES as SCHEMAS
from mainstem.testing import BrokerProcess

REQUESTS = 3_000
BY_DESIGN = (501, 503, 507)  # what is not there, too much at once, a full disk
LEFT_ALONE = ("backup.make", "user.add", "user.alter", "user.remove")  # from the first user on a login is needed
RABBITS_USERS = ("users", "permissions", "topic-permissions", "definitions")

TEXTS = ["", "x", "-1", "0", "1", "9" * 30, "²", "١", "\x00", "a/b", "#", "+", "%ff", "y" * 3_000, "é", "NaN", "1e400"]
TEXTS += ["../..", "$audit", "obj", "objview", "objqueue", "true", "null", "{}", "2026-01-01T00:00:00Z", "99999-01-01"]
TEXTS += ["now", "-5m", "1e9d", "$.a", "select 1", "a'b", 'a"b', "<script>", "/", "latest", "@5", "\u202e", "amq.topic"]
NUMBERS: list[Any] = [0, -1, 1, 5, 1 << 31, 1 << 62, 1 << 63, 1 << 64, -(1 << 63) - 1, 10**25, 1.5, -0.0, 1e300]
NUMERIC = ("log", "start", "end", "bytes_max", "number", "slice_bytes", "batch", "task", "attempt", "part", "limit")
RUBBISH = [b"\xff", b"\\ud800", b"\x00", b'"', b"\xed\xa0\x80", b"9" * 5_000, b"[" * 2_000, b"1e999"]


@dataclass(frozen=True)
class Route:
    method: str
    path: str
    query: tuple[str, ...]
    body: tuple[str, ...]


def routes() -> Iterator[Route]:
    for one in OPERATIONS:
        if not one.streams and one.needs not in LEFT_ALONE:
            yield Route(
                one.method, one.path, (*(f.name for f in one.query), "namespace"), tuple(f.name for f in one.body)
            )
    asked = ("page", "page_size", "name", "use_regex", "sort", "columns", "if-unused", "deleted", "force", "offset")
    said = (
        "vhost",
        "pattern",
        "definition",
        "apply-to",
        "priority",
        "count",
        "ackmode",
        "encoding",
        "properties",
        "type",
    )
    said += ("routing_key", "payload", "payload_encoding", "arguments", "durable", "destination", "source", "schema")
    said += ("schemaType", "references", "compatibility", "mode", "user", "password", "next", "tags")
    for method, path, *_ in RABBIT:
        if path[0] not in RABBITS_USERS:
            yield Route(method, "/api/" + "/".join(path), asked, said)
    for method, path, *_ in SCHEMAS:
        yield Route(method, path, asked, said)
    for page in PAGES:
        yield Route("GET", page.path, ("topic", "after", "from", "namespace", "name", "query", "partition", "id"), ())
    work = ("log", "start", "end", "bytes_max", "number", "slice_bytes", "query", "sink", "batch", "task", "attempt")
    for method, path in (
        *(("POST", f"/v1/scan/{name}") for name in ("lanes", "limit", "plan", "plans/{p}/renew")),
        *(("GET", f"/v1/scan/{name}") for name in ("plans/{p}/slices", "frames", "topics", "schemas/{n}")),
        *(("POST", f"/v1/stage/{name}") for name in ("topics", "commit", "abort")),
        *(("POST", path) for path in ("/v1/archives/{n}", "/v1/pipelines/{n}")),
        *(("GET", path) for path in ("/connz", "/jsz", "/varz", "/subsz", "/healthz", "/metrics/detailed")),
        ("PUT", "/v1/stage/data"),
        ("GET", "/v1/stage/last"),
        ("POST", "/login"),
        ("POST", "/iceberg/v1/namespaces"),
    ):
        yield Route(
            method, path, (*work, "family", "offset", "limit", "sort"), ("select", "ranges", "rows", "at", *said)
        )


def any_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(10)
    if kind < 5 or depth > 2:
        return rng.choice(TEXTS)
    if kind < 7:
        return rng.choice([*NUMBERS, True, False, None])
    if kind == 7:
        return [any_value(rng, depth + 1) for _ in range(rng.randrange(3))]
    return {
        rng.choice(["a", "name", "topic", "value", *TEXTS]): any_value(rng, depth + 1) for _ in range(rng.randrange(3))
    }


def nearly_right(rng: random.Random) -> dict[str, Any]:
    """What jobs send, with numbers of any size."""

    def number() -> Any:
        return rng.choice(NUMBERS)

    kind = rng.choice(["topics", "pattern", "partitions", "filter", "view"])
    named = {"topics": ["obj"], "pattern": "ob.*|(", "partitions": {"obj": [number()]}, "view": "objview"}
    found = {
        "select": {"kind": kind, "filter": rng.choice(TEXTS), **named},
        "ranges": [["obj", 0, number(), number()]],
        "rows": number(),
        "at": {rng.choice(["time_ms", "stamp"]): number()},
        "slices_min": number(),
        "rows_max": number(),
        "topics": ["obj", rng.choice(TEXTS)],
        "batch": number(),
        "query": "q",
        "sink": "s",
        "run": "r",
        "parts": [[number(), number(), number()]],
        "ends": {"obj": {"0": number()}},
        "flows": [{"state": any_value(rng)}],
    }
    return {name: any_value(rng) if rng.random() < 0.15 else value for name, value in found.items()}


def spoilt(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(RUBBISH) + data[at + rng.randrange(3) :]


def ask(http: httpx.Client, route: Route, rng: random.Random) -> httpx.Response:
    path = re.sub(r"\{[^}]*\}", lambda _: quote(rng.choice(TEXTS), safe=rng.choice(("", "/"))), route.path)
    query = {
        name: str(rng.choice(NUMBERS[:10])) if name in NUMERIC and rng.random() < 0.8 else rng.choice(TEXTS)
        for name in route.query
        if rng.random() < 0.4
    }
    body = {name: any_value(rng) for name in route.body if rng.random() < 0.4}
    if route.path.startswith(("/v1/scan", "/v1/stage", "/v1/archives", "/v1/pipelines")):
        body |= nearly_right(rng)
    data = json.dumps(body).encode()
    if rng.random() < 0.3:
        data = spoilt(data, rng)
    content = data if route.method in ("POST", "PUT", "PATCH") else None
    return http.request(route.method, path, params=query, content=content, headers={"content-type": "application/json"})


@pytest.mark.timeout(300)
def test_each_is_answered_and_none_is_our_mistake(attacked: BrokerProcess) -> None:
    seed = int(os.environ.get("MAINSTEM_FUZZ_SEED", random.randrange(1 << 32)))
    rng, known, wrong = random.Random(seed), list(routes()), []
    with httpx.Client(base_url=attacked.http_url, timeout=60) as http:
        for path, body in (
            ("topics", {"name": "obj"}),
            ("messages", {"topic": "obj", "value": "x"}),
            ("views", {"name": "objview", "filter": "obj/#"}),
            ("queues", {"name": "objqueue", "filter": "q/#"}),
        ):
            http.post(f"/v1/{path}", json=body).raise_for_status()
        for _ in range(REQUESTS):
            route = rng.choice(known)
            try:
                answer = ask(http, route, rng)
            except httpx.HTTPError:  # an address that is no address, or one that the broker hung up on
                continue
            if answer.status_code >= 500 and answer.status_code not in BY_DESIGN:
                wrong.append(
                    (route.method, str(answer.request.url)[:300], answer.request.content[:300], answer.text[:200])
                )
    assert not wrong, (f"MAINSTEM_FUZZ_SEED={seed}", wrong)
    log = attacked.log()
    assert "Traceback" not in log, f"MAINSTEM_FUZZ_SEED={seed}\n" + log[log.index("Traceback") :][:6000]
