"""Stored batches on their way to a Kafka client: the compiled code and the plain one give the same bytes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mainstem.codec.batch import BatchBuilder, make_frame, make_marker, pack_batches, record_count, sent_batches
from mainstem.model.errors import CorruptFrame
from mainstem.model.origin import Origin
from tests.oracles import frames as oracle

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
        for implementation in (sent_batches, oracle.sent_batches):
            sent = implementation(memoryview(data), LOG_ID, start, 1 << 30)
            assert sent is not None
            found, size, records = sent
            assert b"".join(map(bytes, found)) == expected
            assert (size, records) == (len(expected), len(batches[(start + 1) // 2 :]))
            assert len(found) <= 1 or largest > 4_096


def test_what_is_sent_ends_at_the_limit_but_the_first_batch_is_sent_whole() -> None:
    data, batches = frames([100] * 5 + [9_000] * 5)
    for limit, count in ((0, 1), (1, 1), (2 * len(batches[0]), 2), (2 * len(batches[0]) + 1, 2), (1 << 20, 10)):
        for implementation in (sent_batches, oracle.sent_batches):
            sent = implementation(memoryview(data), LOG_ID, 0, limit)
            assert sent is not None
            assert b"".join(map(bytes, sent[0])) == b"".join(batches[:count])
            assert sent[1:] == (sum(map(len, batches[:count])), count)


def test_records_of_other_protocols_must_be_put_in_kafkas_words_first() -> None:
    data, _ = frames([10, 10], origin=Origin.MQTT)
    assert sent_batches(data, LOG_ID, 0, 1 << 20) is None
    assert oracle.sent_batches(data, LOG_ID, 0, 1 << 20) is None


def test_a_damaged_head_is_never_sent() -> None:
    sound = frames([10, 10])[0]
    for at in (0, 4, 5, 7, 8, 11, 20, 23, 43):
        data = bytearray(sound)
        data[at] ^= 1
        for implementation in (sent_batches, oracle.sent_batches):
            with pytest.raises(CorruptFrame):
                implementation(bytes(data), LOG_ID, 0, 1 << 20)


PACKERS = (pack_batches, oracle.pack_batches)


@pytest.mark.parametrize("pack", PACKERS)
@pytest.mark.parametrize("largest", [50, 20_000])
def test_batches_are_packed_where_they_were_read(pack: Any, largest: int) -> None:
    rng = random.Random(largest)
    data, batches = frames([rng.randrange(largest // 2, largest) for _ in range(20)])
    for start, end in ((0, 100), (1, 100), (2, 40), (17, 30), (38, 39), (0, 1)):
        buffer = bytearray(data)
        expected = batches[(start + 1) // 2 : (end + 1) // 2]
        size, records, after = pack(buffer, LOG_ID, start, end, 1 << 30)
        assert bytes(buffer[:size]) == b"".join(expected)
        assert (records, after) == (len(expected), min(end, 40))


@pytest.mark.parametrize("pack", PACKERS)
def test_what_is_packed_ends_at_the_limit_at_a_cut_or_at_damage(pack: Any) -> None:
    data, batches = frames([100] * 5 + [9_000] * 5)
    step = len(data) - len(frames([100] * 5 + [9_000] * 4)[0])
    small = 96 + len(batches[0])  # a frame and the lost offset behind it
    for limit, count in ((0, 1), (small - 48, 1), (2 * small - 49, 1), (2 * small - 48, 2), (1 << 20, 10)):
        buffer = bytearray(data)
        assert pack(buffer, LOG_ID, 0, 100, limit)[:2] == (sum(map(len, batches[:count])), count)
        assert bytes(buffer).startswith(b"".join(batches[:count]))
    for cut in (1, 47, 48, 49, 100, step - 1, step, step + 20):
        assert pack(bytearray(data[:-cut]), LOG_ID, 0, 100, 1 << 20)[1] == 10 - (cut + step - 49) // step
    for at in (0, 4, 8, 20, 43, 48 + 5, 48 + 11, 48 + 16):
        damaged = bytearray(data)
        damaged[3 * small + at] ^= 1
        assert pack(damaged, LOG_ID, 0, 100, 1 << 20)[1] == 3


@pytest.mark.parametrize("pack", PACKERS)
def test_nothing_is_packed_where_a_batch_has_no_whole_frame_or_another_origin(pack: Any) -> None:
    data, _ = frames([100])
    foreign = frames([10, 10], origin=Origin.MQTT)[0]
    for buffer, start in ((b"", 0), (data[:150], 0), (data, 1), (foreign, 0), (data[:0] + foreign, 1)):
        assert pack(bytearray(buffer), LOG_ID, start, 100, 1 << 20) is None
    with pytest.raises((BufferError, TypeError)):
        pack(data, LOG_ID, 0, 100, 1 << 20)


def test_records_are_counted_without_being_opened() -> None:
    batches = b""
    for count in (1, 7, 3):
        builder = BatchBuilder()
        for _ in range(count):
            builder.add(None, b"v", (), 0)
        batches += bytes(builder.seal_batch(0))
    assert record_count(batches) == oracle.record_count(batches) == 11
    assert record_count(b"") == oracle.record_count(b"") == 0
