"""A consumer that joins a queue: `mainstem-queue: NAME` in its metadata. The queue is made if there is none.

Limits are the queue's: its lock time is the consumer's `ack_wait`, its attempts are `max_deliver`; so it is answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainstem.broker.broker import Broker
from mainstem.broker.queues.bindings import ANYTHING, DEFAULT, NOW, Reach
from mainstem.broker.queues.opening import check_joiner
from mainstem.broker.queues.queue import Queue
from mainstem.broker.queues.settings import Kind as QueueKind
from mainstem.broker.queues.settings import QueueSettings
from mainstem.broker.rights.access import Action, Kind, Principal
from mainstem.broker.streams.joined import QUEUE, queue_name
from mainstem.broker.streams.settings import ConsumerSettings
from mainstem.broker.streams.stream import Stream
from mainstem.model.errors import AlreadyExists, NotAuthorized
from mainstem.model.topic_filter import covers, filter_levels
from mainstem.protocols.nats.jetstream import errors
from mainstem.protocols.nats.jetstream.errors import NotAllowed

if TYPE_CHECKING:
    from mainstem.broker.namespaces.namespace import Namespace
    from mainstem.protocols.nats.jetstream.api import Call

NS_PER_MS = 1_000_000


class Joining:
    broker: Broker
    namespace: Namespace

    async def join(self, call: Call, stream: Stream, config: dict[str, Any], settings: ConsumerSettings) -> None:
        """Find or make the queue, and take over what it says into the configuration."""
        _check(stream, config)
        principal = call.principal
        queues = self.broker.queues.of(self.namespace)
        queue = queues.find(queue_name(config))
        if queue is None:
            queue = await self._make(principal, stream, config, settings)
        elif not self.may_join(principal, queue):
            raise NotAllowed
        _check_reach(stream, settings, queue)
        take_over(config, queue)

    def may_join(self, principal: Principal, queue: Queue | None) -> bool:
        if queue is None or principal.admin:
            return True
        try:
            check_joiner(self.broker.access, principal, queue)
        except NotAuthorized:
            return False
        return True

    async def _make(
        self, principal: Principal, stream: Stream, config: dict[str, Any], settings: ConsumerSettings
    ) -> Queue:
        """Over what the consumer means, from the stream's first message on or from now on."""
        name = queue_name(config)
        if self.broker.access.judges(principal, Action.CREATE, Kind.QUEUE, name) is False:
            raise NotAllowed
        start = 0 if config["deliver_policy"] == "all" else NOW
        filters = settings.filters or stream.settings.filters
        limits = QueueSettings(deliveries_max=max(0, settings.max_deliver), lock_ms=settings.ack_wait_ms)
        try:
            queue, written = self.broker.queues.of(self.namespace).declare(
                name, limits, reaches=[Reach(ANYTHING, one, start=start) for one in filters]
            )
        except AlreadyExists as error:
            raise errors.consumer_config(error.message) from None
        if written is not None:
            await written
        return queue


def _check(stream: Stream, config: dict[str, Any]) -> None:
    if config["ack_policy"] != "explicit":
        raise errors.consumer_config(f"a consumer with metadata {QUEUE} needs ack policy explicit")
    if config["deliver_policy"] not in ("all", "new"):
        raise errors.consumer_config(f"a consumer with metadata {QUEUE} begins where its queue does: all or new")
    if stream.config["retention"] != "limits":
        raise errors.consumer_config(f"a consumer with metadata {QUEUE} needs a stream with retention limits")
    if config.get("backoff"):
        raise errors.consumer_config(f"a consumer with metadata {QUEUE} has no backoff: the lock time is its queue's")
    if stream.copies or "mirror" in stream.config:
        raise errors.consumer_config(f"a consumer with metadata {QUEUE} needs a stream of its own subjects")


def _check_reach(stream: Stream, settings: ConsumerSettings, queue: Queue) -> None:
    """Everything in the queue must have a sequence in the stream; but what AMQP publishes to the queue by its name."""
    if queue.settings.kind is QueueKind.STREAM:
        raise errors.CONSUMER_NAME_TAKEN
    meant = [filter_levels(one) for one in settings.filters or stream.settings.filters]
    for reach in queue.reaches.open_ones():
        if reach.kind != DEFAULT and not all(any(covers(one, part) for one in meant) for part in _parts(reach.filter)):
            what = reach.filter.decode(errors="replace")
            raise errors.JsError(
                400,
                10013,
                f"queue {queue.name!r} takes in {what!r}, which is not all the consumer's; the name is in use",
            )


def _parts(topic_filter: bytes) -> list[list[bytes]]:
    """MQTT's `a/#` means `a` as well; a stream may have that as a subject of its own."""
    base = topic_filter.removesuffix(b"/#")
    return [filter_levels(one) for one in ((base, base + b"/>") if base != topic_filter else (topic_filter,))]


def take_over(config: dict[str, Any], queue: Queue | None) -> None:
    if queue is not None:
        config["ack_wait"] = queue.settings.lock_ms * NS_PER_MS
        config["max_deliver"] = queue.settings.deliveries_max or -1
