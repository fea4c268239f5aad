"""Looking into logs on disk, and repairing them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from mainstem.codec.batch import KIND_MARKER
from mainstem.model.errors import DamagedLog, InvalidArgument, NotFound, StorageFault
from mainstem.storage.backup import backup, restore
from mainstem.storage.directory import write_format
from mainstem.storage.disk import RealDisk
from mainstem.storage.engine import Engine
from mainstem.storage.engines import EngineOptions, open_engine
from mainstem.storage.inspection import DumpedFrame, dump, list_log, list_logs, repair, verify
from mainstem.storage.reservation import BLOCK_MAX, Reservation
from mainstem.storage.segment.survey import Damage, WholeFrame, survey
from mainstem.testing.frames import Writer, read_everything, values_of

LOG_ID = 7
SMALL = EngineOptions(segment_bytes=4096)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "logs" / str(LOG_ID)


def open_log(directory: Path, engine: str = "segment") -> Engine:
    return open_engine(engine, directory, LOG_ID, options=SMALL)


def write_log(directory: Path, engine: str = "segment", frames: int = 30) -> list[tuple[int, bytes]]:
    """A closed log of frames of two records, four to a segment."""
    log = open_log(directory, engine)
    writer = Writer(log, LOG_ID)
    for number in range(frames):
        writer.append([b"%d" % number, b"x" * 700])
        log.sync()
    records = read_everything(log, LOG_ID)
    log.close()
    Reservation.open(directory).extend(1000)
    return records


def damage_frame(directory: Path, offset: int) -> Path:
    """Flip a bit in the middle of the frame that holds `offset`."""
    frame = next(found for found in dump(directory, start_offset=offset) if isinstance(found, DumpedFrame))
    content = bytearray(frame.path.read_bytes())
    content[frame.position + frame.head.size // 2] ^= 4
    frame.path.write_bytes(content)
    return frame.path


class StaleOnce(RealDisk):
    """The first reads of a file end in zeros: what lies there is written just after."""

    def __init__(self, stale_from: int) -> None:
        super().__init__()
        self.stale_from, self.reads = stale_from, 0

    def pread(self, fd: int, size: int, position: int) -> bytes:
        data = super().pread(fd, size, position)
        self.reads += 1
        if self.reads > 1:
            return data
        kept = max(self.stale_from - position, 0)
        return data[:kept] + bytes(len(data) - len(data[:kept]))


def test_a_survey_goes_on_over_frames_that_were_written_after_it_had_looked(directory: Path) -> None:
    write_log(directory, frames=3)
    frames = [found for found in survey(RealDisk(), directory, LOG_ID) if isinstance(found, WholeFrame)]
    assert len(frames) == 3
    for stale_from in (0, frames[1].position, frames[1].position + 20, frames[2].position + 60):
        found = list(islice(survey(StaleOnce(stale_from), directory, LOG_ID), 100))
        assert [(type(one), one.position) for one in found] == [(WholeFrame, one.position) for one in frames]


def forget_cleanness(directory: Path) -> None:
    (directory / "clean").unlink()


def test_logs_are_listed_with_their_parts(directory: Path, tmp_path: Path) -> None:
    write_log(directory)
    write_log(tmp_path / "logs" / "12", "rocksdb")
    Reservation.open(tmp_path / "logs" / "13").extend(5)
    segment, rocksdb, memory = list_logs(tmp_path)
    assert (segment.log_id, segment.engine, segment.clean) == (LOG_ID, "segment", True)
    assert (segment.start_offset, segment.end_offset, segment.reserved_end) == (0, 60, 1000)
    log = open_log(directory)
    assert segment.parts == list(log.stat().parts)
    assert (rocksdb.log_id, rocksdb.engine) == (12, "rocksdb")
    assert (memory.log_id, memory.engine, memory.reserved_end) == (13, "memory", 5)


def test_a_running_log_is_listed_dumped_and_verified(directory: Path) -> None:
    log = open_log(directory)
    writer = Writer(log, LOG_ID)
    for number in range(30):
        writer.append([b"%d" % number])
    listing = list_log(directory)
    assert not listing.clean
    assert listing.end_offset == 30
    assert len(list(dump(directory))) == 30
    result = verify(directory)
    assert (result.frames, result.records, result.damage, result.tail) == (30, 30, [], [])


@pytest.mark.parametrize("engine", ["segment", "rocksdb"])
def test_a_dump_gives_the_frames_of_a_range_byte_for_byte(directory: Path, engine: str) -> None:
    records = write_log(directory, engine)
    frames = [found for found in dump(directory, start_offset=11, end_offset=20) if isinstance(found, DumpedFrame)]
    assert [frame.head.base_offset for frame in frames] == [10, 12, 14, 16, 18]
    assert [pair for frame in frames for pair in values_of(frame.data, LOG_ID)] == records[10:20]


@pytest.mark.parametrize("engine", ["segment", "rocksdb"])
def test_a_whole_log_verifies(directory: Path, engine: str) -> None:
    write_log(directory, engine)
    told: list[int] = []
    result = verify(directory, told.append)
    assert (result.frames, result.records, result.damage, result.tail) == (30, 60, [], [])
    assert told == sorted(told)


def test_verify_names_file_bytes_and_offsets_of_each_damage(directory: Path) -> None:
    write_log(directory)
    path = damage_frame(directory, 10)
    damage_frame(directory, 40)
    result = verify(directory)
    assert [(damage.offset, damage.next_offset) for damage in result.damage] == [(10, 12), (40, 42)]
    assert str(path) in str(result.damage[0])
    assert "checksum" in str(result.damage[0])
    assert result.records == 56
    assert [found.offset for found in dump(directory) if isinstance(found, Damage)] == [10, 40]


def test_an_append_under_way_is_no_damage(directory: Path) -> None:
    write_log(directory)
    forget_cleanness(directory)
    with list_log(directory).path.joinpath(list_log(directory).parts[-1].name).open("ab") as file:
        file.write(b"MSF1 half a frame")
    result = verify(directory)
    assert result.damage == []
    assert [tail.offset for tail in result.tail] == [60]


def test_a_damaged_log_serves_again_after_a_repair_and_the_lost_offsets_are_marked(directory: Path) -> None:
    records = write_log(directory)
    original = damage_frame(directory, 10).read_bytes()
    damage_frame(directory, 12)
    damage_frame(directory, 59)
    forget_cleanness(directory)
    with pytest.raises(InvalidArgument):
        repair(directory, quarantine=False)
    result = repair(directory, quarantine=True)
    assert [(damage.offset, damage.next_offset) for damage in result.damage] == [(10, 14), (58, 60)]
    assert len(result.quarantined) == 2
    assert len(result.quarantined[0].read_bytes()) == len(original)
    log = open_log(directory)
    assert log.stat().end_offset == 60
    assert read_everything(log, LOG_ID) == records[:10] + records[14:58]
    markers = [
        found.head for found in dump(directory) if isinstance(found, DumpedFrame) and found.head.kind == KIND_MARKER
    ]
    assert [(head.base_offset, head.count) for head in markers] == [(10, 4), (58, 2)]
    stamps = [found.head.stamp for found in dump(directory) if isinstance(found, DumpedFrame)]
    assert stamps == sorted(set(stamps))
    assert verify(directory).damage == []
    Writer(log, LOG_ID).append([b"more"])
    log.close()
    assert open_log(directory).stat().clean


def test_a_missing_file_is_named_and_repaired(directory: Path) -> None:
    records = write_log(directory)
    victim = list_log(directory).parts[2]
    (directory / victim.name).unlink()
    (damage,) = verify(directory).damage
    assert (damage.offset, damage.next_offset, damage.reason) == (
        victim.base_offset,
        victim.end_offset,
        "the file is missing",
    )
    with pytest.raises(DamagedLog):
        open_log(directory)
    repair(directory, quarantine=True)
    lost = range(victim.base_offset, victim.end_offset)
    assert read_everything(open_log(directory), LOG_ID) == [pair for pair in records if pair[0] not in lost]


def test_the_first_file_missing_after_a_crash_is_repaired(directory: Path) -> None:
    records = write_log(directory)
    forget_cleanness(directory)
    first = list_log(directory).parts[0]
    (directory / first.name).unlink()
    with pytest.raises(DamagedLog, match="are missing"):
        open_log(directory)
    repair(directory, quarantine=True)
    log = open_log(directory)
    assert log.stat().start_offset == 0
    assert read_everything(log, LOG_ID) == records[first.end_offset :]


@pytest.mark.parametrize("with_index", [True, False])
def test_a_middle_file_missing_after_a_crash_is_named_and_repaired(directory: Path, with_index: bool) -> None:
    records = write_log(directory)
    forget_cleanness(directory)
    before, victim = list_log(directory).parts[1:3]
    (directory / victim.name).unlink()
    (directory / victim.name).with_suffix(".index").unlink()
    if not with_index:
        (directory / before.name).with_suffix(".index").unlink()
    (damage,) = verify(directory).damage
    assert (damage.offset, damage.next_offset) == (victim.base_offset, victim.end_offset)
    with pytest.raises(DamagedLog, match=f"offsets {victim.base_offset}..{victim.end_offset} are missing"):
        open_log(directory)
    repair(directory, quarantine=True)
    lost = range(victim.base_offset, victim.end_offset)
    assert read_everything(open_log(directory), LOG_ID) == [pair for pair in records if pair[0] not in lost]
    assert verify(directory).damage == []


def test_offsets_that_were_left_out_are_not_taken_for_a_missing_file(directory: Path, tmp_path: Path) -> None:
    write_log(directory)
    for start in (1000, 2000, 3000):
        forget_cleanness(directory)
        log = open_log(directory)
        writer = Writer(log, LOG_ID)
        writer.next_offset = start
        for _ in range(10):
            writer.append([b"x" * 1000])
        log.sync()
        assert verify(directory).damage == []
        log.close()
    assert verify(directory).damage == []
    forget_cleanness(directory)
    expected = read_everything(open_log(directory), LOG_ID)
    assert [offset for offset, _ in expected[-2:]] == [3008, 3009]
    write_format(tmp_path)
    backup(tmp_path, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")
    assert read_everything(open_log(tmp_path / "restored" / "logs" / str(LOG_ID)), LOG_ID) == expected


def test_a_damaged_reservation_is_made_again_beyond_everything_given_out(directory: Path) -> None:
    write_log(directory)
    (directory / "reserved").write_bytes(b"rubbish")
    assert list_log(directory).reserved_end == -1
    result = repair(directory, quarantine=True)
    assert result.notes
    reservation = Reservation.open(directory)
    assert reservation.end_offset >= 60 + BLOCK_MAX
    assert reservation.epoch >= 1
    assert not reservation.clean


def test_repairing_a_whole_log_changes_nothing(directory: Path) -> None:
    write_log(directory)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    result = repair(directory, quarantine=True)
    assert (result.damage, result.quarantined, result.notes) == ([], [], [])
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


def test_a_damaged_rocksdb_log_is_repaired_from_what_is_readable(directory: Path) -> None:
    records = write_log(directory, "rocksdb")
    (current,) = (directory / "rocksdb").glob("CURRENT")
    current.write_bytes(b"rubbish")
    with pytest.raises(DamagedLog):
        open_log(directory, "rocksdb")
    result = repair(directory, quarantine=True)
    assert result.quarantined == [directory / "rocksdb.quarantine"]
    assert read_everything(open_log(directory, "rocksdb"), LOG_ID) == records
    with pytest.raises(StorageFault):
        repair(directory, quarantine=True)


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        list_log(tmp_path / "9")
    with pytest.raises(InvalidArgument):
        verify(tmp_path)
