"""Objects carry the topics of their records: what is read back is what the frames say, and nothing damaged is believed."""

from __future__ import annotations

import random

import pytest

from mainstem.codec.batch import KIND_DATA, KIND_STATE, BatchBuilder, crc32c, make_marker
from mainstem.model.errors import CorruptFrame
from mainstem.model.origin import Origin, RecordFlag
from mainstem.storage.tier.topics import clipped, decode_topics, encode_topics
from mainstem.storage.topic_columns import TopicColumn, frame_columns

LOG_ID, BASE = 7, 1_000
TOPIC_OF = {5: b"of/kafka"}


class Frames:
    """Frames of a part, one after the other, and the topic of each offset."""

    def __init__(self) -> None:
        self.data, self.next_offset = bytearray(), BASE
        self.topic_at: dict[int, bytes] = {}

    def add(self, *topics: bytes, kind: int = KIND_DATA) -> Frames:
        builder = BatchBuilder()
        for topic in topics:
            builder.add(topic, b"value", (), 0, RecordFlag.KEY_IS_TOPIC)
        self._seal(builder, kind, Origin.MQTT, 0)
        if kind == KIND_DATA:
            self._note(*topics)
        self.next_offset += len(topics)
        return self

    def add_kafka(self, count: int) -> Frames:
        builder = BatchBuilder()
        for _ in range(count):
            builder.add(b"key", b"value", (), 0, 0)
        self._seal(builder, KIND_DATA, Origin.KAFKA, 5)
        self._note(*[TOPIC_OF[5]] * count)
        self.next_offset += count
        return self

    def add_marker(self, count: int) -> Frames:
        self.data += make_marker(LOG_ID, self.next_offset, count, self.next_offset, 0)
        self.next_offset += count
        return self

    def _seal(self, builder: BatchBuilder, kind: int, origin: int, topic_id: int) -> None:
        self.data += bytes(builder.seal_frame(LOG_ID, self.next_offset, self.next_offset, 0, kind, origin, topic_id, 0))

    def _note(self, *topics: bytes) -> None:
        self.topic_at |= {self.next_offset + number: topic for number, topic in enumerate(topics)}

    def encoded(self) -> bytes:
        return encode_topics(memoryview(self.data), LOG_ID, BASE, TOPIC_OF)


def topics_in(columns: list[TopicColumn]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for column in columns:
        for place, number in enumerate(column.numbers):
            if number:
                found[column.base_offset + place] = column.names[number]
    return found


def some_frames() -> Frames:
    frames = Frames().add(b"a", b"b", b"a").add(b"state", kind=KIND_STATE).add_kafka(3).add_marker(50)
    frames.next_offset += 10  # that an unclean stop left out
    return frames.add(b"c/d", b"a")


def test_what_is_read_back_is_what_the_frames_say() -> None:
    frames = some_frames()
    found = decode_topics(frames.encoded(), BASE)
    assert topics_in(found) == frames.topic_at
    assert topics_in(list(frame_columns(memoryview(frames.data), LOG_ID, 0, TOPIC_OF))) == frames.topic_at


@pytest.mark.parametrize("topics", [1, 255, 256, 65_535, 65_536])
def test_places_are_wide_enough_for_any_number_of_topics(topics: int) -> None:
    frames = Frames()
    names = [b"t/%d" % number for number in range(topics)]
    for at in range(0, topics, 10_000):
        frames.add(*names[at : at + 10_000])
    assert topics_in(decode_topics(frames.encoded(), BASE)) == frames.topic_at


def test_a_marker_over_billions_of_offsets_takes_no_memory() -> None:
    frames = Frames().add(b"a").add_marker((1 << 32) - 1)
    assert len(frames.encoded()) < 200
    assert topics_in(decode_topics(frames.encoded(), BASE)) == {BASE: b"a"}


def test_of_a_part_only_what_is_asked_for_is_used() -> None:
    frames = some_frames()
    start, end = BASE + 1, BASE + 6
    found = topics_in(list(clipped(decode_topics(frames.encoded(), BASE), start, end)))
    assert found == {offset: topic for offset, topic in frames.topic_at.items() if start <= offset < end}


def test_nothing_that_is_cut_changed_or_of_another_part_is_believed() -> None:
    encoded = some_frames().encoded()
    for size in range(len(encoded)):
        with pytest.raises(CorruptFrame):
            decode_topics(encoded[:size], BASE)
        changed = bytearray(encoded)
        changed[size] ^= 0x10
        with pytest.raises(CorruptFrame):
            decode_topics(bytes(changed), BASE)
    with pytest.raises(CorruptFrame):
        decode_topics(encoded, BASE + 1)


def test_a_forged_block_is_refused_without_harm() -> None:
    """With a checksum that matches: whatever else it says, it is refused, or gives columns that name only its own topics."""
    encoded, seeded = some_frames().encoded(), random.Random(24)
    for _ in range(2_000):
        forged = bytearray(encoded)
        for _ in range(seeded.randint(1, 4)):
            forged[seeded.randrange(8, len(forged))] = seeded.randrange(256)
        forged[4:8] = crc32c(memoryview(forged)[8:]).to_bytes(4, "little")
        try:
            topics_in(decode_topics(bytes(forged), BASE))
        except CorruptFrame:
            continue
