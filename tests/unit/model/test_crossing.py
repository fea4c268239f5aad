"""The mapping between protocols: random records with every field, every pair, nothing lost that can be said.

Each origin's stored form is built here from plain facts, written in every other dialect, and read back from that dialect's
bytes by the small readers below, which follow the protocols and not the code under test.
"""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.model.crossing import (
    amqp_properties,
    canonical,
    headers_for_conditions,
    kafka_record,
    kafka_records,
    mqtt_properties,
)
from mainstem.model.origin import Origin, RecordFlag
from mainstem.model.record import Record
from mainstem.model.topic import amqp_key, kafka_name

NOW_NS = 1_700_000_000_000_000_000
STAMP = NOW_NS - 1_000_000_000
TOPIC = b"fleet/7.x/temp"

text = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12)
short = text.map(str.encode)
binary = st.binary(max_size=12)
names = st.sampled_from(
    [b"trace", b"traceparent", b"a", b"x;b64", b"y;null", "naïve".encode(), b"ms-mine", b"id", b"type"]
)


# -- stored forms: what each protocol's adapter writes ----------------------------------------------------------------


def mqtt_record(properties: bytes, value: bytes = b"v", flags: int = 1) -> Record:
    return Record(
        value,
        TOPIC,
        [(b"ms-mqtt", properties)] if properties else [],
        NOW_NS // 1_000_000,
        flags | RecordFlag.KEY_IS_TOPIC,
        5,
        STAMP,
        Origin.MQTT,
        TOPIC,
    )


def amqp_record(properties: bytes, value: bytes = b"v") -> Record:
    flags = 1 | RecordFlag.KEY_IS_TOPIC
    headers = [(b"ms-amqp", properties)]
    return Record(value, TOPIC, list(headers), NOW_NS // 1_000_000, flags, 5, STAMP, Origin.AMQP, TOPIC)


def kafka_written(headers: list[tuple[bytes, bytes | None]], key: bytes | None, value: bytes | None) -> Record:
    return Record(value, key, list(headers), NOW_NS // 1_000_000, 0, 5, STAMP, Origin.KAFKA, TOPIC)


def mqtt_text(value: bytes) -> bytes:
    return len(value).to_bytes(2, "big") + value


def user(name: bytes, value: bytes) -> bytes:
    return b"\x26" + mqtt_text(name) + mqtt_text(value)


def amqp_short(value: bytes) -> bytes:
    return bytes([len(value)]) + value


def amqp_table(entries: list[tuple[bytes, bytes]]) -> bytes:
    body = b"".join(amqp_short(name) + value for name, value in entries)
    return len(body).to_bytes(4, "big") + body


def long_string(value: bytes, kind: bytes = b"S") -> bytes:
    return kind + len(value).to_bytes(4, "big") + value


AMQP_ORDER = [
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
]


def amqp_content(**fields: bytes) -> bytes:
    flags = sum(1 << (15 - AMQP_ORDER.index(name)) for name in fields)
    return flags.to_bytes(2, "big") + b"".join(fields[name] for name in AMQP_ORDER if name in fields)


# -- readers: what a client of each protocol sees ---------------------------------------------------------------------


def read_mqtt(data: bytes) -> tuple[dict[int, Any], list[tuple[bytes, bytes]]]:
    fixed: dict[int, Any] = {}
    pairs: list[tuple[bytes, bytes]] = []
    at = 0

    def take() -> bytes:
        nonlocal at
        size = int.from_bytes(data[at : at + 2], "big")
        at += 2 + size
        assert at <= len(data)
        return data[at - size : at]

    while at < len(data):
        kind = data[at]
        at += 1
        assert kind == 38 or kind not in fixed, "a property stands twice"
        if kind == 1:
            fixed[kind], at = data[at], at + 1
        elif kind == 2:
            fixed[kind], at = int.from_bytes(data[at : at + 4], "big"), at + 4
        elif kind == 38:
            name, value = take(), take()
            name.decode()
            value.decode()
            pairs.append((name, value))
        else:
            fixed[kind] = take()
            if kind != 9:
                fixed[kind].decode()
    return fixed, pairs


def read_amqp_value(data: bytes, at: int) -> tuple[tuple[str, Any], int]:
    kind, at = chr(data[at]), at + 1
    if kind in "Sx":
        size = int.from_bytes(data[at : at + 4], "big")
        return (kind, data[at + 4 : at + 4 + size]), at + 4 + size
    if kind == "V":
        return (kind, None), at
    if kind in "lTI":
        size = 4 if kind == "I" else 8
        return (kind, int.from_bytes(data[at : at + size], "big", signed=True)), at + size
    if kind == "t":
        return (kind, data[at] != 0), at + 1
    assert kind == "A", kind
    end = at + 4 + int.from_bytes(data[at : at + 4], "big")
    at += 4
    items = []
    while at < end:
        item, at = read_amqp_value(data, at)
        items.append(item)
    return (kind, items), end


def read_amqp(data: bytes) -> tuple[dict[str, bytes], dict[bytes, tuple[str, Any]]]:
    flags, at = int.from_bytes(data[:2], "big"), 2
    fields: dict[str, bytes] = {}
    headers: dict[bytes, tuple[str, Any]] = {}
    for index, name in enumerate(AMQP_ORDER):
        if not flags & 1 << (15 - index):
            continue
        if name == "headers":
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            at += 4
            while at < end:
                key = data[at + 1 : at + 1 + data[at]]
                assert key not in headers, "an AMQP table has each name once"
                headers[key], at = read_amqp_value(data, at + 1 + data[at])
        else:
            size = {"delivery_mode": 1, "priority": 1, "timestamp": 8}.get(name)
            if size is None:
                size, at = data[at], at + 1
            fields[name], at = data[at : at + size], at + size
    assert at == len(data)
    return fields, headers


def unmark(pairs: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes | None]]:
    found: list[tuple[bytes, bytes | None]] = []
    for name, value in pairs:
        if name.endswith(b";null"):
            found.append((name[:-5], None))
        elif name.endswith(b";b64"):
            found.append((name[:-4], b64decode(value, validate=True)))
        else:
            found.append((name, value))
    return found


def from_client(headers: list[tuple[bytes, bytes | None]]) -> list[tuple[bytes, bytes | None]]:
    """What other protocols call a client's headers."""
    return [(b"client." + name if name.startswith(b"ms-") else name, value) for name, value in headers]


def broker_free(headers: list[tuple[bytes, bytes | None]]) -> list[tuple[bytes, bytes | None]]:
    return [(name, value) for name, value in headers if not name.startswith(b"ms-")]


# -- Kafka to the others ----------------------------------------------------------------------------------------------

kafka_headers = st.lists(st.tuples(names, short | binary | st.none()), max_size=6)


@settings(max_examples=300, deadline=None)
@given(kafka_headers, st.none() | binary, st.none() | binary)
def test_kafka_headers_key_and_value_reach_mqtt(
    headers: list[tuple[bytes, bytes | None]], key: bytes | None, value: bytes | None
) -> None:
    record = kafka_written(headers, key, value)
    data = mqtt_properties(record, NOW_NS)
    assert data is not None
    _, pairs = read_mqtt(data)
    seen = unmark(pairs)
    assert broker_free(seen) == from_client(headers)
    assert (b"ms-origin", b"kafka") in seen
    assert [v for n, v in seen if n == b"ms-key"] == ([] if key is None or key == TOPIC else [key])
    assert ((b"ms-null", b"1") in seen) == (value is None)


@settings(max_examples=300, deadline=None)
@given(kafka_headers, st.none() | binary, st.none() | binary)
def test_kafka_headers_key_and_value_reach_amqp(
    headers: list[tuple[bytes, bytes | None]], key: bytes | None, value: bytes | None
) -> None:
    data = amqp_properties(kafka_written(headers, key, value), NOW_NS)
    assert data is not None
    fields, table = read_amqp(data)
    expected: dict[bytes, list[bytes | None]] = {}
    for name, header in from_client(headers):
        expected.setdefault(name, []).append(header)
    for name, values in expected.items():
        kind, seen = table[name]
        assert ([item for _, item in seen] if kind == "A" else [seen]) == values
        assert (kind == "A") == (len(values) > 1)
    assert table[b"ms-origin"] == ("S", b"kafka")
    assert (b"ms-null" in table) == (value is None)
    assert (b"ms-key" in table) == (key is not None and key != TOPIC)
    assert fields["delivery_mode"] == b"\2"


def test_a_kafka_record_comes_back_to_kafka_as_it_was() -> None:
    headers: list[tuple[bytes, bytes | None]] = [(b"ms-origin", b"forged"), (b"a", None), (b"a", b"")]
    record = kafka_written(headers, None, None)
    home = kafka_record(record)
    assert (home.key, home.value, home.headers, home.time_ms) == (None, None, headers, record.time_ms)
    through_view = kafka_record(record, through_view=True)
    assert through_view.headers == [*headers, (b"ms-topic", TOPIC)]


def test_a_clients_ms_names_are_kept_apart_but_its_own_fields_count() -> None:
    record = kafka_written([(b"ms-origin", b"forged"), (b"ms-priority", b"7")], None, b"v")
    assert canonical(record).priority == 7
    assert headers_for_conditions(record) == record.headers
    data = mqtt_properties(record, NOW_NS)
    assert data is not None
    _, pairs = read_mqtt(data)
    assert (b"client.ms-origin", b"forged") in pairs
    assert (b"priority", b"7") in pairs
    assert [value for name, value in pairs if name == b"ms-origin"] == [b"kafka"]


@pytest.mark.parametrize("value", [b"not/a/kafka/name", b"", b"\xff", b"reply queue"])
def test_a_reply_to_that_is_no_topic_stays_a_header(value: bytes) -> None:
    record = kafka_written([(b"reply-to", value)], None, b"v")
    assert canonical(record).reply_to is None
    assert canonical(record).headers == [(b"reply-to", value)]
    assert mqtt_properties(record, NOW_NS) is not None
    assert amqp_properties(record, NOW_NS) is not None


# -- MQTT to the others -----------------------------------------------------------------------------------------------

mqtt_pairs = st.lists(
    st.tuples(st.sampled_from([b"trace", b"a", b"ms-mine", "naïve".encode(), b"traceparent"]), short), max_size=6
)


@settings(max_examples=300, deadline=None)
@given(mqtt_pairs, st.none() | short, st.none() | binary, st.booleans(), st.integers(2, 1 << 31))
def test_mqtt_properties_reach_kafka_and_amqp(
    pairs: list[tuple[bytes, bytes]], content_type: bytes | None, correlation: bytes | None, utf8: bool, expiry_s: int
) -> None:
    data = b"\1\1" if utf8 else b""
    data += b"\2" + expiry_s.to_bytes(4, "big") + b"\x08" + mqtt_text(b"replies/10.0.0.1")
    if content_type is not None:
        data += b"\3" + mqtt_text(content_type)
    if correlation is not None:
        data += b"\x09" + mqtt_text(correlation)
    record = mqtt_record(data + b"".join(user(name, value) for name, value in pairs), flags=1 | RecordFlag.RETAIN)
    expected = from_client(list(pairs))

    seen = kafka_record(record)
    assert (seen.key, seen.value) == (TOPIC, b"v")
    told = dict(seen.headers)
    fields = {b"content-type", b"correlation-id", b"reply-to"}
    assert [h for h in broker_free(seen.headers) if h[0] not in fields] == expected
    assert told.get(b"content-type") == content_type
    assert told.get(b"correlation-id") == correlation
    assert told[b"reply-to"] == kafka_name(b"replies/10.0.0.1").encode()
    assert int(told[b"ms-expires-at"] or b"") == STAMP // 1_000_000 + expiry_s * 1000
    assert (b"ms-format" in told) is utf8
    assert told[b"ms-retain"] == b"1"
    assert told[b"ms-origin"] == b"mqtt"

    properties = amqp_properties(record, NOW_NS)
    assert properties is not None
    amqp, table = read_amqp(properties)
    assert amqp["reply_to"] == amqp_key(b"replies/10.0.0.1")
    assert amqp.get("content_type") == content_type
    assert int(amqp["expiration"]) == expiry_s * 1000 - 1000
    if correlation is not None:
        spoken = amqp.get("correlation_id") or table.get(b"x-correlation-id", ("S", b""))[1]
        assert spoken == correlation


def test_what_has_expired_is_delivered_to_nobody() -> None:
    record = mqtt_record(b"\2" + (1).to_bytes(4, "big"))
    assert mqtt_properties(record, STAMP + 1_000_000_000) is None
    assert kafka_records([record], (STAMP + 1_000_000_000) // 1_000_000) == []
    assert len(kafka_records([record], (STAMP + 999_000_000) // 1_000_000)) == 1


def test_an_expired_message_keeps_its_properties_as_a_dead_letter() -> None:
    record = mqtt_record(b"\2" + (1).to_bytes(4, "big") + b"\x26\x00\x01a\x00\x01b")
    amqp, table = read_amqp(amqp_properties(record, STAMP + 5_000_000_000))
    assert amqp["expiration"] == b"0"
    assert table[b"a"] == ("S", b"b")


def test_mqtt_counts_remaining_seconds_up() -> None:
    record = kafka_written([(b"ms-expires-at", b"%d" % (NOW_NS // 1_000_000 + 1500))], None, b"v")
    data = mqtt_properties(record, NOW_NS)
    assert data is not None
    assert read_mqtt(data)[0][2] == 2


# -- AMQP to the others -----------------------------------------------------------------------------------------------

TYPED: list[tuple[bytes, bytes, bytes | None]] = [
    (b"bool", b"t\1", b"true"),
    (b"i8", b"b\xff", b"-1"),
    (b"u8", b"B\xff", b"255"),
    (b"i16", b"s" + struct.pack(">h", -300), b"-300"),
    (b"u16", b"u" + struct.pack(">H", 40000), b"40000"),
    (b"i32", b"I" + struct.pack(">i", -7), b"-7"),
    (b"u32", b"i" + struct.pack(">I", 4_000_000_000), b"4000000000"),
    (b"i64", b"l" + struct.pack(">q", -(1 << 62)), b"-4611686018427387904"),
    (b"d", b"d" + struct.pack(">d", 0.5), b"0.5"),
    (b"f", b"f" + struct.pack(">f", 0.5), b"0.5"),
    (b"dec", b"D\2" + struct.pack(">i", 12345), b"123.45"),
    (b"time", b"T" + struct.pack(">Q", 1_700_000_000), b"1700000000"),
    (b"bytes", long_string(b"\xff\0", b"x"), b"\xff\0"),
    (b"text", long_string("é".encode()), "é".encode()),
    (b"void", b"V", None),
]


@pytest.mark.parametrize(("name", "raw", "shown"), TYPED, ids=lambda value: repr(value))
def test_a_typed_amqp_header_reads_as_text_in_kafka(name: bytes, raw: bytes, shown: bytes | None) -> None:
    record = amqp_record(amqp_content(headers=amqp_table([(name, raw)])))
    seen = kafka_record(record).headers
    assert (name, shown) in seen
    kept = [value for key, value in seen if key == b"ms-amqp-headers"]
    assert kept == ([] if raw[:1] in b"SxV" else [amqp_table([(name, raw)])])


def test_nested_amqp_tables_read_as_json_and_keep_their_encoding() -> None:
    inner = amqp_table([(b"n", b"I" + struct.pack(">i", 1)), (b"s", long_string(b"x"))])
    array = long_string(b"I" + struct.pack(">i", 2) + b"t\0", b"A")
    table = amqp_table([(b"nested", b"F" + inner), (b"list", array)])
    seen = dict(kafka_record(amqp_record(amqp_content(headers=table))).headers)
    assert json.loads(seen[b"nested"] or b"") == {"n": 1, "s": "x"}
    assert json.loads(seen[b"list"] or b"") == [2, False]
    assert seen[b"ms-amqp-headers"] == table


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.sampled_from([b"a", b"trace", b"ms-mine", b"x;b64"]), short | binary, max_size=4),
    st.integers(0, 255),
    short,
)
def test_amqp_properties_reach_kafka_and_mqtt(headers: dict[bytes, bytes], priority: int, message_id: bytes) -> None:
    table = amqp_table([(name, long_string(value)) for name, value in headers.items()])
    record = amqp_record(
        amqp_content(
            content_type=amqp_short(b"text/plain"),
            content_encoding=amqp_short(b"gzip"),
            headers=table,
            priority=bytes([priority]),
            correlation_id=amqp_short(b"c-1"),
            reply_to=amqp_short(b"replies.a%2Eb"),
            expiration=amqp_short(b"60000"),
            message_id=amqp_short(message_id),
            type=amqp_short(b"order"),
            app_id=amqp_short(b"shop"),
        )
    )
    told = kafka_record(record).headers
    assert dict(told)[b"content-type"] == b"text/plain"
    assert dict(told)[b"content-encoding"] == b"gzip"
    assert dict(told)[b"message-id"] == message_id
    assert dict(told)[b"correlation-id"] == b"c-1"
    assert dict(told)[b"reply-to"] == kafka_name(b"replies/a.b").encode()
    assert dict(told)[b"ms-priority"] == b"%d" % priority
    assert dict(told)[b"amqp-type"] == b"order"
    assert dict(told)[b"amqp-app-id"] == b"shop"
    for header in from_client(list(headers.items())):
        assert header in told

    data = mqtt_properties(record, NOW_NS)
    assert data is not None
    fixed, pairs = read_mqtt(data)
    seen = unmark(pairs)
    assert fixed[3] == b"text/plain"
    assert fixed[8] == b"replies/a.b"
    assert fixed[9] == b"c-1"
    assert fixed[2] == 59
    assert (b"priority", b"%d" % priority) in seen
    assert (b"content-encoding", b"gzip") in seen
    assert (b"message-id", message_id) in seen
    assert (b"amqp-type", b"order") in seen
    for header in from_client(list(headers.items())):
        assert header in seen


# -- times, CloudEvents, odd sizes ------------------------------------------------------------------------------------


def test_microseconds_survive_into_every_protocol() -> None:
    micros = NOW_NS // 1000 + 123
    record = mqtt_record(user(b"ms-ts", b"%d" % micros))
    seen = kafka_record(record)
    assert seen.time_ms == micros // 1000
    assert dict(seen.headers)[b"ms-ts"] == b"%d" % micros
    properties = amqp_properties(record, NOW_NS)
    assert properties is not None
    fields, table = read_amqp(properties)
    assert int.from_bytes(fields["timestamp"], "big") == micros // 1_000_000
    assert table[b"timestamp_in_ms"][1] == micros // 1000
    assert table[b"ms-ts"] == ("S", b"%d" % micros)


def test_the_topic_that_the_broker_notes_beside_a_key_is_no_header_of_the_publisher() -> None:
    headers = [(b"ms-topic", b"a/b"), (b"own", b"1"), (b"ms-topic", b"mine")]
    record = Record(b"v", b"k", headers, NOW_NS // 1_000_000, stamp=NOW_NS, origin=Origin.HTTP, topic=b"a/b")
    assert kafka_record(record).headers[:2] == [(b"own", b"1"), (b"client.ms-topic", b"mine")]


def test_when_to_deliver_reaches_every_protocol() -> None:
    due_ms = NOW_NS // 1_000_000 + 5000
    for record in (
        kafka_written([(b"ms-deliver-at", b"%d" % due_ms)], None, b"v"),
        mqtt_record(user(b"ms-deliver-at", b"%d" % due_ms)),
        amqp_record(amqp_content(headers=amqp_table([(b"ms-deliver-at", long_string(b"%d" % due_ms))]))),
    ):
        assert (b"ms-deliver-at", b"%d" % due_ms) in kafka_record(record).headers
        as_mqtt, as_amqp = mqtt_properties(record, NOW_NS), amqp_properties(record, NOW_NS)
        assert as_mqtt is not None
        assert as_amqp is not None
        assert (b"ms-deliver-at", b"%d" % due_ms) in read_mqtt(as_mqtt)[1]
        assert read_amqp(as_amqp)[1][b"ms-deliver-at"] == ("S", b"%d" % due_ms)


EVENT = {b"specversion": b"1.0", b"id": b"1", b"source": b"/x", b"type": b"t", b"time": b"2026-01-01T00:00:00Z"}


def test_cloud_events_carry_each_bindings_own_prefix() -> None:
    mqtt = mqtt_record(b"".join(user(name, value) for name, value in EVENT.items()))
    assert {(b"ce_" + name, value) for name, value in EVENT.items()} <= set(kafka_record(mqtt).headers)
    as_amqp = amqp_properties(mqtt, NOW_NS)
    assert as_amqp is not None
    _, table = read_amqp(as_amqp)
    assert all(table[b"cloudEvents:" + name][1] == value for name, value in EVENT.items())

    kafka = kafka_written([(b"ce_" + name, value) for name, value in EVENT.items()], None, b"v")
    as_mqtt = mqtt_properties(kafka, NOW_NS)
    assert as_mqtt is not None
    assert set(EVENT.items()) <= set(read_mqtt(as_mqtt)[1])

    for prefix in (b"cloudEvents:", b"cloudEvents_"):
        entries = [(prefix + name, long_string(value)) for name, value in EVENT.items()]
        told = kafka_record(amqp_record(amqp_content(headers=amqp_table(entries)))).headers
        assert {(b"ce_" + name, value) for name, value in EVENT.items()} <= set(told)


def test_a_structured_cloud_event_is_left_alone() -> None:
    data = b"\3" + mqtt_text(b"application/cloudevents+json") + user(b"specversion", b"1.0") + user(b"id", b"1")
    assert (b"id", b"1") in kafka_record(mqtt_record(data)).headers


def test_a_value_too_long_for_mqtt_is_left_out_whole_and_named() -> None:
    record = kafka_written([(b"big", b"\xff" * 60_000), (b"small", b"s")], None, b"v")
    data = mqtt_properties(record, NOW_NS)
    assert data is not None
    _, pairs = read_mqtt(data)
    assert (b"small", b"s") in pairs
    assert not [name for name, _ in pairs if name.startswith(b"big")]
    assert (b"ms-left-out", b"big") in pairs


def test_a_long_name_does_not_fit_into_an_amqp_table_and_is_named_too() -> None:
    record = kafka_written([(b"n" * 300, b"v"), (b"small", b"s")], None, b"v")
    data = amqp_properties(record, NOW_NS)
    assert data is not None
    _, table = read_amqp(data)
    assert table[b"small"] == ("S", b"s")
    assert not [name for name in table if name.startswith(b"nnn")]
    assert table[b"ms-left-out"][1].startswith(b"nnn")


@pytest.mark.parametrize("name", [b"\xff\xfe", b"a\0b", b"\xc3"])
def test_a_name_that_is_not_text_never_makes_a_malformed_packet(name: bytes) -> None:
    record = kafka_written([(name, b"v")], None, b"v")
    data = mqtt_properties(record, NOW_NS)
    assert data is not None
    _, pairs = read_mqtt(data)
    assert b"v" in [value for key, value in pairs if b"\0" not in key]
    properties = amqp_properties(record, NOW_NS)
    assert properties is not None
    assert ("S", b"v") in read_amqp(properties)[1].values()
