"""connection.blocked and connection.unblocked: a publisher whose socket is not read for now is told why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstem.protocols.amqp.faults import Fault
from mainstem.protocols.connection import HOLD_LOG
from mainstem.protocols.metering import HOLD_QUOTA, Metering

if TYPE_CHECKING:
    from mainstem.model.errors import QuotaExceeded
    from mainstem.protocols.amqp.adapter import AmqpConnection

HOLD_SPACE = 64  # a reason to read no more: the disk is almost full
TOLD_S_MIN = 0.2  # a publisher over its quota that waits longer is told


class Blocking:
    __slots__ = ("_connection", "told")

    def __init__(self, connection: AmqpConnection) -> None:
        self._connection = connection
        self.told = False  # that it is blocked

    def hold(self, why: int, reason: str) -> None:
        """Read no more of it until `release`, and say so to a client that understands it."""
        connection = self._connection
        connection.hold(why)
        if connection.lifecycle.can("connection.blocked") and not self.told:
            self.told = True
            connection.lifecycle.send("connection.blocked", reason=reason)

    def hold_for_space(self) -> None:
        self.hold(HOLD_SPACE, "low on disk")

    def release(self, why: int) -> None:
        connection = self._connection
        connection.release(why)
        if self.told and not connection.held & (HOLD_LOG | HOLD_SPACE | HOLD_QUOTA):
            self.told = False
            connection.lifecycle.send("connection.unblocked")
        if not connection.closing:
            connection.drain()


class AmqpMetering(Metering):
    __slots__ = ()

    connection: AmqpConnection

    def published_count(self) -> int:
        return self.connection.inbound.messages

    def hold(self, wait_s: float) -> None:
        """For a moment it is just read no more, as RabbitMQ's flow control does; for longer it is told."""
        if wait_s < TOLD_S_MIN:
            self.connection.hold(HOLD_QUOTA)
        else:
            self.connection.blocking.hold(HOLD_QUOTA, "over its quota of publishes")

    def release(self) -> None:
        self.connection.blocking.release(HOLD_QUOTA)

    def end(self, error: QuotaExceeded) -> None:
        self.connection.fail(Fault(506, error.message, hard=True))
