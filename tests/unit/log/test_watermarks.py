"""`written` and `stable`, tickets, and what may never be given out twice."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from mainstem.codec.batch import decode_frames
from mainstem.codec.large_record import LargeRecord
from mainstem.log.gather import Ticket
from mainstem.log.log import Log
from mainstem.log.open_batch import BYTES_MAX
from mainstem.model.errors import DiskFull, Overloaded
from mainstem.model.origin import Origin
from mainstem.storage.engine import Buffer, FrameRef
from mainstem.storage.engines import EngineOptions, open_engine
from mainstem.storage.memory import MemoryEngine
from mainstem.storage.reservation import BLOCK_MIN, IDLE_MS, Reservation
from tests.live_copies import copy_live
from tests.unit.log.kit import LOG_ID, NumberedTopic, TestLog


class Noted:
    def __init__(self) -> None:
        self.tickets: list[Ticket] = []

    def released(self, ticket: Ticket) -> None:
        self.tickets.append(ticket)


def values_of(log: Log, offset: int = 0) -> dict[int, bytes | None]:
    found: dict[int, bytes | None] = {}
    while (piece := log.read_now(offset, 1 << 16)) is not None:
        found |= {r.offset: r.value for r in decode_frames(piece.data, log.id, inflated_bytes_max=1 << 20)}
        offset = piece.end_offset
    return found


# -- tickets -----------------------------------------------------------------------------------------------------------


def test_a_ticket_is_released_only_when_its_sync_is_done(tmp_path: Path) -> None:
    made, noted = TestLog(tmp_path), Noted()
    made.put(b"a").wait(noted)
    assert made.log.written == 0
    made.tick()
    assert (made.log.written, made.log.stable) == (1, 0)
    assert not noted.tickets, "written is not durable"
    made.log.sync()
    assert not noted.tickets, "the loop has not heard of it yet"
    made.log.mark_stable(1)
    assert [t.stable for t in noted.tickets] == [True]
    assert made.log.stable == 1


def test_a_sync_releases_what_was_written_before_it_and_nothing_that_came_after(tmp_path: Path) -> None:
    made, noted = TestLog(tmp_path), Noted()
    first = made.put(b"a")
    made.tick()
    end = made.log.written
    second = made.put(b"b")
    made.tick()
    first.wait(noted)
    second.wait(noted)
    made.log.mark_stable(end)
    assert noted.tickets == [first]
    made.log.mark_stable(made.log.written)
    assert noted.tickets == [first, second]


def test_waiting_for_what_is_stable_already_is_answered_at_once(tmp_path: Path) -> None:
    made, noted = TestLog(tmp_path), Noted()
    ticket = made.put(b"a")
    made.sync()
    ticket.wait(noted)
    assert noted.tickets == [ticket]


def test_one_publisher_that_breaks_keeps_no_other_from_its_ack(tmp_path: Path) -> None:
    class Broken:
        def released(self, ticket: Ticket) -> None:
            raise RuntimeError("broken")

    made, noted = TestLog(tmp_path), Noted()
    ticket = made.put(b"a")
    ticket.wait(Broken())
    ticket.wait(noted)
    made.sync()
    assert noted.tickets == [ticket]


def test_offsets_and_stamps_of_a_ticket_name_its_records(tmp_path: Path) -> None:
    made = TestLog(tmp_path)
    made.put(b"a")
    made.tick()
    ticket = made.put(b"b")
    made.put(b"c")
    made.tick()
    assert (ticket.base_offset, ticket.end_offset) == (1, 3)
    assert ticket.stamp > 0
    assert made.log.last_stamp == ticket.stamp + 1


def test_unsynced_bytes_are_counted_until_they_are_stable(tmp_path: Path) -> None:
    made = TestLog(tmp_path)
    made.put(b"x" * 1000)
    made.tick()
    assert made.log.unsynced_bytes > 1000
    made.log.mark_stable(made.log.written)
    assert made.log.unsynced_bytes == 0


# -- what must be durable with it --------------------------------------------------------------------------------------


class Promised:
    def __init__(self) -> None:
        self.kept = threading.Event()

    def done(self) -> bool:
        return self.kept.is_set()

    def result(self) -> None:
        assert self.kept.wait(10)


def test_a_new_logs_records_are_not_durable_before_the_metadata_that_names_it(tmp_path: Path) -> None:
    made, promised, synced = TestLog(tmp_path), Promised(), threading.Event()
    made.log.syncing.promise(promised)
    made.put(b"a")
    made.tick()

    def commit() -> None:
        made.log.sync()
        synced.set()

    thread = threading.Thread(target=commit)
    thread.start()
    assert not synced.wait(0.05), "the sync returned although nobody would find the log again"
    promised.kept.set()
    thread.join(10)
    assert synced.is_set()


# -- batches -----------------------------------------------------------------------------------------------------------


def test_an_open_batch_is_closed_when_it_is_large_and_order_is_kept(tmp_path: Path) -> None:
    made = TestLog(tmp_path, segment_bytes=64 << 20)
    count = 3 * BYTES_MAX // 50_000
    tickets = {id(made.put(b"%06d" % n + b"x" * 50_000)) for n in range(count)}
    assert len(tickets) > 2
    made.tick()
    found = values_of(made.log)
    assert [value[:6] for value in found.values() if value] == [b"%06d" % n for n in range(count)]
    assert max(len(p.data) for p in [made.log.read_now(0, 1)] if p) < BYTES_MAX + 60_000


def test_batches_of_several_origins_and_state_share_one_write(tmp_path: Path) -> None:
    made = TestLog(tmp_path, shared=True)
    route = NumberedTopic(b"t", made.log)
    for origin in (Origin.MQTT, Origin.AMQP, Origin.MQTT):
        route.open_gather(origin).add_routed(route, b"t", b"%d" % origin, (), 0, 8)
    made.log.state().add_state(b"k", b"v", 0)
    appended = made.log.write()
    assert [(item.origin, item.kind, item.ref.count) for item in appended] == [
        (Origin.MQTT, 1, 2),
        (Origin.AMQP, 1, 1),
        (Origin.BROKER, 2, 1),
    ]
    assert made.log.index is not None
    assert list(made.log.index.find_one(route.number, 0, 10)) == [0, 1, 2], "state has no topic"


# -- offsets are never reused ------------------------------------------------------------------------------------------


def test_offsets_are_reserved_before_they_are_used(tmp_path: Path) -> None:
    made = TestLog(tmp_path)
    made.put(b"a")
    made.tick()
    copy = tmp_path.with_name("copy")
    copy_live(tmp_path, copy)  # what a power cut would leave, at best
    assert TestLog(copy).log.next_offset >= BLOCK_MIN


def test_a_clean_stop_goes_on_exactly_where_it_was(tmp_path: Path) -> None:
    made = TestLog(tmp_path)
    made.put(b"a")
    made.sync()
    again = made.reopen(clean=True)
    assert (again.next_offset, again.stable, again.epoch) == (1, 1, 0)


def test_an_unclean_stop_goes_on_at_the_reserved_end_with_the_next_epoch(tmp_path: Path) -> None:
    made = TestLog(tmp_path)
    made.put(b"read by someone, then lost")
    made.tick()
    given = made.log.next_offset
    shutil.rmtree(tmp_path / "lost", ignore_errors=True)
    again = made.reopen(clean=False)
    assert again.next_offset > given
    assert again.epoch == 1
    made.put(b"later")
    made.sync()
    assert all(offset >= BLOCK_MIN for offset, value in values_of(again).items() if value == b"later")


def test_a_read_in_the_gap_returns_the_next_record(tmp_path: Path) -> None:
    made = TestLog(tmp_path)
    made.put(b"before")
    made.sync()
    made.reopen(clean=False)
    made.put(b"after")
    made.sync()
    assert list(values_of(made.log, 5).values()) == [b"after"]


def test_a_memory_log_never_gives_an_offset_again_either(tmp_path: Path) -> None:
    made = TestLog(tmp_path, engine="memory")
    for n in range(10):
        made.put(b"%d" % n)
    made.tick()
    again = made.reopen(clean=True)
    assert again.next_offset == 10
    assert again.start_offset == 10, "nothing is left below"


def test_many_starts_without_a_stop_never_go_back(tmp_path: Path) -> None:
    made, before, epochs = TestLog(tmp_path), 0, []
    for n in range(5):
        assert made.log.next_offset >= before
        made.put(b"%d" % n)
        made.sync()
        before = made.log.next_offset
        epochs.append(made.log.epoch)
        made.reopen(clean=False)
    assert epochs == [0, 1, 2, 3, 4]
    assert list(values_of(made.log).values()) == [b"%d" % n for n in range(5)]


def test_opening_and_closing_without_a_write_changes_nothing(tmp_path: Path) -> None:
    made = TestLog(tmp_path)
    made.put(b"a")
    made.sync()
    made.reopen(clean=True)
    before = (tmp_path / "reserved").stat().st_mtime_ns
    for _ in range(3):
        assert made.reopen(clean=True).next_offset == 1
    assert (tmp_path / "reserved").stat().st_mtime_ns == before


def test_the_reservation_grows_with_the_rate_and_ahead_of_it(tmp_path: Path) -> None:
    made = TestLog(tmp_path)
    made.put(b"a")
    made.tick()
    first = made.log._reservation.end_offset
    made.log.skip_to(first - 10)
    made.log.reserve_ahead()
    assert made.log._reservation.end_offset > first, "in a thread, before the loop would have to wait"
    made.log.skip_to(made.log._reservation.end_offset + 1)
    assert made.log._reservation.end_offset > 3 * first


def test_what_a_steady_publisher_needs_until_the_next_look_is_reserved_in_a_thread(tmp_path: Path) -> None:
    """At 150 a second the first block is used up between two looks: the loop would wait for the disk."""
    made = TestLog(tmp_path)
    extended: list[int] = []
    for _ in range(8):
        before = made.log._reservation.end_offset
        for _ in range(150):
            made.put(b"a")
            made.tick()
        if made.log._reservation.end_offset != before:
            extended.append(made.log.next_offset)
        made.log.reserve_ahead()
    assert extended == [150], "only the first block was reserved by who appended"


def test_the_gap_after_an_unclean_stop_is_as_small_as_the_log(tmp_path: Path) -> None:
    made = TestLog(tmp_path)
    for _ in range(1_000):
        made.put(b"a")
        made.tick()
    made.sync()
    again = made.reopen(clean=False)
    assert 1_000 < again.next_offset <= 1_000 + 2 * 1_000 + BLOCK_MIN


def test_a_log_that_falls_silent_gives_back_what_it_reserved_and_uses_no_offset_twice(tmp_path: Path) -> None:
    made = TestLog(tmp_path)
    made.put(b"a")
    made.tick()
    made.log.skip_to(100_000)
    made.log.skip_to(made.log._reservation.end_offset + 1)
    made.put(b"last")
    made.sync()
    given = made.log.next_offset
    assert not made.log.lower_reservation(), "it was written to just now"
    made.clock.advance_ms(IDLE_MS)
    assert made.log.lower_reservation()
    assert Reservation.open(tmp_path).end_offset > given + BLOCK_MIN, "the file follows"
    for _ in range(2 * BLOCK_MIN):  # meanwhile the log wakes up: beyond the new end it reserves first
        made.put(b"b")
        made.tick()
    made.log.keep_reservation()
    assert Reservation.open(tmp_path).end_offset >= made.log.next_offset
    made.clock.advance_ms(IDLE_MS)
    made.log.lower_reservation()
    made.clock.advance_ms(IDLE_MS)
    if made.log.lower_reservation():
        made.log.keep_reservation()
    given = made.log.next_offset
    assert given <= Reservation.open(tmp_path).end_offset <= given + 4 * BLOCK_MIN
    assert made.reopen(clean=False).next_offset >= given


# -- refusals ----------------------------------------------------------------------------------------------------------


class FullEngine(MemoryEngine):
    full = False

    def append(self, data: Sequence[Buffer], frames: Sequence[FrameRef]) -> None:
        if self.full:
            raise DiskFull("no space left")
        super().append(data, frames)


def test_what_the_engine_refuses_fails_its_tickets_and_uses_no_offset(tmp_path: Path) -> None:
    engine = FullEngine(LOG_ID)
    made, noted = TestLog(tmp_path, store=engine), Noted()
    engine.full = True
    made.put(b"a").wait(noted)
    made.tick()
    assert isinstance(noted.tickets[0].error, DiskFull)
    assert not noted.tickets[0].stable
    engine.full = False
    kept = made.put(b"b")
    made.sync()
    assert kept.base_offset == 0
    assert values_of(made.log) == {0: b"b"}


def test_a_low_disk_refuses_data_and_takes_state(tmp_path: Path) -> None:
    made, noted = TestLog(tmp_path, shared=True), Noted()
    made.log.refusal = DiskFull("nearly full")
    data = made.put(b"a")
    data.wait(noted)
    gather = made.log.state()
    gather.add_state(b"k", b"v", 0)
    gather.ticket.wait(noted)
    made.sync()
    assert [type(ticket.error) for ticket in noted.tickets] == [DiskFull, type(None)]
    assert (gather.ticket.base_offset, made.log.next_offset) == (0, 1), "a refused record leaves no gap"
    made.log.refusal = None
    accepted = made.put(b"b")
    made.sync()
    assert accepted.stable


def test_a_kafka_batch_is_refused_at_the_door_of_a_low_disk(tmp_path: Path) -> None:
    from tests.unit.broker.kit import kafka_batch, read_batch_head

    made = TestLog(tmp_path)
    made.log.refusal = DiskFull("nearly full")
    batch = kafka_batch([(b"k", b"v")])
    with pytest.raises(DiskFull):
        made.log.append_batch(
            batch, read_batch_head(batch), NumberedTopic(b"t", made.log), origin=Origin.KAFKA, topic_id=1
        )
    made.log.append_marker(
        NumberedTopic(b"t", made.log), commit=True, producer_id=1, producer_epoch=0, first_offset=0, count=0
    )
    made.sync()
    assert made.log.stable == 1, "decisions are state: they are taken"


def test_no_room_to_reserve_offsets_refuses_the_publish_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, noted = TestLog(tmp_path), Noted()

    def full(to: int, epoch: int | None = None) -> None:
        raise DiskFull("no space to reserve offsets")

    with monkeypatch.context() as patch:
        patch.setattr(made.log._reservation, "extend", full)
        made.put(b"a").wait(noted)
        made.tick()
    assert isinstance(noted.tickets[0].error, DiskFull)
    ticket = made.put(b"b")
    made.sync()
    assert ticket.stable
    assert ticket.base_offset == 0


def test_a_stored_log_is_found_whole_by_another_engine_object(tmp_path: Path) -> None:
    """The frames name the log and the offset they were given, so that no other log's bytes can pass for them."""
    made = TestLog(tmp_path)
    made.put(b"a")
    made.sync()
    made.log.close()
    engine = open_engine("segment", tmp_path, LOG_ID, options=EngineOptions())
    piece = engine.read(0, 1 << 16)
    assert piece is not None
    assert [r.value for r in decode_frames(piece.data, LOG_ID, inflated_bytes_max=1 << 20)] == [b"a"]


def test_a_large_record_whose_log_was_closed_meanwhile_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    """A clean stop does not wait for what a thread still writes: its publisher was told nothing."""
    one = TestLog(tmp_path)
    record = LargeRecord(b"t", b"x" * 100, b"", 0, 1, 8)
    route, ticket = NumberedTopic(b"t", one.log), Ticket(one.log)
    one.log.close()
    with pytest.raises(Overloaded, match="shutting down"):
        one.log.append_large(record, tmp_path / "prepared", route, ticket, Origin.BROKER)
    assert one.log.write() == []
