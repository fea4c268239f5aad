"""Kafka words to broker words: which handler answers which request, and one connection's side of it.

A handler takes a `Request` and returns the answer, or None if it will call `reply` later, or a coroutine that returns
it. Errors of ours that a handler lets through close the connection: it alone knows where Kafka puts the code.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from mainstem.broker.access import Principal
from mainstem.broker.broker import Broker
from mainstem.broker.namespace import Namespace
from mainstem.model.errors import MainstemError, PeerViolation
from mainstem.protocols.connection import HOLD_QUEUE, Connection
from mainstem.protocols.kafka import wire
from mainstem.protocols.kafka.catalog import Catalog
from mainstem.protocols.kafka.handlers import (
    acls,
    cluster,
    configs,
    fetch,
    group_admin,
    groups,
    login,
    metadata,
    offsets,
    produce,
    share,
    share_offsets,
    topics,
    transactions,
)
from mainstem.protocols.kafka.schema import APIS
from mainstem.protocols.kafka.service import KafkaService
from mainstem.protocols.kafka.session import KafkaSession, Slot

logger = logging.getLogger("mainstem.kafka")

API_VERSIONS = 18
PRODUCE = 0
BEFORE_LOGIN = (API_VERSIONS, 17, 36)
IDLE_S_MAX = 600
TASKS_MAX = 100  # handlers of one connection that wait for something; more begin as these end

Handler = Callable[["Request"], Any]

HANDLERS: dict[int, Handler] = {
    **login.HANDLERS,
    **metadata.HANDLERS,
    **produce.HANDLERS,
    **fetch.HANDLERS,
    **offsets.HANDLERS,
    **groups.HANDLERS,
    **group_admin.HANDLERS,
    **topics.HANDLERS,
    **configs.HANDLERS,
    **transactions.HANDLERS,
    **cluster.HANDLERS,
    **acls.HANDLERS,
    **share.HANDLERS,
    **share_offsets.HANDLERS,
}


class Request:
    """One request and everything its handler may ask for."""

    __slots__ = ("body", "client_id", "connection", "service", "slot", "version")

    def __init__(self, connection: KafkaConnection, body: Any, version: int, client_id: str | None, slot: Slot) -> None:
        self.connection = connection
        self.service = connection.service
        self.body = body
        self.version = version
        self.client_id = client_id or ""
        self.slot = slot

    def reply(self, response: Any) -> None:
        self.connection.answer(self.slot, response)

    @property
    def key(self) -> int:
        return self.slot.api.key

    @property
    def principal(self) -> Principal:
        principal = self.connection.principal
        assert principal is not None
        return principal

    @property
    def namespace(self) -> Namespace:
        namespace = self.connection.namespace
        assert namespace is not None
        return namespace

    @property
    def catalog(self) -> Catalog:
        return self.service.catalog(self.namespace)

    @property
    def host(self) -> str:
        return f"/{self.connection.peer_host()}"

    def group_key(self, group_id: str) -> str:
        return self.service.group_key(self.namespace, group_id)


class KafkaConnection(Connection):
    __slots__ = (
        "login",
        "namespace",
        "principal",
        "service",
        "session",
        "sessions",
        "share_sessions",
        "tasks",
        "waiting",
    )

    def __init__(self, service: KafkaService) -> None:
        super().__init__(service)
        self.service = service
        self.session = KafkaSession(request_bytes_max=service.config.limits.frame_bytes_max_before_login)
        self.principal: Principal | None = None
        self.namespace: Namespace | None = None
        self.login: Any = None  # the exchange of a SASL mechanism, while it runs
        self.sessions: set[int] = set()  # fetch sessions to forget with the connection
        self.share_sessions: set[tuple[str, str]] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.waiting: deque[tuple[Any, Slot]] = deque()  # what came with the read that made it too many

    # -- life ------------------------------------------------------------------------------------------------------

    def on_open(self) -> None:
        self.service.recover()
        self.service.deadlines.watch(self, IDLE_S_MAX)
        if self.service.access.open:
            principal = self.service.access.login_now("anonymous", b"")
            assert principal is not None
            self.log_in(principal)

    def log_in(self, principal: Principal) -> None:
        self.principal = principal
        self.namespace = self.service.namespace_of(principal)
        self.session.request_bytes_max = self.service.config.kafka.request_bytes_max

    def on_lost(self) -> None:
        for session_id in self.sessions:
            self.service.fetch_sessions.close(session_id)
        self.service.shares.close_all(self.share_sessions)
        for task in self.tasks:
            task.cancel()
        for answer, _ in self.waiting:
            answer.close()
        self.waiting.clear()

    def peer_host(self) -> str:
        peer = self.transport.get_extra_info("peername") if self.transport is not None else None
        return str(peer[0]) if isinstance(peer, tuple) else "local"

    def dialled(self) -> tuple[str, int]:
        """The address told to the client: the configured one, else the one it dialled."""
        kafka = self.service.config.kafka
        local = self.transport.get_extra_info("sockname") if self.transport is not None else None
        host, port = (local[0], local[1]) if isinstance(local, tuple) else ("127.0.0.1", 9092)
        return kafka.advertised_host or host, kafka.advertised_port or port

    # -- requests --------------------------------------------------------------------------------------------------

    def on_data(self, data: bytes) -> None:
        try:
            for request in self.session.feed(data):
                self._handle(request)
                if self.closing:
                    return
        except PeerViolation as fault:
            self.close(fault.message)
        except MainstemError as fault:
            logger.warning("%s: %s", self.label(), fault.message)
            self.close(fault.message)
        except Exception:
            logger.exception("a request of %s could not be handled", self.label())
            self.close("internal error")
        if self.session.crowded or self.waiting:
            self.hold(HOLD_QUEUE)

    def _handle(self, data: memoryview) -> None:
        head = wire.decode_head(data)
        api = APIS.get(head.key)
        if api is None or head.key not in HANDLERS:
            raise PeerViolation(f"unknown API key {head.key}")
        if not api.first <= head.version <= api.last:
            if head.key != API_VERSIONS:
                raise PeerViolation(f"{api.name} has no version {head.version}")
            self._refuse_api_versions(head.correlation)
            return
        if self.principal is None and head.key not in BEFORE_LOGIN:
            raise PeerViolation(f"{api.name} before the login")
        body = wire.decode(f"{api.name}Request", head.version, data, head.body_at, rest_allowed=True)
        slot = Slot(api, head.version, head.correlation)
        if head.key != PRODUCE or body.acks != 0:
            self.session.expect(slot)
        request = Request(self, body, head.version, head.client_id, slot)
        answer = HANDLERS[head.key](request)
        if answer is None:
            return
        if inspect.iscoroutine(answer):
            self._run(answer, slot)
        else:
            self.answer(slot, answer)

    def _run(self, answer: Any, slot: Slot) -> None:
        """A client of many partitions asks for all of them at once: what is too many for now begins later."""
        if len(self.tasks) >= TASKS_MAX:
            self.waiting.append((answer, slot))
            return
        task = asyncio.get_running_loop().create_task(self._finish(answer, slot))
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if self.waiting:
            self._run(*self.waiting.popleft())
            self._go_on()

    async def _finish(self, answer: Any, slot: Slot) -> None:
        try:
            self.answer(slot, await answer)
        except MainstemError as fault:
            self.close(fault.message)
        except Exception:
            logger.exception("a request of %s could not be handled", self.label())
            self.close("internal error")

    def _refuse_api_versions(self, correlation: int) -> None:
        """A version of ours that every client can read, so that it can ask again (KIP-511)."""
        slot = Slot(APIS[API_VERSIONS], 0, correlation)
        self.session.expect(slot)
        self.answer(slot, metadata.unsupported_api_versions())

    def answer(self, slot: Slot, response: Any) -> None:
        if self.transport is None:
            return
        for part in self.session.answer(slot, response):
            self.send(part)  # type: ignore[arg-type]  # any buffer will do
        self._go_on()

    def _go_on(self) -> None:
        if self.held & HOLD_QUEUE and not self.session.crowded and not self.waiting:
            self.release(HOLD_QUEUE)


class KafkaServer(KafkaService):
    """What the server's wiring makes; one connection per client that comes."""

    def __init__(self, broker: Broker, config: Any) -> None:
        super().__init__(broker, config)

    def make_connection(self) -> KafkaConnection:
        return KafkaConnection(self)
