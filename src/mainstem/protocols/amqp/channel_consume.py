"""Methods that take messages: consume, cancel, get, qos, ack and its kin."""

from __future__ import annotations

from typing import Any, TypeVar

from mainstem.broker.queues.bindings import ANYTHING, Reach
from mainstem.broker.queues.declaring import quoted, type_name
from mainstem.broker.queues.exchange_names import DEFAULT, topic_of
from mainstem.broker.queues.queue import Outcome, Queue
from mainstem.broker.queues.settings import Kind, QueueSettings
from mainstem.broker.rights.access import Action
from mainstem.log.away import bring
from mainstem.model.amqp_content import split_table
from mainstem.model.topic import filter_of_amqp
from mainstem.model.topic_filter import is_pattern, literal_filter
from mainstem.protocols.amqp.channel_core import CONSUMERS_MAX, ChannelCore
from mainstem.protocols.amqp.channel_declare import REPLY_TO, server_name
from mainstem.protocols.amqp.consumer_timeouts import timeout_ms
from mainstem.protocols.amqp.consuming import (
    Getter,
    PatternStream,
    ReplyConsumer,
    StreamConsumer,
    ViewStream,
    delivery_count,
    settle_all,
    stream_position,
)
from mainstem.protocols.amqp.faults import AccessRefused, Fault
from mainstem.protocols.amqp.wire import Consumer
from mainstem.storage.engine import NotLocal

UNLIMITED = 1 << 62
AnyStream = TypeVar("AnyStream", bound=Queue)


class Consumes(ChannelCore):
    # -- consuming

    def on_basic_consume(self, a: dict[str, Any]) -> None:
        tag = a["consumer_tag"] or server_name("amq.ctag-")
        if tag in self.consumers:
            raise Fault(530, f"attempt to reuse consumer tag '{tag}'")
        if len(self.consumers) >= CONSUMERS_MAX:
            raise Fault(530, f"reached maximum ({CONSUMERS_MAX}) of consumers per channel")
        if a["queue"] == REPLY_TO:
            self._consume_replies(tag, a)
            return
        queue = self._readable(a["queue"], as_stream="x-stream-offset" in a["arguments"])
        named = quoted("queue", queue.name, self.vhost.name)
        if queue.settings.kind is Kind.STREAM:
            self.require_queue(Action.CONSUME, queue.name)
            self._consume_stream(queue, tag, a, named)
            return
        self.require_take(queue)
        if queue.exclusive_taker is not None or (a["exclusive"] and (queue.takers or queue.settings.single_active)):
            raise Fault(403, f"{named} in exclusive use")
        self._check_priority(a["arguments"], named)
        after_ms = timeout_ms(a["arguments"], queue.settings.arguments, named)
        consumer = Consumer(
            self.wire,
            queue,
            tag,
            priority=a["arguments"].get("x-priority", 0),
            credit=self.prefetch if self.prefetch and not a["no_ack"] else UNLIMITED,
            no_ack=a["no_ack"],
            decorator=delivery_count if queue.settings.kind is Kind.QUORUM else None,
        )
        consumer.prefetch = self.prefetch
        if after_ms and not a["no_ack"]:
            self.connection.server.timeouts.watch(self, consumer, after_ms)  # type: ignore[arg-type]
        if a["exclusive"]:
            queue.exclusive_taker = consumer
        self.consumers[tag] = consumer
        self.answer("basic.consume-ok", a["no_wait"], consumer_tag=tag)
        queue.attach(consumer)

    def _readable(self, name: str, *, as_stream: bool) -> Queue:
        """A queue; or a view under its own name, a topic or a pattern if a stream is asked for: these read as a stream.

        Without x-stream-offset a topic is none: who consumes from a queue that was deleted must be told so, although
        a topic of its name holds what was published to it.
        """
        if not name or self.vhost.queues.find(name):
            return self.queue(name)
        namespace, topic = self.vhost.namespace, topic_of(DEFAULT, name)
        view = namespace.views.get(topic)
        if view is not None:
            stream = self._stream_over(name, view.filter, ViewStream)
            stream.view = view
            return stream
        if as_stream and namespace.find_topic(topic) is not None:
            return self._stream_over(name, literal_filter(topic), Queue)
        pattern = filter_of_amqp(name.encode("utf-8", "surrogateescape"))
        if as_stream and is_pattern(pattern):
            connection = self.connection
            if not connection.server.broker.access.allows_filter(connection.principal, Action.CONSUME, pattern):
                text = f"read access to all that '{name}' means refused for user '{connection.principal.name}'"
                raise AccessRefused(text, "consume", name)
            return self._stream_over(name, pattern, PatternStream)
        return self.queue(name)

    def may_consume(self, topic: bytes) -> bool:
        connection = self.connection
        return connection.server.broker.access.allows(connection.principal, Action.CONSUME, topic)

    def is_not_denied(self, topic: bytes) -> bool:
        connection = self.connection
        return not connection.server.broker.access.denies(connection.principal, Action.CONSUME, topic)

    def _may_go_on(self, consumer: Any) -> bool:
        try:
            if isinstance(consumer, StreamConsumer):
                self.require_queue(Action.CONSUME, consumer.queue.name)
            else:
                self.require_take(consumer.queue)
        except Fault:
            return False
        return True

    def _stream_over(self, name: str, topic_filter: bytes, kind: type[AnyStream]) -> AnyStream:
        settings = QueueSettings(durable=False, kind=Kind.STREAM)
        queue = kind(self.vhost.queues, 0, name, settings, self.vhost.now())
        queue.reaches.add(Reach(ANYTHING, topic_filter))
        return queue

    def _check_priority(self, arguments: dict[str, Any], named: str) -> None:
        priority = arguments.get("x-priority", 0)
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise Fault(406, f"invalid arg 'x-priority' for {named}: \"expected integer, got {type_name(priority)}\"")

    def _consume_replies(self, tag: str, a: dict[str, Any]) -> None:
        if not a["no_ack"]:
            raise Fault(406, "reply consumer cannot acknowledge")
        if any(isinstance(consumer, ReplyConsumer) for consumer in self.consumers.values()):
            raise Fault(406, "reply consumer already set")
        consumer = ReplyConsumer(self, tag, server_name(REPLY_TO + "."))  # type: ignore[arg-type]
        self.consumers[tag] = consumer
        self.connection.server.replies.add(consumer)
        self.answer("basic.consume-ok", a["no_wait"], consumer_tag=tag)

    def _consume_stream(self, queue: Queue, tag: str, a: dict[str, Any], named: str) -> None:
        if a["no_ack"]:
            raise Fault(540, f"basic.consume with no_ack is not supported by stream queues: {named}")
        if not self.prefetch:
            raise Fault(406, f"consumer prefetch count is not set for stream {named}")
        raw = dict(split_table(a["arguments_raw"])).get("x-stream-offset", b"")
        offset = a["arguments"].get("x-stream-offset")
        try:
            position = stream_position(queue, offset, is_time=raw[:1] == b"T")
            consumer = StreamConsumer(self, queue, tag, position, self.prefetch)  # type: ignore[arg-type]
        except NotLocal as missing:
            bring(missing, lambda: None)
            raise Fault(
                506, f"{offset} of {named} lies in the object store and is being fetched: consume again"
            ) from None
        self.answer("basic.consume-ok", a["no_wait"], consumer_tag=tag)
        self.consumers[tag] = consumer
        consumer.resume()

    def on_basic_cancel(self, a: dict[str, Any]) -> None:
        consumer = self.consumers.pop(a["consumer_tag"], None)
        if consumer is not None:
            self.end_consumer(consumer)
        self.answer("basic.cancel-ok", a["no_wait"], consumer_tag=a["consumer_tag"])

    def on_basic_cancel_ok(self, a: dict[str, Any]) -> None:
        """The client knows that its consumer is gone."""

    def end_consumer(self, consumer: Any) -> None:
        """It gets no more; what it was given stays the channel's to settle."""
        if isinstance(consumer, StreamConsumer):
            consumer.close()
        elif isinstance(consumer, ReplyConsumer):
            self.connection.server.replies.remove(consumer)
        else:
            consumer.queue.detach(consumer)

    def consumer_lost(self, consumer: Consumer | StreamConsumer) -> None:
        """Its queue was deleted, or the right to it taken away."""
        if self.consumers.pop(consumer.tag, None) is None or not self.connection.lifecycle.can(
            "consumer_cancel_notify"
        ):
            return
        if self.deleting is not None:
            self.deleting.append(consumer.tag)
        else:
            self.send("basic.cancel", consumer_tag=consumer.tag, no_wait=True)

    def end_denied(self) -> None:
        """Rights have changed: who may no longer consume is told, as if the queue were gone."""
        for consumer in list(self.consumers.values()):
            if isinstance(consumer, ReplyConsumer) or self._may_go_on(consumer):
                continue
            self.end_consumer(consumer)
            self.consumer_lost(consumer)

    def on_basic_get(self, a: dict[str, Any]) -> None:
        self.settle_writes()
        queue = self.queue(a["queue"])
        named = quoted("queue", queue.name, self.vhost.name)
        self.require_take(queue)
        if queue.settings.kind is Kind.STREAM:
            raise Fault(540, f"basic.get not supported by stream queues {named}")
        decorator = delivery_count if queue.settings.kind is Kind.QUORUM else None
        getter = Getter(self.wire, queue, no_ack=a["no_ack"], decorator=decorator)
        queue.limits.expire_now()
        getter.count_left = min(max(0, queue.ready - 1), 0xFFFFFFFF)
        queue.pull(getter)
        if getter.credit:
            self.send("basic.get-empty")
        else:
            queue.totals.pulled += 1

    # -- how much at a time

    def on_basic_qos(self, a: dict[str, Any]) -> None:
        if a["prefetch_size"]:
            raise Fault(540, f"prefetch_size!=0 ({a['prefetch_size']})")
        if a["global"]:
            self.wire.unacked_max = a["prefetch_count"]
            self.connection.retry_stalled()
        else:
            self.prefetch = a["prefetch_count"]
        self.send("basic.qos-ok")

    def on_channel_flow(self, a: dict[str, Any]) -> None:
        if not a["active"]:
            raise Fault(540, "active=false")
        self.send("channel.flow-ok", active=True)

    # -- settling

    def on_basic_ack(self, a: dict[str, Any]) -> None:
        self.wire.acknowledge(a["delivery_tag"], a["multiple"])

    def on_basic_nack(self, a: dict[str, Any]) -> None:
        self.settle(a["delivery_tag"], a["multiple"], Outcome.RELEASE if a["requeue"] else Outcome.REJECT)

    def on_basic_reject(self, a: dict[str, Any]) -> None:
        self.settle(a["delivery_tag"], False, Outcome.RELEASE if a["requeue"] else Outcome.REJECT)

    def on_basic_recover(self, a: dict[str, Any]) -> None:
        self.on_basic_recover_async(a)
        self.send("basic.recover-ok")

    def on_basic_recover_async(self, a: dict[str, Any]) -> None:
        if not a["requeue"]:
            raise Fault(540, "requeue=false")
        self.settle(0, True, Outcome.RELEASE)

    def settle(self, tag: int, multiple: bool, outcome: Outcome) -> None:
        """Everything but an ack."""
        self.connection.server.broker.queues.flush_settled()  # acks that came before
        settle_all(self.wire.take_held(tag, multiple), outcome)
