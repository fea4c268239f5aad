"""Publishes that the hot path leaves to us: `$` topics, and user properties with a meaning to the broker.

    $delayed/<seconds>/<topic>      published to <topic> when it is due
    $SYS $share $queue $stream      refused: nobody publishes there
    any other $ topic               an ordinary topic that no leading wildcard matches

    ms-key          the record's key (`ms-key;b64`: in base 64), instead of the topic
    ms-ts           event time, µs since 1970
    ms-expires-at   ms since 1970; takes the place of a longer message expiry
    ms-deliver-at   ms since 1970, at most 366 days ahead: published when it is due

A time is a whole number of at most 18 digits; a publish with anything else is refused. They stay among the
user properties: what goes back to MQTT is what came. All other `ms-` names are a client's own.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mainstem.broker.rights.access import Action
from mainstem.broker.sessions.keeper import QOS_2_DELAYED, QOS_2_IDENTITY
from mainstem.log.gather import Ticket
from mainstem.model.errors import InvalidArgument, InvalidName, MainstemError, MessageTooLarge, NotAuthorized
from mainstem.model.origin import Origin
from mainstem.model.record import Header
from mainstem.model.topic_filter import check_topic
from mainstem.model.whole_numbers import whole_number
from mainstem.protocols import large
from mainstem.protocols.mqtt.wire.packets import V5, LargePublish, Publish
from mainstem.protocols.mqtt.wire.properties import (
    IN_PUBLISH,
    Properties,
    Property,
    Reader,
    decode_properties,
    encode_bare,
    encode_varint,
)
from mainstem.protocols.mqtt.wire.reasons import Reason, Violation, reason_of

if TYPE_CHECKING:
    from mainstem.protocols.mqtt.adapter import MqttConnection

REFUSED = (b"$SYS", b"$share", b"$queue", b"$stream")
DELAY_SECONDS_MAX = 366 * 86_400
DIGITS_MAX = 18  # of a time, as in all protocols
NS_PER_MS = 1_000_000


@dataclass(slots=True)
class Understood:
    """What a publish says beyond its bytes."""

    topic: bytes
    properties: bytes
    key: bytes | None = None
    time_ms: int | None = None
    due_ms: int | None = None


def publish_large(connection: MqttConnection, event: LargePublish) -> None:
    namespace = connection.namespace
    assert namespace is not None
    ticket = large.publish_large(connection, event.record, lambda: namespace.route(event.topic), Origin.MQTT)
    if event.qos:
        connection.inbound.answer(ticket, event.qos, event.packet_id)


def publish_special(connection: MqttConnection, event: Publish) -> None:
    """Store it, or answer why not; a client that cannot be told is disconnected."""
    connection.service.check_topic_bytes(event.topic)
    try:
        ticket = _publish(connection, event)
    except MainstemError as error:
        if isinstance(error, Violation):
            raise
        reason = Reason.QUOTA_EXCEEDED if isinstance(error, MessageTooLarge) else reason_of(error)
        if not event.qos or (connection.version != V5 and reason != Reason.NOT_AUTHORIZED):
            raise Violation(reason, error.message) from None
        connection.inbound.answer(None, event.qos, event.packet_id, reason)
    else:
        connection.inbound.answer(ticket, event.qos, event.packet_id)


def _publish(connection: MqttConnection, event: Publish) -> Ticket:
    service, namespace = connection.service, connection.namespace
    assert namespace is not None and connection.principal is not None
    now_ms = service.broker.clock.now_ns() // NS_PER_MS
    understood = _understand(event, now_ms)
    limits = service.limits
    check_topic(understood.topic, bytes_max=limits.topic_bytes_max, levels_max=limits.topic_levels_max)
    if not service.broker.access.allows(connection.principal, Action.PUBLISH, understood.topic):
        connection.refused_publish(understood.topic)
        raise NotAuthorized(f"user {connection.principal.name} may not publish {understood.topic.decode()!r}")
    client_id = connection.outbound.client_id
    delayed = understood.due_ms is not None and understood.due_ms > now_ms
    headers: tuple[Header, ...] = ()
    if event.qos == 2 and connection.inbound.durable:
        identity = event.packet_id.to_bytes(2, "big") + client_id
        headers = ((QOS_2_DELAYED if delayed else QOS_2_IDENTITY, identity),)
    if delayed:
        assert understood.due_ms is not None
        return service.delay(
            namespace,
            understood.due_ms,
            understood.topic,
            event.payload,
            qos=event.qos,
            retain=event.retain,
            properties=understood.properties,
            key=understood.key,
            headers=headers,
            time_ms=understood.time_ms,
        )
    return service.publish(
        namespace,
        understood.topic,
        event.payload,
        qos=event.qos,
        retain=event.retain,
        properties=understood.properties,
        client_id=client_id,
        key=understood.key,
        headers=headers,
        time_ms=understood.time_ms,
    )


def _understand(event: Publish, now_ms: int) -> Understood:
    understood = Understood(event.topic, event.properties)
    first, _, rest = event.topic.partition(b"/")
    if first in REFUSED:
        raise InvalidName(f"nobody publishes to {first.decode()}")
    if first == b"$delayed":
        text, _, understood.topic = rest.partition(b"/")
        seconds = whole_number(text)
        if seconds is None or seconds > DELAY_SECONDS_MAX or not understood.topic:
            raise InvalidName(f"a delayed topic is $delayed/<seconds, at most {DELAY_SECONDS_MAX}>/<topic>")
        if understood.topic.startswith(b"$"):
            raise InvalidName("a delayed message goes to an ordinary topic")
        understood.due_ms = now_ms + seconds * 1000
    if event.properties:
        _understand_properties(understood, now_ms)
    return understood


def _understand_properties(understood: Understood, now_ms: int) -> None:
    data = encode_varint(len(understood.properties)) + understood.properties
    properties = decode_properties(Reader(data), IN_PUBLISH, user_properties_max=len(data))
    for name, value in properties.get(Property.USER_PROPERTY, ()):
        if name == b"ms-key":
            understood.key = value
        elif name == b"ms-key;b64":
            understood.key = _base64(value)
        elif name == b"ms-ts":
            understood.time_ms = _number(name, value) // 1000
        elif name == b"ms-deliver-at":
            understood.due_ms = _due_ms(_number(name, value), now_ms)
        elif name == b"ms-expires-at":
            _shorten_expiry(understood, properties, _number(name, value), now_ms)


def _shorten_expiry(understood: Understood, properties: Properties, expires_ms: int, now_ms: int) -> None:
    left = max(0, -(-(expires_ms - now_ms) // 1000))
    if left < properties.get(Property.MESSAGE_EXPIRY, 0xFFFFFFFF):
        properties[Property.MESSAGE_EXPIRY] = left
        understood.properties = encode_bare(properties)


def _number(name: bytes, value: bytes) -> int:
    number = whole_number(value, DIGITS_MAX)
    if number is None:
        shown = value[:30].decode(errors="replace")
        raise InvalidArgument(
            f"user property {name.decode()} is {shown!r}, not a whole number of at most {DIGITS_MAX} digits"
        )
    return number


def _due_ms(asked_ms: int, now_ms: int) -> int:
    if asked_ms > now_ms + DELAY_SECONDS_MAX * 1000:
        raise InvalidArgument(f"user property ms-deliver-at is more than {DELAY_SECONDS_MAX} seconds ahead")
    return asked_ms


def _base64(value: bytes) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        raise InvalidArgument("user property ms-key;b64 is not base 64") from None
