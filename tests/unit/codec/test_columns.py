"""The compiled column codec against its oracle, and both against what was put in."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.codec import columns
from mainstem.codec.columns import Column
from mainstem.codec.compression import inflate
from mainstem.model.errors import CorruptFrame, MessageTooLarge, UnreadableBatch
from mainstem.model.origin import Origin, RecordFlag
from tests.oracles import column_batches
from tests.oracles import columns as oracle
from tests.oracles.batch import BatchBuilder, crc32c, make_frame, make_marker

LOG_ID = 77
ALL = int(sum(Column))
DECODERS = (columns.ColumnDecoder, oracle.ColumnDecoder)
PARTITIONERS = (columns.key_partitions, column_batches.key_partitions)
ENCODERS = (columns.encode_rows, column_batches.encode_rows)


@dataclass
class Stored:
    """A record as the test put it into a frame."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]
    time_ms: int
    flags: int


def bounded(method: int, data: bytes) -> bytes:
    return inflate(method, data, 1 << 20)


def resolve(topic: bytes | int) -> columns.TopicRow | None:
    name = b"numbered/%d" % topic if isinstance(topic, int) else topic
    if name.startswith(b"no"):
        return None
    return name.replace(b"/", b"."), name, name.split(b"/"), 3, 0, 1 << 62


def frame_of(
    records: list[Stored],
    base: int,
    *,
    origin: int = Origin.MQTT,
    topic_id: int = 0,
    attributes: int = 0,
    producer: int = -1,
) -> bytes:
    builder = BatchBuilder()
    for record in records:
        builder.add(record.key, record.value, record.headers, record.time_ms, record.flags)
    batch = builder.seal_batch(base, attributes=attributes, producer_id=producer)
    return b"".join(make_frame(batch, LOG_ID, base, 1000 + base, 0, origin, topic_id, 4))


def decode_all(decoder: Any, data: bytes, rows_max: int = 3) -> list[dict[int, tuple[Any, ...]]]:
    decoder.feed(data)
    taken = []
    more = True
    while more:
        more = decoder.decode(rows_max, 1 << 20)
        if decoder.rows:
            taken.append(plain(decoder.take()))
    return taken


def plain(part: Any) -> Any:
    """Buffers as bytes, so that both decoders' answers compare."""
    if isinstance(part, dict):
        return {key: plain(value) for key, value in part.items()}
    if isinstance(part, tuple):
        return tuple(plain(value) for value in part)
    return part if part is None or isinstance(part, int) else bytes(part)


def values_of(columns: list[dict[int, tuple[Any, ...]]], column: Column) -> list[bytes | None]:
    values: list[bytes | None] = []
    for part in columns:
        valid, offsets, data, _ = part[column]
        ends = struct.unpack(f"<{len(offsets) // 4}i", offsets)
        for row in range(len(ends) - 1):
            is_set = valid is None or valid[row >> 3] >> (row & 7) & 1
            values.append(data[ends[row] : ends[row + 1]] if is_set else None)
    return values


def numbers_of(columns: list[dict[int, tuple[Any, ...]]], column: Column, code: str = "q") -> list[int]:
    size = struct.calcsize(code)
    return [n for part in columns for n in struct.unpack(f"<{len(part[column][0]) // size}{code}", part[column][0])]


headers = st.lists(
    st.tuples(st.sampled_from([b"a", b"content-type", b"\xff\xfe", b"ms-mqtt"]), st.none() | st.binary(max_size=9)),
    max_size=3,
)
records = st.builds(
    Stored,
    key=st.none() | st.sampled_from([b"", b"a/b", b"a/c", b"no/thanks", b"x" * 200]),
    value=st.none() | st.binary(max_size=40),
    headers=headers,
    time_ms=st.integers(-10, 2**41),
    flags=st.sampled_from([0, 1, 8, 9]),
)
batches = st.tuples(
    st.lists(records, min_size=1, max_size=8),
    st.integers(0, 5),  # a gap in front
    st.sampled_from([Origin.MQTT, Origin.AMQP, Origin.KAFKA, Origin.SPARK, Origin.HTTP]),
    st.sampled_from([0, 0, 7, 9]),
    st.sampled_from([0, 1, 2, 3, 4, 8, 16, 32, 48]),
)


def stream_of(drawn: list[Any]) -> tuple[bytes, int]:
    frames, offset = [], 0
    for items, gap, origin, topic_id, attributes in drawn:
        if gap == 5:
            frames.append(make_marker(LOG_ID, offset, 5, 1000 + offset, 0))
        offset += gap
        frames.append(frame_of(items, offset, origin=origin, topic_id=topic_id, attributes=attributes, producer=9))
        offset += len(items)
    return b"".join(frames) + bytes(100), offset


@settings(max_examples=150, deadline=None)
@given(
    st.lists(batches, max_size=6),
    st.integers(0, 30),
    st.integers(0, 60),
    st.integers(1, 9),
    st.sampled_from([None, b"one/topic", b"no"]),
)
def test_the_compiled_decoder_equals_the_plain_one(
    drawn: list[Any], start: int, end: int, rows_max: int, topic: bytes | None
) -> None:
    data, _ = stream_of(drawn)
    options: dict[str, Any] = {
        "start": start, "end": end, "topic": topic, "log_id": LOG_ID, "aborted": [(9, 3, 8)],
        "translate": lambda origin, count, encoded: [(b"translated", b"%d" % origin), (b"size", None)],
    }  # fmt: skip
    decoders = [make(ALL, resolve, bounded, **options) for make in DECODERS]
    answers = [decode_all(decoder, data, rows_max) for decoder in decoders]
    assert answers[0] == answers[1]
    assert (decoders[0].position, decoders[0].finished) == (decoders[1].position, decoders[1].finished)
    offsets = numbers_of(answers[0], Column.OFFSET)
    assert all(start <= offset < end for offset in offsets)
    assert offsets == sorted(set(offsets))


@pytest.mark.parametrize("method", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("make", DECODERS)
def test_records_come_back_as_they_were_put(make: Any, method: int) -> None:
    put = [
        Stored(b"dev/1", b"hot", [(b"a", b"1"), (b"a", None)], 1000, RecordFlag.KEY_IS_TOPIC),
        Stored(None, None, [], 1001, 0),
        Stored(b"", b"", [], 999, 0),
    ]
    data = frame_of(put, 40, origin=Origin.KAFKA, topic_id=5, attributes=method)
    columns = decode_all(make(ALL, resolve, bounded, log_id=LOG_ID), data)
    assert values_of(columns, Column.KEY) == [b"dev/1", None, b""]
    assert values_of(columns, Column.VALUE) == [b"hot", None, b""]
    assert values_of(columns, Column.TOPIC) == [b"numbered.5"] * 3
    assert values_of(columns, Column.CANONICAL) == [b"numbered/5"] * 3
    assert values_of(columns, Column.ORIGIN) == [b"kafka"] * 3
    assert numbers_of(columns, Column.ORIGIN_NUMBER, "i") == [Origin.KAFKA] * 3
    assert numbers_of(columns, Column.OFFSET) == [40, 41, 42]
    assert numbers_of(columns, Column.STAMP) == [1040, 1041, 1042]
    assert numbers_of(columns, Column.TIMESTAMP) == [1_000_000, 1_001_000, 999_000]
    assert numbers_of(columns, Column.FLAGS, "i") == [8, 0, 0]
    assert values_of(columns, Column.BATCH) == [data if method else data[:109], None, None]
    valid, offsets, nulls, count, names, values = columns[0][Column.HEADERS]
    assert (valid, struct.unpack("<4i", offsets), nulls, count) == (b"\x01", (0, 2, 2, 2), 2, 2)
    assert names[2] == b"aa"
    assert values[2:] == (b"1", 1)


@pytest.mark.parametrize("make", DECODERS)
def test_a_shared_log_is_filtered_by_topic_and_asks_once_for_each(make: Any) -> None:
    asked: list[bytes | int] = []

    def ask(topic: bytes | int) -> columns.TopicRow | None:
        asked.append(topic)
        return resolve(topic)

    topics = [b"a/1", b"no/1", b"a/2", b"no/2"] * 500
    put = [Stored(topic, b"%d" % i, [], i, RecordFlag.KEY_IS_TOPIC) for i, topic in enumerate(topics)]
    put.append(Stored(b"k", b"by header", [(b"ms-topic", b"a/1")], 0, 0))
    columns = decode_all(make(Column.VALUE | Column.CANONICAL, ask, bounded), frame_of(put, 0), 100_000)
    assert sorted(asked, key=str) == [b"a/1", b"a/2", b"no/1", b"no/2"]
    assert values_of(columns, Column.VALUE) == [b"%d" % i for i in range(0, 2000, 2)] + [b"by header"]
    assert values_of(columns, Column.CANONICAL)[-1] == b"a/1"


@pytest.mark.parametrize("make", DECODERS)
def test_each_topic_may_have_its_own_range(make: Any) -> None:
    def ranged(topic: bytes | int) -> columns.TopicRow:
        return b"t", b"t", [b"t"], 0, 2 if topic == b"a" else 0, 4 if topic == b"b" else 9

    put = [Stored(b"a" if i % 2 else b"b", None, [], 0, RecordFlag.KEY_IS_TOPIC) for i in range(8)]
    columns = decode_all(make(Column.OFFSET, ranged, bounded), frame_of(put, 0))
    assert numbers_of(columns, Column.OFFSET) == [0, 2, 3, 5, 7]


@pytest.mark.parametrize("make", DECODERS)
def test_more_topics_than_are_remembered_still_come_back(make: Any) -> None:
    topics = [b"t/%d" % (i % 70_000) for i in range(80_000)]
    put = [Stored(topic, None, [], 0, RecordFlag.KEY_IS_TOPIC) for topic in topics]
    columns = decode_all(make(Column.CANONICAL, resolve, bounded), frame_of(put, 0), 1 << 30)
    assert values_of(columns, Column.CANONICAL) == topics


@pytest.mark.parametrize("make", DECODERS)
def test_content_types_are_found_where_each_protocol_keeps_them(make: Any) -> None:
    mqtt = b"\x26\x00\x01k\x00\x01v" + b"\x01\x01" + b"\x03\x00\x0aapp/json-1" + b"\x02\x00\x00\x00\x09"
    amqp = b"\x80\x00\x08text/csv"
    frames = [
        frame_of([Stored(b"a", b"", [(b"ms-mqtt", mqtt)], 0, 8)], 0, origin=Origin.MQTT),
        frame_of([Stored(b"a", b"", [(b"ms-mqtt", b"\x01\x00")], 0, 8)], 1, origin=Origin.MQTT),
        frame_of([Stored(b"a", b"", [(b"ms-amqp", amqp)], 0, 8)], 2, origin=Origin.AMQP),
        frame_of([Stored(b"a", b"", [(b"content-type", b"x/y")], 0, 8)], 3, origin=Origin.KAFKA, topic_id=1),
        frame_of([Stored(b"a", b"", [], 0, 8)], 4, origin=Origin.MQTT),
    ]
    columns = decode_all(make(Column.CONTENT_TYPE, resolve, bounded), b"".join(frames))
    assert values_of(columns, Column.CONTENT_TYPE) == [b"app/json-1", None, b"text/csv", b"x/y", None]


@pytest.mark.parametrize("make", DECODERS)
@pytest.mark.parametrize(("place", "why"), [(0, "no frame"), (20, "header's checksum"), (120, "batch's checksum")])
def test_damage_is_refused_and_named(make: Any, place: int, why: str) -> None:
    data = bytearray(frame_of([Stored(b"a", b"value" * 10, [], 0, 8)], 0))
    data[place] ^= 1
    with pytest.raises(CorruptFrame, match=why):
        decode_all(make(ALL, resolve, bounded, log_id=LOG_ID), bytes(data))


@pytest.mark.parametrize("make", DECODERS)
def test_an_unfinished_frame_waits_for_the_rest(make: Any) -> None:
    first, second = (frame_of([Stored(b"a", b"%d" % i, [], 0, 8)], i) for i in range(2))
    decoder = make(Column.VALUE, resolve, bounded, log_id=LOG_ID)
    columns = decode_all(decoder, first + second[:-1])
    assert decoder.consumed == len(first)
    columns += decode_all(decoder, second)
    assert values_of(columns, Column.VALUE) == [b"0", b"1"]


@pytest.mark.parametrize("make", DECODERS)
def test_inflating_stays_within_its_limit(make: Any) -> None:
    data = frame_of([Stored(None, bytes(3 << 20), [], 0, 0)], 0, origin=Origin.KAFKA, topic_id=1, attributes=4)
    with pytest.raises(UnreadableBatch) as raised:
        decode_all(make(Column.VALUE, resolve, bounded), data)
    assert isinstance(raised.value.__cause__, MessageTooLarge)


def broken(frame: bytes, place: int, byte: int) -> bytes:
    """The frame with a byte of its batch changed, and a checksum that fits: as a careless client might send it."""
    batch = bytearray(frame[48:])
    batch[place] = byte
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return frame[:48] + bytes(batch)


@pytest.mark.parametrize("make", DECODERS)
@pytest.mark.parametrize(
    ("method", "place", "byte", "read", "why"),
    [
        (0, 61 + 3 * 9, 0x7F, 3, "longer than its batch"),  # the size of record 3
        (0, 61 + 3 * 9 + 3, 0x02, 3, "offset is not its batch's"),  # its offset is record 1's
        (0, 61 + 3 * 9 + 3, 0x20, 3, "offset is not its batch's"),  # its offset is beyond the batch
        (0, 61 + 3 * 9 + 8, 0x0C, 3, "longer than its batch"),  # it has six headers
        (0, 60, 9, 5, "longer than its batch"),  # more records than there are
        (4, 62, 0xFF, 0, "cannot be read"),  # not zstd
    ],
)
def test_a_batch_that_cannot_be_read_is_given_whole_and_passed_over(
    make: Any, method: int, place: int, byte: int, read: int, why: str
) -> None:
    put = [Stored(b"a", b"%d" % i, [], 0, 0) for i in range(5)]
    bad = broken(frame_of(put, 10, origin=Origin.KAFKA, topic_id=1, attributes=method), place, byte)
    after = frame_of([Stored(b"a", b"fine", [], 0, 0)], 15, origin=Origin.KAFKA, topic_id=1)
    decoder = make(Column.VALUE | Column.OFFSET | Column.BATCH, resolve, bounded, log_id=LOG_ID)
    decoder.feed(bad + after)
    with pytest.raises(UnreadableBatch, match=why):
        decoder.decode(100, 1 << 20)
    assert decoder.pass_unreadable() == (bad, 10 + read)
    assert not decoder.decode(100, 1 << 20)
    assert numbers_of([plain(decoder.take())], Column.OFFSET) == [*range(10, 10 + read), 15]
    assert decoder.position == 16
    assert decoder.consumed == len(bad + after)


@pytest.mark.parametrize("make", DECODERS)
def test_times_beyond_every_calendar_are_shown_as_the_nearest_and_kept_whole(make: Any) -> None:
    frame = frame_of([Stored(b"a", b"", [], 2**60, 0), Stored(b"a", b"", [], 5, 0)], 0, origin=Origin.KAFKA, topic_id=1)
    columns = decode_all(make(Column.TIMESTAMP | Column.BATCH, resolve, bounded, log_id=LOG_ID), frame)
    assert numbers_of(columns, Column.TIMESTAMP) == [253_402_300_799_999_000, 5000]
    assert values_of(columns, Column.BATCH) == [frame, None]


def column_of(values: list[bytes | None], shift: int = 0) -> tuple[Any, ...]:
    """A binary column whose first `shift` rows belong to someone else, as slices of Arrow arrays do."""
    valid, offsets, data, _ = oracle.binary_buffers([b"other"] * shift + values)
    return valid, offsets, data, shift


@settings(max_examples=100, deadline=None)
@given(
    st.lists(records, max_size=12),
    st.integers(0, 9),
    st.sampled_from([0, 4]),
    st.booleans(),
    st.none() | st.just(b"named/topic"),
)
def test_rows_become_batches_and_rows_again(
    items: list[Stored], shift: int, compression: int, picked: bool, topic: bytes | None
) -> None:
    list_offsets = [0]
    for item in items:
        list_offsets.append(list_offsets[-1] + len(item.headers))
    pairs = [pair for item in items for pair in item.headers]
    times = [0] * shift + [item.time_ms * 1000 + 7 for item in items]
    order = list(range(len(items)))[::-1] if picked else None
    arguments: dict[str, Any] = {
        "key": column_of([item.key for item in items], shift),
        "value": column_of([item.value for item in items], shift),
        "headers": (
            None, struct.pack(f"<{len(list_offsets)}i", *list_offsets), 0,
            column_of([name for name, _ in pairs]), column_of([value for _, value in pairs]),
        ),
        "times": (None, struct.pack(f"<{len(times)}q", *times), shift),
        "batch_bytes_max": 200,
        "compression": compression,
        "topic": topic,
    }  # fmt: skip
    rows = None if order is None else struct.pack(f"<{len(order)}i", *order)
    answers = [encode(rows, 0, len(items), **arguments) for encode in ENCODERS]
    assert answers[0] == answers[1]
    assert sum(count for count, _ in answers[0]) == len(items)
    offset, found = 0, []
    for count, batch in answers[0]:
        number = 6 if topic is None else 0
        frame = b"".join(make_frame(batch, LOG_ID, offset, offset, 0, Origin.SPARK, number, 0))
        found += decode_all(columns.ColumnDecoder(ALL, resolve, bounded, log_id=LOG_ID), frame)
        offset += count
    expected = [items[row] for row in order] if order is not None else items
    assert values_of(found, Column.CANONICAL) == [topic or b"numbered/6"] * len(items)
    assert values_of(found, Column.KEY) == [item.key for item in expected]
    assert values_of(found, Column.VALUE) == [item.value for item in expected]
    assert numbers_of(found, Column.TIMESTAMP) == [item.time_ms * 1000 for item in expected]


@pytest.mark.parametrize("encode", ENCODERS)
def test_a_row_beyond_the_record_limit_is_refused(encode: Any) -> None:
    with pytest.raises(MessageTooLarge, match="row 1 makes a record of 50 bytes, limit 49"):
        encode(None, 0, 2, value=column_of([b"x", b"y" * 50]), record_bytes_max=49)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.none() | st.binary(max_size=20), max_size=20), st.integers(1, 50))
def test_keys_choose_the_partition_that_kafka_producers_choose(keys: list[bytes | None], partitions: int) -> None:
    answers = [make(len(keys), column_of(keys), partitions) for make in PARTITIONERS]
    assert answers[0] == answers[1]


def test_more_topics_than_are_remembered_lose_no_row_its_own() -> None:
    """The table of topics starts anew in the middle of a batch; rows before it mean the topics they were read with."""
    names = [b"plant/%d/t" % number for number in range(70_000)]
    builder = BatchBuilder()
    for number in (*range(70_000), 3, 69_999):
        builder.add(names[number], None, [], 1, RecordFlag.KEY_IS_TOPIC)
    data = b"".join(make_frame(builder.seal_batch(0), LOG_ID, 0, 1, 0, Origin.MQTT, 0, 0))
    wanted = Column.TOPIC | Column.CANONICAL | Column.LEVELS | Column.ORIGIN | Column.PARTITION
    decoder = columns.ColumnDecoder(int(wanted), resolve, bounded, log_id=LOG_ID)
    decoder.feed(data)
    assert not decoder.decode(1 << 20, 1 << 30)
    taken = [plain(decoder.take())]
    expected = [*names, names[3], names[69_999]]
    assert values_of(taken, Column.CANONICAL) == expected
    assert values_of(taken, Column.TOPIC) == [name.replace(b"/", b".") for name in expected]
    assert set(values_of(taken, Column.ORIGIN)) == {b"mqtt"}
    assert set(numbers_of(taken, Column.PARTITION, "i")) == {3}
    ends, count, levels = taken[0][Column.LEVELS]
    assert count == 3 * len(expected)
    assert struct.unpack(f"<{len(expected) + 1}i", ends) == tuple(range(0, 3 * len(expected) + 1, 3))
    assert values_of([{Column.VALUE: levels}], Column.VALUE) == [
        level for name in expected for level in name.split(b"/")
    ]
