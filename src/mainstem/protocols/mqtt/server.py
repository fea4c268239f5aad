"""MQTT's two listeners: TCP, and WebSocket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from mainstem.broker.broker import Broker
from mainstem.protocols.connection import Connection, Server
from mainstem.protocols.mqtt.adapter import MqttConnection
from mainstem.protocols.mqtt.outgoing.outbound import is_crowded, set_tight
from mainstem.protocols.mqtt.service import MqttService
from mainstem.protocols.websocket import FRAME_BYTES_MAX, HANDSHAKE_BYTES_MAX, WebSocketProtocol, WebSocketRules

logger = logging.getLogger("mainstem.mqtt")


class MqttServer(Server):
    """The TCP listener."""

    def __init__(self, broker: Broker, config: Any) -> None:
        super().__init__(broker.ticker, connections_max=config.limits.connections_max)
        self.reads_in_place = True
        self.broker = broker
        self.service = MqttService.of(broker, config)
        self.service.counters.append(self.counters)
        broker.ticker.is_crowded = is_crowded

    def set_tight(self, tight: bool) -> None:
        set_tight(tight)  # of WebSocket connections, too

    def make_connection(self) -> asyncio.Protocol:
        return MqttConnection(self)

    def close_all(self, reason: str) -> None:
        super().close_all(reason)
        self.service.close_when_empty()

    async def run_deadlines(self) -> None:
        loop = asyncio.get_running_loop()
        tasks = loop.create_task(self._run_seconds()), loop.create_task(self.service.sys_topics.run())
        try:
            await super().run_deadlines()
        finally:
            for task in tasks:
                task.cancel()

    async def _run_seconds(self) -> None:
        while True:
            await asyncio.sleep(1)
            try:
                self.service.tick_second()
            except Exception:
                logger.exception("the MQTT second failed; it is tried again")


class MqttWebSocket(WebSocketProtocol):
    """A frame is kept until it is whole: before a login it may not be larger than a CONNECT may."""

    __slots__ = ("_early_bytes", "_early_bytes_max")

    def __init__(self, server: MqttWebSocketServer, rules: WebSocketRules) -> None:
        super().__init__(lambda: MqttConnection(server), rules)
        self._early_bytes, self._early_bytes_max = 0, HANDSHAKE_BYTES_MAX + server.service.limits.connect_bytes_max

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        connection = self._connection
        if connection is None or connection.closing:
            return
        early = connection.state == "new" if isinstance(connection, MqttConnection) else not connection.logged_in()
        if early:
            self._early_bytes += len(data)
            if self._early_bytes > self._early_bytes_max:
                connection.close(f"{self._early_bytes} bytes, and no CONNECT")


class MqttWebSocketServer(Server):
    """The WebSocket listener: the same clients, sessions and service by another door."""

    def __init__(self, broker: Broker, config: Any) -> None:
        super().__init__(broker.ticker, connections_max=config.limits.connections_max)
        self.service = MqttService.of(broker, config)
        self.service.counters.append(self.counters)
        self._rules = WebSocketRules(
            config.mqtt.ws_path,
            ("mqtt", "mqttv3.1"),
            hosts=(config.listeners.host, *config.http.hosts),
            origins=tuple(config.mqtt.ws_origins),
            frame_bytes_max=max(FRAME_BYTES_MAX, self.service.limits.packet_bytes_max),
        )

    def make_connection(self) -> asyncio.Protocol:
        return MqttWebSocket(self, self._rules)

    def serve_path(self, path: str, make: Callable[[], Connection]) -> None:
        """By the same door to another protocol."""
        self._rules.others[path] = make

    def close_all(self, reason: str) -> None:
        super().close_all(reason)
        self.service.close_when_empty()
