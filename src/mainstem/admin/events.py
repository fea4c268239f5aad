"""What happens in the broker, live, for people: who comes and goes, what is refused, groups that rebalance, topics that are
made, moved and deleted.

Found by looking, LOOK_S apart and only while somebody watches: connections, groups and topics are compared with what they
were, so a connection that came and went between two looks is not shown. Refusals and disconnections with their reasons are
what the log says (`mainstem.*`, from INFO on). One look serves all who watch; each has ROWS_MAX waiting, beyond it the
newest are counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from mainstem.admin.answers.consumers import ConnectionRow
from mainstem.admin.connections import connection_row
from mainstem.admin.cursors import group_named, groups_of
from mainstem.admin.running import Running

LOOK_S = 0.25
ROWS_MAX = 1_000
TURN_OBJECTS = 500
TEXT_MAX = 500
TOLD_MAX = 200  # of one kind in one look; more are shown as a number

logger = logging.getLogger("mainstem")


@dataclass(frozen=True, slots=True)
class Event:
    time_ms: int
    kind: str  # connected | disconnected | rebalanced | created | moved | deleted | logged
    text: str
    protocol: str = ""
    namespace: str = ""
    level: str = "info"


class _LogLines(logging.Handler):
    """What the broker's own log says, as events; from any thread."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: deque[Event] = deque(maxlen=ROWS_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()[:TEXT_MAX]
        except (TypeError, ValueError):  # whoever wrote the line made a mistake
            return
        level = record.levelname.lower()
        self.lines.append(Event(int(record.created * 1000), "logged", text, record.name.split(".")[-1], level=level))


class Events:
    def __init__(self, running: Running) -> None:
        self._running = running
        self._watchers: set[Watcher] = set()
        self._lines = _LogLines()
        self._task: asyncio.Task[None] | None = None
        self._connections: dict[int, ConnectionRow] = {}
        self._groups: dict[str, tuple[str, int]] = {}
        self._topics: dict[tuple[str, bytes], tuple[str, str, int]] = {}

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    async def watch(self) -> AsyncIterator[tuple[list[dict[str, Any]], int]]:
        """Events as they are found, with how many were left out; nothing for a while is an empty list."""
        watcher = Watcher()
        self._watchers.add(watcher)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        try:
            while True:
                yield await watcher.next()
        finally:
            self._watchers.discard(watcher)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        logger.addHandler(self._lines)
        try:
            async for _ in self._look():  # what is there already is not an event
                pass
            self._lines.lines.clear()
            while self._watchers:
                await asyncio.sleep(LOOK_S)
                found = [event async for event in self._look()]
                if found:
                    for watcher in self._watchers:
                        watcher.put(found)
        finally:
            logger.removeHandler(self._lines)
            self._connections, self._groups, self._topics, self._task = {}, {}, {}, None

    async def _look(self) -> AsyncIterator[Event]:
        for events in (self._look_at_connections(), self._look_at_groups(), self._look_at_topics()):
            async for event in events:
                yield event
        while self._lines.lines:
            yield self._lines.lines.popleft()

    async def _look_at_connections(self) -> AsyncIterator[Event]:
        now_ms, seen, told = _now_ms(), dict[int, ConnectionRow](), 0
        for listener, protocol in self._running.protocols.items():
            server = self._running.servers.get(listener)
            if server is None or listener == "http":
                continue
            for number, connection in enumerate(list(server.connections)):
                key = id(connection)
                row = self._connections.get(key)
                if row is None or not row["client"]:  # it says who it is only after a while
                    row = connection_row(listener, protocol, connection)
                seen[key] = row
                if number % TURN_OBJECTS == TURN_OBJECTS - 1:
                    await asyncio.sleep(0)
        before, self._connections = self._connections, seen
        changes = [("connected", seen[key]) for key in seen.keys() - before.keys()]
        changes += [("disconnected", before[key]) for key in before.keys() - seen.keys()]
        for kind, row in changes[:TOLD_MAX]:
            told += 1
            yield Event(now_ms, kind, _who(row), row["protocol"], row["namespace"])
        if len(changes) > told:
            yield Event(now_ms, "connected", f"and {len(changes) - told} more came or went")

    async def _look_at_groups(self) -> AsyncIterator[Event]:
        now_ms, seen = _now_ms(), dict[str, tuple[str, int]]()
        for number, (key, group) in enumerate(list(groups_of(self._running).groups.items())):
            turn = getattr(group, "generation", None)
            seen[key] = (str(getattr(group, "state", "")), getattr(group, "epoch", 0) if turn is None else turn)
            if number % TURN_OBJECTS == TURN_OBJECTS - 1:
                await asyncio.sleep(0)
        before, self._groups = self._groups, seen
        for key, (state, turn) in seen.items():
            if before.get(key, ("", 0))[1] != turn:
                namespace, name = group_named(key)
                members = len(getattr(groups_of(self._running).groups.get(key), "members", ()))
                text = f"group {name}: {state or 'assigned'}, generation {turn}, {members} members"
                yield Event(now_ms, "rebalanced", text, "kafka", namespace)

    async def _look_at_topics(self) -> AsyncIterator[Event]:
        now_ms, seen = _now_ms(), dict[tuple[str, bytes], tuple[str, str, int]]()
        for namespace in list(self._running.broker.namespaces.values()):
            for number, (name, topic) in enumerate(list(namespace.topics.items())):
                layout = "dedicated" if topic.policy.dedicated else "shared"
                seen[namespace.name, name] = (topic.policy.engine, layout, len(topic.partitions))
                if number % TURN_OBJECTS == TURN_OBJECTS - 1:
                    await asyncio.sleep(0)
        before, self._topics = self._topics, seen
        for namespace_name, name in seen.keys() | before.keys():
            key = (namespace_name, name)
            was, now = before.get(key), seen.get(key)
            if was == now or name.startswith(b"$"):
                continue
            kind = "created" if was is None else "deleted" if now is None else "moved"
            facts = now or was
            assert facts is not None
            text = f"topic {name.decode(errors='replace')}: {facts[1]}, {facts[0]}, {facts[2]} partition(s)"
            yield Event(now_ms, kind, text, namespace=namespace_name)


class Watcher:
    def __init__(self) -> None:
        self._rows: deque[dict[str, Any]] = deque()
        self._left_out = 0
        self._news = asyncio.Event()

    def put(self, events: Iterable[Event]) -> None:
        for event in events:
            if len(self._rows) >= ROWS_MAX:
                self._left_out += 1
            else:
                self._rows.append(asdict(event))
        self._news.set()

    async def next(self) -> tuple[list[dict[str, Any]], int]:
        """What came; after a while without anything an empty list, so that a peer that is gone is noticed."""
        try:
            async with asyncio.timeout(15):
                await self._news.wait()
        except TimeoutError:
            return [], 0
        self._news.clear()
        rows, self._rows = list(self._rows), deque()
        left_out, self._left_out = self._left_out, 0
        return rows, left_out


def _who(row: ConnectionRow) -> str:
    named = f"{row['client']} " if row["client"] else ""
    user = f" as {row['user']}" if row["user"] else ""
    return f"{named}from {row['address']}{user}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
