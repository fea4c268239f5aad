"""CloudEvents in binary mode: each binding has its own prefix for the same attributes.

    Kafka ce_id      MQTT id      AMQP cloudEvents:id (cloudEvents_id is read too)      NATS ce-id      inside: ce_id

Renamed only where `specversion` is there and the content is not itself a CloudEvent. MQTT's bare names are taken as
attributes only if they are CloudEvents' own; an extension attribute cannot be told from another user property.
"""

from __future__ import annotations

from mainstem.model.record import Header

PREFIX = b"ce_"
AMQP_PREFIXES = (b"cloudEvents:", b"cloudEvents_")
NATS_PREFIXES = (b"ce-",)
NAMES = frozenset((b"id", b"source", b"specversion", b"type", b"subject", b"time", b"dataschema"))
STRUCTURED = b"application/cloudevents"


def _names(headers: list[Header]) -> set[bytes]:
    return {name for name, _ in headers}


def from_mqtt(headers: list[Header], content_type: bytes | None) -> list[Header]:
    if b"specversion" not in _names(headers) or (content_type or b"").startswith(STRUCTURED):
        return headers
    return [(PREFIX + name if name in NAMES else name, value) for name, value in headers]


def to_mqtt(headers: list[Header]) -> list[Header]:
    names = _names(headers)
    if PREFIX + b"specversion" not in names:
        return headers
    renamed: list[Header] = []
    for name, value in headers:
        bare = name.removeprefix(PREFIX)
        renamed.append((bare if bare != name and bare not in names else name, value))
    return renamed


def from_prefixed(headers: list[Header], content_type: bytes | None, prefixes: tuple[bytes, ...]) -> list[Header]:
    """Of a binding with a prefix: any of `prefixes`."""
    present = _names(headers)
    prefix = next((p for p in prefixes if p + b"specversion" in present), None)
    if prefix is None or (content_type or b"").startswith(STRUCTURED):
        return headers
    return [(PREFIX + name[len(prefix) :] if name.startswith(prefix) else name, value) for name, value in headers]


def to_prefixed(headers: list[Header], prefix: bytes) -> list[Header]:
    if PREFIX + b"specversion" not in _names(headers):
        return headers
    return [(prefix + name[len(PREFIX) :] if name.startswith(PREFIX) else name, value) for name, value in headers]
