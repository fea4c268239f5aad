"""Looking into the parts of a log that lie in an object store, without a broker: for `mainstem log ls|dump|verify`.

The registry of the data directory says where they are and how the store is reached; credentials come from the environment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from mainstem.codec.batch import FrameHead, crc32c, verify_frame
from mainstem.model.errors import CorruptFrame
from mainstem.storage.object.engine import segment_of
from mainstem.storage.object.pieces import Pieces
from mainstem.storage.segment.survey import Damage
from mainstem.storage.tier.iceberg.tables import is_rows
from mainstem.storage.tier.registry import FILE, Registry
from mainstem.storage.tier.remote import RemoteSegment, part_segment
from mainstem.storage.tier.store import ObjectMissing, ObjectStore, StoreSettings

LOOKED_AT_MAX = 10_000  # objects, by one look whether they are there
LOOKS = 16  # at once
HELD_MAX = 5  # stretches of a missing object that are named


class FarFrame(NamedTuple):
    path: Path  # where its file lay
    position: int
    head: FrameHead
    data: bytes


def remote_segments(directory: Path) -> list[RemoteSegment]:
    """Of a log's directory `<data>/logs/<id>`, in order of their offsets: parts of the tier, or pieces of the engine
    `object`; none where there is no registry."""
    data = directory.parents[1]
    if not (data / FILE).exists():
        return []
    log_id = int(directory.name)
    registry = Registry(data, read_only=True)
    try:
        parts = [part_segment(directory, one) for one in registry.parts_of(log_id)]
        pieces = [segment_of(directory, one.piece, one) for one in Pieces(registry, read_only=True).of_log(log_id)]
        return parts + [one for one in pieces if isinstance(one, RemoteSegment)]
    finally:
        registry.close()


def open_store(data: Path) -> ObjectStore:
    """As the broker opened it last."""
    registry = Registry(data, read_only=True)
    try:
        return ObjectStore(StoreSettings(**json.loads(registry.fact("settings"))))
    finally:
        registry.close()


def missing_objects(data: Path, store: ObjectStore) -> tuple[int, list[str]]:
    """How many objects were looked for, and those of them that are not there, each with what it holds."""
    logs = [one for one in (data / "logs").glob("*") if one.name.isdigit()] if (data / FILE).exists() else []
    named: dict[str, list[RemoteSegment]] = {}
    for log in logs:
        for one in remote_segments(log):
            named.setdefault(one.object.key, []).append(one)
    wanted = list(named)[:LOOKED_AT_MAX]

    def look(key: str) -> str:
        try:
            store.size(key)
        except ObjectMissing as error:
            return f"{error.message}; it holds {_held(named[key])}"
        return ""

    with ThreadPoolExecutor(LOOKS) as threads:
        return len(wanted), [told for told in threads.map(look, wanted) if told]


def _held(stretches: list[RemoteSegment]) -> str:
    """A bundle may hold some of thousands of logs, and of each several stretches that lie one behind the other."""
    joined: list[tuple[str, int, int]] = []
    for one in stretches:
        log = one.path.parent.name
        if joined and joined[-1][0] == log and joined[-1][2] == one.base_offset:
            joined[-1] = log, joined[-1][1], one.end_offset
        else:
            joined.append((log, one.base_offset, one.end_offset))
    said = [f"offsets {first}..{end} of log {log}" for log, first, end in joined[:HELD_MAX]]
    more = len(joined) - HELD_MAX
    return ", ".join(said) + (f" and {more} more stretches" if more > 0 else "")


def survey_remote(
    directory: Path, segments: list[RemoteSegment], seen: Callable[[int], None] | None = None
) -> Iterator[FarFrame | Damage]:
    """Every frame of these, checked; what is missing or damaged is told, and the next one is looked at."""
    if not segments:
        return
    store, log_id = open_store(directory.parents[1]), int(directory.name)
    for one in segments:
        yield from _survey(store, log_id, one)
        if seen is not None:
            seen(one.size)


def _survey(store: ObjectStore, log_id: int, one: RemoteSegment) -> Iterator[FarFrame | Damage]:
    offset, position = one.base_offset, 0
    try:
        body = _frames(store, one)
        while position < one.size:
            head = verify_frame(body, position, log_id)
            yield FarFrame(one.path, position, head, bytes(body[position : position + head.size]))
            position += head.size
            offset = head.base_offset + head.count
    except CorruptFrame as error:
        reason = f"{error.message} (object {store.url}/{one.object.key})"
        yield Damage(one.path, position, one.size, offset, one.end_offset, reason, durable=True)


def _frames(store: ObjectStore, one: RemoteSegment) -> memoryview:
    """Each chunk that they lie in checked."""
    if is_rows(one.object.key):
        from mainstem.storage.tier.iceberg.parquet import from_parquet

        return memoryview(from_parquet(store.get_all(one.object.key)))
    footer, found, end = one.object.footer, bytearray(), one.position + one.size
    first = one.position // footer.chunk_bytes
    for number in range(first, -(-end // footer.chunk_bytes)):
        start = number * footer.chunk_bytes
        data = store.get(one.object.key, start, footer.chunk_size(number))
        if crc32c(data) != footer.crcs[number]:
            raise CorruptFrame(f"the bytes at {start} do not match their checksum")
        found += data
    return memoryview(found)[one.position - first * footer.chunk_bytes :][: one.size]
