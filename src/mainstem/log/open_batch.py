"""What the compiled and the plain open batch share: where it ends, and who waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mainstem.log.gather import Ticket

BYTES_MAX = 1 << 20  # an open batch that reaches either is closed to further records
RECORDS_MAX = 65_536


class Waiter(Protocol):
    def released(self, ticket: Ticket, /) -> None: ...
