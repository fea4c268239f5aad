"""The same requests to two servers, and where their answers differ."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from typing import Any

import nats
import nats.errors

A = "$JS.API."
WAIT_S = 10
# What only nats-server has (its version, its cluster, levels of what it can), and times.
LEFT_OUT = frozenset(
    ("metadata", "cluster", "api", "ts", "created", "time", "first_ts", "last_ts", "last_active", "active", "lag")
)
Request = tuple[str, Any, dict[str, str]]  # subject, body, headers


async def differing(requests: list[Request], one: str, other: str) -> list[Any]:
    ours, theirs = await answers(requests, one), await answers(requests, other)
    return [(request, a, b) for request, a, b in zip(requests, ours, theirs, strict=True) if a != b]


async def answers(requests: list[Request], url: str) -> list[Any]:
    client = await nats.connect(url, connect_timeout=WAIT_S)
    found: list[Any] = []
    for subject, body, headers in requests:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            answer = await client.request(subject, data, timeout=WAIT_S, headers=headers or None)
        except nats.errors.NoRespondersError:
            found.append("503")
            continue
        told = {k: v for k, v in (answer.headers or {}).items() if k != "Nats-Time-Stamp"}
        found.append((told, _plain(json.loads(answer.data)) if answer.data.startswith(b"{") else answer.data))
    await client.close()
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict) and "hdrs" in value:  # of a copy: which stream of that name it is from
        headers = re.sub(rb"(Nats-Stream-Source: .*) \S{8}\r", rb"\1\r", b64decode(value["hdrs"]))
        return {**_plain({key: one for key, one in value.items() if key != "hdrs"}), "hdrs": headers}
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items() if key not in LEFT_OUT}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return re.sub(r"invalid JSON: .*", "invalid JSON", value) if isinstance(value, str) else value
