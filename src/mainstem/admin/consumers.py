"""Who consumes a queue, by whatever protocol, and how many messages each holds unacknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from mainstem.admin.answers.consumers import QueueClient, QueueFacts
from mainstem.admin.connections import client_name, connection_id
from mainstem.admin.cursors import (
    group_named,
    queue_row,
    queues_of,
    stream_consumer_name,
    stream_consumer_row,
    stream_consumers,
)
from mainstem.admin.running import Running
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.queues.queue import Queue
from mainstem.broker.streams.consumer import Consumer
from mainstem.broker.streams.joined import JoinedConsumer
from mainstem.broker.tracing.stations import describe
from mainstem.model.errors import NotFound

CLIENTS_SHOWN = 100


def queue_facts(running: Running, queue: Queue) -> QueueFacts:
    clients = list(islice(_clients(running, queue), CLIENTS_SHOWN))
    row = queue_row(queue)
    others = 0
    if row["consumers"] <= CLIENTS_SHOWN:  # basic.get, and deliveries of a consumer that was cancelled since
        others = max(0, row["unacked"] - sum(one["unacked"] for one in clients))
    return {**row, "clients": clients, "unacked_by_others": others, "settings": queue.settings.to_document()}


def _clients(running: Running, queue: Queue) -> Iterator[QueueClient]:
    """Those that are handed messages, then those that pull. Where only one consumer may be active, the others wait."""
    for place, taker in enumerate(queue.takers):
        _, name, protocol = describe(taker)
        connection = _connection_of(taker)
        yield {
            "client": (client_name(connection) if connection is not None else "") or getattr(taker, "tag", "") or name,
            "protocol": protocol,
            "unacked": taker.unacked,
            "acks": not taker.no_ack,
            "priority": taker.priority,
            "waits": queue.settings.single_active and place > 0,
            "group": None,
            "connection": connection_id(running, connection),
        }
    held = queue.pulled_by
    yield from sorted((_puller(one, held[one]) for one in queue.pullers), key=lambda row: str(row["client"]))


def _connection_of(taker: Any) -> Any:
    """MQTT's members have one; AMQP's consumers have a channel, whose session does."""
    channel = getattr(taker, "channel", None)
    return getattr(taker, "connection", None) or getattr(getattr(channel, "owner", None), "connection", None)


def _puller(puller: Any, unacked: int) -> QueueClient:
    """A member of a Kafka share group, or a JetStream consumer that joined the queue."""
    if isinstance(puller, JoinedConsumer):
        return _pulls(stream_consumer_name(puller), "nats", unacked)
    _, name, protocol = describe(puller)
    return _pulls(name, protocol, unacked, group=group_named(puller.group_key)[1])


def _pulls(client: str, protocol: str, unacked: int, *, acks: bool = True, group: str | None = None) -> QueueClient:
    return {
        "client": client,
        "protocol": protocol,
        "unacked": unacked,
        "acks": acks,
        "priority": 0,
        "waits": False,
        "group": group,
        "connection": None,
    }


def find_stream_consumer(running: Running, namespace: Namespace, name: str) -> Consumer | None:
    """A JetStream consumer that is a queue of its own, by `stream/consumer`."""
    found = (one for one in stream_consumers(running, namespace) if stream_consumer_name(one) == name)
    return next(found, None)


def stream_consumer_facts(consumer: Consumer) -> QueueFacts:
    """What it delivered is held by the consumer, whichever connection pulled it: so JetStream has one client to show."""
    row = stream_consumer_row(consumer)
    client = _pulls(consumer.name, "nats", row["unacked"], acks=consumer.explicit)
    settings = {name: value for name, value in consumer.config.items() if not isinstance(value, dict)}
    return {**row, "clients": [client], "unacked_by_others": 0, "settings": settings}


def any_queue_facts(running: Running, namespace: Namespace, name: str) -> tuple[QueueFacts, Queue | Consumer]:
    """A named queue, or a JetStream consumer."""
    queue = queues_of(running, namespace).find(name)
    if queue is not None:
        return queue_facts(running, queue), queue
    consumer = find_stream_consumer(running, namespace, name)
    if consumer is None:
        raise NotFound(f"there is no queue {name}", fix="mainstem queue ls")
    return stream_consumer_facts(consumer), consumer
