"""The compiled modules and the plain reference are one: same bytes, same records, same refusals."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainstem.model.errors import MainstemError
from mainstem.model.record import Record

FRAME_SLOTS = ["pos", "kind", "origin", "topic_id", "base_offset", "stamp", "durable_offset", "count", "payload_size"]
FRAME_SLOTS += ["size"]
BATCH_SLOTS = ["base_offset", "size", "leader_epoch", "crc", "attributes", "last_offset_delta", "first_time_ms"]
BATCH_SLOTS += ["max_time_ms", "producer_id", "producer_epoch", "base_sequence", "count"]
BATCH_SLOTS += ["codec", "log_append_time", "transactional", "control"]
FRAME_ATTRIBUTES = ["count", "kind", "origin", "topic_id", "base_offset", "stamp", "first_time_ms", "max_time_ms"]
FRAME_ATTRIBUTES += ["positions", "size"]
LIMIT = 1 << 20

int64 = st.integers(-(1 << 63), (1 << 63) - 1)
octets = st.one_of(st.binary(max_size=40), st.binary(min_size=60, max_size=300))
headers = st.lists(st.tuples(st.just(b"ms-topic") | octets, st.none() | octets), max_size=4)
records = st.tuples(st.none() | octets, st.none() | octets, headers, int64, st.integers(0, 255))
places = st.fixed_dictionaries(
    {
        "log_id": st.integers(0, (1 << 64) - 1),
        "base_offset": st.integers(0, 1 << 62),
        "stamp": st.integers(0, 1 << 62),
        "durable_offset": int64,
        "kind": st.sampled_from([1, 2]),
        "origin": st.integers(0, 6),
        "topic_id": st.integers(0, (1 << 32) - 1),
        "leader_epoch": st.integers(-(1 << 31), (1 << 31) - 1),
        "attributes": st.sampled_from([0, 8, 0x10, 0x20, 0x30]),
        "producer_id": int64,
        "producer_epoch": st.integers(-(1 << 15), (1 << 15) - 1),
        "base_sequence": st.integers(-(1 << 31), (1 << 31) - 1),
    }
)
one_by_one = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def outcome(call: Callable[[], object]) -> object:
    """What a call gives, or the kind of its refusal."""
    try:
        return call()
    except MainstemError as error:
        return type(error)


def slots(head: object, names: list[str]) -> object:
    return head if isinstance(head, type) else [getattr(head, name) for name in names]


def filled(codec, content: list) -> Any:
    builder = codec.BatchBuilder()
    for record in content:
        builder.add(*record)
    return builder


@one_by_one
@given(content=st.lists(records, min_size=1, max_size=8), place=places)
def test_frames_are_sealed_to_the_same_bytes_and_read_to_the_same_records(both, content, place):
    frames = [filled(codec, content).seal_frame(**place) for codec in both]
    assert bytes(frames[0]) == bytes(frames[1])
    assert slots(frames[0], FRAME_ATTRIBUTES) == slots(frames[1], FRAME_ATTRIBUTES)
    heads = [slots(codec.verify_frame(frames[0], 0, place["log_id"]), FRAME_SLOTS) for codec in both]
    assert heads[0] == heads[1]
    found = [
        codec.decode_frames(
            frames[0], place["log_id"], data_only=False, inflated_bytes_max=LIMIT, topic_of={place["topic_id"]: b"t"}
        )
        for codec in both
    ]
    assert found[0] == found[1]
    assert [(r.key, r.value, r.headers) for r in found[0]] == [tuple(record[:3]) for record in content]
    if not place["attributes"] & 8:
        assert [r.time_ms for r in found[0]] == [record[3] for record in content]
    assert [r.offset - place["base_offset"] for r in found[0]] == list(range(len(content)))
    assert [r.stamp - place["stamp"] for r in found[0]] == list(range(len(content)))


@one_by_one
@given(content=st.lists(records, min_size=1, max_size=8), place=places, own=st.booleans())
def test_topics_are_numbered_as_the_records_name_them(both, content, place, own):
    place = {**place, "kind": 1, "topic_id": place["topic_id"] if own else 0}
    frame = filled(both[0], content).seal_frame(**place)
    found = []
    for codec in both:
        numbers, known = array("I", bytes(4 * len(content))), {b"": 0}
        refusal = outcome(
            lambda codec=codec, numbers=numbers, known=known: codec.note_topics(
                frame, place["log_id"], numbers, known, inflated_bytes_max=LIMIT, topic_of={place["topic_id"]: b"t"}
            )
        )
        found.append((numbers, known) if refusal is None else refusal)
    assert found[0] == found[1]


@one_by_one
@given(content=st.lists(records, min_size=1, max_size=4), attributes=st.integers(0, 4), base=st.integers(0, 1 << 62))
def test_batches_are_sealed_framed_and_checked_alike(both, content, attributes, base):
    batches = [filled(codec, content).seal_batch(0, -1, attributes) for codec in both]
    assert batches[0] == batches[1]
    batch = batches[0]
    assert len({codec.make_frame(batch, 5, base, 7, 1, 2, 0, 3) for codec in both}) == 1
    heads = [slots(codec.check_batch(batch, bytes_max=LIMIT), BATCH_SLOTS) for codec in both]
    assert heads[0] == heads[1]
    decoded = [codec.decode_batch(batch, inflated_bytes_max=LIMIT) for codec in both]
    assert decoded[0] == decoded[1]
    assert [(r.key, r.value, r.headers, r.time_ms, r.flags) for r in decoded[0]] == content


@one_by_one
@given(
    content=st.lists(records, min_size=1, max_size=6),
    gaps=st.lists(st.sampled_from([1, 2, 70, 1 << 20, 1 << 31, 1 << 35]), min_size=6, max_size=6),
    attributes=st.integers(0, 4),
    last_offset=st.none() | st.integers(0, 1 << 40),
    chosen=st.sets(st.integers(0, 5)),
)
def test_rebuilt_batches_are_the_same_and_hold_the_same(both, content, gaps, attributes, last_offset, chosen):
    offset, wanted = 0, []
    for (key, value, some_headers, time_ms, flags), gap in zip(content, gaps, strict=False):
        offset += gap
        wanted.append(Record(value, key, some_headers, time_ms, flags, offset))
    rebuilt = [
        codec.rebuild_batches(wanted, attributes=attributes, last_offset=last_offset, leader_epoch=1) for codec in both
    ]
    assert rebuilt[0] == rebuilt[1]
    parts = both[1].split_batches(rebuilt[0])
    for codec in both:
        assert [bytes(part) for part in codec.split_batches(rebuilt[0])] == [bytes(part) for part in parts]
        assert [r for part in parts for r in codec.decode_batch(part, inflated_bytes_max=LIMIT)] == wanted
    frames = b"".join(
        piece
        for p in parts
        for piece in both[1].make_frame(p, 1, both[1].read_batch_head(p).base_offset, 9, 0, 1, 0, 0)
    )
    offsets = array("q", sorted(wanted[index].offset for index in chosen if index < len(wanted)))
    picked = [codec.decode_chosen(frames, 1, offsets, inflated_bytes_max=LIMIT) for codec in both]
    assert picked[0] == picked[1]
    assert [record.offset for record in picked[0]] == offsets.tolist()


@one_by_one
@given(
    content=st.lists(records, min_size=1, max_size=4),
    wounds=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=3),
    cut=st.floats(0, 1),
    refit=st.booleans(),
    start=st.integers(-1, 6),
    chosen=st.sets(st.integers(0, 6)),
)
def test_damaged_batches_are_refused_or_read_alike(both, content, wounds, cut, refit, start, chosen):
    batch = bytearray(filled(both[1], content).seal_batch(0))
    for where, value in wounds:
        batch[int(where * len(batch))] = value
    if cut < 0.5:
        del batch[int(61 + cut * len(batch)) :]
    if refit and len(batch) >= 61:
        struct.pack_into(">i", batch, 8, len(batch) - 12)
        batch[16] = 2
        struct.pack_into(">I", batch, 17, both[1].crc32c(bytes(batch[21:])))
    same(both, lambda codec: codec.decode_batch(batch, inflated_bytes_max=LIMIT))
    same(both, lambda codec: slots(codec.check_batch(batch, bytes_max=LIMIT), BATCH_SLOTS))
    same(both, lambda codec: [bytes(part) for part in codec.split_batches(batch)])
    framed = same(both, lambda codec: codec.make_frame(batch, 1, 0, 5, 0, 1, 0, 0))
    if isinstance(framed, tuple):
        frame, offsets = b"".join(framed), array("q", sorted(chosen))
        same(both, lambda codec: slots(codec.verify_frame(frame, 0, 1), FRAME_SLOTS))
        same(both, lambda codec: codec.decode_frames(frame, 1, start_offset=start, inflated_bytes_max=LIMIT))
        same(both, lambda codec: codec.decode_chosen(frame, 1, offsets, inflated_bytes_max=LIMIT))


def same(both, call: Callable) -> object:
    compiled, plain = (outcome(lambda codec=codec: call(codec)) for codec in both)
    assert compiled == plain
    return plain


@one_by_one
@given(data=st.binary(max_size=200), count=st.integers(-1, 5))
def test_headers_decode_alike_from_any_bytes(both, data, count):
    same(both, lambda codec: codec.decode_headers(data, count))


@one_by_one
@given(some=headers)
def test_headers_come_back_as_they_went_in(both, some):
    encoded = [codec.encode_headers(some) for codec in both]
    assert encoded[0] == encoded[1]
    for codec in both:
        assert codec.decode_headers(encoded[0], len(some)) == some


@one_by_one
@given(data=st.binary(max_size=400), log_id=st.integers(0, (1 << 64) - 1), pos=st.integers(-3, 420))
def test_rubbish_is_refused_alike(both, data, log_id, pos):
    same(both, lambda codec: slots(codec.read_frame_head(data, pos, log_id), FRAME_SLOTS))
    same(both, lambda codec: [slots(head, FRAME_SLOTS) for head in codec.frame_heads(data, log_id)])
    same(both, lambda codec: slots(codec.read_batch_head(data, pos), BATCH_SLOTS))
    same(both, lambda codec: codec.decode_batch(data, pos, inflated_bytes_max=LIMIT))


@one_by_one
@given(
    log_id=st.integers(0, (1 << 64) - 1), base=st.integers(0, 1 << 62), count=st.integers(1, (1 << 32) - 1), stamp=int64
)
def test_markers_are_the_same(both, log_id, base, count, stamp):
    assert same(both, lambda codec: codec.make_marker(log_id, base, count, stamp, -1))
