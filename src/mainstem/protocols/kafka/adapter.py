"""Kafka words to broker words: which handler answers which request, and one connection's side of it.

A handler takes a `Request` and returns the answer, or None if it will call `reply` later, or a coroutine that returns
it. Errors of ours that a handler lets through close the connection: it alone knows where Kafka puts the code.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from mainstem.broker.broker import Broker
from mainstem.broker.delivery.ticker import SHARE_BYTES
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.rights.access import Principal
from mainstem.broker.topics.topic import Partition, Topic
from mainstem.broker.transactions.producers import PartitionProducers
from mainstem.log.log import Log
from mainstem.model.errors import MainstemError, NotAuthorized, PeerViolation
from mainstem.model.plain_text import hidden_character
from mainstem.protocols.connection import HOLD_LOG, HOLD_QUEUE, LOOP_READ_BYTES, Connection
from mainstem.protocols.kafka import wire
from mainstem.protocols.kafka.audited import audited
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
    quotas,
    scram,
    share,
    share_offsets,
    topics,
    transactions,
)
from mainstem.protocols.kafka.kafka_topics import KafkaTopics
from mainstem.protocols.kafka.lent_pages import LENT_BYTES_MIN, rest_of, send_lent
from mainstem.protocols.kafka.plain_fetch import PlainFetches
from mainstem.protocols.kafka.request_channel import RequestChannel, Slot
from mainstem.protocols.kafka.schema import APIS
from mainstem.protocols.kafka.service import KafkaService
from mainstem.protocols.kafka.single_batch import SingleBatches
from mainstem.protocols.login import keep_login, shown_by
from mainstem.protocols.loopback import stop_pacing
from mainstem.protocols.metering import Metering
from mainstem.protocols.porter import let_in_elsewhere, move_between_requests
from mainstem.protocols.unfinished import NOTED_MIN

logger = logging.getLogger("mainstem.kafka")

SLICED_BYTES_MIN, SLICE_BYTES = 1024 * 1024, 256 * 1024  # of answers so large so much is written at a time,
SLICES_AT_ONCE = 8  # and so often at once, if there is time
API_VERSIONS = 18
PRODUCE = 0
BEFORE_LOGIN = (API_VERSIONS, 17, 36)
IDLE_S_MAX = 600
SEND_NOW_BYTES_MIN = 64 * 1024
FEW_CONNECTIONS = 4  # a request that comes alone then need not wait for others that could share its write
# Who sends several requests at once sees by the later ones what the earlier have changed (Kafka handles one after another):
# a change waits for the change before it, and so does what shows changes.
CHANGES = {19, 20, 21, 30, 31, 33, 37, 42, 44, 47, 49, 51, 91, 92}
SHOW_CHANGES = {2, 3, 9, 15, 16, 23, 29, 32, 48, 50, 60, 69, 75, 77, 90}
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
    **scram.HANDLERS,
    **quotas.HANDLERS,
    **share.HANDLERS,
    **share_offsets.HANDLERS,
}
HANDLERS = {key: audited(key, handler) for key, handler in HANDLERS.items()}


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
    def topics(self) -> KafkaTopics:
        return self.service.topics_of(self.namespace)

    @property
    def host(self) -> str:
        return f"/{self.connection.peer_host()}"

    def group_key(self, group_id: str) -> str:
        return self.service.group_key(self.namespace, group_id)


class Reading(asyncio.BufferedProtocol):
    """What the transport reads for: bytes go where the request channel parses them. All else is the connection's."""

    __slots__ = ("_connection",)

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._connection.channel.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._connection.on_read(nbytes)

    def eof_received(self) -> bool | None:
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()


class KafkaMetering(Metering):
    """A client is told by the next answers how long it has to wait."""

    __slots__ = ()

    connection: KafkaConnection

    def published_count(self) -> int:
        return self.connection.messages

    def hold(self, wait_s: float) -> None:
        self.connection.throttle(wait_s)
        super().hold(wait_s)

    def hold_output(self, wait_s: float) -> None:
        self.connection.throttle(wait_s)
        super().hold_output(wait_s)


class KafkaConnection(Connection):
    metered_by = KafkaMetering

    __slots__ = (
        "change",
        "channel",
        "client_id",
        "fd",
        "fetch_sessions",
        "fetches",
        "login",
        "messages",
        "moving",
        "namespace",
        "opening",
        "parked",
        "principal",
        "rest",
        "service",
        "share_sessions",
        "singles",
        "tasks",
        "throttled_until",
        "waiting",
    )

    def __init__(self, service: KafkaService) -> None:
        super().__init__(service)
        self.service = service
        self.channel = RequestChannel(
            request_bytes_max=service.config.limits.frame_bytes_max_before_login,
            shared=service.read_buffer,
            buffers=service.buffers,
        )
        self.client_id: str | None = None  # as last said
        self.fd = -1  # of a socket that takes bytes as they are
        self.singles: SingleBatches | None = None  # none before the login
        self.fetches: PlainFetches | None = None  # none before the login
        self.principal: Principal | None = None
        self.namespace: Namespace | None = None
        self.messages = 0  # published, where they are counted for its quotas
        self.throttled_until = 0  # monotonic ms: until when its quotas keep it from being read or written to
        self.moving: Principal | None = None  # let in, and its namespace is another cell's: it goes with the answer
        self.login: Any = None  # the exchange of a SASL mechanism, while it runs
        self.fetch_sessions: set[int] = set()  # fetch sessions to forget with the connection
        self.share_sessions: set[tuple[str, str]] = set()
        self.change: asyncio.Event | None = None  # set when the last change of its that was begun has ended
        self.tasks: set[asyncio.Task[None]] = set()
        self.parked: deque[Callable[[], None]] = deque()  # requests that wait until the peer reads; PENDING_MAX at most
        self.opening = asyncio.Lock()  # held while a batch of its is looked at elsewhere
        self.waiting: deque[tuple[Any, Slot]] = deque()  # what came with the read that made it too many
        self.rest: deque[Any] = deque()  # buffers of large answers that are not sent yet; others follow them

    # -- life ------------------------------------------------------------------------------------------------------

    def on_open(self) -> None:
        self.transport.set_protocol(Reading(self))
        sock = self.transport.get_extra_info("socket")
        stop_pacing(self.transport, sock)
        if self.transport.get_extra_info("sslcontext") is None:
            self.fd = sock.fileno()
        login_s = max(1, self.service.config.limits.login_ms // 1000)
        self.service.deadlines.watch(self, login_s, however=True)
        principal = let_in_elsewhere(self)
        if principal is None:  # nobody has to log in, or its certificate tells
            principal = self.service.broker.identity.login_now(shown_by(self))
        if principal is not None and not move_between_requests(self, principal):
            try:
                self.log_in(principal)
            except MainstemError as error:
                self.close(error.message)

    def logged_in(self) -> Principal | None:
        return self.principal

    def log_in(self, principal: Principal) -> None:
        before = self.principal
        if before is not None and before.by_token and before.name != principal.name:
            raise NotAuthorized("a connection's next token must be of the same user")
        namespace = self.service.namespace_of(principal)
        self.service.broker.quotas.enter(self.metering, namespace, "" if principal.anonymous else principal.name)
        self.namespace = namespace
        self.principal = principal
        keep_login(self, principal)
        self.channel.request_bytes_max = self.service.config.kafka.request_bytes_max
        self.service.deadlines.watch(self, IDLE_S_MAX)
        self.singles, self.fetches = SingleBatches(self), PlainFetches(self)

    def on_lost(self) -> None:
        for session_id in self.fetch_sessions:
            self.service.fetch_sessions.close(session_id)
        self.service.shares.close_all(self.share_sessions)
        for task in self.tasks:
            task.cancel()
        for answer, _ in self.waiting:
            answer.close()
        self.waiting.clear()
        self.rest.clear()
        self.parked.clear()
        self.channel.forget()
        self.singles = self.fetches = None  # they know us: a large buffer would wait for the collector of cycles

    def peer_host(self) -> str:
        peer = self.transport.get_extra_info("peername") if self.transport is not None else None
        return str(peer[0]) if isinstance(peer, tuple) else "local"

    def dialled(self) -> tuple[str, int]:
        """The address told to the client: the configured one, else the one it dialled."""
        kafka = self.service.config.kafka
        told = self.transport.get_extra_info if self.transport is not None else lambda _: None
        local = told("sockname")
        host, port = (local[0], local[1]) if isinstance(local, tuple) else ("127.0.0.1", 9092)
        given_port = kafka.advertised_tls_port if told("ssl_object") is not None else kafka.advertised_port
        return kafka.advertised_host or host, given_port or port

    def nodes(self) -> list[tuple[int, str, int]]:
        """Who serves: id, host and port of this broker and of others that take the same kind of connection."""
        told = self.transport.get_extra_info if self.transport is not None else lambda _: None
        listener = "kafkas" if told("ssl_object") is not None else "kafka"
        others = self.service.broker.nodes.others()
        more = [(one.id, one.host, one.ports[listener]) for one in others if listener in one.ports]
        return [(self.service.node_id, *self.dialled()), *more]

    # -- requests --------------------------------------------------------------------------------------------------

    def on_read(self, size: int) -> None:
        """So many bytes were put where the request channel said."""
        if self.closing:
            return  # said goodbye already; what it still sends is not ours to answer
        if size >= LOOP_READ_BYTES:
            self.server.turns.let_in()
        self.heard_second = self.server.deadlines.second
        self.server.counters.bytes_in += size
        if self.meter is not None:  # before it is handled: the answers tell for how long it is throttled
            self.meter.read(size)
        channel = self.channel
        large = channel.expecting
        if self._take(self.channel.filled(size)) == 1 and len(self.server.connections) <= FEW_CONNECTIONS:
            self.service.broker.ticker.write_early()
        ticker = self.service.broker.ticker
        ticker.loop_read = True
        if size >= SHARE_BYTES and ticker.behind:
            ticker.outrun(self)
        if channel.kept_bytes > NOTED_MIN or self.unfinished:
            self.service.unfinished.note(self, channel.kept_bytes)
        if ((large and not channel.filling) or size >= LOOP_READ_BYTES) and not self.closing:
            self.wait_for_turn()

    def on_data(self, data: bytes) -> None:
        self._take(self.channel.feed(data))

    def _take(self, requests: Iterator[memoryview]) -> int:
        """Returns how many there were."""
        taken = 0
        try:
            for request in requests:
                taken += 1
                if not self._take_quickly(request):
                    self._handle(request)
                if self.closing:
                    return taken
        except PeerViolation as fault:
            self.close(fault.message)
        except MainstemError as fault:
            logger.warning("%s: %s", self.label(), fault.message)
            self.close(fault.message)
        except Exception:
            logger.exception("a request of %s could not be handled", self.label())
            self.close("internal error")
        if self.channel.crowded or self.waiting:
            self.hold(HOLD_QUEUE)
        return taken

    def _take_quickly(self, request: memoryview) -> bool:
        """The two requests that matter most, where they are simple."""
        singles, fetches = self.singles, self.fetches
        if self.meter is not None:  # their answers tell no throttle time
            return False
        return singles is not None and fetches is not None and (singles.take(request) or fetches.take(request))

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
        if head.client_id != self.client_id:
            if (hidden := hidden_character(head.client_id or "")) is not None:
                raise PeerViolation(f"a client id with the character {hidden}")
            self.client_id = head.client_id
        if self.principal is None and head.key not in BEFORE_LOGIN:
            raise PeerViolation(f"{api.name} before the login")
        body = wire.decode(f"{api.name}Request", head.version, data, head.body_at, rest_allowed=True)
        slot = Slot(api, head.version, head.correlation)
        if head.key != PRODUCE or body.acks != 0:
            self.channel.expect(slot)
        request = Request(self, body, head.version, head.client_id, slot)
        answer = self._begin(HANDLERS[head.key], request, head.key)
        if answer is None:
            return
        if inspect.iscoroutine(answer):
            self._run(answer, slot)
        else:
            self.answer(slot, answer)

    def _begin(self, handler: Handler, request: Request, key: int) -> Any:
        before = self.change
        if key in CHANGES:
            self.change = asyncio.Event()
            return self._in_turn(handler, request, before, self.change)
        if before is not None and key in SHOW_CHANGES:
            return self._in_turn(handler, request, before, None)
        return handler(request)

    async def _in_turn(
        self, handler: Handler, request: Request, before: asyncio.Event | None, ended: asyncio.Event | None
    ) -> Any:
        try:
            if before is not None:
                await before.wait()
            answer = handler(request)
            return await answer if inspect.isawaitable(answer) else answer
        finally:
            if ended is not None:
                ended.set()
                self.change = None if self.change is ended else self.change

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
            found = await answer
            if found is not None:  # else it replies later
                self.answer(slot, found)
            if self.moving is not None:
                move_between_requests(self, self.moving)
        except MainstemError as fault:
            self.close(fault.message)
        except Exception:
            logger.exception("a request of %s could not be handled", self.label())
            self.close("internal error")

    def _refuse_api_versions(self, correlation: int) -> None:
        """A version of ours that every client can read, so that it can ask again (KIP-511)."""
        slot = Slot(APIS[API_VERSIONS], 0, correlation)
        self.channel.expect(slot)
        self.answer(slot, metadata.unsupported_api_versions())

    def answer(self, slot: Slot, response: Any) -> None:
        if self.transport is None:
            return
        if self.meter is not None and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = self.throttled_ms()
        size = self.channel.answer(slot, response)
        if size >= SEND_NOW_BYTES_MIN:  # it waits for no log, and the peer can read it while the next one is made
            self.flush()
        else:
            self.answered()

    def throttle(self, wait_s: float) -> None:
        self.throttled_until = max(self.throttled_until, self.service.monotonic_ms() + int(wait_s * 1000))

    def throttled_ms(self) -> int:
        return max(0, self.throttled_until - self.service.monotonic_ms())

    def when_room(self, work: Callable[[], None]) -> bool:
        """Whether it must wait: the peer has not read what it was sent, and more would only fill our memory."""
        if not self.blocked and not self.parked:
            return False
        self.parked.append(work)
        return True

    def on_room(self) -> None:
        self._send_rest()
        while self.parked and not self.blocked and self.transport is not None:
            self.parked.popleft()()
        if not self.blocked:
            super().on_room()

    def answered(self) -> None:
        """An answer is there; it leaves with this tick's write, if none before it is missing."""
        if not self.dirty and self.transport is not None:
            self.dirty = True
            self.server.ticker.mark_dirty(self)

    def flush(self) -> None:
        ready: list[Any] = self.channel.ready()  # any buffer will do
        size = wire.size_of(ready)
        if size >= LENT_BYTES_MIN and self._may_lend():
            taken = send_lent(self.fd, ready)
            self.server.counters.bytes_out += taken
            if self.meter is not None:
                self.meter.wrote(taken)
            ready, size = rest_of(ready, taken), size - taken
        if (self.rest or size >= SLICED_BYTES_MIN) and not self.closing:
            self.dirty = False
            self.rest.extend(ready)
            self._send_rest()
            self._go_on()
            return
        if ready:
            self.out = ready if self.out is None else self.out + ready
            self.out_bytes += size
        super().flush()
        self._go_on()

    def _send_rest(self) -> None:
        """A large answer leaves in slices, as the peer takes them: the transport copies what it keeps."""
        until_ns = self.service.broker.turns.slice_end_ns()
        for _ in range(SLICES_AT_ONCE):
            if not self.rest or self.blocked or self.closing or self.transport is None:
                return
            part = memoryview(self.rest.popleft())
            if len(part) > SLICE_BYTES:
                self.rest.appendleft(part[SLICE_BYTES:])
                part = part[:SLICE_BYTES]
            self.server.counters.bytes_out += len(part)
            self.write(part)
            if time.monotonic_ns() >= until_ns:
                break
        if self.rest and not self.blocked:
            self.service.later(0, self._send_rest)

    def _may_lend(self) -> bool:
        """Nothing waits to be sent before it, and bytes go to the socket as they are."""
        transport = self.transport
        if self.fd < 0 or self.closing or self.out or self.rest or transport is None or transport.is_closing():
            return False
        return not transport.get_write_buffer_size()

    def _go_on(self) -> None:
        if self.held & HOLD_QUEUE and not self.channel.crowded and not self.waiting:
            self.release(HOLD_QUEUE)

    def _declared_partition(self, namespace: Namespace, name: bytes, index: int, *, by_id: bool) -> Partition | None:
        topics = self.service.topics_of(namespace)
        try:
            found = topics.by_id(name) if by_id else topics.find(name.decode())
        except (MainstemError, UnicodeDecodeError):
            return None
        partition = found.partition(index) if found is not None else None
        return partition if partition is not None and partition.topic.declared else None

    # -- producing -------------------------------------------------------------------------------------------------

    def plain_partition(
        self, name: bytes, index: int, *, by_id: bool
    ) -> tuple[Partition, dict[bytes, Topic], PartitionProducers, int] | None:
        """A partition whose topic takes batches as they are: itself, its namespace's topics, its producers, the limit."""
        namespace, service = self.namespace, self.service
        assert namespace is not None
        partition = self._declared_partition(namespace, name, index, by_id=by_id)
        if partition is None or not partition.topic.policy.store:
            return None
        rules = service.rules_of(partition.topic)
        if not rules.plain:
            return None
        state = service.producers.of(partition.log, partition.topic.id)
        return partition, namespace.topics, state, rules.bytes_max

    def hold_for(self, log: Log) -> None:
        """More of the log is unsynced than may be: read on when what was sent so far is stable."""
        self.hold(HOLD_LOG)
        self.service.watches.of(log).when_stable(log, log.next_offset, lambda: self.release(HOLD_LOG))

    # -- fetching --------------------------------------------------------------------------------------------------

    def readable_partition(
        self, name: bytes, index: int, *, by_id: bool
    ) -> tuple[Partition, dict[bytes, Topic], PartitionProducers] | None:
        """A partition that has had but one log, its own, in files: itself, its namespace's topics, its producers."""
        namespace, service = self.namespace, self.service
        assert namespace is not None
        partition = self._declared_partition(namespace, name, index, by_id=by_id)
        if partition is None or len(partition.spans) != 1:
            return None
        span = partition.spans[0]
        if span.shared or span.end is not None or span.log.file_parts is None:
            return None
        return partition, namespace.topics, service.producers.of(span.log, partition.topic.id)


class KafkaServer(KafkaService):
    """What the server's wiring makes; one connection per client that comes."""

    def __init__(self, broker: Broker, config: Any) -> None:
        super().__init__(broker, config)

    def make_connection(self) -> KafkaConnection:
        return KafkaConnection(self)
