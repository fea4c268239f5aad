"""A journal in memory: what was put, and an owner's state rebuilt from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from mainstem.log.gather import Ticket

Apply = Callable[[bytes, bytes | None], None]
Dump = Callable[[], Iterable[tuple[bytes, bytes]]]


class MemoryJournal:
    """Entries count as durable when `settle` is called, in order; `holding=False` makes that at once."""

    def __init__(self, *, holding: bool = False) -> None:
        self.entries: list[tuple[str, bytes, bytes | None]] = []
        self.tickets: list[Any] = []
        self.owners: dict[str, tuple[Apply, Dump]] = {}
        self.holding = holding

    def register(
        self,
        kind: str,
        apply: Apply,
        dump: Dump,
        namespace_of: Callable[[bytes], str] | None = None,
        **how: Any,
    ) -> None:
        self.owners[kind] = (apply, dump)

    def put(self, kind: str, key: bytes, value: bytes | None) -> Any:
        self.entries.append((kind, key, value))
        ticket = Ticket(None)  # type: ignore[arg-type]
        if self.holding:
            self.tickets.append(ticket)
        else:
            ticket.release()
        return ticket

    def settle(self) -> None:
        tickets, self.tickets = self.tickets, []
        for ticket in tickets:
            ticket.release()

    def replay_into(self, other: MemoryJournal, count: int | None = None) -> None:
        """What a restart does with the first `count` entries."""
        for kind, key, value in self.entries[:count]:
            other.owners[kind][0](key, value)

    def snapshot_into(self, other: MemoryJournal) -> None:
        for kind, (_, dump) in self.owners.items():
            for key, value in list(dump()):
                other.owners[kind][0](key, value)
