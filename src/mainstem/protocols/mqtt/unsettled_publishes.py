"""QoS 2 identifiers of clients that left: each belongs to its session once its record is durable.

A client may be lost between a publish and its sync. Until then the identifier is neither pending (if the record is lost, its
repetition must be stored) nor free (else it would be stored twice), so that a client that comes back waits here.
"""

from __future__ import annotations

from collections.abc import Callable

from mainstem.broker.delivery.ticket_waiters import Then
from mainstem.broker.sessions.sessions import Session, Sessions
from mainstem.log.gather import Ticket
from mainstem.protocols.mqtt.wire.wire import Inbound


class UnsettledPublishes:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self.closed = False  # from then on only the last snapshot is written
        self._tickets: dict[Session, list[Ticket]] = {}

    def leave(self, session: Session, inbound: Inbound) -> None:
        """Its client is gone: what it did not release stays with the session."""
        had = bool(session.received)
        session.received = set(inbound.received_ids(True))
        if session.received or had:
            self._sessions.save_received(session)
        for ticket, packet_ids in inbound.unstable():
            self._tickets.setdefault(session, []).append(ticket)
            session.unsettled += 1
            ticket.wait(Then(lambda done, ids=packet_ids: self._settled(session, done, ids)))  # type: ignore[misc]

    def _settled(self, session: Session, ticket: Ticket, packet_ids: list[int]) -> None:
        session.unsettled -= 1
        left = self._tickets.get(session, [])
        if ticket in left:
            left.remove(ticket)
        if not left:
            self._tickets.pop(session, None)
        if ticket.error is None and self._sessions.find(session.key) is session:
            session.received.update(packet_ids)
            if not self.closed:
                self._sessions.save_received(session)

    def after(self, session: Session | None, call: Callable[[], None]) -> bool:
        """Call it when nothing of the session is open any more; False if nothing is, and it was not called."""
        left = self._tickets.get(session) if session is not None else None
        if not left:
            return False
        left[-1].wait(Then(lambda done: None if self.after(session, call) else call()))
        return True
