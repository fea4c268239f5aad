"""Parts of a topic as files of an Iceberg table: built again byte for byte, read by others, refused where others write."""

from __future__ import annotations

import contextlib
import io
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table
from pyiceberg.types import StringType

from mainstem.codec.batch import KIND_DATA, BatchBuilder, make_marker
from mainstem.codec.raw_table import COLUMNS, ELEMENT_ID, HEADER_KEY_ID, HEADER_VALUE_ID, iceberg_schema
from mainstem.model.errors import ConfigError, CorruptFrame
from mainstem.storage.inspection import dump, list_log, verify
from mainstem.storage.tier.iceberg.parquet import NotForTables, from_parquet, to_parquet
from mainstem.storage.tier.iceberg.tables import CATALOG, TableTarget, table_name
from mainstem.storage.tier.registry import Registry
from mainstem.testing.frames import Writer, make_test_frame
from tests.unit.storage.test_tier import LOG_ID, House, Killed, killed

TARGET = TableTarget(b"sensors/a", 0, "mainstem.sensors_a")
NAMES = {
    **{number: (number, name) for number, name, _, _ in COLUMNS},
    **{ELEMENT_ID: (ELEMENT_ID, "element"), HEADER_KEY_ID: (HEADER_KEY_ID, "key")},
    HEADER_VALUE_ID: (HEADER_VALUE_ID, "value"),
}
ATTRIBUTES = (0, 0, 0, 1, 3, 4, 8)  # compressors, and the broker's time


def some_frames(seed: int, count: int) -> bytes:
    """Of every origin, with and without compressor, keys, values, odd headers and times; and offsets that were lost."""
    rolled, frames, offset = random.Random(seed), list[bytes](), 0
    for _ in range(count):
        if rolled.random() < 0.1:
            lost = rolled.randrange(1, 50)
            frames.append(bytes(make_marker(LOG_ID, offset, lost, 1_000 + offset, 0)))
            offset += lost
        builder = BatchBuilder()
        records = rolled.randrange(1, 40)
        for _ in range(records):
            headers = [(rolled.randbytes(3), rolled.choice([None, b"", b"x"])) for _ in range(rolled.randrange(3))]
            key, value = (rolled.choice([None, b"", rolled.randbytes(9)]) for _ in range(2))
            time_ms = rolled.choice([0, -1, 1_700_000_000_000, rolled.randrange(1 << 41), (1 << 62)])
            builder.add(key, value, headers, time_ms, rolled.randrange(4))
        origin, attributes = rolled.randrange(7), rolled.choice(ATTRIBUTES)
        frames.append(bytes(builder.seal_frame(LOG_ID, offset, 1_000 + offset, 0, KIND_DATA, origin, 5, 0, attributes)))
        offset += records + rolled.choice([0, 0, 3])
    return b"".join(frames)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 12))
def test_whatever_the_frames_are_the_file_gives_them_back(seed: int, count: int) -> None:
    frames = some_frames(seed, count)
    assert from_parquet(to_parquet(memoryview(frames), LOG_ID, TARGET, NAMES)) == frames


def test_a_batch_that_its_client_made_unreadable_is_kept_whole() -> None:
    frame, _ = make_test_frame(LOG_ID, 0, [b"a", b"b"], stamp=5)
    broken = bytearray(frame)
    broken[48 + 61 + 1] ^= 0xFF  # a record's length that leads nowhere, under a checksum that fits
    from mainstem.codec.batch import crc32c

    broken[48 + 17 : 48 + 21] = crc32c(bytes(broken[48 + 21 :])).to_bytes(4, "big")
    frames = bytes(broken) + make_test_frame(LOG_ID, 2, [b"c"], stamp=7)[0]
    assert from_parquet(to_parquet(memoryview(frames), LOG_ID, TARGET, NAMES)) == frames


def test_a_part_with_transactions_is_for_no_table_and_a_file_that_is_none_is_damaged() -> None:
    builder = BatchBuilder()
    builder.add(None, b"a")
    frame = bytes(builder.seal_frame(LOG_ID, 0, 5, 0, KIND_DATA, 2, 0, 0, 16, 1, 0, 0))
    with pytest.raises(NotForTables):
        to_parquet(memoryview(frame), LOG_ID, TARGET, NAMES)
    with pytest.raises(CorruptFrame):
        from_parquet(b"PAR1 is how it begins")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32), st.data())
def test_a_file_that_is_changed_anywhere_is_damaged_and_nothing_worse(seed: int, drawn: st.DataObject) -> None:
    """Or what it gives back is another: then the checksums say so (`cache.py`)."""
    data = bytearray(to_parquet(memoryview(some_frames(seed, 3)), LOG_ID, TARGET, NAMES))
    data[drawn.draw(st.integers(0, len(data) - 1))] ^= 1 << drawn.draw(st.integers(0, 7))
    with contextlib.suppress(CorruptFrame):
        from_parquet(bytes(data))


def test_a_file_whose_columns_are_of_other_types_is_damaged() -> None:
    """One flipped bit makes a list a struct."""
    data = to_parquet(memoryview(some_frames(1, 3)), LOG_ID, TARGET, NAMES)
    rows = pq.read_table(io.BytesIO(data), partitioning=None)
    headers = rows.schema.get_field_index("headers")
    pairs = pa.array([{"key": "a", "value": b""}] * rows.num_rows)
    other = io.BytesIO()
    pq.write_table(rows.set_column(headers, "headers", pairs), other)
    with pytest.raises(CorruptFrame, match="the column headers is struct"):
        from_parquet(other.getvalue())


def test_a_process_that_read_such_a_file_ends_as_it_means_to(tmp_path: Path) -> None:
    """Threads of Arrow's that have not begun to work by then aborted one in ten."""
    path = tmp_path / "a.parquet"
    path.write_bytes(to_parquet(memoryview(some_frames(1, 3)), LOG_ID, TARGET, NAMES))
    lines = (
        "import os, sys",
        "from mainstem.storage.tier.iceberg.parquet import from_parquet",
        "before = len(os.listdir('/proc/self/task'))",
        "from_parquet(open(sys.argv[1], 'rb').read())",
        "print(len(os.listdir('/proc/self/task')) - before)",
    )
    told = subprocess.check_output([sys.executable, "-c", "\n".join(lines), str(path)], text=True)
    assert int(told) == 0, "threads that it started"


def moved(house: House) -> list[tuple[int, bytes]]:
    house.engine.table_target = TARGET
    stored = house.fill()
    house.move()
    assert not [segment for segment in house.engine.local.segments if segment.sealed]
    return stored


def open_catalog(house: House) -> Catalog:
    return load_catalog("mainstem", type="sql", uri=f"sqlite:///{house.data / CATALOG}")


def open_table(house: House) -> Table:
    return open_catalog(house).load_table(("mainstem", "sensors_a"))


def offsets_of(house: House) -> list[int]:
    return sorted(open_table(house).scan().to_arrow()["offset"].to_pylist())


def test_others_read_the_table_and_the_log_is_built_again_from_it(tmp_path: Path) -> None:
    house = House(tmp_path)
    stored = moved(house)
    rows: pa.Table = open_table(house).scan().to_arrow()
    start = house.engine.local.start_offset
    assert sorted(zip(rows["offset"].to_pylist(), rows["value"].to_pylist(), strict=True)) == stored[:start]
    assert not house.stored(), "there is one copy"
    house.open()
    assert house.read() == stored
    listing = list_log(house.log)
    assert (listing.start_offset, listing.end_offset) == (0, len(stored))
    verified = verify(house.log)
    assert (verified.remote_frames, verified.remote_damage) == (start, [])
    assert [one.head.base_offset for one in dump(house.log, end_offset=start)] == list(range(start))  # type: ignore[union-attr]


def test_the_topic_goes_back_to_segments_and_what_lies_in_the_table_stays_readable(tmp_path: Path) -> None:
    house = House(tmp_path)
    moved(house)
    in_table = len(offsets_of(house))
    house.engine.table_target = None
    stored = house.fill()
    house.move()
    assert house.stored(), "new parts are segments"
    assert len(offsets_of(house)) == in_table
    house.open()
    assert house.read() == stored


def test_what_is_trimmed_or_rewritten_leaves_the_table_and_then_the_store(tmp_path: Path) -> None:
    house = House(tmp_path)
    stored = moved(house)
    first, second = house.engine.stat().parts[:2]
    house.engine.trim(first.end_offset)
    kept, _ = make_test_frame(LOG_ID, second.base_offset, [b"kept"], stamp=9_999)
    house.engine.replace(second, [kept])
    house.tier.sweep()
    wanted = [(second.base_offset, b"kept"), *(one for one in stored if one[0] >= second.end_offset)]
    assert house.read() == wanted
    assert offsets_of(house) == [one[0] for one in wanted if one[0] < house.engine.local.start_offset]
    files = {path.stem for path in house.bucket.glob("iceberg/**/*.parquet")}
    assert files == {one.id for one in house.tier.registry.parts_of(LOG_ID)}


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_before_the_registry_counts_on_a_file_leaves_no_row_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    house = House(tmp_path)
    house.engine.table_target = TARGET
    stored = house.fill()
    with monkeypatch.context() as patched:
        patched.setattr(Registry, "commit", killed(Registry.commit, after=after, countdown=2))
        with pytest.raises(Killed):
            house.move()
    house.open()
    house.engine.table_target = TARGET
    house.move()
    house.tier.sweep()
    start = house.engine.local.start_offset
    assert offsets_of(house) == list(range(start))
    assert house.read() == stored
    files = {path.stem for path in house.bucket.glob("iceberg/**/*.parquet")}
    assert files == {one.id for one in house.tier.registry.parts_of(LOG_ID)}


def rename(table: Table) -> None:
    with table.update_schema() as update:
        update.rename_column("value", "payload")


def drop(table: Table) -> None:
    with table.update_schema() as update:
        update.delete_column("flags")


def add(table: Table) -> None:
    with table.update_schema() as update:
        update.add_column("mine", StringType())


def delete_rows(table: Table) -> None:
    table.delete("offset < 5")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (rename, "'value' is called 'payload' now"),
        (drop, "'flags' was dropped"),
        (add, "'mine' was added"),
        (delete_rows, "someone else committed"),
    ],
    ids=["rename", "drop", "add", "delete"],
)
def test_what_others_do_to_the_table_is_told_and_no_part_is_given_to_it(tmp_path: Path, change: Any, told: str) -> None:
    house = House(tmp_path)
    moved(house)
    writer = Writer(house.engine, LOG_ID)
    for _ in range(60):
        writer.append([b"more" * 60])
    house.engine.sync()
    change(open_table(house))
    with pytest.raises(ConfigError, match=told):
        house.move()
    assert [segment for segment in house.engine.local.segments if segment.sealed], "the segment stays"
    house.engine.table_target = None
    house.move()
    assert not [segment for segment in house.engine.local.segments if segment.sealed]


def test_a_table_that_was_dropped_or_made_anew_is_told(tmp_path: Path) -> None:
    house = House(tmp_path)
    moved(house)
    open_catalog(house).drop_table(("mainstem", "sensors_a"))
    with pytest.raises(ConfigError, match="was dropped by someone"):
        house.tier.tables.columns(TARGET.table)
    open_catalog(house).create_table(("mainstem", "sensors_a"), iceberg_schema(), location=f"file://{tmp_path}/x")
    with pytest.raises(ConfigError, match="created again"):
        house.tier.tables.columns(TARGET.table)


def test_tables_of_different_topics_have_different_names() -> None:
    topics: Sequence[bytes] = [b"a/b", b"a_b", b"A_b", b"a.b", "ä".encode(), b"a-b"]
    assert len({table_name("/", topic) for topic in topics} | {table_name("other", b"a_b")}) == len(topics) + 1
