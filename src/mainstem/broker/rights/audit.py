"""Who did what, from where, and whether it was allowed: records in the topic `$audit` of the namespace, lines of a file.

    {"time": "2026-05-04T12:00:00.123Z", "user": "ann", "address": "10.0.0.7", "protocol": "kafka",
     "action": "DeleteTopics", "object": "orders", "outcome": "refused", "why": "29"}

What is told: failed logins; every change by HTTP, the console and RabbitMQ's API; what Kafka, AMQP and NATS change about
topics, groups, queues, streams, users, rules and quotas; publishes and subscriptions that rules refused (`times`: how often
in that second, see `refusals.py`). `outcome` is done, refused or failed. Never a password, a token or a payload: callers
name objects, never what was sent.

`$audit` is a log of its own. Only admins read it, by any protocol (`access.py`); nobody publishes to it. While everybody
gets in without a login nothing is kept, because nobody is known.

Nothing waits for it: an event is put into a queue of EVENTS_MAX and written with others, a few times a second. Failed logins
come at LOGINS_PER_S at most. What is over the limit is counted, and the count is the next event.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from mainstem.broker.identity.login import Shown
from mainstem.broker.rights.access import Principal
from mainstem.broker.rights.refusals import Client, Refusals
from mainstem.broker.rights.rules import AUDIT_TOPIC
from mainstem.broker.topics.policy import Policy
from mainstem.model.errors import MainstemError

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker

logger = logging.getLogger("mainstem.audit")

EVENTS_MAX = 10_000
WRITE_S = 0.2
REFUSALS_S = 1  # between two events of one connection about the same
LOGINS_PER_S = 50
SEGMENT_BYTES = 1 << 20  # every namespace has one
TEXT_MAX = 256  # characters of each field
DONE, REFUSED, FAILED = "done", "refused", "failed"
LOGIN = "login"


@dataclass(frozen=True, slots=True)
class AuditOptions:
    enabled: bool = True
    file: str = ""  # lines are appended to; "": none
    retention_ms: int = 90 * 86_400_000


@dataclass(frozen=True, slots=True)
class Event:
    time: str
    user: str
    address: str
    protocol: str
    action: str
    object: str
    outcome: str
    why: str = ""
    times: int = 0  # 0: once


class Audit:
    def __init__(self, broker: Broker, options: AuditOptions) -> None:
        self._broker = broker
        self._options = options
        self._events: deque[tuple[str, Event]] = deque()  # with the namespace each belongs to
        self._left_out = 0
        self._logins_second = self._logins = 0
        self._refusals, self._refusals_ns = Refusals(), 0
        self._news = asyncio.Event()
        self.written_total = self.left_out_total = 0
        broker.identity.on_login = self._login

    def policy(self, defaults: Policy) -> Policy:
        """Of the topic: a log of its own, so that no frame of it lies beside others that somebody may read."""
        return defaults.with_changes(
            {
                "layout": "dedicated",
                "partitions": 1,
                "cleanup": "delete",
                "retention_ms": self._options.retention_ms,
                "segment_bytes": SEGMENT_BYTES,
            }
        )

    def note(
        self,
        principal: Principal | None,
        action: str,
        name: str = "",
        *,
        outcome: str = DONE,
        why: str = "",
        address: str = "",
        protocol: str = "",
        namespace: str = "",
    ) -> None:
        """An event of somebody who is logged in; in the namespace it concerns, or its own."""
        user = principal.name if principal is not None else ""
        self._keep(
            namespace or (principal.namespace if principal is not None else "/"),
            user,
            address,
            protocol,
            action,
            name,
            outcome,
            why,
        )

    def refused(
        self,
        whose: Hashable,
        client: Callable[[], Client],
        action: str,
        name: str | bytes,
        why: str = "",
        times: int = 1,
    ) -> None:
        """A publish or a subscription that a rule refuses, or that none allows; told with its like (`refusals.py`)."""
        if not self._options.enabled or self._broker.access.open:
            return
        if not self._refusals.add(whose, client, action, name, why, times):
            self._leave_out()
        self._news.set()

    def _login(self, shown: Shown, principal: Principal | None, why: str) -> None:
        """A login failed; where the user is known it concerns that user's namespace."""
        second = self._broker.clock.monotonic_ns() // 1_000_000_000
        if second != self._logins_second:
            self._logins_second, self._logins = second, 0
        self._logins += 1
        if self._logins > LOGINS_PER_S:
            self._leave_out()
            return
        user = self._broker.access.users.get(shown.name)
        self._keep(user.namespace if user else "/", shown.name, shown.address, shown.protocol, LOGIN, "", REFUSED, why)

    def _keep(self, namespace: str, *given: str, times: int = 0) -> None:
        if not self._options.enabled or self._broker.access.open:
            return
        if len(self._events) >= EVENTS_MAX:
            self._leave_out()
            return
        now = datetime.fromtimestamp(self._broker.clock.now_ns() / 1e9, UTC)
        time = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        user, address, protocol, action, name, outcome, why = (text[:TEXT_MAX] for text in given)
        self._events.append((namespace, Event(time, user, address, protocol, action, name, outcome, why, times)))
        self._news.set()

    def _leave_out(self) -> None:
        self._left_out += 1
        self.left_out_total += 1
        self._news.set()

    # -- writing

    async def run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            now = self._broker.clock.monotonic_ns()
            if now - self._refusals_ns >= REFUSALS_S * 1_000_000_000:
                self._refusals_ns = now
                self._tell_refusals()
            await self.write()
            await asyncio.sleep(WRITE_S)
            if self._refusals:
                self._news.set()

    async def close(self) -> None:
        self._tell_refusals()
        await self.write()

    def _tell_refusals(self) -> None:
        for one in self._refusals.take():
            client = one.client
            user = client.principal.name if client.principal is not None else ""
            namespace = client.namespace or (client.principal.namespace if client.principal is not None else "/")
            told = (user, client.address, client.protocol, one.action, one.name, REFUSED, one.why)
            self._keep(namespace, *told, times=one.times if one.times > 1 else 0)

    async def write(self) -> None:
        """What has gathered, a slice at a time."""
        lines = []
        for count in range(len(self._events)):
            if count % 100 == 99:
                await self._broker.turns.turn()
            lines.append(self._publish(*self._events.popleft()))
        if self._left_out:
            left_out, self._left_out = self._left_out, 0
            now = datetime.fromtimestamp(self._broker.clock.now_ns() / 1e9, UTC).isoformat(timespec="milliseconds")
            event = Event(now, "", "", "", "left out", str(left_out), FAILED, "more than can be kept")
            lines.append(self._publish("/", event))
        if self._options.file and lines:
            await asyncio.to_thread(self._append, b"\n".join(lines) + b"\n")

    def _publish(self, name: str, event: Event) -> bytes:
        text = json.dumps({key: value for key, value in asdict(event).items() if value}).encode()
        namespace = self._broker.namespaces.get(name) or self._broker.namespaces["/"]
        try:
            namespace.publish(AUDIT_TOPIC, text)
            self.written_total += 1
        except MainstemError as error:
            self.left_out_total += 1
            logger.warning("an event of namespace %r could not be kept: %s: %s", name, error.message, text.decode())
        return text

    def _append(self, lines: bytes) -> None:
        try:
            with Path(self._options.file).open("ab") as file:
                file.write(lines)
        except OSError as error:
            logger.error("audit.file %s cannot be written: %s", self._options.file, error)
