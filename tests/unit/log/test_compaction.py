"""Compaction keeps the last record of each key, at its offset, and nothing that was aborted."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainstem.codec.batch import Codec, decode_frames, read_batch_head
from mainstem.log.compaction import Compacted, compact
from mainstem.log.log import Log
from mainstem.log.retention import Holds
from mainstem.model.origin import Origin
from mainstem.model.record import Record
from tests.unit.broker.kit import kafka_batch
from tests.unit.log.kit import NumberedTopic, TestLog

DAY_MS = 24 * 3_600_000
TRANSACTIONAL = 0x10


def records_of(log: Log) -> list[Record]:
    found: list[Record] = []
    offset = 0
    while (piece := log.read_now(offset, 1 << 14)) is not None:
        found += decode_frames(piece.data, log.id, inflated_bytes_max=1 << 20)
        offset = piece.end_offset
    return found


def state(log: Log) -> dict[int, tuple[bytes | None, bytes | None]]:
    return {record.offset: (record.key, record.value) for record in records_of(log)}


def seal(made: TestLog) -> None:
    made.sync()
    made.log.engine.roll()


def run(made: TestLog, *, tombstones_ms: int = DAY_MS, holds: Holds | None = None, lag_ms: int = 0) -> Compacted:
    made.clock.advance_ms(1)
    now = made.clock.now_ns()
    return compact(made.log, now_ns=now, delete_retention_ms=tombstones_ms, holds=holds, lag_min_ms=lag_ms)


def produce(
    made: TestLog, items: list[tuple[bytes | None, bytes | None]], *, producer_id: int = -1, attributes: int = 0
) -> int:
    batch = kafka_batch(items, producer_id=producer_id, producer_epoch=0, base_sequence=0, attributes=attributes)
    route = NumberedTopic(b"t", made.log)
    appended = made.log.append_batch(batch, read_batch_head(batch), route, origin=Origin.KAFKA, topic_id=1)
    made.tick()
    return appended.ref.base_offset


def end(made: TestLog, producer_id: int, first: int, *, commit: bool) -> int:
    appended = made.log.append_marker(
        NumberedTopic(b"t", made.log),
        commit=commit,
        producer_id=producer_id,
        producer_epoch=0,
        first_offset=first,
        count=0,
    )
    made.tick()
    return appended.ref.base_offset


@pytest.fixture(params=["segment", "rocksdb", "memory"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> TestLog:
    return TestLog(tmp_path, engine=request.param, segment_bytes=1 << 20)


def test_the_last_record_of_each_key_stays_at_its_offset(made: TestLog) -> None:
    for n in range(30):
        made.put(b"%d" % n, b"k%d" % (n % 3))
    seal(made)
    made.put(b"open", b"k0")
    made.sync()
    done = run(made)
    assert (done.records_before, done.records_after) == (30, 3)
    assert state(made.log) == {27: (b"k0", b"27"), 28: (b"k1", b"28"), 29: (b"k2", b"29"), 30: (b"k0", b"open")}


def test_stamps_times_headers_and_origin_stay_too(made: TestLog) -> None:
    produce(made, [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")])
    before = {record.offset: record for record in records_of(made.log)}
    seal(made)
    run(made)
    after = {record.offset: record for record in records_of(made.log)}
    assert sorted(after) == [1, 2]
    assert all(after[offset] == before[offset] for offset in after)


def test_a_key_is_compacted_over_many_parts_and_many_passes(made: TestLog) -> None:
    for part in range(5):
        for n in range(4):
            made.put(b"%d.%d" % (part, n), b"k%d" % n)
        seal(made)
        run(made)
        assert len(state(made.log)) == 4
    assert {value for _, value in state(made.log).values()} == {b"4.0", b"4.1", b"4.2", b"4.3"}


def test_records_without_a_key_stay(made: TestLog) -> None:
    produce(made, [(None, b"1"), (None, b"2"), (b"k", b"3"), (b"k", b"4")])
    seal(made)
    run(made)
    assert sorted(state(made.log)) == [0, 1, 3]


def test_a_tombstone_stays_for_a_while_and_then_goes_with_its_key(made: TestLog) -> None:
    produce(made, [(b"k", b"v"), (b"other", b"v"), (b"k", None)])
    seal(made)
    run(made)
    assert state(made.log) == {1: (b"other", b"v"), 2: (b"k", None)}
    made.clock.advance_ms(2 * DAY_MS)
    made.put(b"news", b"x")
    seal(made)
    run(made)
    assert {key for key, _ in state(made.log).values()} == {b"other", b"x"}


def test_nothing_new_means_nothing_is_read_again(made: TestLog) -> None:
    made.put(b"1", b"k")
    made.put(b"2", b"k")
    seal(made)
    assert run(made).parts == 1
    assert run(made).parts == 0
    generations = [part.generation for part in made.log.engine.stat().parts]
    run(made)
    assert [part.generation for part in made.log.engine.stat().parts] == generations


def test_young_parts_wait_for_the_lag(made: TestLog) -> None:
    made.put(b"1", b"k")
    made.put(b"2", b"k")
    seal(made)
    assert run(made, lag_ms=60_000).parts == 0
    made.clock.advance_ms(120_000)
    assert run(made, lag_ms=60_000).parts == 1


def test_a_part_that_is_not_stable_is_left_alone(made: TestLog) -> None:
    made.put(b"1", b"k")
    made.put(b"2", b"k")
    made.tick()
    made.log.engine.roll()
    assert run(made).parts == 0


def test_compressed_batches_are_compacted(made: TestLog) -> None:
    produce(made, [(b"k", b"1"), (b"k", b"2"), (b"l", b"3")], attributes=int(Codec.GZIP))
    seal(made)
    run(made)
    assert state(made.log) == {1: (b"k", b"2"), 2: (b"l", b"3")}


def test_aborted_records_go_and_do_not_supersede_anything(made: TestLog) -> None:
    produce(made, [(b"k", b"kept")])
    first = produce(made, [(b"k", b"aborted"), (b"x", b"aborted")], producer_id=7, attributes=TRANSACTIONAL)
    end(made, 7, first, commit=False)
    seal(made)
    run(made)
    assert state(made.log) == {0: (b"k", b"kept")}


def test_committed_records_supersede_and_stay_part_of_their_transaction(made: TestLog) -> None:
    produce(made, [(b"k", b"old")])
    first = produce(made, [(b"k", b"new"), (b"x", b"1"), (b"x", b"2")], producer_id=7, attributes=TRANSACTIONAL)
    end(made, 7, first, commit=True)
    seal(made)
    run(made)
    assert state(made.log) == {1: (b"k", b"new"), 3: (b"x", b"2")}
    piece = made.log.read_now(1, 1)
    assert piece is not None
    head = read_batch_head(piece.data, 48)
    assert (head.producer_id, head.attributes & TRANSACTIONAL) == (7, TRANSACTIONAL), "its marker still finds it"


def test_what_is_undecided_is_not_touched(made: TestLog) -> None:
    produce(made, [(b"k", b"old")])
    first = produce(made, [(b"k", b"open"), (b"k", b"open too")], producer_id=7, attributes=TRANSACTIONAL)
    seal(made)
    run(made)
    assert sorted(state(made.log)) == [0, 1, 2]
    end(made, 7, first, commit=True)
    seal(made)
    run(made)
    assert state(made.log) == {2: (b"k", b"open too")}


def test_a_marker_goes_when_nothing_is_left_of_its_transaction(made: TestLog) -> None:
    first = produce(made, [(b"k", b"1")], producer_id=7, attributes=TRANSACTIONAL)
    marker = end(made, 7, first, commit=True)
    produce(made, [(b"k", b"2")])
    seal(made)
    run(made)
    piece = made.log.read_now(marker, 1)
    assert piece is not None and piece.base_offset == marker, "readers that are behind still need it"
    made.clock.advance_ms(2 * DAY_MS)
    made.put(b"x", b"x")
    seal(made)
    run(made)
    piece = made.log.read_now(marker, 1)
    assert piece is not None and piece.base_offset > marker


def test_what_a_queue_still_owes_is_not_compacted_away(made: TestLog) -> None:
    made.put(b"1", b"k")
    made.tick()
    held = made.log.last_stamp
    made.put(b"2", b"k")
    seal(made)
    assert run(made, holds=Holds(from_stamp=held)).parts == 0
    assert run(made, holds=Holds(offsets=[0])).parts == 0, "a retained pointer keeps its one"
    made.put(b"3", b"k")
    seal(made)
    run(made)
    assert {value for _, value in state(made.log).values()} == {b"3"}


def test_a_reader_during_compaction_gets_either_form_and_never_a_mixture(tmp_path: Path) -> None:
    made = TestLog(tmp_path, segment_bytes=1 << 20)
    for n in range(2_000):
        made.put(b"%d" % n, b"k%d" % (n % 10))
        if n % 50 == 49:
            made.tick()
        if n % 500 == 499:
            seal(made)
    slices, offset = [], 0
    while (piece := made.log.read_now(offset, 4096)) is not None:
        slices.append(piece)  # views into the old form, kept across the rewrite
        offset = piece.end_offset
        if len(slices) == 3:
            run(made)
    found = [r for piece in slices for r in decode_frames(piece.data, made.log.id, inflated_bytes_max=1 << 20)]
    assert [r.offset for r in found] == sorted({r.offset for r in found})
    assert {r.key for r in found if r.offset >= 1990} == {b"k%d" % n for n in range(10)}


KEYS = st.sampled_from([None, b"a", b"b", b"c", b"d"])
STEP = st.one_of(
    st.tuples(st.just("batch"), st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=3)), min_size=1, max_size=5)),
    st.tuples(
        st.just("transaction"),
        st.lists(st.tuples(KEYS, st.binary(max_size=3)), min_size=1, max_size=4),
        st.integers(1, 2),
    ),
    st.tuples(st.just("end"), st.integers(1, 2), st.booleans()),
    st.tuples(st.just("seal")),
    st.tuples(st.just("compact")),
)


@given(st.lists(STEP, max_size=40))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_for_a_reader_of_last_values_compaction_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[object, ...]]
) -> None:
    """The state that a table of last values is in at the end is the same with and without it; nulls without key stay."""
    made = TestLog(tmp_path_factory.mktemp("log"), engine="memory")
    model: dict[int, tuple[bytes | None, bytes | None]] = {}
    open_: dict[int, list[int]] = {}
    visible: set[int] = set()
    for step in steps:
        if step[0] == "batch":
            base = produce(made, step[1])  # type: ignore[arg-type]
            model |= {base + n: item for n, item in enumerate(step[1])}  # type: ignore[arg-type, call-overload]
            visible |= set(range(base, base + len(step[1])))  # type: ignore[arg-type]
        elif step[0] == "transaction":
            producer = int(step[2])  # type: ignore[call-overload]
            base = produce(made, step[1], producer_id=producer, attributes=TRANSACTIONAL)  # type: ignore[arg-type]
            model |= {base + n: item for n, item in enumerate(step[1])}  # type: ignore[arg-type, call-overload]
            open_.setdefault(producer, []).extend(range(base, base + len(step[1])))  # type: ignore[arg-type]
        elif step[0] == "end":
            producer = int(step[1])  # type: ignore[call-overload]
            offsets = open_.pop(producer, [])
            if offsets:
                end(made, producer, offsets[0], commit=bool(step[2]))
                if step[2]:
                    visible |= set(offsets)
        elif step[0] == "seal":
            seal(made)
        else:
            run(made)
    seal(made)
    run(made)
    left = state(made.log)
    assert all(model[offset] == item for offset, item in left.items())
    undecided = {offset for offsets in open_.values() for offset in offsets}
    last: dict[bytes, int] = {}
    for offset in sorted(visible):
        key = model[offset][0]
        if key is not None:
            last[key] = offset
    keyless = {offset for offset in visible if model[offset][0] is None}
    wanted = set(last.values()) | keyless
    assert wanted <= set(left)
    if not undecided:
        assert set(left) == wanted
