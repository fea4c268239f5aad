"""Requests that change what a consumer does: pause, unpin, reset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainstem.broker.broker import Broker
from mainstem.broker.rights.access import Action, Principal
from mainstem.broker.streams.consumer import Consumer
from mainstem.protocols.nats.jetstream import errors
from mainstem.protocols.nats.jetstream.consumer_config import check_group
from mainstem.protocols.nats.jetstream.delivery import Delivery
from mainstem.protocols.nats.jetstream.message_calls import offset_since
from mainstem.protocols.nats.jetstream.pace import pause_end_ns
from mainstem.protocols.nats.jetstream.words import NO_TIME, document, number, string, time_ns, time_text

if TYPE_CHECKING:
    from mainstem.broker.streams.streams import Streams
    from mainstem.protocols.nats.jetstream.api import Call


class ConsumerChanges:
    broker: Broker
    streams: Streams

    if TYPE_CHECKING:

        def now_ns(self) -> int: ...
        def consumer(self, call: Call) -> Consumer: ...
        def require(self, principal: Principal, action: Action, filters: tuple[bytes, ...]) -> None: ...
        def delivery(self, consumer: Consumer) -> Delivery: ...
        def info(self, consumer: Consumer) -> dict[str, Any]: ...
        def advise_consumer(self, kind: str, word: str, consumer: Consumer, **more: Any) -> None: ...

    def is_there(self, call: Call) -> bool:
        try:
            self.consumer(call)
        except errors.JsError:
            return False
        return True

    def _changed(self, call: Call) -> Consumer:
        consumer = self.consumer(call)
        self.require(call.principal, Action.CONSUME, consumer.rights)
        return consumer

    async def change_consumer_pause(self, call: Call) -> dict[str, Any]:
        """`{pause_until}`; without it, or with a time that is past, the consumer goes on."""
        try:
            return await self._pause(call)
        except errors.JsError as error:
            return {"error": error.to_document(), "paused": False, "pause_until": NO_TIME}

    async def _pause(self, call: Call) -> dict[str, Any]:
        given = document(call.payload)
        try:
            until = time_ns(string(given, "pause_until")) if given.get("pause_until") else 0
        except ValueError as error:
            raise errors.invalid_json(f"parsing time: {error}") from None
        consumer = self._changed(call)
        config = {key: value for key, value in consumer.config.items() if key != "pause_until"}
        if until > 0:
            config["pause_until"] = time_text(until)
        await self.broker.streams.update_consumer(consumer, config)
        self.delivery(consumer).changed()
        self.advise_pause(consumer)
        answer: dict[str, Any] = {"paused": until > self.now_ns(), "pause_until": time_text(until)}
        if answer["paused"]:
            answer["pause_remaining"] = until - self.now_ns()
        return answer

    def advise_pause(self, consumer: Consumer) -> None:
        until = pause_end_ns(consumer.config)
        more = {"pause_until": time_text(until)}
        self.advise_consumer("consumer_pause", "PAUSE", consumer, paused=until > self.now_ns(), **more)

    def on_consumer_unpin(self, call: Call) -> dict[str, Any]:
        """`{group}`: another client may be pinned."""
        group = string(document(call.payload), "group")
        if not group:
            raise errors.invalid_json("consumer group not specified")
        check_group(group)
        consumer = self._changed(call)
        if group not in (consumer.config.get("priority_groups") or ()):
            raise errors.GROUP_UNKNOWN
        self.delivery(consumer).pulls.unpin("admin")
        return {}

    async def change_consumer_reset(self, call: Call) -> dict[str, Any]:
        """`{seq}`: it begins again there; without it, behind what is settled."""
        seq = number(document(call.payload, frozenset(("seq",))), "seq")
        consumer = self._changed(call)
        if not seq:
            seq = consumer.ack_floor[1] + 1
        else:
            try:
                self._check_reset(consumer, seq)
            except errors.JsError as error:
                return {"error": error.to_document(), "reset_seq": 0}
        ticket = consumer.reset(max(0, seq - 1))
        if ticket is not None:
            await self.broker.ticker.settle([self.broker.journal.stem])
        return {**self.info(consumer), "reset_seq": seq}

    def _check_reset(self, consumer: Consumer, seq: int) -> None:
        match consumer.config["deliver_policy"]:
            case "all":
                return
            case "by_start_sequence":
                if seq < consumer.config["opt_start_seq"]:
                    raise errors.invalid_reset("below start seq")
            case "by_start_time":
                start = offset_since(consumer.stream, time_ns(consumer.config["opt_start_time"]))
                if seq < start + 1:
                    raise errors.invalid_reset("below start time")
            case _:
                raise errors.invalid_reset("not allowed")
