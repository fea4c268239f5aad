"""Questions to the log, each answered by a process of its own: the loop only passes on what it says.

A process has no login: it is given the caller's rules about consuming, asks here for plans and frames of the caller's
namespace (CALLS, nothing else), reads segment files itself, and is killed when it takes too long or its caller has gone.
Schemas, which show the fields of values, it gets only if its caller may read by them.
At most `[http] asks_max` run at once, and WAITING_MAX wait; its messages are drawn in mainstem_ask/pipe.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator, Mapping
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.routing import Route

from mainstem.admin.running import Running
from mainstem.broker.child_process import ChildProcess
from mainstem.broker.rights.access import Action, Kind, Principal
from mainstem.model.errors import InvalidArgument, InvalidName, MainstemError, NotAuthorized, NotFound, Overloaded

WAITING_MAX = 8
GRACE_S = 5.0  # beyond its time, for a process that does not stop by itself
MESSAGE_BYTES_MAX = 64 << 20
CALLS = ("/v1/scan/", "/v1/views/")
COMMAND = (sys.executable, "-m", "mainstem_ask.worker")


class Asking:
    def __init__(self, running: Running, routes: list[Route]) -> None:
        self._running = running
        self._calls = Starlette(routes=[one for one in routes if one.path.startswith(CALLS)])
        self._now = self._waiting = 0
        self._free = asyncio.Condition()

    async def ask(
        self, principal: Principal, namespace: str, asked: Mapping[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """What the process tells, event by event; closing this ends the process."""
        await self._enter()
        try:
            config = self._running.config.http
            limits = {"memory_bytes": config.ask_bytes_max, "time_ms": config.ask_ms_max}
            whole = {**asked, **limits, "rights": self._rights(principal, namespace)}
            async with contextlib.aclosing(self._answered(whole, namespace, principal)) as events:
                async for event in events:
                    yield event
        finally:
            self._now -= 1
            async with self._free:
                self._free.notify()

    async def _enter(self) -> None:
        most = self._running.config.http.asks_max
        if self._now >= most and self._waiting >= WAITING_MAX:
            raise Overloaded(f"{most} questions are being answered and {WAITING_MAX} wait", fix="ask again in a moment")
        self._waiting += 1
        try:
            async with self._free:
                await self._free.wait_for(lambda: self._now < most)
                self._now += 1
        finally:
            self._waiting -= 1

    def _rights(self, principal: Principal, namespace: str) -> dict[str, Any] | None:
        """The caller's rules, or None for who may read everything."""
        if principal.admin:
            return None
        rules = [
            rule.to_document()
            for _, rule in self._running.broker.access.rules_of(principal)
            if rule.kind is Kind.TOPIC and Action.CONSUME in rule.actions
        ]
        return {"rules": rules, "user": principal.name, "namespace": namespace}

    async def _answered(
        self, asked: Mapping[str, Any], namespace: str, asker: Principal
    ) -> AsyncGenerator[dict[str, Any], None]:
        state = {"principal": Principal("ask", namespace, admin=True), "asker": asker}
        process = await ChildProcess.start(COMMAND, leaves_a_core=self._running.broker.turns.in_company)
        # No timeout around the reading: who reads on may be another task than who began.
        limit_s = int(asked["time_ms"]) / 1000 + GRACE_S
        late = asyncio.get_running_loop().call_later(limit_s, process.kill)
        due_s = asyncio.get_running_loop().time() + limit_s
        try:
            await _write(process.stdin, {"ask": asked})
            while True:
                try:
                    head, body = await _read(process.stdout)
                except asyncio.IncompleteReadError:
                    raise _ended(asked, asyncio.get_running_loop().time() >= due_s) from None
                if "event" in head:
                    yield head["event"]
                elif "call" in head:
                    await _write(process.stdin, *await self._called(head["call"], body, state))
                elif "error" in head:
                    raise _error_of(head["error"])
                else:
                    return
        finally:
            late.cancel()
            process.kill()
            await process.wait()

    async def _called(
        self, call: Mapping[str, Any], body: bytes, state: Mapping[str, Principal]
    ) -> tuple[dict[str, Any], bytes]:
        """The same handlers that answer Spark by HTTP. `state`: as whom the process calls, and for whom."""
        answer: dict[str, Any] = {"status": 500, "headers": {}}
        parts: list[bytes] = []
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": call["method"],
            "path": call["path"],
            "raw_path": call["path"].encode(),
            "query_string": urlencode(call["query"]).encode(),
            "headers": [(b"content-type", b"application/json")],
            "state": dict(state),
            "client": None,
            "server": None,
            "scheme": "http",
            "root_path": "",
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answer["status"] = message["status"]
                answer["headers"] = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                parts.append(message.get("body", b""))

        await self._calls(scope, receive, send)
        return answer, b"".join(parts)


def _ended(asked: Mapping[str, Any], late: bool) -> MainstemError:
    """Of a process that went without a word."""
    if late:
        return Overloaded(f"no answer within {asked['time_ms']} ms", fix="ask for less: a shorter time", code="MS-8002")
    return Overloaded(
        "the process that answers ended before it had an answer: it needs more memory than it may have",
        fix="ask for less: a shorter time, fewer columns",
        code="MS-8001",
    )


def _error_of(told: Mapping[str, str]) -> MainstemError:
    for kind in (InvalidArgument, InvalidName, NotFound, NotAuthorized):
        if kind.code == told["code"]:
            return kind(told["detail"], fix=told["fix"])
    return Overloaded(told["detail"], fix=told["fix"], code=told["code"])


async def _write(sink: asyncio.StreamWriter, head: Mapping[str, Any], body: bytes = b"") -> None:
    data = json.dumps({**head, "bytes": len(body)}).encode()
    sink.write(len(data).to_bytes(4, "big") + data)
    sink.write(body)
    with contextlib.suppress(ConnectionError):  # it has ended: seen when it is read
        await sink.drain()


async def _read(source: asyncio.StreamReader) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(await source.readexactly(4), "big")
    if size > MESSAGE_BYTES_MAX:
        raise Overloaded(f"a message of {size} bytes", code="MS-8001")
    head: dict[str, Any] = json.loads(await source.readexactly(size))
    return head, await source.readexactly(min(int(head.get("bytes", 0)), MESSAGE_BYTES_MAX))
