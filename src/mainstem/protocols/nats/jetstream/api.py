"""JetStream for the clients of one namespace: requests to `$JS.API.>`, acks, flow control, and what is sent by itself.

Calls that only look are answered where they are read. Those that change what exists are committed first: they run one
after the other, and answer when their change is durable.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from base64 import b32encode
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mainstem.broker.rights.access import Action, Principal
from mainstem.broker.rights.audit import DONE, FAILED
from mainstem.broker.streams.consumer import Consumer
from mainstem.broker.streams.joined import JoinedConsumer
from mainstem.broker.streams.stream import Stream
from mainstem.log.away import bring, brought
from mainstem.model.errors import InvalidName, MainstemError
from mainstem.model.topic import topic_of_nats
from mainstem.model.whole_numbers import whole_number
from mainstem.protocols.login import address_of
from mainstem.protocols.nats.answering import refuses_answer
from mainstem.protocols.nats.jetstream import acks, errors
from mainstem.protocols.nats.jetstream.advisories import Advisories
from mainstem.protocols.nats.jetstream.consumer_calls import ConsumerCalls
from mainstem.protocols.nats.jetstream.consumer_changes import ConsumerChanges
from mainstem.protocols.nats.jetstream.delivery import Delivery
from mainstem.protocols.nats.jetstream.direct_gets import DirectGets
from mainstem.protocols.nats.jetstream.errors import JsError, NotAllowed
from mainstem.protocols.nats.jetstream.infos import API_LEVEL
from mainstem.protocols.nats.jetstream.joining import Joining
from mainstem.protocols.nats.jetstream.left_out import LeftOut
from mainstem.protocols.nats.jetstream.message_calls import MessageCalls
from mainstem.protocols.nats.jetstream.publishing import Publisher
from mainstem.protocols.nats.jetstream.stream_calls import StreamCalls
from mainstem.protocols.nats.jetstream.words import header_value
from mainstem.protocols.nats.listening import is_live_only
from mainstem.storage.engine import NotLocal

if TYPE_CHECKING:
    from mainstem.broker.namespaces.namespace import Namespace
    from mainstem.protocols.nats.adapter import NatsConnection, NatsServer
    from mainstem.protocols.nats.listening import Listening
    from mainstem.protocols.nats.outbound import Subscription

logger = logging.getLogger("mainstem.nats")

PREFIX = b"$JS."
API = b"$JS.API."
TYPE = "io.nats.jetstream.api.v1."
CALLS_WAITING_MAX = 10_000  # changes of one namespace that wait for the one before them
READING = ("consumer_create", "consumer_durable_create")  # made by every client that reads: no event of the audit


STOP_S = 10.0
# The words of a call's subject → its name in the type of the answer, and how many tokens follow.
_ANY = 1 << 16
_CALLS: dict[str, tuple[str, int, int]] = {
    "INFO": ("account_info", 0, 0),
    "STREAM.NAMES": ("stream_names", 0, 0),
    "STREAM.LIST": ("stream_list", 0, 0),
    **{f"STREAM.{one.upper()}": (f"stream_{one}", 1, 1) for one in ("create", "update", "info", "delete", "purge")},
    **{f"STREAM.{one.upper()}": (f"stream_{one}", 1, 1) for one in ("snapshot", "restore", "cancel_move")},
    "STREAM.MSG.GET": ("stream_msg_get", 1, 1),
    "STREAM.MSG.DELETE": ("stream_msg_delete", 1, 1),
    "STREAM.LEADER.STEPDOWN": ("stream_leader_stepdown", 1, 1),
    "STREAM.PEER.REMOVE": ("stream_remove_peer", 1, 1),
    "STREAM.PEER.EVACUATE": ("stream_evacuate_peer", 1, 1),
    "CONSUMER.CREATE": ("consumer_create", 1, _ANY),
    "CONSUMER.DURABLE.CREATE": ("consumer_durable_create", 2, 2),
    "CONSUMER.NAMES": ("consumer_names", 1, 1),
    "CONSUMER.LIST": ("consumer_list", 1, 1),
    **{f"CONSUMER.{one.upper()}": (f"consumer_{one}", 2, 2) for one in ("info", "delete", "pause", "unpin", "reset")},
    "CONSUMER.LEADER.STEPDOWN": ("consumer_leader_stepdown", 2, 2),
    "CONSUMER.MSG.NEXT": ("consumer_msg_next", 2, 2),
    "DIRECT.GET": ("direct_get", 1, _ANY),
}


class Call:
    """One request."""

    __slots__ = ("connection", "headers", "payload", "reply", "subject", "tokens")

    def __init__(
        self, connection: NatsConnection, tokens: list[str], reply: bytes, headers: bytes, payload: bytes
    ) -> None:
        self.connection, self.tokens, self.reply = connection, tokens, reply
        self.headers, self.payload = headers, payload
        self.subject = "$JS.API." + ".".join(tokens)

    @property
    def principal(self) -> Principal:
        principal = self.connection.principal
        assert principal is not None
        return principal


class JetStream(StreamCalls, MessageCalls, DirectGets, ConsumerCalls, ConsumerChanges, Joining, Advisories, LeftOut):
    def __init__(self, server: NatsServer, namespace: Namespace, listening: Listening) -> None:
        self.server = server
        self.broker = server.broker
        self.namespace = namespace
        self.listening = listening
        self.streams = self.broker.streams.of(namespace)
        self.publisher = Publisher(self)
        self.deliveries: dict[int, Delivery] = {}  # by consumer id
        self.flows: dict[bytes, Delivery] = {}
        self.calls_total = self.calls_failed = 0
        self._changes: deque[tuple[Call, str]] = deque()
        self._changing: asyncio.Task[None] | None = None
        self.change_lock = asyncio.Lock()  # an operator may ask for a change beside the clients
        self._batches = set()
        self._uninterested: set[Delivery] = set()  # push consumers without a subscriber
        listening.on_interest = self.on_interest
        self.streams.send_live = self.send_live
        for stream in self.streams.by_name.values():
            for consumer in stream.consumers.values():
                self.delivery(consumer)

    def now_ns(self) -> int:
        return self.broker.clock.now_ns()

    def new_id(self) -> str:
        return b32encode(os.urandom(5)).decode()

    def send(self, reply: bytes, payload: bytes, headers: bytes = b"") -> None:
        """To whoever listens there; never stored."""
        if not reply:
            return
        try:
            receivers = self.listening.live(topic_of_nats(reply), None)
        except InvalidName:
            return
        for one in receivers:
            one.owner.deliver_live(one, reply, b"", headers, payload)

    def send_live(self, subject: bytes, headers: bytes, payload: bytes) -> bool:
        """A message that is not to be stored; False where its subject is."""
        if not is_live_only(subject) or self.streams.capture(topic_of_nats(subject)) is not None:
            return False
        self.send(subject, payload, headers)
        return True

    def receivers(self, reply: bytes) -> list[Subscription]:
        """Who is to be written to there, at once; who left too much unread is cut off instead."""
        try:
            found = self.listening.live(topic_of_nats(reply), None)
        except InvalidName:
            return []
        return [one for one in found if one.owner.takes_live()]

    def delivery(self, consumer: Consumer) -> Delivery:
        found = self.deliveries.get(consumer.id)
        if found is None:
            found = self.deliveries[consumer.id] = Delivery(self, consumer)
        return found

    async def settle(self) -> None:
        """The broker stops: a change that was begun is finished; who asked for those that wait is gone."""
        self._changes.clear()
        for task in self._batches:
            task.cancel()
        if self._changing is not None and not self._changing.done():
            await asyncio.wait([self._changing], timeout=STOP_S)

    # -- requests ----------------------------------------------------------------------------------------------------

    def handle(self, connection: NatsConnection, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> bool:
        """A publish to `$JS.>`; False where nobody is there to answer."""
        if subject.startswith(acks.PREFIX):
            acks.handle(self, connection, subject, reply, payload)
            return True
        if subject.startswith(b"$JS.FC."):
            flow = self.flows.get(subject)
            if flow is not None:
                flow.on_flow()
            return True
        if not subject.startswith(API):
            return False
        if refuses_answer(connection, reply):
            return True
        tokens = subject[len(API) :].decode(errors="replace").split(".")
        call = Call(connection, tokens, reply, headers, payload)
        name = self._name_of(tokens)
        if name is None:
            return True  # nats-server is silent
        if name == "consumer_msg_next":
            return bool(self.on_consumer_msg_next(call))
        if name == "direct_get":
            return self._direct_get(call)
        if name == "consumer_reset" and not self.is_there(call):
            return True  # nats-server is silent
        if not reply:
            return True
        self.calls_total += 1
        if hasattr(self, f"change_{name}"):
            self._queue(call, name)
        else:
            self._answer(call, name)
        return True

    def _name_of(self, tokens: list[str]) -> str | None:
        for count in range(min(3, len(tokens)), 0, -1):
            found = _CALLS.get(".".join(tokens[:count]))
            if found is not None:
                name, fewest, most = found
                return name if fewest <= len(tokens) - count <= most else None
        return None

    def _direct_get(self, call: Call) -> bool:
        try:
            return self.on_direct_get(call)
        except NotLocal as missing:
            bring(missing, lambda: None if call.connection.closing else self._get_again(call))
            return True

    def _get_again(self, call: Call) -> None:
        """The stream may be gone by now: then it is as if nobody had been there."""
        with suppress(NotAllowed):
            self._direct_get(call)

    def _answer(self, call: Call, name: str) -> None:
        try:
            self._check_level(call)
            answer: dict[str, Any] = getattr(self, f"on_{name}")(call)
        except (JsError, MainstemError) as error:
            answer = self._refused(error)
        except NotAllowed:
            call.connection.refuse_publish(call.tokens)
            return
        except NotLocal as missing:  # it only reads: once more, when that is here
            bring(missing, lambda: None if call.connection.closing else self._answer(call, name))
            return
        self._reply(call, name, answer)

    def _reply(self, call: Call, name: str, answer: dict[str, Any]) -> None:
        kind = {"consumer_durable_create": "consumer_create"}.get(name, name)
        document = {"type": f"{TYPE}{kind}_response", **answer}
        self.calls_failed += "error" in answer
        payload = json.dumps(document, separators=(",", ":")).encode()
        self.send(call.reply, payload)
        self.advise_call(call, call.subject, payload)

    def _refused(self, error: Exception) -> dict[str, Any]:
        if isinstance(error, JsError):
            return {"error": error.to_document()}
        logger.info("JetStream request refused: %s", error)
        return {"error": errors.stream_config(str(error)).to_document()}

    def _check_level(self, call: Call) -> None:
        wanted = header_value(call.headers, b"Nats-Required-Api-Level") if call.headers else None
        if wanted is None:
            return
        level = whole_number(wanted)
        if level is None or level > API_LEVEL:
            raise errors.API_LEVEL

    def _queue(self, call: Call, name: str) -> None:
        if len(self._changes) >= CALLS_WAITING_MAX:
            self._reply(call, name, {"error": errors.insufficient().to_document()})
            return
        self._changes.append((call, name))
        if self._changing is None or self._changing.done():
            self._changing = asyncio.get_running_loop().create_task(self._change_all())

    async def _change_all(self) -> None:
        while self._changes:
            call, name = self._changes.popleft()
            try:
                self._check_level(call)
                answer = await self._change(call, name)
            except (JsError, MainstemError) as error:
                answer = self._refused(error)
            except NotAllowed:
                call.connection.refuse_publish(call.tokens)
                continue
            except Exception:
                logger.exception("a JetStream request failed: %s", ".".join(call.tokens))
                answer = {"error": errors.insufficient("internal error").to_document()}
            failure = answer.get("error")
            self._audit(call, name, FAILED if failure else DONE, str(failure.get("description", "")) if failure else "")
            self._reply(call, name, answer)

    async def _change(self, call: Call, name: str) -> dict[str, Any]:
        """A change reads before it changes anything, or says the same when it is asked for again."""
        while True:
            try:
                async with self.change_lock:
                    answer: dict[str, Any] = await getattr(self, f"change_{name}")(call)
                    return answer
            except NotLocal as missing:
                await brought(missing)

    def _audit(self, call: Call, name: str, outcome: str, why: str = "") -> None:
        if name in READING:
            return
        connection = call.connection
        self.broker.audit.note(
            connection.principal,
            name,
            ".".join(call.tokens),
            outcome=outcome,
            why=why,
            address=address_of(connection),
            protocol="nats",
        )

    # -- finding and rights ------------------------------------------------------------------------------------------

    def stream(self, call: Call, at: int = 2) -> Stream:
        name = call.tokens[at] if len(call.tokens) > at else ""
        found = self.streams.by_name.get(name)
        if found is None:
            raise errors.stream_not_found()
        return found

    def consumer(self, call: Call) -> Consumer:
        stream = self.stream(call)
        found = stream.consumers.get(call.tokens[3] if len(call.tokens) > 3 else "")
        if found is None:
            raise errors.consumer_not_found()
        return found

    def require(self, principal: Principal, action: Action, filters: tuple[bytes, ...]) -> None:
        """On everything that the filters mean."""
        access = self.broker.access
        if not principal.admin and not all(access.allows_all(principal, action, one) for one in filters):
            raise NotAllowed

    def acked_consumer(self, tokens: list[bytes]) -> Consumer | None:
        """Of an ack's subject."""
        stream = self.streams.by_name.get(tokens[2].decode(errors="replace"))
        return stream.consumers.get(tokens[3].decode(errors="replace")) if stream is not None else None

    def takes_acks(self, front: bytes) -> bool:
        """Whether acks need only be settled: nobody listens to them."""
        try:
            return not self.listening.matching(topic_of_nats(front + b"1.1.1.1.0"))
        except InvalidName:
            return False

    def may_consume(self, connection: NatsConnection, consumer: Consumer) -> bool:
        principal = connection.principal
        assert principal is not None
        if isinstance(consumer, JoinedConsumer) and not self.may_join(principal, consumer.queue):
            return False
        allows = self.broker.access.allows_all
        return principal.admin or all(allows(principal, Action.CONSUME, one) for one in consumer.rights)

    # -- what it sends by itself -------------------------------------------------------------------------------------

    def await_interest(self, delivery: Delivery) -> None:
        self._uninterested.add(delivery)

    def on_interest(self) -> None:
        """Somebody subscribed: perhaps where a push consumer delivers."""
        if self._uninterested:
            waiting, self._uninterested = self._uninterested, set()
            for delivery in waiting:
                delivery.wake()

    def delete_idle(self, consumer: Consumer) -> None:
        """Nobody used it for its inactive threshold."""
        self.broker.streams.delete_consumer(consumer)
        self.advise_action("delete", consumer)
