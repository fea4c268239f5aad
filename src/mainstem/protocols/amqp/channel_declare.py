"""Methods that make, bind and remove queues and exchanges."""

from __future__ import annotations

import base64
import os
from typing import Any

from mainstem.broker.queues.declaring import (
    check_alternate,
    check_reserved,
    check_same_exchange,
    check_same_queue,
    exchange_type,
    queue_settings,
    quoted,
    type_name,
)
from mainstem.broker.queues.exchange_names import DEFAULT, anything_to, filter_of, topic_of
from mainstem.broker.queues.exchanges import Binding, Exchange
from mainstem.broker.queues.opening import opening_reaches, opening_rights
from mainstem.broker.queues.queue import Queue
from mainstem.broker.rights.access import Action, Kind
from mainstem.broker.topics.views import View
from mainstem.metadata.store import Written
from mainstem.protocols.amqp.channel_core import ChannelCore
from mainstem.protocols.amqp.faults import Fault

REPLY_TO = "amq.rabbitmq.reply-to"


def server_name(prefix: str) -> str:
    return prefix + base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode()


class Declares(ChannelCore):
    # -- queues

    def on_queue_declare(self, a: dict[str, Any]) -> None:
        name, no_wait = a["queue"], a["no_wait"]
        self.settle_writes()
        if name.startswith(REPLY_TO):
            if name != REPLY_TO and self.connection.server.replies.find(name) is None:
                raise self.no_queue(name)
            self.answer("queue.declare-ok", no_wait, queue=name, consumer_count=1)
            return
        if a["passive"]:
            if not name:
                raise self.no_queue(name)  # the last one declared is not meant here
            self.require_sight(Kind.QUEUE, name)
            view = self.vhost.namespace.views.get(topic_of(DEFAULT, name))
            if view is not None and self.vhost.queues.find(name) is None:
                self._describe_view(name, view, no_wait)
            else:
                self._declared(self.queue(name), no_wait, None)
            return
        written = None
        found = self.vhost.queues.find(name) if name else None
        if found is None:
            if not name:
                a["queue"] = name = server_name("amq.gen-")
            else:
                check_reserved("queue", name)
            found, written = self._make_queue(a)
        else:
            self.require_sight(Kind.QUEUE, name)
            if found.owner is not (self.connection if a["exclusive"] else None):
                raise self.locked(found)
            check_same_queue(found, a, self.vhost.name)
            found.used()
        self._declared(found, no_wait, written)

    def _describe_view(self, name: str, view: View, no_wait: bool) -> None:
        """It can be consumed by this name, so a client that looks first must find it."""
        self.require(Action.CONSUME, view.name, quoted("view", name, self.vhost.name))
        self.last_queue = name
        self.answer("queue.declare-ok", no_wait, queue=name, message_count=min(view.count() or 0, 0xFFFFFFFF))

    def _declared(self, queue: Queue, no_wait: bool, written: Written | None) -> None:
        self.last_queue = queue.name
        self.answer(
            "queue.declare-ok",
            no_wait,
            written,
            queue=queue.name,
            message_count=min(queue.ready, 0xFFFFFFFF),
            consumer_count=len(queue.takers),
        )

    def _make_queue(self, a: dict[str, Any]) -> tuple[Queue, Written | None]:
        name, vhost = a["queue"], self.vhost
        settings = queue_settings(a, vhost.name)
        self.require_queue(Action.CREATE, name)
        for action, topic_filter, what in opening_rights(name, settings, vhost.name):
            self.require_all(action, topic_filter, what)
        reaches, condition = opening_reaches(vhost.queues, name, settings, a["arguments"])
        queue, written = vhost.queues.declare(name, settings, reaches=reaches, condition=condition)
        if settings.exclusive:
            queue.owner = self.connection
            self.connection.own_queues.add(queue)
        return queue, written

    def on_queue_bind(self, a: dict[str, Any]) -> None:
        queue = self.queue(a["queue"])
        binding = self._binding(a["exchange"], True, queue.name, a)
        self.answer("queue.bind-ok", a["no_wait"], self.vhost.exchanges.bind(binding))

    def on_queue_unbind(self, a: dict[str, Any]) -> None:
        """What is not bound, or not there, need not be unbound."""
        name = self.queue_name(a["queue"])
        written = None
        if self.vhost.queues.find(name) is not None and self.vhost.exchanges.find(a["exchange"]) is not None:
            binding = self._binding(a["exchange"], True, self.queue(name).name, a)
            written = self.vhost.exchanges.unbind(binding)
        self.answer("queue.unbind-ok", False, written)

    def _binding(self, source: str, to_queue: bool, destination: str, a: dict[str, Any]) -> Binding:
        self._refuse_default(source)
        exchange = self.exchange(source)
        key = a["routing_key"]
        if to_queue:
            self.require_bind(destination)
            key = key or (self.last_queue if not a["queue"] else key)
            mode = a["arguments"].get("x-match", "all") if exchange.type == "headers" else "all"
            if not isinstance(mode, str):
                raise Fault(406, f"Invalid x-match field type {type_name(mode)} (value {mode}); expected longstr")
            if mode not in ("all", "any", "all-with-x", "any-with-x"):
                raise Fault(
                    406, f'Invalid x-match field value <<"{mode}">>; expected all, any, all-with-x, or any-with-x'
                )
        means = filter_of(source, exchange.type, key)
        self.require_all(Action.CONSUME, means, quoted("exchange", source, self.vhost.name))
        return Binding.make(source, to_queue, destination, key, a["arguments"])

    def on_queue_purge(self, a: dict[str, Any]) -> None:
        self.settle_writes()
        queue = self.queue(a["queue"])
        if queue.settings.kind == "stream":
            raise Fault(
                540, f"queue.purge not supported by stream queues {quoted('queue', queue.name, self.vhost.name)}"
            )
        self.require_queue(Action.CONSUME, queue.name)
        self.answer("queue.purge-ok", a["no_wait"], message_count=queue.purge())

    def on_queue_delete(self, a: dict[str, Any]) -> None:
        self.settle_writes()
        name = self.queue_name(a["queue"])
        queue = self.vhost.queues.find(name)
        if queue is None:
            self.answer("queue.delete-ok", a["no_wait"], message_count=0)
            return
        self.check_owner(queue)
        named = quoted("queue", name, self.vhost.name)
        self.require_queue(Action.DELETE, name)
        if a["if_unused"] and queue.takers:
            raise Fault(406, f"{named} in use")
        if a["if_empty"] and queue.ready:
            raise Fault(406, f"{named} not empty")
        count = min(queue.ready, 0xFFFFFFFF)
        lost: list[str] = []
        self.deleting = lost
        written = self.vhost.queues.delete(queue)
        self.deleting = None

        def answer() -> None:
            if not a["no_wait"]:
                self.send("queue.delete-ok", message_count=count)
            for tag in lost:  # who deleted it hears of its own consumers afterwards, as from RabbitMQ
                self.send("basic.cancel", consumer_tag=tag, no_wait=True)

        self.when_written(written, answer)

    # -- exchanges

    def on_exchange_declare(self, a: dict[str, Any]) -> None:
        name = a["exchange"]
        self._refuse_default(name)
        check_alternate(a, self.vhost.name)
        if a["passive"]:
            self.require_sight(Kind.EXCHANGE, name)
            self.exchange(name)
            self.answer("exchange.declare-ok", a["no_wait"])
            return
        kind = exchange_type(a)
        found = self.vhost.exchanges.find(name)
        written = None
        if found is None:
            check_reserved("exchange", name)
            self.require_exchange(Action.CREATE, name)
            arguments = dict(a["arguments"])
            if arguments.get("alternate-exchange"):
                self._require_onward(arguments["alternate-exchange"])
            if kind != a["type"]:
                arguments["x-declared-type"] = a["type"]
            exchange = Exchange(name, kind, a["durable"], a["auto_delete"], a["internal"], arguments)
            written = self.vhost.exchanges.declare(exchange)
        else:
            self.require_sight(Kind.EXCHANGE, name)
            check_same_exchange(found, a, self.vhost.name)
        self.answer("exchange.declare-ok", a["no_wait"], written)

    def on_exchange_delete(self, a: dict[str, Any]) -> None:
        name = a["exchange"]
        self._refuse_default(name)
        exchanges = self.vhost.exchanges
        named = quoted("exchange", name, self.vhost.name)
        if name.startswith("amq."):
            raise Fault(403, f"deletion of system {named} not allowed")
        written = None
        if exchanges.find(name) is not None:
            self.require_exchange(Action.DELETE, name)
            if a["if_unused"] and exchanges.in_use(name):
                raise Fault(406, f"{named} in use")
            written = exchanges.delete(name)
        self.answer("exchange.delete-ok", a["no_wait"], written)

    def on_exchange_bind(self, a: dict[str, Any]) -> None:
        self._refuse_default(a["destination"])
        self.exchange(a["destination"])
        self._require_onward(a["destination"])
        binding = self._binding(a["source"], False, a["destination"], a)
        self.answer("exchange.bind-ok", a["no_wait"], self.vhost.exchanges.bind(binding))

    def on_exchange_unbind(self, a: dict[str, Any]) -> None:
        self._refuse_default(a["destination"])
        written = None
        if (
            self.vhost.exchanges.find(a["destination"]) is not None
            and self.vhost.exchanges.find(a["source"]) is not None
        ):
            binding = self._binding(a["source"], False, a["destination"], a)
            written = self.vhost.exchanges.unbind(binding)
        self.answer("exchange.unbind-ok", a["no_wait"], written)

    def _require_onward(self, exchange: str) -> None:
        """Others' messages will be sent on to it."""
        self.require_all(Action.PUBLISH, anything_to(exchange), quoted("exchange", exchange, self.vhost.name))

    def _refuse_default(self, name: str) -> None:
        if name == DEFAULT:
            raise Fault(403, "operation not permitted on the default exchange")
