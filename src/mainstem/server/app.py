"""The wiring: one broker, its protocols' listeners, the HTTP door. The only place that knows them all."""

from __future__ import annotations

import asyncio
import importlib
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mainstem.broker.broker import Broker, BrokerOptions
from mainstem.broker.policy import Policy
from mainstem.protocols.connection import Server as ProtocolServer
from mainstem.server.settings import Config

logger = logging.getLogger("mainstem.server")

# Adding a protocol is one folder and one line: listener name, its port's setting, module, class.
PROTOCOLS = (
    ("mqtt", "mqtt_port", "mainstem.protocols.mqtt.adapter", "MqttServer"),
    ("ws", "ws_port", "mainstem.protocols.mqtt.adapter", "MqttWebSocketServer"),
    ("kafka", "kafka_port", "mainstem.protocols.kafka.adapter", "KafkaServer"),
    ("amqp", "amqp_port", "mainstem.protocols.amqp.adapter", "AmqpServer"),
)


def broker_options(config: Config) -> BrokerOptions:
    known = Policy.__dataclass_fields__
    defaults = Policy(**{name: value for name, value in asdict(config.topics).items() if name in known})
    rules = {
        topic_filter: {name: value for name, value in asdict(policy).items() if value is not None}
        for topic_filter, policy in config.policies.items()
    }
    return BrokerOptions(Path(config.data.directory), defaults, rules)


class App:
    """Start it, ask it for its ports, stop it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.broker = Broker(broker_options(config))
        self.servers: dict[str, ProtocolServer] = {}
        self.ports: dict[str, int] = {}
        self._listeners: list[asyncio.Server] = []
        self._tasks: list[asyncio.Task[Any]] = []

    async def start(self) -> None:
        await self.broker.open()
        for name, _, module, class_name in PROTOCOLS:
            make = getattr(importlib.import_module(module), class_name)
            self.servers[name] = make(self.broker, self.config)
        applied = self.broker.recover_journal()
        logger.info("recovered %d entries of state", applied)
        self.broker.start()
        loop = asyncio.get_running_loop()
        for name, setting, _, _ in PROTOCOLS:
            server = self.servers[name]
            self._tasks.append(loop.create_task(server.run_deadlines()))
            port = getattr(self.config.listeners, setting)
            if port is not None:
                await self._listen(name, server, port)

    async def _listen(self, name: str, server: Any, port: int) -> None:
        listeners = self.config.listeners
        listener = await asyncio.get_running_loop().create_server(
            server.make_connection, listeners.host, port, backlog=listeners.backlog
        )
        self._listeners.append(listener)
        self.ports[name] = listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Take no one new, say goodbye, write and sync everything, mark it clean."""
        for listener in self._listeners:
            listener.close()
        for server in self.servers.values():
            server.close_all("the broker is shutting down")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.broker.close()
