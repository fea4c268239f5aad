"""Records of other protocols in MQTT's words, and what a stream tells of each delivery."""

from __future__ import annotations

from mainstem.broker.delivery.live import RecordRef
from mainstem.model.crossing import mqtt_properties
from mainstem.protocols.mqtt.wire.properties import Property, encode_property


def translate(record: RecordRef, now_ns: int) -> bytes | None:
    """The PUBLISH properties of a record that another protocol wrote; None if it has expired."""
    return mqtt_properties(record.outline(), now_ns)


def describe(record: RecordRef) -> bytes:
    """Where a record lies, as user properties: its offset and when it was appended (µs)."""
    pairs = ((b"ms-offset", record.offset), (b"ms-append-ts", record.stamp // 1000))
    return b"".join(encode_property(Property.USER_PROPERTY, (name, str(value).encode())) for name, value in pairs)
