"""What every engine must do. Subclass it, say how to open one, inherit every test."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from mainstem.codec.batch import frame_heads
from mainstem.model.errors import Overloaded, StorageFault
from mainstem.storage.engine import CopiedEngine, Engine, FileParts, FlushableEngine
from mainstem.storage.flusher import Flusher
from mainstem.testing.frames import Writer, make_test_frame, read_everything, values_of

LOG_ID = 7


class EngineContract(ABC):
    durable = True  # whether anything survives a close
    writes = 800  # while others read

    @abstractmethod
    def open(self, directory: Path) -> Engine:
        """Opens the engine in `directory`, parts of about 4 KiB."""

    @abstractmethod
    def fill_the_room(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Engine, str]:
        """An engine with a few frames in it that has no room for 100 KiB more, and how room is made ("trim", "wait")."""

    @pytest.fixture
    def engine(self, tmp_path: Path) -> Engine:
        return self.open(tmp_path)

    @pytest.fixture
    def writer(self, engine: Engine) -> Writer:
        return Writer(engine, LOG_ID)

    # An empty log

    def test_a_new_log_is_empty(self, engine: Engine) -> None:
        stat = engine.stat()
        assert (stat.start_offset, stat.end_offset, stat.last_stamp, stat.size_bytes, stat.parts) == (0, 0, 0, 0, ())
        assert engine.read(0, 1000) is None
        assert engine.find_stamp(5) == 0
        assert engine.trim(100) == 0

    # Append and read

    def test_what_was_appended_is_read_back_byte_for_byte(self, engine: Engine) -> None:
        frame, ref = make_test_frame(LOG_ID, 0, [b"a", b"b", b"c"], stamp=10)
        engine.append([frame[:20], frame[20:]], [ref])
        piece = engine.read(0, 1 << 20)
        assert piece is not None
        assert bytes(piece.data) == frame
        assert (piece.base_offset, piece.end_offset) == (0, 3)

    def test_an_offset_inside_a_frame_returns_the_whole_frame(self, writer: Writer) -> None:
        writer.append([b"a", b"b"], [b"c", b"d", b"e"])
        piece = writer.engine.read(3, 1)
        assert piece is not None
        assert (piece.base_offset, piece.end_offset) == (2, 5)
        assert values_of(piece.data, LOG_ID) == [(2, b"c"), (3, b"d"), (4, b"e")]

    def test_reading_on_from_each_end_meets_every_record_once(self, writer: Writer) -> None:
        expected = []
        for number in range(300):
            values = [b"%d-%d" % (number, i) * (number % 40) for i in range(1 + number % 3)]
            expected += [(writer.next_offset + i, value) for i, value in enumerate(values)]
            writer.append(values)
        for bytes_max in (1, 300, 5_000, 1 << 20):
            assert read_everything(writer.engine, LOG_ID, bytes_max=bytes_max) == expected

    def test_a_read_returns_whole_frames_of_at_most_the_bytes_asked_for_but_at_least_one(self, writer: Writer) -> None:
        for _ in range(200):
            writer.append([b"x" * 50])
        for offset in (0, 1, 77, 198, 199):
            for bytes_max in (1, 160, 161, 1000, 4096, 10_000, 1 << 20):
                piece = writer.engine.read(offset, bytes_max)
                assert piece is not None
                heads = frame_heads(piece.data, LOG_ID)
                assert heads[0].base_offset == piece.base_offset == offset
                assert heads[-1].base_offset + heads[-1].count == piece.end_offset
                assert len(heads) == 1 or piece.data.nbytes <= bytes_max

    def test_a_frame_larger_than_asked_for_and_than_a_part_comes_whole(self, writer: Writer) -> None:
        writer.append([b"small"], [b"L" * 200_000], [b"small"])
        piece = writer.engine.read(1, 10)
        assert piece is not None
        assert values_of(piece.data, LOG_ID) == [(1, b"L" * 200_000)]
        assert [offset for offset, _ in read_everything(writer.engine, LOG_ID)] == [0, 1, 2]

    def test_no_frame_beginning_at_or_beyond_the_end_offset_is_returned(self, writer: Writer) -> None:
        for _ in range(50):
            writer.append([b"x" * 100, b"y"])
        for end in (1, 2, 3, 40, 41, 99, 100, 200):
            piece = writer.engine.read(0, 1 << 20, end)
            assert piece is not None
            assert all(head.base_offset < end for head in frame_heads(piece.data, LOG_ID))
        assert writer.engine.read(40, 1 << 20, 40) is None
        assert writer.engine.read(100, 1 << 20) is None

    def test_reading_at_or_beyond_the_end_returns_nothing(self, writer: Writer) -> None:
        writer.append([b"a"])
        assert writer.engine.read(1, 100) is None
        assert writer.engine.read(1000, 100) is None

    def test_a_slice_stays_as_it_is_while_the_log_grows_and_is_trimmed(self, writer: Writer) -> None:
        writer.append([b"first"])
        piece = writer.engine.read(0, 100)
        assert piece is not None
        before = bytes(piece.data)
        for _ in range(100):
            writer.append([b"x" * 500])
        writer.engine.roll()
        writer.engine.trim(writer.next_offset)
        assert bytes(piece.data) == before

    # Gaps

    def test_a_read_in_a_gap_returns_the_next_frame(self, writer: Writer) -> None:
        writer.append([b"before"])
        writer.skip(1_000_000)
        writer.append([b"after"])
        writer.skip(10_000_000_000)
        writer.append([b"far"])
        for offset in (1, 500_000, 1_000_001):
            piece = writer.engine.read(offset, 100)
            assert piece is not None
            assert piece.base_offset == 1_000_001
        assert [value for _, value in read_everything(writer.engine, LOG_ID)] == [b"before", b"after", b"far"]
        assert writer.engine.stat().end_offset == writer.next_offset

    def test_a_log_may_begin_at_any_offset(self, writer: Writer) -> None:
        writer.skip(5_000)
        writer.append([b"a"])
        stat = writer.engine.stat()
        assert (stat.start_offset, stat.end_offset) == (5_000, 5_001)
        piece = writer.engine.read(0, 100)
        assert piece is not None
        assert piece.base_offset == 5_000

    # Stamps

    def test_find_stamp_returns_the_last_frame_at_or_before_it(self, engine: Engine) -> None:
        stamps = [100 + 10 * i for i in range(300)]
        for number, stamp in enumerate(stamps):
            frame, ref = make_test_frame(LOG_ID, 2 * number, [b"x" * 90, b"y"], stamp=stamp)
            engine.append([frame], [ref])
        assert engine.find_stamp(5) == 0
        assert engine.find_stamp(99) == 0
        for number in range(0, 300, 7):
            assert engine.find_stamp(stamps[number]) == 2 * number
            assert engine.find_stamp(stamps[number] + 9) == 2 * number
        assert engine.find_stamp(10**18) == 598

    # Parts

    def test_parts_cover_the_log_and_only_the_last_is_open(self, writer: Writer) -> None:
        for _ in range(200):
            writer.append([b"x" * 1000])
        stat = writer.engine.stat()
        assert len(stat.parts) > 1
        assert [part.sealed for part in stat.parts] == [True] * (len(stat.parts) - 1) + [False]
        assert stat.parts[0].base_offset == stat.start_offset == 0
        assert all(a.end_offset == b.base_offset for a, b in zip(stat.parts, stat.parts[1:], strict=False))
        assert all(a.last_stamp < b.first_stamp for a, b in zip(stat.parts, stat.parts[1:], strict=False))
        assert stat.parts[-1].end_offset == stat.end_offset == 200
        assert sum(part.size_bytes for part in stat.parts) == stat.size_bytes

    def test_roll_seals_what_was_written_so_that_it_can_be_trimmed(self, writer: Writer) -> None:
        writer.append([b"a"])
        assert writer.engine.trim(1) == 0, "the part being written is not dropped"
        writer.engine.roll()
        writer.engine.roll()
        writer.append([b"b"])
        assert [part.sealed for part in writer.engine.stat().parts] == [True, False]
        assert writer.engine.trim(1) == 1
        assert read_everything(writer.engine, LOG_ID) == [(1, b"b")]

    def test_trim_drops_only_parts_that_end_at_or_before_the_offset(self, writer: Writer) -> None:
        for number in range(4):
            writer.append([b"%d" % number] * 10)
            writer.engine.roll()
        assert writer.engine.trim(9) == 0
        assert writer.engine.trim(10) == 10
        assert writer.engine.trim(35) == 30
        assert read_everything(writer.engine, LOG_ID) == [(offset, b"3") for offset in range(30, 40)]
        assert writer.engine.read(0, 1 << 20).base_offset == 30  # type: ignore[union-attr]

    def test_a_log_trimmed_to_nothing_goes_on_at_its_end(self, writer: Writer) -> None:
        writer.append([b"a"] * 5)
        writer.engine.roll()
        assert writer.engine.trim(5) == 5
        stat = writer.engine.stat()
        assert (stat.start_offset, stat.end_offset, stat.size_bytes, stat.parts) == (5, 5, 0, ())
        assert stat.last_stamp >= 1_000
        writer.append([b"b"])
        assert read_everything(writer.engine, LOG_ID) == [(5, b"b")]

    # Replace

    def test_a_sealed_part_is_replaced_by_some_of_its_offsets(self, writer: Writer) -> None:
        self._write_three_parts(writer)
        part = writer.engine.stat().parts[1]
        kept, _ = make_test_frame(LOG_ID, 14, [b"kept"], stamp=1_014)
        writer.engine.replace(part, [kept])
        after = writer.engine.stat().parts[1]
        assert (after.base_offset, after.end_offset) == (part.base_offset, part.end_offset)
        assert after.generation == part.generation + 1
        assert after.size_bytes == len(kept)
        found = read_everything(writer.engine, LOG_ID)
        assert [offset for offset, _ in found] == [*range(10), 14, *range(20, 30)]
        assert (14, b"kept") in found
        for offset in (10, 13, 14):
            assert writer.engine.read(offset, 1).base_offset == 14  # type: ignore[union-attr]
        assert writer.engine.read(15, 1).base_offset == 20  # type: ignore[union-attr]

    def test_a_part_may_be_replaced_by_nothing_and_again(self, writer: Writer) -> None:
        self._write_three_parts(writer)
        for _ in range(2):
            writer.engine.replace(writer.engine.stat().parts[1], [])
        assert [offset for offset, _ in read_everything(writer.engine, LOG_ID)] == [*range(10), *range(20, 30)]
        assert writer.engine.find_stamp(1_015) == 9
        assert writer.engine.trim(20) == 20

    def _write_three_parts(self, writer: Writer) -> None:
        for number in range(3):
            for _ in range(10):
                writer.append([b"%d" % number])
            writer.engine.roll()

    # Reads that must not wait

    def test_what_is_local_is_read_now_as_it_is_read(self, writer: Writer) -> None:
        for number in range(100):
            writer.append([b"%d" % number * 20])
        engine, offset = writer.engine, 0
        assert engine.is_local
        while (piece := engine.read(offset, 700)) is not None:
            now = engine.read_now(offset, 700)
            assert now is not None
            assert (bytes(now.data), now.base_offset, now.end_offset) == (
                bytes(piece.data),
                piece.base_offset,
                piece.end_offset,
            )
            offset = piece.end_offset
        assert engine.read_now(offset, 700) is None

    # What only some engines declare

    def test_parts_that_are_files_can_be_held_cut_and_read_straight(self, writer: Writer) -> None:
        engine = writer.engine
        if not isinstance(engine, FileParts):
            pytest.skip("its parts are no files")
        for number in range(200):
            writer.append([b"%d" % number * 30])
        engine.roll()
        stat = engine.stat()
        assert stat.path is not None
        part, before = stat.parts[0], engine.segments
        file = Path(stat.path) / part.name
        stored = file.read_bytes()
        cuts = engine.cuts(part, 1)
        assert (cuts[0][1], cuts) == (part.base_offset, sorted(cuts))
        for position, base_offset in cuts:
            assert frame_heads(memoryview(stored)[position:], LOG_ID)[0].base_offset == base_offset
        buffer = memoryview(bytearray(1000))
        assert engine.read_into(part.base_offset, buffer) == 1000
        assert bytes(buffer) == stored[cuts[0][0] : cuts[0][0] + 1000]
        assert engine.hold(part)
        engine.trim(part.end_offset)
        assert engine.segments is not before
        assert file.read_bytes() == stored, "a held file stays although its part was trimmed"
        engine.release(part)
        assert not file.exists()
        assert not engine.hold(part)
        assert engine.cuts(part, 1) == []

    def test_a_copy_made_by_the_engine_opens_as_the_log_was(self, writer: Writer, tmp_path: Path) -> None:
        engine = writer.engine
        if not isinstance(engine, CopiedEngine):
            pytest.skip("its files are copied one by one, or it has none")
        for number in range(50):
            writer.append([b"%d" % number])
        engine.sync()
        stored = read_everything(engine, LOG_ID)
        (tmp_path / "copied").mkdir()
        engine.copy_to(tmp_path / "copied")
        writer.append([b"later"])
        copy = self.open(tmp_path / "copied")
        assert read_everything(copy, LOG_ID) == stored
        copy.close()

    def test_an_engine_that_syncs_by_a_line_says_how_far_it_is_durable(self, writer: Writer) -> None:
        engine = writer.engine
        if not isinstance(engine, FlushableEngine):
            pytest.skip("it syncs by `sync` alone")
        flusher = Flusher(1)
        handle = flusher.handle(self)
        writer.append([b"first"])
        engine.sync()
        writer.append([b"a"], [b"b"])
        number = engine.begin_sync(handle)
        assert number > 0
        handle.wait()
        assert engine.end_sync(handle) >= number
        assert engine.durable_offset == writer.next_offset
        flusher.close()

    # Reopening

    def _reopen(self, engine: Engine, tmp_path: Path) -> Engine:
        if not self.durable:
            pytest.skip("keeps nothing")
        engine.close()
        return self.open(tmp_path)

    def test_a_closed_log_opens_as_it_was(self, writer: Writer, tmp_path: Path) -> None:
        for number in range(100):
            writer.append([b"%d" % number * 50])
        writer.skip(50)
        writer.append([b"last"])
        before, everything = writer.engine.stat(), read_everything(writer.engine, LOG_ID)
        engine = self._reopen(writer.engine, tmp_path)
        after = engine.stat()
        assert after.clean
        assert (after.start_offset, after.end_offset) == (before.start_offset, before.end_offset)
        assert (after.last_stamp, after.size_bytes, after.parts) == (before.last_stamp, before.size_bytes, before.parts)
        assert read_everything(engine, LOG_ID) == everything
        Writer(engine, LOG_ID).append([b"more"])
        assert read_everything(engine, LOG_ID) == [*everything, (before.end_offset, b"more")]

    def test_an_empty_trimmed_log_remembers_its_end(self, writer: Writer, tmp_path: Path) -> None:
        writer.append([b"a"] * 5)
        writer.engine.roll()
        writer.engine.trim(5)
        engine = self._reopen(writer.engine, tmp_path)
        stat = engine.stat()
        assert (stat.start_offset, stat.end_offset, stat.last_stamp) == (5, 5, 1_000)

    def test_a_replaced_part_stays_replaced(self, writer: Writer, tmp_path: Path) -> None:
        self._write_three_parts(writer)
        writer.engine.replace(writer.engine.stat().parts[1], [])
        engine = self._reopen(writer.engine, tmp_path)
        assert [offset for offset, _ in read_everything(engine, LOG_ID)] == [*range(10), *range(20, 30)]

    def test_a_closed_log_refuses_everything(self, writer: Writer) -> None:
        writer.append([b"a"])
        writer.engine.close()
        writer.engine.close()
        with pytest.raises(StorageFault):
            writer.append([b"b"])
        with pytest.raises(StorageFault):
            writer.engine.sync()

    # A full log

    def test_an_append_without_room_is_refused_and_leaves_the_log_as_it_was(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine, room = self.fill_the_room(tmp_path, monkeypatch)
        writer = Writer(engine, LOG_ID)
        before, everything = engine.stat(), read_everything(engine, LOG_ID)
        for _ in range(3):
            with pytest.raises(Overloaded):
                writer.append([b"x" * 60_000], [b"y" * 60_000])
        assert engine.stat().end_offset == before.end_offset
        assert read_everything(engine, LOG_ID) == everything
        monkeypatch.undo()
        if room == "trim":
            engine.roll()
            engine.trim(before.end_offset)
        writer.append([b"x" * 60_000], [b"y" * 60_000])
        assert [offset for offset, _ in read_everything(engine, LOG_ID, before.end_offset)] == [
            before.end_offset,
            before.end_offset + 1,
        ]

    # Many readers

    def test_readers_see_whole_frames_while_the_log_grows_and_is_trimmed_and_rewritten(self, writer: Writer) -> None:
        engine, stop, failures = writer.engine, threading.Event(), list[BaseException]()

        def follow() -> None:
            try:
                offset = 0
                while not stop.is_set():
                    piece = engine.read(offset, 3_000)
                    if piece is None:
                        offset = max(engine.stat().end_offset - 200, 0)
                        continue
                    assert piece.end_offset > offset
                    for at, value in values_of(piece.data, LOG_ID):
                        assert value == b"%d" % at * 30
                    engine.find_stamp(1_000 + offset)
                    offset = piece.end_offset
            except BaseException as error:
                failures.append(error)

        readers = [threading.Thread(target=follow) for _ in range(3)]
        for reader in readers:
            reader.start()
        try:
            for number in range(self.writes):
                writer.append([b"%d" % (writer.next_offset + i) * 30 for i in range(3)])
                if number % 40 == 39:
                    engine.roll()
                    sealed = [part for part in engine.stat().parts if part.sealed]
                    engine.replace(sealed[-1], [])
                    engine.trim(writer.next_offset - 300)
                if number % 10 == 9:
                    engine.sync()
        finally:
            stop.set()
            for reader in readers:
                reader.join()
        assert not failures
