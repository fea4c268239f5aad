"""A damaged frame must never pass, whichever bit it is."""

from __future__ import annotations

import pytest

from mainstem.model.errors import CorruptFrame, MainstemError

LIMIT = 1 << 20
LOG_ID = 0xFEDCBA9876543210


def small_frame(codec) -> bytes:
    builder = codec.BatchBuilder()
    builder.add(b"a/b", b"value", [(b"h", b"1")], 1_700_000_000_000, 8)
    builder.add(b"a/c", None, (), 1_700_000_000_001, 8)
    return bytes(builder.seal_frame(LOG_ID, 41, 1_700_000_000_000_000_000, 40, 1, 1, 0, 3))


def test_every_single_bit_flip_is_detected(codec):
    frame = small_frame(codec)
    codec.verify_frame(frame, 0, LOG_ID)
    for bit in range(len(frame) * 8):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFrame):
            codec.verify_frame(damaged, 0, LOG_ID)
        with pytest.raises(CorruptFrame):
            codec.decode_frames(damaged, LOG_ID, inflated_bytes_max=LIMIT)


def test_every_flip_in_a_head_is_detected_without_looking_at_the_payload(codec):
    frame = small_frame(codec)
    for bit in range(48 * 8):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFrame):
            codec.read_frame_head(damaged, 0, LOG_ID)


def test_every_truncation_is_detected(codec):
    frame = small_frame(codec)
    for size in range(len(frame)):
        with pytest.raises(CorruptFrame):
            codec.read_frame_head(frame[:size], 0, LOG_ID)
        with pytest.raises(CorruptFrame):
            codec.frame_heads(frame + frame[:size], LOG_ID) if size else codec.read_frame_head(b"", 0, LOG_ID)


def test_a_frame_of_another_log_is_no_frame_of_this_one(codec):
    with pytest.raises(CorruptFrame, match="does not match this log"):
        codec.read_frame_head(small_frame(codec), 0, LOG_ID + 1)


def test_a_marker_protects_itself_too(codec):
    marker = codec.make_marker(LOG_ID, 5, 10, 99, 3)
    for bit in range(len(marker) * 8):
        damaged = bytearray(marker)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFrame):
            codec.verify_frame(damaged, 0, LOG_ID)


def test_payloads_of_two_valid_frames_cannot_change_places(codec):
    builder = codec.BatchBuilder()
    frames = []
    for offset in (0, 1):
        builder.add(b"k", b"v")
        frames.append(bytes(builder.seal_frame(LOG_ID, offset, 1 + offset, 0, 1, 0, 0, 0)))
    with pytest.raises(CorruptFrame, match="base offset"):
        codec.verify_frame(frames[0][:48] + frames[1][48:], 0, LOG_ID)


def test_the_message_says_where_and_why(codec):
    frame = small_frame(codec)
    for at, why in (
        (0, "magic"),
        (20, "checksum"),
        (60, "leader epoch"),
        (64, "magic 2"),
        (len(frame) - 1, "checksum"),
    ):
        damaged = bytearray(frame + frame)
        damaged[len(frame) + at] ^= 1
        with pytest.raises(CorruptFrame, match=f"byte {len(frame)}.*{why}"):
            codec.verify_frame(damaged, len(frame), LOG_ID)


@pytest.mark.parametrize("pos", [-1, 1 << 40])
def test_a_position_outside_the_buffer_is_refused(codec, pos):
    frame = small_frame(codec)
    for read in (codec.read_frame_head, codec.verify_frame):
        with pytest.raises(MainstemError):
            read(frame, pos, LOG_ID)
    with pytest.raises(MainstemError):
        codec.read_batch_head(frame, pos)
    with pytest.raises(MainstemError):
        codec.decode_batch(frame, pos, inflated_bytes_max=LIMIT)
