"""Publishes that need a look: mandatory, copies, delays, replies, headers exchanges, full queues, transactions."""

from __future__ import annotations

import re
from typing import Any

from mainstem.broker.queues.declaring import quoted, type_name
from mainstem.broker.queues.exchange_names import DEFAULT, topic_of
from mainstem.broker.queues.queue import Queue
from mainstem.broker.queues.settings import Overflow
from mainstem.broker.rights.access import Action
from mainstem.log.gather import Ticket
from mainstem.model.amqp_content import Content
from mainstem.model.crossing_amqp import asked_by_client
from mainstem.model.errors import InvalidRecord, MainstemError
from mainstem.model.origin import Origin, RecordFlag
from mainstem.protocols.amqp.channel_core import ChannelCore
from mainstem.protocols.amqp.channel_declare import REPLY_TO
from mainstem.protocols.amqp.consuming import ReplyConsumer
from mainstem.protocols.amqp.events import LargePublishEvent, PublishEvent
from mainstem.protocols.amqp.faults import Fault, fault_of
from mainstem.protocols.amqp.methods import encode
from mainstem.protocols.large import publish_large

NO_ROUTE = 312
TRANSACTION_MAX = 100_000  # publishes and acks of one transaction
DELAY_MAX_MS = EXPIRATION_MAX_MS = (1 << 32) - 1
Examined = tuple[Content, list[str]]  # a publish, and all its routing keys


class Publishes(ChannelCore):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.confirmed_to = 0
        self.buffered: list[PublishEvent | dict[str, Any]] = []  # of the open transaction
        self._settled: set[int] = set()  # delivery tags that it settles, each alone
        self._settled_to = 0  # and all up to here

    # -- one publish

    def publish(self, event: PublishEvent) -> None:
        """A publish that the wire did not settle by itself."""
        if self.transactional:
            self._examine(event)  # what is wrong with it is said now, not in the midst of a commit
            self._check_value(event)
            self._buffer(event)
            return
        try:
            ticket, refused = self._store(event, *self._examine(event))
        except InvalidRecord:  # who waits for confirms is told by one
            ticket, refused = None, True
        if not self.wire.confirming:
            return
        self.connection.note_confirm(self.wire)
        if refused:
            self.wire.refuse_next()
        else:
            self.wire.note_published(ticket, event.persistent)

    def publish_large(self, event: LargePublishEvent) -> None:
        connection, namespace = self.connection, self.vhost.namespace
        ticket = publish_large(connection, event.record, lambda: namespace.route(event.topic), Origin.AMQP)
        if self.wire.confirming:
            connection.note_confirm(self.wire)
            self.wire.note_published(ticket, True)

    def _examine(self, event: PublishEvent) -> Examined:
        """What is to be known before it is stored; a Fault if it may not be."""
        exchange = self.exchange(event.target.exchange)
        if exchange.internal:
            raise Fault(403, f"cannot publish to internal {quoted('exchange', exchange.name, self.vhost.name)}")
        if event.immediate:
            raise Fault(540, "immediate=true")
        content = Content.parse(event.properties)
        key = event.target.key
        if exchange.name == DEFAULT and key.startswith(REPLY_TO + "."):
            return content, [key]
        self._check(content)
        copies = [*self._copies(content, "CC"), *self._copies(content, "BCC")]
        if copies and not self.connection.principal.admin:
            for copy in copies:
                topic = topic_of(exchange.name, copy)
                self.require(Action.PUBLISH, topic, quoted("exchange", exchange.name, self.vhost.name))
        return content, [key, *copies]

    def _store(self, event: PublishEvent, content: Content, keys: list[str]) -> tuple[Ticket | None, bool]:
        """Store, return or refuse: (what durability waits for, whether a full queue refused it)."""
        exchange, key, exchanges = event.target.exchange, event.target.key, self.vhost.exchanges
        if exchange == DEFAULT and key.startswith(REPLY_TO + "."):
            self._reply(event)
            return None, False
        delay_ms = self._delay_ms(content)
        if delay_ms:
            return self._delay(exchange, key, content, event, delay_ms), False
        content.remove_header("BCC")
        targets = exchanges.route(exchange, keys, content)
        if event.mandatory and not exchanges.is_routable(exchange, key, targets):
            self._return(exchange, key, content.encode(), event.body)
            return None, False
        refusing = [queue for queue in targets if queue.settings.refuses and queue.limits.refuses(len(event.body))]
        if refusing:
            return self._refuse(exchange, key, content, event, targets, refusing)
        plain = len(keys) == 1 and exchanges.is_simple(exchange, key)
        return self._append(exchange, key, content, event, None if plain else targets), False

    def _append(
        self, exchange: str, key: str, content: Content, event: PublishEvent, targets: list[Queue] | None
    ) -> Ticket:
        try:
            return self.vhost.exchanges.append(
                exchange, key, content.encode(), event.body, event.time_ms, targets=targets
            )
        except MainstemError as error:
            if isinstance(error, InvalidRecord) and self.wire.confirming:
                raise
            raise fault_of(error) from None

    def _check_value(self, event: PublishEvent) -> None:
        """Of what is published later: now is when its sender can be told."""
        try:
            topic = topic_of(event.target.exchange, event.target.key)
            self.vhost.namespace.record_rules.check(topic, event.body, RecordFlag.QOS_1 if event.persistent else 0)
        except MainstemError as error:
            raise fault_of(error) from None

    def _check(self, content: Content) -> None:
        expiration = content.text("expiration")
        if expiration is not None and (why := _no_expiration(expiration)):
            raise Fault(406, f"invalid expiration '{expiration}': {why}")
        user = content.text("user_id")
        name = self.connection.principal.name
        if user is not None and user != name:
            raise Fault(406, f"user_id property set to '{user}' but authenticated user was '{name}'")
        if content.text("reply_to") == REPLY_TO:
            consumer = next((c for c in self.consumers.values() if isinstance(c, ReplyConsumer)), None)
            if consumer is None:
                raise Fault(406, "fast reply consumer does not exist")
            content.set_text("reply_to", consumer.address)

    def _copies(self, content: Content, name: str) -> list[str]:
        value = content.header_value(name)
        if content.header(name) is None:
            return []
        if not isinstance(value, list):
            raise Fault(406, f'invalid message: {{unacceptable_type_in_header,"{name}",{type_name(value)}}}')
        return [key for key in value if isinstance(key, str)]

    def _return(self, exchange: str, key: str, properties: bytes, body: bytes) -> None:
        """Before its confirm: nobody takes it, and it is not stored."""
        method = encode("basic.return", reply_code=NO_ROUTE, reply_text="NO_ROUTE", exchange=exchange, routing_key=key)
        self.out.write_content(self.number, method, properties, body)

    def _refuse(
        self,
        exchange: str,
        key: str,
        content: Content,
        event: PublishEvent,
        targets: list[Queue],
        refusing: list[Queue],
    ) -> tuple[Ticket | None, bool]:
        """Some queue is full: the publisher is told, the others get it all the same."""
        for queue in refusing:
            if queue.settings.overflow is Overflow.REJECT_DEAD_LETTER:
                self.vhost.queues.dead_letters.send_refused(queue, exchange, key, content, event.body)
        left = [queue for queue in targets if queue not in refusing]
        if left:
            self._append(exchange, key, content, event, left)
        return None, True

    # -- delays and replies

    def _delay_ms(self, content: Content) -> int:
        value = content.header_value("x-delay")
        if value is None:
            due_us = asked_by_client(content).deliver_at_us
            value = 0 if due_us is None else due_us // 1000 - self.vhost.queues.now_ms()
        try:
            delay_ms = int(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return 0
        return min(max(0, delay_ms), DELAY_MAX_MS)

    def _delay(self, exchange: str, key: str, content: Content, event: PublishEvent, delay_ms: int) -> Ticket:
        self._check_value(event)
        due_ms = self.vhost.queues.now_ms() + delay_ms
        return self.connection.server.broker.delayed.add_publish(
            self.vhost.namespace, exchange, key, content.encode(), event.body, event.time_ms, due_ms
        )

    def _reply(self, event: PublishEvent) -> None:
        """Straight to the channel that waits for it."""
        key = event.target.key
        consumer = self.connection.server.replies.find(key)
        if consumer is not None:
            consumer.deliver(key, event.properties, event.body)
        elif event.mandatory:
            self._return(DEFAULT, key, event.properties, event.body)

    # -- confirms

    def on_confirm_select(self, a: dict[str, Any]) -> None:
        if self.transactional:
            raise Fault(406, "cannot switch from tx to confirm mode")
        self.wire.confirming = True
        self.answer("confirm.select-ok", a["no_wait"])

    def confirmed(self, until: int) -> None:
        if until > self.confirmed_to:
            self.out.write_ack(self.number, until, until - self.confirmed_to > 1)
            self.confirmed_to = until

    def refused(self, until: int) -> None:
        """The publishes since the last answer were not stored."""
        if until > self.confirmed_to:
            self.out.write_ack(self.number, until, until - self.confirmed_to > 1, False)
            self.confirmed_to = until

    # -- transactions

    def on_tx_select(self, a: dict[str, Any]) -> None:
        if self.wire.confirming:
            raise Fault(406, "cannot switch from confirm to tx mode")
        self.transactional = self.wire.buffering = True
        self.send("tx.select-ok")

    def on_tx_commit(self, a: dict[str, Any]) -> None:
        if not self.transactional:
            raise Fault(406, "channel is not transactional")
        tickets: dict[Ticket, None] = {}
        buffered = self._take_buffered()
        examined = [
            self._examine(event) for event in buffered if isinstance(event, PublishEvent)
        ]  # all, or none is stored
        for event in buffered:
            if isinstance(event, PublishEvent):
                stored, _ = self._store(event, *examined.pop(0))
                if stored is not None:
                    tickets[stored] = None
            else:
                self.apply_settled(event)
        settled = self.connection.server.broker.queues.settled_ticket()
        if settled is not None:
            tickets[settled] = None
        self._answer_commit([ticket for ticket in tickets if not ticket.stable])

    def _answer_commit(self, tickets: list[Ticket]) -> None:
        """One after the other: a transaction may write to several logs."""
        if not tickets:
            self.send("tx.commit-ok")
        else:
            self.connection.answers.wait_for_ticket(tickets[0], lambda: self._answer_commit(tickets[1:]))

    def _take_buffered(self) -> list[PublishEvent | dict[str, Any]]:
        """The transaction ends; the next begins."""
        buffered, self.buffered = self.buffered, []
        self._settled.clear()
        self._settled_to = 0
        return buffered

    def on_tx_rollback(self, a: dict[str, Any]) -> None:
        if not self.transactional:
            raise Fault(406, "channel is not transactional")
        self._take_buffered()
        self.send("tx.rollback-ok")

    def buffer_settled(self, name: str, a: dict[str, Any]) -> bool:
        """In a transaction acks wait for the commit."""
        if not self.transactional:
            return False
        tag, multiple = a["delivery_tag"], a.get("multiple", False)
        everything = multiple and tag == 0
        if not everything and (tag <= self._settled_to or tag in self._settled or not self.wire.holds(tag)):
            raise Fault(406, f"unknown delivery tag {tag}")
        self._buffer({**a, "method": name, "delivery_tag": tag or self.wire.next_tag - 1})
        if multiple:
            self._settled_to = tag or self.wire.next_tag - 1
        else:
            self._settled.add(tag)
        return True

    def _buffer(self, event: PublishEvent | dict[str, Any]) -> None:
        if len(self.buffered) >= TRANSACTION_MAX:
            raise Fault(506, f"a transaction of more than {TRANSACTION_MAX} publishes and acks")
        self.buffered.append(event)

    def apply_settled(self, a: dict[str, Any]) -> None:
        raise NotImplementedError


def _no_expiration(text: str) -> str:
    """Why it is not a number of milliseconds, in RabbitMQ's words; empty: it is one."""
    number = re.match(r"-?[0-9]+", text)
    if number is None:
        return "no_integer"
    if number.end() < len(text):
        return f'{{leftover_string,"{text[number.end() :]}"}}'
    if text.startswith("-"):
        return f"{{value_negative,{text}}}"
    return f"{{value_too_large,{text}}}" if len(text) > 10 or int(text) > EXPIRATION_MAX_MS else ""
