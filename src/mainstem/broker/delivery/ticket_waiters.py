"""What waits for a ticket."""

from __future__ import annotations

from collections.abc import Callable

from mainstem.log.gather import Ticket


class Then:
    """A ticket's waiter that calls a function."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[Ticket], None]) -> None:
        self._call = call

    def released(self, ticket: Ticket) -> None:
        self._call(ticket)
