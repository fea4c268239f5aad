"""Subscriptions that are more than a filter: shared groups, named queues, streams of history, the broker's figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mainstem.broker.sessions import Subscription
from mainstem.model.errors import InvalidArgument
from mainstem.protocols.mqtt.filters import Asked

if TYPE_CHECKING:
    from mainstem.protocols.mqtt.adapter import MqttConnection


class Special(Protocol):
    def room(self) -> None:
        """The client can take more."""

    def close(self, *, ended: bool) -> None:
        """The client left; `ended`: and does not come back to this subscription."""


def open_special(
    connection: MqttConnection, asked: Asked, subscription: Subscription, properties: dict[bytes, bytes]
) -> Special:
    raise InvalidArgument(f"{asked.kind.value} is not there yet")
