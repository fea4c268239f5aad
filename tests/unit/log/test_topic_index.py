"""The topic index, compiled and plain, against a list of (offset, topic number)."""

from __future__ import annotations

import importlib.util
import random
import sys
from array import array
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.log import _topic_chunks, _topic_index
from mainstem.log import topic_index as door
from mainstem.log.topic_index_format import CHUNK_RECORDS
from mainstem.model.errors import CorruptFrame, NotFound
from mainstem.model.topic_tries import TopicTrie
from tests.oracles import topic_index as PLAIN

CORES = [(PLAIN, PLAIN), (_topic_index, _topic_chunks)]
FASTEST = _topic_index


def _over_plain_modules() -> ModuleType:
    """The files' side of the index over the plain modules: what either writes the other reads."""
    spec = importlib.util.spec_from_file_location("topic_index_over_plain", str(door.__file__))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    plain = {"mainstem.log._topic_index": PLAIN, "mainstem.log._topic_chunks": PLAIN}
    with mock.patch.dict(sys.modules, plain):
        spec.loader.exec_module(module)
    return module


plain_door = _over_plain_modules()

either = pytest.mark.parametrize("core", [core for core, _ in CORES], ids=lambda core: core.__name__.rpartition(".")[2])

Pair = tuple[int, int]


def bitmap_of(numbers: set[int]) -> bytes:
    bits = bytearray(max(numbers, default=0) // 8 + 1)
    for number in numbers:
        bits[number >> 3] |= 1 << (number & 7)
    return bytes(bits)


def filled(core: ModuleType, batches: list[tuple[int, list[int]]]) -> tuple[Any, list[Pair]]:
    """An index of batches, each after a gap, and what it should know."""
    index, pairs, offset = core.IndexCore(TopicTrie()), [], 0
    for gap, numbers in batches:
        offset += gap
        index.add(offset, array("I", numbers))
        pairs += [(offset + at, number) for at, number in enumerate(numbers) if number]
        offset += len(numbers)
    return index, pairs


def assert_answers(index: Any, pairs: list[Pair], start: int, end: int, limit: int, wanted: set[int]) -> None:
    within = [(offset, number) for offset, number in pairs if start <= offset < end]
    for number in wanted:
        meant = [offset for offset, n in within if n == number]
        assert list(index.find_one(number, start, end, limit)) == meant[:limit]
        assert index.count_one(number, start, end) == len(meant)
    meant = [offset for offset, n in within if n in wanted]
    found, scanned_to = index.find_many(bitmap_of(wanted), start, end, limit)
    assert list(found) == meant[:limit]
    if len(meant) >= limit:
        assert scanned_to == meant[limit - 1] + 1
    else:
        assert scanned_to == max(start, min(end, index.covered_end))
    assert index.count(bitmap_of(wanted), start, end) == len(meant)


numbers = st.lists(st.integers(0, 6), max_size=60)
small_batches = st.lists(st.tuples(st.integers(0, 20), numbers), max_size=8)
wide_batches = st.lists(
    st.tuples(st.sampled_from([0, 3, CHUNK_RECORDS - 50, 2 * CHUNK_RECORDS + 7]), numbers), max_size=6
)


@either
@settings(max_examples=150, deadline=None)
@given(small_batches, st.integers(0, 200), st.integers(0, 400), st.integers(1, 40), st.sets(st.integers(1, 9)))
def test_searches_find_what_a_plain_list_holds(
    core: ModuleType, batches: list[tuple[int, list[int]]], start: int, length: int, limit: int, wanted: set[int]
) -> None:
    index, pairs = filled(core, batches)
    assert_answers(index, pairs, start, start + length, limit, wanted)
    packed = PLAIN if core is PLAIN else CORES[-1][1]
    for chunk_id, chunk in list(index.chunks.items()):
        index.put_chunk(packed.PackedChunk(chunk.pack(index.covered_end, 0, 0)), checked=False)
        index.open_id = chunk_id + 1
    assert_answers(index, pairs, start, start + length, limit, wanted)


@settings(max_examples=40, deadline=None)
@given(
    wide_batches, st.integers(0, 3 * CHUNK_RECORDS), st.integers(1, 40), st.sets(st.integers(1, 9)), st.integers(0, 5)
)
def test_searches_cross_chunks_and_gaps(
    batches: list[tuple[int, list[int]]], start: int, limit: int, wanted: set[int], packed: int
) -> None:
    index, pairs = filled(FASTEST, batches)
    for _ in range(min(packed, len(index.waiting))):
        index.pack_first()
    assert_answers(index, pairs, start, index.covered_end + 5, limit, wanted)
    assert_answers(index, pairs, 0, start, limit, wanted)


@settings(max_examples=40, deadline=None)
@given(wide_batches, st.lists(st.integers(0, 8 * CHUNK_RECORDS), max_size=4), st.integers(0, 5))
def test_trimming_names_each_topic_once_when_its_last_record_goes(
    batches: list[tuple[int, list[int]]], marks: list[int], packed: int
) -> None:
    index, pairs = filled(FASTEST, batches)
    for _ in range(min(packed, len(index.waiting))):
        index.pack_first()
    start = 0
    for mark in sorted(marks):
        before = {n for offset, n in pairs if offset >= start}
        after = {n for offset, n in pairs if offset >= mark}
        assert sorted(index.trim(mark)) == sorted(before - after)
        start = mark
        assert_answers(index, [pair for pair in pairs if pair[0] >= mark], 0, 1 << 40, 1000, {1, 2, 3})


@pytest.mark.parametrize("topics", [3, 300, 70_000], ids=["one byte", "two bytes", "four bytes"])
def test_both_implementations_pack_the_same_bytes(topics: int) -> None:
    rng = random.Random(topics)
    values = array("I", (rng.randrange(topics + 1) for _ in range(90_000 if topics > 300 else 2_000)))
    packed = []
    for core, chunks in CORES:
        index = core.IndexCore(TopicTrie())
        index.add(CHUNK_RECORDS + 7, values)
        data = index.chunks[1].pack(index.covered_end, 3, 99)
        packed.append(data)
        chunk = chunks.PackedChunk(data)
        chunk.check()
        copy = chunk.unpack()
        assert copy.pack(index.covered_end, 3, 99) == data
        assert sorted(set(chunk.numbers_between(0, CHUNK_RECORDS))) == sorted(set(values) - {0})
    assert all(data == packed[0] for data in packed)


@either
def test_records_already_known_are_not_added_twice(core: ModuleType) -> None:
    index = core.IndexCore(TopicTrie())
    index.add(10, array("I", [1, 2, 1]))
    index.add(11, array("I", [2, 1, 1, 3]))
    assert list(index.find_one(1, 0, 100)) == [10, 12, 13]
    assert list(index.find_one(3, 0, 100)) == [14]
    assert index.covered_end == 15


@either
def test_a_busy_topic_is_read_in_pages(core: ModuleType) -> None:
    index = core.IndexCore(TopicTrie())
    index.add(0, array("I", [1, 1, 2, 1] * 500))
    seen: list[int] = []
    start = 0
    while page := list(index.find_one(1, start, 1 << 40, 7)):
        seen += page
        start = page[-1] + 1
    assert seen == [offset for offset in range(2000) if offset % 4 != 2]


def test_adding_without_checkpoints_packs_by_itself() -> None:
    index = FASTEST.IndexCore(TopicTrie())
    for chunk in range(PLAIN.WAITING_MAX + 5):
        index.add(chunk * CHUNK_RECORDS, array("I", [1, 2]))
    assert len(index.waiting) == PLAIN.WAITING_MAX
    assert list(index.find_one(2, 0, 1 << 40)) == [c * CHUNK_RECORDS + 1 for c in range(PLAIN.WAITING_MAX + 5)]


# -- files ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "topics"


class Ledger:
    """An index with files, and beside it the truth."""

    def __init__(self, path: Path | None, door: ModuleType = door) -> None:
        self.door = door
        self.path = path
        self.records: list[tuple[int, bytes]] = []
        self.start = 0
        self.index: Any = door.TopicIndex.open(path, TopicTrie())

    def add(self, offset: int, *topics: bytes) -> None:
        self.index.add(offset, array("I", [self.index.topics.number(topic) for topic in topics]))
        self.records += [(offset + at, topic) for at, topic in enumerate(topics)]

    def trim(self, before: int) -> list[bytes]:
        gone = []
        self.start = max(self.start, before)
        for number in self.index.trim(before):
            gone.append(self.index.topics.name(number))
            self.index.topics.remove(number)
        self.records = [(offset, topic) for offset, topic in self.records if offset >= before]
        return gone

    def crash(self) -> None:
        """Open again from the files as they are, and do what the log does: add what is not covered, trim the rest."""
        self.index = self.door.TopicIndex.open(self.path, TopicTrie())
        self.recover()
        self.trim(self.start)

    def recover(self) -> None:
        index = self.index
        stretches = [*index.missing, (index.covered_end, 1 << 60)]
        for start, end in stretches:
            for offset, topic in self.records:
                if start <= offset < end:
                    index.add(offset, array("I", [index.topics.number(topic)]))

    def reopen(self) -> None:
        self.index.close()
        covered = self.index.covered_end
        self.index = self.door.TopicIndex.open(self.path, TopicTrie())
        assert self.index.covered_end == covered
        assert self.index.missing == []

    def check(self) -> None:
        topics = self.index.topics
        for topic in {topic for _, topic in self.records}:
            meant = [offset for offset, t in self.records if t == topic]
            assert list(self.index.find_one(topics.find(topic), 0, 1 << 60)) == meant
            assert list(self.index.find_many(topics.bitmap(topic), 0, 1 << 60)[0]) == meant


C = CHUNK_RECORDS


@pytest.mark.parametrize("engine", ["memory", "files"])
def test_an_index_without_files_answers_the_same(engine: str, path: Path) -> None:
    ledger = Ledger(path if engine == "files" else None)
    ledger.add(C - 2, b"a", b"b", b"c", b"a")
    ledger.add(3 * C, b"b")
    assert ledger.index.checkpoint() == 2
    ledger.check()
    ledger.index.close()


def test_a_clean_close_needs_nothing_of_the_log(path: Path) -> None:
    ledger = Ledger(path)
    ledger.add(0, b"a", b"b")
    ledger.add(2 * C + 5, b"c", b"a")
    for _ in range(3):
        ledger.reopen()
        ledger.check()
        ledger.add(ledger.index.covered_end, b"a", b"new")
        ledger.check()


def test_a_last_chunk_that_is_just_full_answers_after_a_restart(path: Path) -> None:
    ledger = Ledger(path)
    ledger.add(C - 3, b"a", b"b", b"a")
    ledger.reopen()
    ledger.check()
    ledger.add(C, b"b", b"a")
    ledger.check()


def test_after_a_crash_only_what_was_not_saved_is_added_again(path: Path) -> None:
    ledger = Ledger(path)
    ledger.add(0, b"a", b"b")
    ledger.add(C, b"c")
    ledger.add(2 * C, b"d", b"a")
    assert ledger.index.checkpoint() == 2
    ledger.add(2 * C + 2, b"e")
    ledger.index = door.TopicIndex.open(path, TopicTrie())
    assert ledger.index.covered_end == 2 * C
    ledger.recover()
    ledger.check()


def test_chunks_beyond_the_stable_end_are_not_saved(path: Path) -> None:
    ledger = Ledger(path)
    for chunk in range(4):
        ledger.add(chunk * C, b"a")
    assert ledger.index.checkpoint(stable_end=2 * C) == 2
    ledger.crash()
    ledger.check()
    assert sorted(file.name for file in path.glob("*.chunk")) == ["0000000000.chunk", "0000000001.chunk"]


def test_a_crash_after_reopening_does_not_lose_the_reopened_chunk(path: Path) -> None:
    ledger = Ledger(path)
    ledger.add(0, b"a", b"b", b"a")
    ledger.reopen()
    ledger.add(3, b"a", b"c")
    ledger.crash()
    ledger.check()
    ledger.add(C, b"d")
    ledger.index.checkpoint()
    ledger.crash()
    ledger.check()


def test_topics_vanish_with_their_last_record_also_across_a_crash(path: Path) -> None:
    ledger = Ledger(path)
    ledger.add(0, b"old", b"kept")
    ledger.add(C, b"kept")
    ledger.add(2 * C, b"kept", b"new")
    ledger.index.checkpoint()
    assert ledger.trim(C) == [b"old"]
    ledger.add(3 * C, b"newer")  # takes the number of `old`
    ledger.crash()
    ledger.check()
    assert ledger.index.topics.find(b"old") == 0
    assert set(ledger.trim(2 * C + 1)) == {b"kept"}
    with pytest.raises(NotFound):
        ledger.index.topics.name(99)
    ledger.check()
    ledger.index.checkpoint()
    assert not (path / "0000000000.chunk").exists()


def test_a_reused_number_never_means_the_old_topic(path: Path) -> None:
    ledger = Ledger(path)
    ledger.add(0, b"first")
    ledger.add(C, b"other")
    ledger.add(2 * C, b"other")
    ledger.index.checkpoint()
    ledger.trim(C)
    ledger.add(2 * C + 1, b"second")
    ledger.add(3 * C, b"third")
    ledger.index.checkpoint()
    ledger.crash()
    ledger.check()
    assert ledger.index.topics.find(b"first") == 0


def test_a_snapshot_replaces_a_long_journal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "JOURNAL_BYTES_MAX", 0)
    ledger = Ledger(path)
    for chunk in range(5):
        ledger.add(chunk * C, b"a", b"topic-%d" % chunk)
        ledger.index.checkpoint()
    ledger.crash()
    ledger.check()


def test_files_written_by_either_are_read_by_both(path: Path) -> None:
    ledger = Ledger(path, plain_door)
    ledger.add(0, b"a", b"b")
    ledger.add(C, b"c", b"a")
    for ledger.door in (door, plain_door):
        ledger.reopen()
        ledger.check()
        ledger.add(ledger.index.covered_end, b"d", b"a")
    ledger.crash()
    ledger.check()


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "swap"])
def test_a_damaged_chunk_is_missing_until_it_is_added_again(path: Path, damage: str) -> None:
    ledger = Ledger(path)
    ledger.add(0, b"a", b"b")
    ledger.add(C, b"a", b"c")
    ledger.add(2 * C, b"b")
    ledger.index.close()
    file = path / "0000000001.chunk"
    data = bytearray(file.read_bytes())
    if damage == "flip":
        data[-1] ^= 1
        file.write_bytes(data)
    elif damage == "cut":
        file.write_bytes(data[:-3])
    elif damage == "swap":
        file.write_bytes((path / "0000000000.chunk").read_bytes())
    else:
        file.unlink()
    ledger.index = door.TopicIndex.open(path, TopicTrie())
    with pytest.raises(CorruptFrame):
        ledger.index.find_many(b"\xff", 0, 1 << 60)
    assert ledger.index.missing == [(C, 2 * C)]
    assert list(ledger.index.find_one(1, 0, C)) == [0]
    ledger.recover()
    assert ledger.index.missing == []
    ledger.check()
    ledger.reopen()
    ledger.check()


def test_damage_that_a_search_finds_is_known_after_a_restart(path: Path) -> None:
    ledger = Ledger(path)
    ledger.add(0, b"a", b"b")
    ledger.add(C, b"c")
    ledger.index.close()
    file = path / "0000000000.chunk"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    ledger.index = door.TopicIndex.open(path, TopicTrie())
    with pytest.raises(CorruptFrame):
        ledger.index.find_one(1, 0, 1 << 60)
    ledger.index = door.TopicIndex.open(path, TopicTrie())
    assert ledger.index.missing == [(0, C)]
    ledger.recover()
    ledger.check()


def test_every_flipped_bit_of_the_names_is_noticed(path: Path) -> None:
    ledger = Ledger(path)
    ledger.add(0, b"a", b"b")
    ledger.add(C, b"c")
    ledger.index.checkpoint()
    ledger.add(2 * C, b"d")
    ledger.index.checkpoint()
    good = (path / "names").read_bytes()
    chunks = {file: file.read_bytes() for file in path.glob("*.chunk")}
    for at in range(0, len(good), 3):
        bad = bytearray(good)
        bad[at] ^= 0x40
        (path / "names").write_bytes(bad)
        for file, data in chunks.items():
            file.write_bytes(data)
        ledger.crash()
        ledger.check()
    for size in range(0, len(good), 11):
        (path / "names").write_bytes(good[:size])
        for file, data in chunks.items():
            file.write_bytes(data)
        ledger.crash()
        ledger.check()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_history_of_adding_saving_crashing_and_trimming(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    ledger = Ledger(tmp_path_factory.mktemp("index"))
    offset = 0
    for _ in range(data.draw(st.integers(1, 12))):
        step = data.draw(st.sampled_from(["add", "add", "add", "save", "crash", "reopen", "trim"]))
        if step == "add":
            offset += data.draw(st.sampled_from([0, 0, 5, C - 3, C]))
            topics = data.draw(st.lists(st.sampled_from([b"a", b"b/c", b"d", b"$e", b"f"]), min_size=1, max_size=8))
            ledger.add(offset, *topics)
            offset += len(topics)
        elif step == "save":
            ledger.index.checkpoint()
        elif step == "crash":
            ledger.crash()
        elif step == "reopen":
            ledger.reopen()
        else:
            ledger.trim(data.draw(st.integers(0, offset)))
        ledger.check()


def test_memory_stays_in_proportion_to_topics() -> None:
    index = FASTEST.IndexCore(TopicTrie())
    for start in range(0, 300_000, 1000):
        index.add(start, array("I", range(start + 1, start + 1001)))
    index.take_fresh()
    column = index.chunks[0].memory_bytes()
    assert (index.memory_bytes() - column) / 300_000 < 16
