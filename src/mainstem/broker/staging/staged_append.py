"""Appending staged batches to their logs, each with a mark by which it is found again after a crash.

The mark is the batch's producer id, `-2 - commit number` (clients take anything below 0 for none), and its sequence, the
batch's place among all of the commit.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mainstem.broker.rights.rules import AUDIT_TOPIC
from mainstem.codec.batch import (
    FRAME_HEAD_SIZE,
    KIND_DATA,
    crc32c,
    frame_heads,
    read_batch_head,
)
from mainstem.codec.staged import StagedBatch, decode_staged
from mainstem.log.gather import Ticket
from mainstem.log.log import Log
from mainstem.log.logs import Logs
from mainstem.model.origin import Origin

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker
    from mainstem.broker.namespaces.namespace import Namespace

logger = logging.getLogger("mainstem.broker")

TICK_BYTES = 1 << 20
READ_BYTES = 4 << 20
PRODUCER_AT, CRC_AT, CHECKED_AT = 43, 17, 21


def marked(batch: bytes | memoryview, number: int, place: int) -> bytes:
    """The batch with the commit's mark, and a checksum to fit."""
    copy = bytearray(batch)
    struct.pack_into(">qhi", copy, PRODUCER_AT, -2 - number, -1, place)
    struct.pack_into(">I", copy, CRC_AT, crc32c(memoryview(copy)[CHECKED_AT:]))
    return bytes(copy)


def appended_already(logs: Logs, floors: Mapping[int, int], number: int) -> set[int]:
    """The places of the commit's batches that the logs hold, reading each from where it stood. Runs in a thread."""
    found: set[int] = set()
    for log in list(logs.by_id.values()):
        offset = max(floors.get(log.id, 0), log.start_offset)
        while (piece := log.read_in_thread(offset, READ_BYTES)) is not None:
            found |= _places(log, piece.data, number)
            offset = piece.end_offset
    return found


def _places(log: Log, data: memoryview, number: int) -> set[int]:
    found: set[int] = set()
    at = 0
    for head in frame_heads(data, log.id):
        if head.kind == KIND_DATA and head.origin == Origin.SPARK:
            batch = read_batch_head(data[at + FRAME_HEAD_SIZE : at + head.size])
            if batch.producer_id == -2 - number:
                found.add(batch.base_sequence)
        at += head.size
    return found


async def append_staged(
    broker: Broker, namespace: Namespace, files: Sequence[Path], number: int, done: set[int]
) -> int:
    """Append what is not `done`, a tick's worth at a time, and wait until all of it is durable; returns the records."""
    tickets: list[Ticket] = []
    place = records = size = 0
    for file in files:
        data = await asyncio.to_thread(file.read_bytes)
        for item in decode_staged(data):
            head = read_batch_head(item.batch)
            records += head.count
            if place not in done:
                ticket = _append(namespace, item, number, place)
                size += len(item.batch)
                if ticket is not None:
                    tickets.append(ticket)
            place += 1
            if size >= TICK_BYTES:
                size = 0
                await _room(tickets)
    for ticket in tickets:
        await durable(ticket)
    return records


def _append(namespace: Namespace, item: StagedBatch, number: int, place: int) -> Ticket | None:
    topic = namespace.topics.get(item.topic)
    if item.topic == AUDIT_TOPIC:  # refused where tasks ask for it; this one did not ask
        logger.warning("rows for %r were staged, which is the broker's own; they are left out", item.topic)
        return None
    if topic is None and not item.names_topic:
        logger.warning("topic %r was deleted after rows for it were staged; they go with it", item.topic)
        return None
    if topic is None:
        route = namespace.route(item.topic)
    else:
        route = topic.partitions[min(item.partition, len(topic.partitions) - 1)].route
    batch = marked(item.batch, number, place)
    topic_id = 0 if topic is None or item.names_topic else topic.id
    return route.log.append_batch(batch, read_batch_head(batch), route, origin=Origin.SPARK, topic_id=topic_id).ticket


async def _room(tickets: list[Ticket]) -> None:
    """Let the tick write; wait for the disk where a log has too much that is not synced.

    Each ticket counts: a full log may refuse one tick's batches and take the smaller ones of the next.
    """
    await asyncio.sleep(0)
    for ticket in {ticket.log.id: ticket for ticket in tickets}.values():
        if ticket.log.unsynced_bytes > ticket.log.unsynced_bytes_max // 2:
            await durable(ticket)
    for ticket in tickets:
        if ticket.error is not None:
            raise ticket.error
    tickets[:] = [ticket for ticket in tickets if not ticket.stable]


@dataclass(slots=True)
class _Durable:
    done: asyncio.Future[None]

    def released(self, ticket: Ticket) -> None:
        if self.done.done():
            return
        if ticket.error is not None:
            self.done.set_exception(ticket.error)
        else:
            self.done.set_result(None)


async def durable(ticket: Ticket) -> None:
    """Wait on a ticket from a coroutine; raises what its batch failed with."""
    waiter = _Durable(asyncio.get_running_loop().create_future())
    ticket.wait(waiter)
    await waiter.done
