"""The incoming half of an MQTT connection: one pass over what a socket read brought.

`receive(bytes)`, then `next(time_ms)` until it returns None. On the way to each packet that needs a decision (returned as
an event of `packets`) everything hot is done in place:

    PUBLISH                    parsed where it lies, its topic found in the `RouteTable`, put into the open batch of its log
    PUBACK PUBREC PUBCOMP      handed to the outgoing half, which has an array of what is in flight
    PUBREL                     answered at once, or after `complete(ticket)` where the release must be durable first

A publisher's acks wait for the tickets of their records in one queue, so that they leave in publish order even when two
logs are synced in another. Only an unfinished packet is kept between reads; its size is checked before it is buffered.
"""

from __future__ import annotations

from mainstem.protocols._routes import RouteTable
from mainstem.protocols.mqtt.wire._wire import Inbound

MARK_CLIENT_WANTED = 1  # of a route: a No Local subscription may want to know who published

MARK_CHECKED = 2  # values must fit a schema
MARK_LIVE = 4  # nothing is stored: only QoS 0 without retain

__all__ = ["MARK_CHECKED", "MARK_CLIENT_WANTED", "MARK_LIVE", "Inbound", "RouteTable"]
