"""Stored batches on their way to a Kafka client: the compiled code and the plain one give the same bytes."""

from __future__ import annotations

import random

import pytest

from mainstem.codec import _frames_reference
from mainstem.codec.batch import BatchBuilder, make_frame, make_marker, record_count, sent_batches
from mainstem.model.errors import CorruptFrame
from mainstem.model.origin import Origin

LOG_ID = 9


def frames(sizes: list[int], *, origin: int = Origin.KAFKA) -> tuple[bytes, list[bytes]]:
    """Frames of one record each and a lost offset after each, and their batches."""
    data, batches = b"", []
    for number, size in enumerate(sizes):
        builder = BatchBuilder()
        builder.add(None, bytes(size), (), 1_700_000_000_000)
        head, batch = make_frame(builder.seal_batch(0), LOG_ID, number * 2, number + 1, 0, origin, 3, 0)
        batches.append(bytes(batch))
        data += bytes(head) + bytes(batch) + make_marker(LOG_ID, number * 2 + 1, 1, number + 1, 0)
    return data, batches


@pytest.mark.parametrize("largest", [50, 20_000])
def test_both_implementations_send_exactly_the_batches_from_an_offset_on(largest: int) -> None:
    rng = random.Random(largest)
    data, batches = frames([rng.randrange(largest // 2, largest) for _ in range(20)])
    for start in (0, 1, 2, 17, 38, 39, 40):
        expected = b"".join(batches[(start + 1) // 2 :])
        for implementation in (sent_batches, _frames_reference.sent_batches):
            sent = implementation(memoryview(data), LOG_ID, start, 1 << 30)
            assert sent is not None
            found, size, records = sent
            assert b"".join(map(bytes, found)) == expected
            assert (size, records) == (len(expected), len(batches[(start + 1) // 2 :]))
            assert len(found) <= 1 or largest > 4_096


def test_what_is_sent_ends_at_the_limit_but_the_first_batch_is_sent_whole() -> None:
    data, batches = frames([100] * 5 + [9_000] * 5)
    for limit, count in ((0, 1), (1, 1), (2 * len(batches[0]), 2), (2 * len(batches[0]) + 1, 2), (1 << 20, 10)):
        for implementation in (sent_batches, _frames_reference.sent_batches):
            sent = implementation(memoryview(data), LOG_ID, 0, limit)
            assert sent is not None
            assert b"".join(map(bytes, sent[0])) == b"".join(batches[:count])
            assert sent[1:] == (sum(map(len, batches[:count])), count)


def test_records_of_other_protocols_must_be_put_in_kafkas_words_first() -> None:
    data, _ = frames([10, 10], origin=Origin.MQTT)
    assert sent_batches(data, LOG_ID, 0, 1 << 20) is None
    assert _frames_reference.sent_batches(data, LOG_ID, 0, 1 << 20) is None


def test_a_damaged_head_is_never_sent() -> None:
    sound = frames([10, 10])[0]
    for at in (0, 4, 5, 7, 8, 11, 20, 23, 43):
        data = bytearray(sound)
        data[at] ^= 1
        for implementation in (sent_batches, _frames_reference.sent_batches):
            with pytest.raises(CorruptFrame):
                implementation(bytes(data), LOG_ID, 0, 1 << 20)


def test_records_are_counted_without_being_opened() -> None:
    batches = b""
    for count in (1, 7, 3):
        builder = BatchBuilder()
        for _ in range(count):
            builder.add(None, b"v", (), 0)
        batches += bytes(builder.seal_batch(0))
    assert record_count(batches) == _frames_reference.record_count(batches) == 11
    assert record_count(b"") == _frames_reference.record_count(b"") == 0
