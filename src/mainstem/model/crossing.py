"""One message in every protocol's words.

A record rests in the words of the protocol that wrote it (ARCHITECTURE.md). `canonical` reads those into a `Message`; each
dialect's module writes a `Message` in its own. What goes back to the protocol that wrote it does not come through here:
it is passed on as it was sent.

    field             MQTT 5                        Kafka                     AMQP 0-9-1
    key               user property ms-key          record key                header ms-key
    null value        empty, ms-null: 1             null                      empty, header ms-null
    headers           user properties (marks)       headers                   headers table
    content type      Content Type                  content-type              content_type
    content encoding  content-encoding              content-encoding          content_encoding
    reply to          Response Topic                reply-to                  reply_to
    correlation       Correlation Data              correlation-id            correlation_id, x-correlation-id
    message id        message-id                    message-id                message_id
    expiry            Message Expiry Interval       ms-expires-at (ms)        expiration
    priority          priority                      ms-priority               priority
    event time        ms-ts (µs)                    timestamp, rest in ms-ts  timestamp, timestamp_in_ms
    payload format    Payload Format Indicator      ms-format                 ms-format
    retain            RETAIN                        ms-retain                 ms-retain
    type, app id ...  amqp-type, amqp-app-id ...    the same                  type, app_id, user_id, cluster_id

NATS says the same in header lines: Content-Type, Content-Encoding, Correlation-Id, Nats-Msg-Id, Nats-TTL (seconds), Ms-Key,
Ms-Ts, Ms-Null, Ms-Priority, Ms-Format, Ms-Retain, Ms-Origin; the reply subject is reply to.

Marks (MQTT, NATS): a value that is not UTF-8 has `;b64` behind its name, a null one `;null`. Of `ms-*` names a client may
set ms-key, ms-ts, ms-expires-at, ms-deliver-at and ms-priority; any other of its own appears elsewhere as `client.ms-...`.
"""

from __future__ import annotations

from mainstem.model import crossing_amqp, crossing_kafka, crossing_mqtt, crossing_nats
from mainstem.model.crossing_message import Message
from mainstem.model.origin import Origin
from mainstem.model.record import Header, Record

__all__ = [
    "Message",
    "amqp_properties",
    "canonical",
    "headers_for_conditions",
    "kafka_record",
    "kafka_records",
    "mqtt_properties",
    "nats_message",
]

_READERS = {Origin.MQTT: crossing_mqtt.read, Origin.AMQP: crossing_amqp.read, Origin.NATS: crossing_nats.read}


def canonical(record: Record) -> Message:
    """Read a stored record in the words of its origin."""
    message = _READERS.get(record.origin, crossing_kafka.read)(record)
    message.origin = record.origin
    return message


def headers_for_conditions(record: Record) -> list[Header]:
    """What a view's condition sees: the headers, whichever protocol wrote them."""
    if record.origin == Origin.KAFKA:
        return record.headers
    return canonical(record).headers


def kafka_record(record: Record, *, through_view: bool = False) -> Record:
    """For a Kafka consumer: key, value, headers and time of a stored record; its own records unchanged."""
    if record.origin == Origin.KAFKA:
        return crossing_kafka.own(record, through_view=through_view)
    return crossing_kafka.write(canonical(record), record, through_view=through_view)


def kafka_records(records: list[Record], now_ms: int, *, through_view: bool = False) -> list[Record]:
    """The same for many, without those of other protocols that have expired. Kafka's own are the consumer's to judge."""
    shown: list[Record] = []
    for record in records:
        if record.origin == Origin.KAFKA:
            shown.append(crossing_kafka.own(record, through_view=through_view))
            continue
        message = canonical(record)
        if not message.expired(now_ms * 1_000_000):
            shown.append(crossing_kafka.write(message, record, through_view=through_view))
    return shown


def mqtt_properties(record: Record, now_ns: int) -> bytes | None:
    """For an MQTT 5 subscriber: the encoded PUBLISH properties (without their length) of another protocol's record."""
    message, now_ns = canonical(record), max(now_ns, record.stamp)  # the caller's clock may be a moment behind
    return None if message.expired(now_ns) else crossing_mqtt.write(message, now_ns)


def amqp_properties(record: Record, now_ns: int) -> bytes:
    """For an AMQP consumer: the content header's flags and properties of another protocol's record.

    Of an expired one too, with nothing left of its time: a dead letter tells what it was.
    """
    return crossing_amqp.write(canonical(record), max(now_ns, record.stamp))


def nats_message(record: Record, now_ns: int) -> tuple[bytes, bytes] | None:
    """For a NATS subscriber: header block and reply subject of another protocol's record; None if it has expired."""
    message, now_ns = canonical(record), max(now_ns, record.stamp)
    return None if message.expired(now_ns) else crossing_nats.write(message, now_ns)
