"""AMQP 0-9-1 bytes. The hot four (publish, deliver, get-ok, ack) go through here without an object per message.

    frame    = u8 type (1 method, 2 content header, 3 body, 8 heartbeat), u16 channel, u32 size, payload, 0xCE
    publish  = method 60.40 (u16, exchange, routing key, bits), header (class 60, u16 0, u64 body size, properties), bodies
    deliver  = method 60.60 (consumer tag, u64 delivery tag, bit redelivered, exchange, routing key), header, bodies
    ack      = method 60.80 (u64 tag, bit multiple)

`Inbound` parses in place. A plain publish goes straight into the open batch of its topic's log (`TargetTable` says where
an exchange and key lead, and is asked again when exchanges change); its properties are kept as sent (header `ms-amqp`).
An ack goes to the sink of its queue. Everything else comes out of `next` as an event. `ChannelWire` keeps a channel's
unsettled deliveries by tag and its unconfirmed publishes by ticket; `Consumer` is what a queue hands records to;
`Outbound` collects a tick's bytes for one write.
"""

from __future__ import annotations

from mainstem.protocols.amqp._channel_wire import ChannelWire, Consumer
from mainstem.protocols.amqp._outbound import Outbound
from mainstem.protocols.amqp._properties import check_properties
from mainstem.protocols.amqp._wire import Inbound, Target, TargetTable

__all__ = ["ChannelWire", "Consumer", "Inbound", "Outbound", "Target", "TargetTable", "check_properties"]
