"""`$SYS/broker/...`: the broker's figures under mosquitto's names. They are told, not stored: they are in no log.

To subscribers they are retained messages: Retain Handling says who gets the present ones, Retain As Published how later
ones are flagged.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from mainstem import __version__
from mainstem.broker.sessions.sessions import Subscription
from mainstem.model.origin import Origin
from mainstem.model.record import Record
from mainstem.model.topic_filter import matches
from mainstem.protocols.mqtt.outgoing.outbound import ref_of
from mainstem.protocols.mqtt.session import grant_of

if TYPE_CHECKING:
    from mainstem.protocols.connection import Counters
    from mainstem.protocols.mqtt.adapter import MqttConnection
    from mainstem.protocols.mqtt.service import MqttService

LOAD_MINUTES = (1, 5, 15)


class SysTopics:
    """Works the figures out once per interval and tells whoever subscribed."""

    def __init__(self, service: MqttService, *, interval_seconds: float) -> None:
        self._service = service
        self._interval_seconds = interval_seconds
        self._subscribers: set[SysSubscription] = set()
        self._values: dict[bytes, bytes] = {}
        self._loads: dict[str, list[float]] = {}
        self._last: dict[str, int] = {}
        self._started_ns = service.broker.clock.monotonic_ns()

    def add(self, subscriber: SysSubscription) -> None:
        self._subscribers.add(subscriber)
        if not self._values:
            self._values = self._work_out()
        subscriber.begin(self._values)

    def remove(self, subscriber: SysSubscription) -> None:
        self._subscribers.discard(subscriber)

    async def run(self) -> None:
        """Every interval; what did not change is not sent again."""
        while self._interval_seconds:
            await asyncio.sleep(self._interval_seconds)
            self._update_loads()
            values = self._work_out()
            changed = {topic: value for topic, value in values.items() if self._values.get(topic) != value}
            self._values = values
            for subscriber in list(self._subscribers):
                subscriber.tell(changed)

    def _counted(self) -> dict[str, int]:
        totals = dict.fromkeys(("messages_in", "messages_out", "messages_dropped", "bytes_in", "bytes_out", "total"), 0)
        for counters in self._service.counters:
            totals["messages_in"] += counters.messages_in
            totals["bytes_in"] += counters.bytes_in
            totals["bytes_out"] += counters.bytes_out
            totals["total"] += counters.connections_total
        sent, dropped = self._service.delivered()
        totals["messages_out"], totals["messages_dropped"] = sent, dropped
        return totals

    def _update_loads(self) -> None:
        """Moving averages over 1, 5 and 15 minutes, per minute, as mosquitto tells them."""
        counted = self._counted()
        for name, total in counted.items():
            per_minute = (total - self._last.get(name, 0)) * 60 / self._interval_seconds
            loads = self._loads.setdefault(name, [0.0] * len(LOAD_MINUTES))
            for n, minutes in enumerate(LOAD_MINUTES):
                weight = min(1.0, self._interval_seconds / (60 * minutes))
                loads[n] += (per_minute - loads[n]) * weight
        self._last = counted

    def _work_out(self) -> dict[bytes, bytes]:
        service, counted = self._service, self._counted()
        connected = len(service.clients)
        absent, _ = service.sessions.absent()
        uptime = (service.broker.clock.monotonic_ns() - self._started_ns) // 1_000_000_000
        figures: dict[str, Any] = {
            "version": f"mainstem version {__version__}",
            "uptime": f"{uptime} seconds",
            "clients/connected": connected,
            "clients/active": connected,
            "clients/disconnected": absent,
            "clients/inactive": absent,
            "clients/expired": service.keeper.expired_total,
            "clients/total": connected + absent,
            "clients/maximum": _maximum(service.counters),
            "messages/received": counted["messages_in"],
            "messages/sent": counted["messages_out"],
            "messages/stored": len(service.keeper.all_retained),
            "store/messages/count": len(service.keeper.all_retained),
            "publish/messages/received": counted["messages_in"],
            "publish/messages/sent": counted["messages_out"],
            "publish/messages/dropped": counted["messages_dropped"],
            "retained messages/count": len(service.keeper.all_retained),
            "subscriptions/count": service.subscription_count(),
            "shared_subscriptions/count": service.keeper.share_count(),
            "bytes/received": counted["bytes_in"],
            "bytes/sent": counted["bytes_out"],
        }
        names = {
            "messages_in": ("messages/received", "publish/received"),
            "messages_out": ("messages/sent", "publish/sent"),
            "messages_dropped": ("publish/dropped",),
            "bytes_in": ("bytes/received",),
            "bytes_out": ("bytes/sent",),
            "total": ("connections", "sockets"),
        }
        for counter, topics in names.items():
            for n, minutes in enumerate(LOAD_MINUTES):
                value = self._loads.get(counter, [0.0] * len(LOAD_MINUTES))[n]
                figures.update((f"load/{topic}/{minutes}min", f"{value:.2f}") for topic in topics)
        return {f"$SYS/broker/{name}".encode(): str(value).encode() for name, value in figures.items()}


def _maximum(counters: list[Counters]) -> int:
    return sum(one.connections_maximum for one in counters)


class SysSubscription:
    """One client that wants to know; always QoS 0."""

    def __init__(
        self, connection: MqttConnection, topic_filter: bytes, subscription: Subscription, *, retained: bool
    ) -> None:
        self._connection = connection
        self._filter = topic_filter
        self._grant = grant_of(subscription)
        self._retained = retained
        self._closed = False
        asyncio.get_running_loop().call_soon(self._join)  # after SUBACK, as retained messages come

    def _join(self) -> None:
        if not self._closed and not self._connection.closing:
            self._connection.service.sys_topics.add(self)

    def begin(self, values: dict[bytes, bytes]) -> None:
        if self._retained:
            self._tell(values, retain=True)

    def tell(self, values: dict[bytes, bytes]) -> None:
        self._tell(values, retain=self._grant.retain_as_published)

    def _tell(self, values: dict[bytes, bytes], *, retain: bool) -> None:
        outbound = self._connection.outbound
        for topic, value in values.items():
            if matches(self._filter, topic):
                record = Record(value, origin=Origin.MQTT, topic=topic)
                outbound.offer(ref_of(record), self._grant, retain)

    def room(self) -> None:
        """Figures are told when they are due, not when there is room."""

    def close(self, *, ended: bool) -> None:
        self._closed = True
        self._connection.service.sys_topics.remove(self)
