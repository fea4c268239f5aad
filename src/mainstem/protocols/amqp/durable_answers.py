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
from mainstem.protocols.connection import HOLD_QUEUE, Connection

if TYPE_CHECKING:
    from mainstem.protocols.amqp.adapter import AmqpServer
    from mainstem.protocols.amqp.channel import Channel

# Handled at once: they settle, or their answer is a message. Any other answer says that what came before is kept.
UNPROMISING = frozenset(BY_NAME[f"basic.{name}"].number for name in ("ack", "nack", "reject", "get"))


class DurableAnswers(Connection):
    __slots__ = ()

    server: AmqpServer
    channels: dict[int, Channel]

    def drain(self, time_ms: int = 0, event: Event | None = None, failure: BaseException | None = None) -> None:
        raise NotImplementedError

    def wait_for(self, written: Future[None], then: Callable[[], None] | None) -> None:
        """Handle nothing more until it is durable."""
        self.hold(HOLD_QUEUE)
        loop = asyncio.get_running_loop()

        def done(_: Future[None]) -> None:
            loop.call_soon_threadsafe(self.go_on, then, written.exception())

        written.add_done_callback(done)

    def wait_for_ticket(self, ticket: Ticket, then: Callable[[], None]) -> None:
        self.hold(HOLD_QUEUE)
        ticket.wait(_Waiting(self, then))

    def waits_for_acks(self, event: MethodEvent) -> bool:
        """Whether the request is put off until the acks before it are durable."""
        if event.number in UNPROMISING:
            return False
        channels = [self.channels.get(event.channel)] if event.channel else list(self.channels.values())
        settled = [channel.wire for channel in channels if channel is not None and channel.wire.settled]
        for wire in settled:
            wire.settled = False
        ticket = self.server.broker.queues.settled_ticket() if settled else None
        if ticket is not None:
            self.hold(HOLD_QUEUE)
            ticket.wait(_Waiting(self, event=event))
        return ticket is not None

    def go_on(
        self, then: Callable[[], None] | None, failure: BaseException | None = None, event: Event | None = None
    ) -> None:
        if self.transport is None:
            return
        self.release(HOLD_QUEUE)
        if failure is None and then is not None:
            then()  # it may wait for something else
        if not self.closing and not self.held & HOLD_QUEUE:
            self.drain(failure=failure, event=event)


class _Waiting:
    """Goes on once a ticket is released: with `then`, or with the request that waited for it."""

    __slots__ = ("_connection", "_event", "_then")

    def __init__(
        self, connection: DurableAnswers, then: Callable[[], None] | None = None, event: Event | None = None
    ) -> None:
        self._connection = connection
        self._then = then
        self._event = event

    def released(self, ticket: Ticket) -> None:
        self._connection.go_on(self._then, event=self._event)
