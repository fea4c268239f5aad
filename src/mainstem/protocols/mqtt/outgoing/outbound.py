"""The outgoing half of an MQTT connection: records out as PUBLISH packets, and what is not acknowledged yet.

It is the session's `Sink`. `push` encodes straight into the connection's output, which is written once per tick. A QoS 0
packet that is the same for every subscriber is made once per record (`Encoder`) and copied. In-flight identifiers are an
array that grows with use: identifier → stamp of its record; the record itself stays in the log.

No room (the client's Receive Maximum, or 1 MiB that it left unread) means: QoS 0 is dropped and counted while live, anything
else is refused and comes again from the log.
"""

from __future__ import annotations

from mainstem.protocols.mqtt.outgoing._encoder import Encoder, Grant, ref_of
from mainstem.protocols.mqtt.outgoing._outbound import Outbound, is_crowded, set_tight

AWAIT_PUBACK, AWAIT_PUBREC, AWAIT_PUBCOMP = 1, 2, 3

__all__ = [
    "AWAIT_PUBACK",
    "AWAIT_PUBCOMP",
    "AWAIT_PUBREC",
    "Encoder",
    "Grant",
    "Outbound",
    "is_crowded",
    "ref_of",
    "set_tight",
]
