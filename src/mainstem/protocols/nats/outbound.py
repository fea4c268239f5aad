"""The outgoing half of a NATS connection: records as messages, written once per tick.

    MSG subject sid [reply] size CR LF payload CR LF
    HMSG subject sid [reply] header-size size CR LF headers payload CR LF

A connection's plain subscriptions are one sink; a queue group is one for all its members, of which each record goes to one.
A sink that has no room is served from the log when it has, like any other. What a record says (subject, reply, headers) is
worked out once, however many subscriptions it has; the plain `tests/oracles/nats_wire.py` says the same.
"""

from __future__ import annotations

from mainstem.protocols.nats._outbound import Encoder, GroupSink, Outbound, PlainSink, Subscription

__all__ = ["Encoder", "GroupSink", "Outbound", "PlainSink", "Subscription"]
