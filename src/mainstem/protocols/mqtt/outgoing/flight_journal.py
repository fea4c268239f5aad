"""What is written down of one connection's deliveries before their packets leave, for a session that outlives us.

QoS 2   PUBLISH waits until its identifier is synced, PUBREL until the PUBREC is: once means once, also after a power cut
QoS 1   identifiers are written, not synced, in the tick that gives them out and before its packets leave: after kill -9
        a delivery comes again with its identifier and DUP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainstem.broker.delivery.ticket_waiters import Then
from mainstem.log.gather import Ticket

if TYPE_CHECKING:
    from mainstem.protocols.mqtt.adapter import MqttConnection


class FlightJournal:
    __slots__ = ("_connection", "_held_ticket")

    def __init__(self, connection: MqttConnection) -> None:
        self._connection = connection
        self._held_ticket: Ticket | None = None

    def choose(self, record: Any) -> Any:
        """For the outgoing half while it catches up."""
        connection = self._connection
        assert connection.session is not None
        grant = connection.session.choose(record)
        if grant is not None and connection.saved is not None:
            connection.service.session_moved(connection.saved)
        return grant

    def note_begun(self) -> None:
        """The first QoS 1 identifier since the session's place was written down."""
        connection = self._connection
        if connection.saved is not None:
            connection.service.flight_begun(connection.saved)

    def note_held(self) -> None:
        """QoS 2 publishes wait until their identifiers are journaled."""
        self._connection.service.broker.ticker.after_tick(self._save_held)

    def write_assigned(self) -> None:
        """Before a place is written that passes what they are of: a power cut may cut the journal off between the two."""
        connection = self._connection
        if connection.saved is not None and (assigned := connection.outbound.take_assigned()):
            self._held_ticket = connection.service.sessions.save_flight(connection.saved, assigned, [])

    def _save_held(self) -> None:
        connection = self._connection
        assigned, packets = connection.outbound.take_held()
        if not packets or connection.saved is None:
            return
        if assigned:
            self._held_ticket = connection.service.sessions.save_flight(connection.saved, assigned, [])
        ticket = self._held_ticket  # without new identifiers: the order behind those that wait is all there is to keep
        assert ticket is not None
        ticket.wait(Then(lambda done: self._send_if_durable(done, packets)))

    def _send_if_durable(self, ticket: Ticket, packets: bytes) -> None:
        if ticket.error is not None:
            self._connection.fail(ticket.error)
        elif not self._connection.closing:
            self._connection.outbound.write_held(packets)

    def note_recorded(self) -> None:
        self._connection.service.broker.ticker.after_tick(self._save_recorded)

    def _save_recorded(self) -> None:
        connection = self._connection
        recorded = connection.outbound.take_recorded()
        if recorded and connection.saved is not None:
            ticket = connection.service.sessions.save_flight(connection.saved, [], recorded)
            ticket.wait(Then(lambda done: self._release_if_durable(done, recorded)))

    def _release_if_durable(self, ticket: Ticket, packet_ids: list[int]) -> None:
        if ticket.error is not None:
            self._connection.fail(ticket.error)
        elif not self._connection.closing:
            self._connection.outbound.release(packet_ids)
