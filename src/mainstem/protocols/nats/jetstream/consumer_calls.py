"""Requests about consumers: create, info, names, list, delete, and the pull of the next messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainstem.broker.broker import Broker
from mainstem.broker.rights.access import Action, Principal
from mainstem.broker.streams.consumer import Consumer
from mainstem.broker.streams.joined import JoinedConsumer, queue_name
from mainstem.broker.streams.settings import ConsumerSettings
from mainstem.broker.streams.stream import Stream
from mainstem.model.topic_filter import filter_levels, overlap
from mainstem.protocols.nats.answering import may_be_answered
from mainstem.protocols.nats.jetstream import consumer_config, errors
from mainstem.protocols.nats.jetstream.delivery import Delivery
from mainstem.protocols.nats.jetstream.infos import consumer_info
from mainstem.protocols.nats.jetstream.joining import take_over
from mainstem.protocols.nats.jetstream.message_calls import offset_since
from mainstem.protocols.nats.jetstream.pulling import pull_of
from mainstem.protocols.nats.jetstream.waiting import fault_of
from mainstem.protocols.nats.jetstream.words import document, flag, number, objects, status, string, texts, time_ns

if TYPE_CHECKING:
    from mainstem.protocols.nats.adapter import NatsConnection
    from mainstem.protocols.nats.jetstream.api import Call

NAMES_MAX, LIST_MAX = 1024, 256
NAME_MAX = 255
_CREATE = frozenset(("stream_name", "config", "action", "pedantic"))
_ACTIONS = ("", "create", "update")


class ConsumerCalls:
    broker: Broker

    if TYPE_CHECKING:

        def now_ns(self) -> int: ...
        def new_id(self) -> str: ...
        def stream(self, call: Call, at: int = 2) -> Stream: ...
        def consumer(self, call: Call) -> Consumer: ...
        def require(self, principal: Principal, action: Action, filters: tuple[bytes, ...]) -> None: ...
        def may_consume(self, connection: NatsConnection, consumer: Consumer) -> bool: ...
        def delivery(self, consumer: Consumer) -> Delivery: ...
        def send(self, reply: bytes, payload: bytes, headers: bytes = b"") -> None: ...
        async def join(
            self, call: Call, stream: Stream, config: dict[str, Any], settings: ConsumerSettings
        ) -> None: ...
        def advise_action(self, action: str, consumer: Consumer) -> None: ...
        def advise_pause(self, consumer: Consumer) -> None: ...

    async def change_consumer_create(self, call: Call) -> dict[str, Any]:
        """`CONSUMER.CREATE.stream[.name[.filter]]`."""
        given = document(call.payload, _CREATE)
        wanted = objects(given, "config")
        named = call.tokens[3] if len(call.tokens) > 3 else ""
        if string(given, "stream_name") != call.tokens[2]:
            raise errors.STREAM_MISMATCH
        durable = string(wanted, "durable_name")
        if not named and durable:
            raise errors.EPHEMERAL_WITH_DURABLE
        if named and durable and durable != named:
            raise errors.DURABLE_MISMATCH
        subject = ".".join(call.tokens[4:])
        if subject and texts(wanted, "filter_subjects"):
            raise errors.FILTERS_IN_SUBJECT
        if subject and subject != string(wanted, "filter_subject"):
            raise errors.FILTER_MISMATCH
        return await self._declare(call, named or string(wanted, "name"), wanted, given)

    async def change_consumer_durable_create(self, call: Call) -> dict[str, Any]:
        given = document(call.payload, _CREATE)
        wanted = objects(given, "config")
        if len(call.tokens) != 5:
            raise errors.bad_request()
        if string(given, "stream_name") != call.tokens[3]:
            raise errors.STREAM_MISMATCH
        if not string(wanted, "durable_name"):
            raise errors.DURABLE_MISSING
        if wanted["durable_name"] != call.tokens[4]:
            raise errors.DURABLE_MISMATCH
        call.tokens = ["CONSUMER", "CREATE", call.tokens[3], call.tokens[4]]
        return await self._declare(call, call.tokens[3], wanted, given)

    async def _declare(self, call: Call, name: str, wanted: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
        action, strict = string(given, "action"), flag(given, "pedantic")
        if action not in _ACTIONS:
            raise errors.invalid_json(f'json: unknown consumer action: "{action}"')
        stream = self.stream(call)
        wanted = {**wanted, "name": name} if name else wanted
        config = consumer_config.complete(wanted, stream.config, strict=strict)
        settings = ConsumerSettings.of(config)
        self.require(call.principal, Action.CONSUME, stream.rights_on(settings.filters))
        if not may_be_answered(call.connection, config.get("deliver_subject", "").encode()):
            raise errors.NotAllowed
        known = stream.consumers.get(name) if name else None
        if known is not None:
            if isinstance(known, JoinedConsumer):
                take_over(config, known.queue)
            return await self._update(known, config, action)
        if action == "update":
            raise errors.CONSUMER_MISSING
        if 0 < stream.config["max_consumers"] <= len(stream.consumers):
            raise errors.MAX_CONSUMERS
        if stream.config["retention"] == "workqueue":
            _check_workqueue(stream, settings)
        name = name or self.new_id()
        if len(name) > NAME_MAX:
            raise errors.CONSUMER_NAME_LONG
        if any(one in name for one in "/\\"):
            raise errors.JsError(400, 10127, "Consumer name can not contain path separators")
        if queue_name(config):
            await self.join(call, stream, config, settings)
        start, first = self._start(stream, config, settings)
        consumer = await self.broker.streams.add_consumer(stream, name, config, start)
        if first:
            consumer.deliver_first(first)
        consumer.journal()
        self.delivery(consumer)
        self.advise_action("create", consumer)
        if config.get("pause_until"):
            self.advise_pause(consumer)
        return self.info(consumer)

    async def _update(self, known: Consumer, config: dict[str, Any], action: str) -> dict[str, Any]:
        config.pop("pause_until", None)  # which is changed by a call of its own
        if "pause_until" in known.config:
            config["pause_until"] = known.config["pause_until"]
        if known.config == config:
            return self.info(known)
        if action == "create":
            raise errors.CONSUMER_EXISTS
        consumer_config.check_update(known.config, config)
        moves = known.config.get("deliver_subject") != config.get("deliver_subject")
        if moves and self.delivery(known).bound:
            raise errors.CONSUMER_NAME_TAKEN
        await self.broker.streams.update_consumer(known, config)
        self.delivery(known).changed()
        return self.info(known)

    def _start(self, stream: Stream, config: dict[str, Any], settings: ConsumerSettings) -> tuple[int, list[int]]:
        """Where it begins to read, and older messages that it is to have all the same."""
        match config["deliver_policy"]:
            case "new":
                return stream.log.written, []
            case "by_start_sequence":
                return max(config["opt_start_seq"] - 1, 0), []
            case "by_start_time":
                return offset_since(stream, time_ns(config["opt_start_time"])), []
            case "last" | "last_per_subject":
                end = stream.end
                offsets = sorted(
                    offset
                    for topic in stream.topics_of(settings.filters)
                    for offset in stream.last_offsets(topic, 1, end)
                )
                if config["deliver_policy"] == "last":
                    return (offsets[-1] if offsets else end), []
                return end, offsets
        return stream.first if stream.messages else stream.last_seq, []

    def info(self, consumer: Consumer) -> dict[str, Any]:
        delivery = self.delivery(consumer)
        return consumer_info(consumer, self.now_ns(), pulls=delivery.pulls, bound=delivery.bound)

    def on_consumer_info(self, call: Call) -> dict[str, Any]:
        consumer = self.consumer(call)
        self.require(call.principal, Action.DESCRIBE, consumer.rights)
        return self.info(consumer)

    async def change_consumer_delete(self, call: Call) -> dict[str, Any]:
        if call.payload:
            raise errors.NOT_EMPTY
        consumer = self.consumer(call)
        self.require(call.principal, Action.CONSUME, consumer.rights)
        written = self.broker.streams.delete_consumer(consumer)
        if written is not None:
            await written
        self.advise_action("delete", consumer)
        return {"success": True}

    def on_consumer_names(self, call: Call) -> dict[str, Any]:
        names = self._names(call)
        offset = min(max(0, number(document(call.payload), "offset")), len(names))
        page = names[offset : offset + NAMES_MAX]
        return {"total": len(names), "offset": offset, "limit": NAMES_MAX, "consumers": page}

    def on_consumer_list(self, call: Call) -> dict[str, Any]:
        names, stream = self._names(call), self.stream(call)
        offset = min(max(0, number(document(call.payload), "offset")), len(names))
        page = [self.info(stream.consumers[name]) for name in names[offset : offset + LIST_MAX]]
        return {"total": len(names), "offset": offset, "limit": LIST_MAX, "consumers": page}

    def _names(self, call: Call) -> list[str]:
        stream = self.stream(call)
        self.require(call.principal, Action.DESCRIBE, stream.rights)
        return sorted(stream.consumers)

    def on_consumer_msg_next(self, call: Call) -> bool:
        """False: the consumer is not there."""
        try:
            stream = self.stream(call, 3)
        except errors.JsError:
            return False
        consumer = stream.consumers.get(call.tokens[4] if len(call.tokens) > 4 else "")
        if consumer is None or not self.may_consume(call.connection, consumer):
            return False
        if not call.reply:
            return True
        if consumer.config.get("deliver_subject"):
            self.send(call.reply, b"", status(409, "Consumer is push based"))
            return True
        pull = pull_of(call.connection, call.reply, call.payload.strip())
        if pull is None:
            self.send(call.reply, b"", status(400, "Bad Request - invalid JSON"))
            return True
        fault = fault_of(pull, consumer.config)
        if fault is not None:
            self.send(call.reply, b"", status(*fault))
        else:
            self.delivery(consumer).add(pull)
        return True


def _check_workqueue(stream: Stream, settings: ConsumerSettings) -> None:
    """Each message of a workqueue is one consumer's."""
    for other in stream.consumers.values():
        if not settings.filters or not other.settings.filters:
            raise errors.WORKQUEUE_FILTERED
        if any(
            overlap(filter_levels(one), filter_levels(two))
            for one in settings.filters
            for two in other.settings.filters
        ):
            raise errors.WORKQUEUE_UNIQUE
