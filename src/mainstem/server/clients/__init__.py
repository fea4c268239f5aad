"""Small blocking clients for the command line: one file per protocol, on the server's own codecs and a plain socket.

They exist so that nothing else has to be installed to see a message cross protocols. Programs should use the stock
clients (paho, confluent-kafka, pika): that these work is tested elsewhere.
"""

from __future__ import annotations

from mainstem.model.errors import InvalidArgument
from mainstem.server.clients.client import Address, Client, read_address

__all__ = ["Address", "Client", "open_client", "read_address"]


def open_client(address: Address) -> Client:
    """Connect and log in by the address's scheme."""
    if address.scheme == "mqtt":
        from mainstem.server.clients.mqtt import MqttClient

        return MqttClient(address)
    if address.scheme == "kafka":
        from mainstem.server.clients.kafka import KafkaClient

        return KafkaClient(address)
    if address.scheme == "amqp":
        from mainstem.server.clients.amqp import AmqpClient

        return AmqpClient(address)
    raise InvalidArgument(f"no client for {address.scheme}://", fix="use mqtt://, kafka:// or amqp://")
