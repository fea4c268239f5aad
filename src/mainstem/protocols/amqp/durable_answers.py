"""Requests that wait for the disk: a client that has its answer may rely on everything it said before it.

While one waits the connection handles nothing more, so answers leave in the order of their requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from mainstem.log.gather import Ticket
from mainstem.protocols.amqp.events import Event, MethodEvent
from mainstem.protocols.amqp.methods import BY_NAME
from mainstem.protocols.connection import HOLD_QUEUE

if TYPE_CHECKING:
    from mainstem.protocols.amqp.adapter import AmqpConnection

# Handled at once: they settle, or their answer is a message. Any other answer says that what came before is kept.
UNPROMISING = frozenset(BY_NAME[f"basic.{name}"].number for name in ("ack", "nack", "reject", "get"))


class DurableAnswers:
    """Of one connection."""

    __slots__ = ("_connection",)

    def __init__(self, connection: AmqpConnection) -> None:
        self._connection = connection

    def wait_for(self, written: Future[None], then: Callable[[], None] | None) -> None:
        """Handle nothing more until it is durable."""
        self._connection.hold(HOLD_QUEUE)
        loop = asyncio.get_running_loop()

        def done(_: Future[None]) -> None:
            loop.call_soon_threadsafe(self.go_on, then, written.exception())

        written.add_done_callback(done)

    def wait_for_ticket(self, ticket: Ticket, then: Callable[[], None]) -> None:
        self._connection.hold(HOLD_QUEUE)
        ticket.wait(_Waiting(self, then))

    def wait_for_acks(self, event: MethodEvent) -> bool:
        """Whether the request is put off until the acks before it are durable."""
        if event.number in UNPROMISING:
            return False
        connection = self._connection
        channels = connection.channels
        asked = [channels.get(event.channel)] if event.channel else list(channels.values())
        settled = [channel.wire for channel in asked if channel is not None and channel.wire.settled]
        for wire in settled:
            wire.settled = False
        ticket = connection.server.broker.queues.settled_ticket() if settled else None
        if ticket is not None:
            connection.hold(HOLD_QUEUE)
            ticket.wait(_Waiting(self, event=event))
        return ticket is not None

    def go_on(
        self, then: Callable[[], None] | None, failure: BaseException | None = None, event: Event | None = None
    ) -> None:
        connection = self._connection
        if connection.transport is None:
            return
        connection.release(HOLD_QUEUE)
        if failure is None and then is not None:
            then()  # it may wait for something else
        if not connection.closing and not connection.held & HOLD_QUEUE:
            connection.drain(failure=failure, event=event)


class _Waiting:
    """Goes on once a ticket is released: with `then`, or with the request that waited for it."""

    __slots__ = ("_answers", "_event", "_then")

    def __init__(
        self, answers: DurableAnswers, then: Callable[[], None] | None = None, event: Event | None = None
    ) -> None:
        self._answers = answers
        self._then = then
        self._event = event

    def released(self, ticket: Ticket) -> None:
        self._answers.go_on(self._then, event=self._event)
