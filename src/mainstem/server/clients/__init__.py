"""Small blocking clients for the command line: one file per protocol, on the server's own codecs and a plain socket.

They exist so that nothing else has to be installed to see a message cross protocols. Programs should use the stock
clients (paho, confluent-kafka, pika): that these work is tested elsewhere.
"""

from __future__ import annotations

from mainstem.model.errors import InvalidArgument
from mainstem.server.clients.client import Address, Client, read_address
from mainstem.server.protocols import by_name, load

__all__ = ["Address", "Client", "open_client", "read_address"]


def open_client(address: Address) -> Client:
    """Connect and log in by the address's scheme."""
    protocol = by_name().get(address.scheme)
    if protocol is None:
        raise InvalidArgument(
            f"no client for {address.scheme}://", fix=f"use {', '.join(f'{one}://' for one in by_name())}"
        )
    client: Client = load(protocol.client)(address)
    return client
