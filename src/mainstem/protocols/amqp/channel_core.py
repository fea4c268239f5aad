"""What all of a channel's methods share: finding things by name, answering, waiting for the disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mainstem.broker.queues.declaring import quoted
from mainstem.broker.queues.exchange_names import DEFAULT, topic_of
from mainstem.broker.queues.exchanges import Exchange
from mainstem.broker.queues.opening import check_taker, may_bind, may_queue
from mainstem.broker.queues.queue import Queue
from mainstem.broker.rights.access import Action, Kind
from mainstem.metadata.store import Written
from mainstem.model.errors import NotAuthorized
from mainstem.protocols.amqp.faults import AccessRefused, Fault
from mainstem.protocols.amqp.methods import encode
from mainstem.protocols.amqp.wire import ChannelWire

if TYPE_CHECKING:
    from mainstem.protocols.amqp.adapter import AmqpConnection
    from mainstem.protocols.amqp.consuming import AnyConsumer

CONSUMERS_MAX = 10_000  # per channel


class ChannelCore:
    def __init__(self, connection: AmqpConnection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.vhost = connection.vhost_of()
        self.out = connection.outbound
        self.wire = ChannelWire(number, self.out, self)
        self.last_queue = ""
        self.prefetch = 0  # of consumers started from now on; 0: no limit
        self.consumers: dict[str, AnyConsumer] = {}
        self.transactional = False
        self.deleting: list[str] | None = None  # while it deletes a queue: its own consumers that end with it

    # -- answering

    def send(self, name: str, **values: Any) -> None:
        self.connection.send_method(self.number, encode(name, **values))

    def answer(self, name: str, no_wait: bool = False, written: Written | None = None, **values: Any) -> None:
        """Answer once what was asked would survive a power cut; the connection's other requests wait behind it."""
        self.when_written(written, lambda: None if no_wait else self.send(name, **values))

    def when_written(self, written: Written | None, then: Callable[[], None]) -> None:
        if written is not None and not (written.done() and written.exception() is None):
            self.connection.answers.wait_for(written, then)
        else:
            then()

    # -- finding

    def queue(self, name: str) -> Queue:
        """By name (empty: the last one declared here), unless it is another connection's own."""
        name = self.queue_name(name)
        queue = self.vhost.queues.find(name)
        if queue is None:
            raise self.no_queue(name)
        self.check_owner(queue)
        return queue

    def queue_name(self, name: str) -> str:
        """Empty: the last one declared here."""
        if not name and not self.last_queue:
            raise Fault(404, "no previously declared queue")
        return name or self.last_queue

    def no_queue(self, name: str) -> Fault:
        return Fault(404, f"no {quoted('queue', name, self.vhost.name)}")

    def check_owner(self, queue: Queue) -> None:
        if queue.owner is not None and queue.owner is not self.connection:
            raise self.locked(queue)

    def locked(self, queue: Queue) -> Fault:
        return Fault(
            405,
            f"cannot obtain exclusive access to locked {quoted('queue', queue.name, self.vhost.name)}. It could be "
            "originally declared on another connection or the exclusive property value does not match that of the "
            "original declaration.",
        )

    def exchange(self, name: str) -> Exchange:
        exchange = self.vhost.exchanges.find(name)
        if exchange is None:
            raise Fault(404, f"no {quoted('exchange', name, self.vhost.name)}")
        return exchange

    def require(self, action: Action, topic: bytes, what: str) -> None:
        """The one list of rights, on canonical topics."""
        connection = self.connection
        if not connection.server.broker.access.allows(connection.principal, action, topic):
            raise self._refusal(action, what)

    def require_queue(self, action: Action, name: str) -> None:
        connection = self.connection
        if not may_queue(connection.server.broker.access, connection.principal, action, name):
            raise self._refusal(action, quoted("queue", name, self.vhost.name))

    def require_bind(self, name: str) -> None:
        connection = self.connection
        if not may_bind(connection.server.broker.access, connection.principal, name):
            raise self._refusal(Action.PUBLISH, quoted("queue", name, self.vhost.name))

    def require_exchange(self, action: Action, name: str) -> None:
        access, principal = self.connection.server.broker.access, self.connection.principal
        if not access.allows_named(principal, action, Kind.EXCHANGE, name, topic_of(name, "")):
            raise self._refusal(action, quoted("exchange", name, self.vhost.name))

    def require_sight(self, kind: Kind, name: str) -> None:
        """Who may do something with a queue or an exchange may know of it, unless a rule denies just that."""
        access, principal = self.connection.server.broker.access, self.connection.principal
        topic = topic_of(DEFAULT, name) if kind is Kind.QUEUE else topic_of(name, "")
        actions = (Action.DESCRIBE, Action.CONSUME, Action.PUBLISH, Action.CREATE)
        denied = access.denies(principal, Action.DESCRIBE, topic)
        denied = denied or access.judges(principal, Action.DESCRIBE, kind, name) is False
        if denied or not any(access.allows_named(principal, action, kind, name, topic) for action in actions):
            raise self._refusal(Action.DESCRIBE, quoted(kind.value, name, self.vhost.name))

    def require_take(self, queue: Queue) -> None:
        """The right to consume a queue, and nothing in it that is denied."""
        connection = self.connection
        self.require_queue(Action.CONSUME, queue.name)
        try:
            check_taker(connection.server.broker.access, connection.principal, queue)
        except NotAuthorized as error:
            raise AccessRefused(error.message, "consume", queue.name) from None

    def require_all(self, action: Action, topic_filter: bytes, what: str) -> None:
        connection = self.connection
        if not connection.server.broker.access.allows_all(connection.principal, action, topic_filter):
            raise self._refusal(action, what)

    def _refusal(self, action: Action, what: str) -> Fault:
        word = {"publish": "write", "consume": "read"}.get(action.value, "configure")
        text = f"{word} access to {what} refused for user '{self.connection.principal.name}'"
        return AccessRefused(text, action.value, what)

    def settle_writes(self) -> None:
        """What was published before this request is counted by it."""
        self.connection.server.broker.queues.flush_settled()
        self.connection.server.broker.ticker.write_now()
