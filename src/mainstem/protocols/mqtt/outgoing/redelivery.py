"""What was in flight when a client left and catching up does not bring: its subscription is gone, or its record.

Once a delivery has begun it is completed, also for a filter that was unsubscribed from [MQTT-3.10.4-4, MQTT-4.4.0-1]: it is
found by its stamp. What is gone from the log gives its packet identifier back, or the client's window would stay smaller.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING

from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.sessions.sessions import Flight
from mainstem.codec.batch import decode_frames
from mainstem.log.away import bring
from mainstem.log.inflating import inflate_soon
from mainstem.model.record import Record
from mainstem.protocols.mqtt.outgoing.outbound import Grant, ref_of
from mainstem.storage.engine import NotLocal

if TYPE_CHECKING:
    from mainstem.protocols.mqtt.adapter import MqttConnection

INFLATED_BYTES_MAX = 64 << 20


class Redelivery:
    """Of one connection; looked at every second until nothing is left."""

    __slots__ = ("_bringing", "_connection", "_lost")

    def __init__(self, connection: MqttConnection) -> None:
        self._connection = connection
        self._lost: deque[Flight] | None = None  # known when catching up has passed all that was in flight
        self._bringing = False

    def go_on(self) -> bool:
        """Send what there is room for; True when nothing is left."""
        connection, outbound, session = self._connection, self._connection.outbound, self._connection.session
        if connection.closing or session is None:
            return True
        if self._lost is None:
            if not outbound.live and session.redelivers(outbound.position):
                return False
            self._lost = deque(session.lost_flight())
        if self._bringing:
            return False
        try:
            while self._lost and self._send(self._lost[0]):
                self._lost.popleft()
        except NotLocal as missing:
            self._bringing = True
            bring(missing, self._brought)
        if outbound.progress:
            connection.on_progress()
        return not self._lost

    def _brought(self) -> None:
        self._bringing = False  # tried again within a second

    def _send(self, flight: Flight) -> bool:
        """False if there is no room for it now."""
        connection, outbound = self._connection, self._connection.outbound
        packet_id, state, stamp = flight
        if flight not in outbound.flight():
            return True  # acknowledged meanwhile
        assert connection.namespace is not None
        record = record_at(connection.namespace, stamp)
        if record is None or (outbound.allows is not None and not outbound.allows(record.topic)):
            outbound.forget(packet_id)
            return True
        return bool(outbound.offer(ref_of(record), Grant(state, packet_id=packet_id)))


def record_at(namespace: Namespace, stamp: int) -> Record | None:
    """The record with that stamp, whatever its topic; None if retention or a deletion took it."""
    for log, topic in namespace.logs_of(b"#"):
        piece = log.read_now(log.offset_of_stamp(stamp), 1) if log.last_stamp >= stamp else None
        if piece is None:
            continue
        frames = decode_frames(
            piece.data, log.id, inflated_bytes_max=INFLATED_BYTES_MAX, inflate=inflate_soon, topic_of=namespace.topic_of
        )
        for record in frames:
            if record.stamp == stamp:
                if log.low_marks is not None and not log.low_marks.visible(array("q", [record.offset])):
                    return None
                record.topic = record.topic or topic or b""
                return record
    return None
