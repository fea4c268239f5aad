"""Publishes that the hot path leaves to us: `$` topics, and user properties with a meaning to the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstem.protocols.mqtt.packets import Publish
from mainstem.protocols.mqtt.reasons import Reason

if TYPE_CHECKING:
    from mainstem.protocols.mqtt.adapter import MqttConnection


def publish_special(connection: MqttConnection, event: Publish) -> None:
    connection.inbound.answer(None, event.qos, event.packet_id, Reason.TOPIC_NAME_INVALID)
