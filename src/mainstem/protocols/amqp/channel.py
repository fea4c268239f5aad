"""One channel: which method does what, and how it ends."""

from __future__ import annotations

from typing import Any

from mainstem.broker.queues.queue import Outcome
from mainstem.broker.rights.audit import DONE, FAILED, REFUSED
from mainstem.model.errors import MainstemError
from mainstem.protocols.amqp.channel_consume import Consumes
from mainstem.protocols.amqp.channel_declare import Declares
from mainstem.protocols.amqp.channel_publish import Publishes
from mainstem.protocols.amqp.consuming import settle_all
from mainstem.protocols.amqp.faults import Fault, fault_of
from mainstem.protocols.amqp.methods import decode, name_of
from mainstem.protocols.login import address_of

AUDITED = frozenset(("queue.delete", "queue.purge", "exchange.delete"))
_SETTLING = frozenset(("basic.ack", "basic.nack", "basic.reject"))


class Channel(Declares, Consumes, Publishes):
    def handle(self, number: int, payload: bytes) -> None:
        """One method of an open channel."""
        name = name_of(number)
        a = decode(number, payload)
        if name == "channel.open":
            raise Fault(504, "second 'channel.open' seen")
        if name in _SETTLING and self.buffer_settled(name, a):
            return
        handler = getattr(self, "on_" + name.replace(".", "_").replace("-", "_"), None)
        if handler is None:
            raise Fault(503, "unimplemented method")
        try:
            handler(a)
        except (MainstemError, Fault) as error:
            fault = error if isinstance(error, Fault) else fault_of(error)
            if name in AUDITED:
                self._audit(name, a, REFUSED if fault.code == 403 else FAILED, fault.text)
            raise fault from error
        if name in AUDITED:
            self._audit(name, a, DONE)

    def _audit(self, method: str, a: dict[str, Any], outcome: str, why: str = "") -> None:
        connection, named = self.connection, a.get("queue") or a.get("exchange") or ""
        connection.server.broker.audit.note(
            connection.principal,
            method,
            named,
            outcome=outcome,
            why=why,
            address=address_of(connection),
            protocol="amqp",
            namespace=connection.vhost.namespace.name if connection.vhost is not None else "",
        )

    def on_channel_close(self, a: dict[str, Any]) -> None:
        self.connection.drop_channel(self.number)
        self.send("channel.close-ok")

    def apply_settled(self, a: dict[str, Any]) -> None:
        handlers = {
            "basic.ack": self.on_basic_ack,
            "basic.nack": self.on_basic_nack,
            "basic.reject": self.on_basic_reject,
        }
        handlers[a["method"]](a)

    def close(self) -> None:
        """Consumers end; what was delivered and not settled goes back to its place."""
        consumers, self.consumers = self.consumers, {}
        for consumer in consumers.values():
            self.end_consumer(consumer)
        self.connection.server.broker.queues.flush_settled()
        settle_all(self.wire.take_held(0, True), Outcome.RELEASE)
        self.buffered.clear()
        self.wire.close()
