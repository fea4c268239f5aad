"""Subscriptions that are more than a filter: shared groups, named queues, streams of history, the broker's figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mainstem.broker.sessions.sessions import Subscription
from mainstem.protocols.mqtt.subscribing.filters import Asked, Kind
from mainstem.protocols.mqtt.subscribing.members import Member, join_group, join_queue
from mainstem.protocols.mqtt.subscribing.streams import Stream
from mainstem.protocols.mqtt.subscribing.sys_topics import SysSubscription

if TYPE_CHECKING:
    from mainstem.protocols.mqtt.adapter import MqttConnection


class BrokerSubscription(Protocol):
    def room(self) -> None:
        """The client can take more."""

    def close(self, *, ended: bool) -> None:
        """The client left; `ended`: and does not come back to this subscription."""


def open_broker_subscription(
    connection: MqttConnection,
    asked: Asked,
    subscription: Subscription,
    properties: dict[bytes, bytes],
    *,
    retained: bool,
) -> BrokerSubscription:
    """Begins at once; what it sends before SUBACK is allowed to. May lower the QoS it grants. `retained`: it asks for what
    is retained, which of these only figures are."""
    if asked.kind is Kind.STREAM:
        return Stream(connection, asked, subscription, properties)
    if asked.kind is Kind.SYS:
        subscription.qos = 0
        return SysSubscription(connection, asked.filter, subscription, retained=retained)
    # QoS 2 would bind a message to one member even when that member never comes back [MQTT-4.8.2-4, -5].
    subscription.qos = min(subscription.qos, 1)
    join = join_group if asked.kind is Kind.SHARE else join_queue
    queue = join(connection, asked, properties)
    return Member(connection, queue, subscription, forced=asked.kind is Kind.QUEUE)
