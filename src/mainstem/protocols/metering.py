"""What the quotas of a connection ask of it (`broker/namespaces/quotas.py`): how much it has published, and to wait.

A protocol that has words for it subclasses `Metering`: AMQP says connection.blocked, Kafka says for how long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainstem.broker.namespaces.quotas import Member
    from mainstem.model.errors import QuotaExceeded
    from mainstem.protocols.connection import Connection

HOLD_QUOTA = 256  # a reason to read no more: it has published more than its quota
BLOCKED_BY_QUOTA = 2  # a reason to write no more: it has consumed more than its quota


class Metering:
    __slots__ = ("connection", "member")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.member: Member | None = None  # in the accounts of its quotas, once logged in

    def set_tenant(self, tenant: str) -> None:
        """Its login says in whose turns it is served."""
        connection = self.connection
        connection.tenant = tenant
        if hasattr(connection.transport, "set_tenant"):  # one of the reactor's
            connection.transport.set_tenant(tenant)

    def set_meter(self, meter: Member | None) -> None:
        self.connection.meter = meter

    def published_count(self) -> int:
        """Messages it has published, ever."""
        return 0

    def hold(self, wait_s: float) -> None:
        self.connection.hold(HOLD_QUOTA)

    def release(self) -> None:
        self.connection.release(HOLD_QUOTA)

    def hold_output(self, wait_s: float) -> None:
        """What it is owed waits in the log."""
        self.connection.block_output(BLOCKED_BY_QUOTA)

    def release_output(self) -> None:
        self.connection.free_output(BLOCKED_BY_QUOTA)

    def end(self, error: QuotaExceeded) -> None:
        self.connection.close(error.message)
