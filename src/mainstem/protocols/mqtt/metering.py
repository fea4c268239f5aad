"""What an MQTT client's quotas ask of its connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstem.protocols.metering import Metering
from mainstem.protocols.mqtt.wire.reasons import Reason

if TYPE_CHECKING:
    from mainstem.broker.namespaces.quotas import Member
    from mainstem.model.errors import QuotaExceeded
    from mainstem.protocols.mqtt.adapter import MqttConnection


class MqttMetering(Metering):
    __slots__ = ()

    connection: MqttConnection

    def set_meter(self, meter: Member | None) -> None:
        connection = self.connection
        before, connection.meter = connection.meter, meter
        connection.metered_bytes = connection.outbound.bytes_sent
        if (before is None) != (meter is None) and hasattr(connection.transport, "set_protocol"):
            connection.transport.set_protocol(connection)  # the loop's own (TLS) keeps `data_received` as it was

    def published_count(self) -> int:
        return self.connection.inbound.messages

    def end(self, error: QuotaExceeded) -> None:
        self.connection.say_goodbye(Reason.QUOTA_EXCEEDED, error.message)
