"""A log cut, damaged or soiled at every byte of its end: what is kept is the longest whole prefix, or it is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mainstem.model.errors import CorruptFrame, DamagedLog
from mainstem.storage.engine import Engine
from mainstem.storage.engines import EngineOptions, SharedFiles, open_engine
from mainstem.testing.frames import Writer, read_everything, values_of

LOG_ID = 5
DURABLE = 6  # frames of two records, synced
LOOSE = 3  # and as many that no sync covers
SEGMENT = "00000000000000000000.log"


class Origin:
    """A log that stopped uncleanly; each test works on a copy of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "origin"
        self.copies = directory / "copy"
        shared = SharedFiles()
        writer = Writer(open_engine("segment", self.directory, LOG_ID, options=EngineOptions(shared=shared)), LOG_ID)
        self.ends = [0]  # the position behind each frame
        for number in range(DURABLE + LOOSE):
            (frame,) = writer.append([b"%d-first" % number, b"%d-second" % number * 10])
            self.ends.append(self.ends[-1] + frame.size)
            if number == DURABLE - 1:
                writer.engine.sync()
        self.records = read_everything(writer.engine, LOG_ID)
        shared.files.close_all()
        self.bytes = (self.directory / SEGMENT).read_bytes()

    def with_segment(self, content: bytes) -> Path:
        shutil.rmtree(self.copies, ignore_errors=True)
        shutil.copytree(self.directory, self.copies)
        (self.copies / SEGMENT).write_bytes(content)
        return self.copies

    def frames_within(self, size: int) -> int:
        return sum(end <= size for end in self.ends) - 1


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Origin:
    return Origin(tmp_path_factory.mktemp("torn"))


def open_log(directory: Path) -> tuple[Engine, SharedFiles]:
    shared = SharedFiles()
    return open_engine("segment", directory, LOG_ID, options=EngineOptions(shared=shared)), shared


def check_goes_on(directory: Path, engine: Engine, shared: SharedFiles, expected: list[tuple[int, bytes]]) -> None:
    """What is read is exactly `expected`, and appending goes on, also over another start."""
    assert read_everything(engine, LOG_ID) == expected
    writer = Writer(engine, LOG_ID)
    writer.append([b"more"])
    expected = [*expected, (len(expected), b"more")]
    assert read_everything(engine, LOG_ID) == expected
    shared.files.close_all()
    again, shared = open_log(directory)
    assert read_everything(again, LOG_ID) == expected
    again.close()


def test_cut_at_every_byte_of_the_last_frames(origin: Origin) -> None:
    for size in range(origin.ends[DURABLE], len(origin.bytes) + 1):
        directory = origin.with_segment(origin.bytes[:size])
        engine, shared = open_log(directory)
        check_goes_on(directory, engine, shared, origin.records[: 2 * origin.frames_within(size)])


@pytest.mark.parametrize(
    "tail",
    [b"\0" * 10_000, b"\0", b"MSF1", b"MSF1" * 3000, bytes(range(256)) * 20],
    ids=["zeros", "one zero", "a mark", "marks", "garbage"],
)
def test_whatever_follows_the_last_frame_is_taken_off(origin: Origin, tail: bytes) -> None:
    directory = origin.with_segment(origin.bytes + tail)
    engine, shared = open_log(directory)
    check_goes_on(directory, engine, shared, origin.records)
    assert (directory / SEGMENT).read_bytes().startswith(origin.bytes)
    kept = list(directory.glob("*.torn"))
    assert [path.read_bytes() for path in kept] == ([tail] if tail.strip(b"\0") else [])


def test_frames_written_twice_at_the_end_are_served_once(origin: Origin) -> None:
    directory = origin.with_segment(origin.bytes + origin.bytes[origin.ends[-3] :])
    engine, shared = open_log(directory)
    check_goes_on(directory, engine, shared, origin.records)


def test_a_bit_flipped_at_every_byte_of_the_last_frame_drops_that_frame_only(origin: Origin) -> None:
    for position in range(origin.ends[-2], origin.ends[-1]):
        directory = origin.with_segment(flipped(origin.bytes, position))
        engine, shared = open_log(directory)
        check_goes_on(directory, engine, shared, origin.records[:-2])
        assert list(directory.glob("*.torn"))


def test_damage_before_a_frame_that_knew_it_to_be_durable_is_refused_by_name(origin: Origin) -> None:
    for frame in range(DURABLE):
        for position in range(origin.ends[frame], origin.ends[frame + 1], 7):
            content = flipped(origin.bytes, position)
            directory = origin.with_segment(content)
            with pytest.raises(DamagedLog) as caught:
                open_log(directory)
            assert str(directory / SEGMENT) in caught.value.message
            assert f"byte {origin.ends[frame]}, offset {2 * frame}," in caught.value.message
            assert caught.value.fix == f"mainstem log repair --quarantine {directory}"
            assert (directory / SEGMENT).read_bytes() == content, "a damaged log is left as it is"


def test_a_hole_in_durable_data_is_refused(origin: Origin) -> None:
    hole = origin.bytes[: origin.ends[2]] + bytes(origin.ends[4] - origin.ends[2]) + origin.bytes[origin.ends[4] :]
    with pytest.raises(DamagedLog):
        open_log(origin.with_segment(hole))


def test_a_file_that_was_removed_is_missed(origin: Origin, tmp_path: Path) -> None:
    shared = SharedFiles()
    options = EngineOptions(segment_bytes=4096, shared=shared)
    writer = Writer(open_engine("segment", tmp_path, LOG_ID, options=options), LOG_ID)
    for number in range(40):
        writer.append([b"%d" % number * 300])
    writer.engine.close()
    for victim in sorted(tmp_path.glob("*.log")):
        aside = victim.rename(tmp_path / "aside")
        with pytest.raises(DamagedLog, match="is missing"):
            open_engine("segment", tmp_path, LOG_ID, options=options)
        aside.rename(victim)
    assert open_engine("segment", tmp_path, LOG_ID, options=options).stat().clean


def test_no_flipped_bit_in_a_clean_log_ever_reaches_a_reader(origin: Origin, tmp_path: Path) -> None:
    directory = origin.with_segment(origin.bytes)
    engine, _ = open_log(directory)
    engine.close()
    for position in range(0, len(origin.bytes), 5):
        (directory / SEGMENT).write_bytes(flipped(origin.bytes, position))
        engine, shared = open_log(directory)
        assert engine.stat().clean
        found = readable(engine)
        assert set(found) < set(origin.records)
        assert len(found) >= len(origin.records) - 2 or position < origin.ends[-1]
        shared.files.close_all()


def test_what_lies_before_a_damaged_frame_is_read_and_the_frame_itself_is_told(origin: Origin) -> None:
    directory = origin.with_segment(origin.bytes)
    open_log(directory)[0].close()
    for frame in range(1, len(origin.ends) - 1):
        for byte in range(48):  # of its head
            (directory / SEGMENT).write_bytes(flipped(origin.bytes, origin.ends[frame] + byte))
            engine, shared = open_log(directory)
            before = [engine.read(2 * number, 1) for number in range(frame)]
            assert [piece and piece.base_offset for piece in before] == [2 * number for number in range(frame)]
            for offset in (2 * frame, 2 * frame + 1):
                with pytest.raises(CorruptFrame):
                    engine.read(offset, 1)
            with pytest.raises(CorruptFrame):
                read_everything(engine, LOG_ID)
            shared.files.close_all()


def readable(engine: Engine) -> list[tuple[int, bytes]]:
    """What a reader gets that asks for one frame at a time and goes on after a damaged one."""
    found: list[tuple[int, bytes]] = []
    for offset in range(0, engine.stat().end_offset, 2):
        try:
            piece = engine.read(offset, 1)
            assert piece is not None
            found += values_of(piece.data, LOG_ID)
        except CorruptFrame:
            continue
    return found


def flipped(content: bytes, position: int) -> bytes:
    return content[:position] + bytes([content[position] ^ (1 << position % 8)]) + content[position + 1 :]
