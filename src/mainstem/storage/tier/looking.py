"""Looking into the parts of a log that lie in an object store, without a broker: for `mainstem log ls|dump|verify`.

The registry of the data directory says where they are and how the store is reached; credentials come from the environment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from mainstem.codec.batch import FrameHead, crc32c, verify_frame
from mainstem.model.errors import CorruptFrame
from mainstem.storage.engine import Part
from mainstem.storage.segment.segment import file_name
from mainstem.storage.segment.survey import Damage
from mainstem.storage.tier.objects import Object
from mainstem.storage.tier.registry import FILE, Registry
from mainstem.storage.tier.store import ObjectStore, StoreSettings


class FarFrame(NamedTuple):
    path: Path  # where its file lay
    position: int
    head: FrameHead
    data: bytes


def remote_objects(directory: Path) -> list[Object]:
    """Of a log's directory `<data>/logs/<id>`; none where there is no registry."""
    data = directory.parents[1]
    if not (data / FILE).exists():
        return []
    registry = Registry(data, read_only=True)
    try:
        return registry.parts_of(int(directory.name))
    finally:
        registry.close()


def part_of(one: Object) -> Part:
    footer = one.footer
    return Part(
        name=file_name(footer.base_offset, footer.generation),
        generation=footer.generation,
        base_offset=footer.base_offset,
        end_offset=footer.end_offset,
        first_stamp=footer.first_stamp,
        last_stamp=footer.last_stamp,
        size_bytes=footer.size,
        sealed=True,
    )


def open_store(data: Path) -> ObjectStore:
    """As the broker opened it last."""
    registry = Registry(data, read_only=True)
    try:
        return ObjectStore(StoreSettings(**json.loads(registry.fact("settings"))))
    finally:
        registry.close()


def survey_objects(
    directory: Path, objects: list[Object], seen: Callable[[int], None] | None = None
) -> Iterator[FarFrame | Damage]:
    """Every frame of these objects, checked; what is missing or damaged is told, and the next one is looked at."""
    if not objects:
        return
    store = open_store(directory.parents[1])
    for one in objects:
        yield from _survey(store, directory, one)
        if seen is not None:
            seen(one.footer.size)


def _survey(store: ObjectStore, directory: Path, one: Object) -> Iterator[FarFrame | Damage]:
    footer, path = one.footer, directory / file_name(one.footer.base_offset, one.footer.generation)
    offset, position = footer.base_offset, 0
    try:
        body = _body(store, one)
        while position < footer.size:
            head = verify_frame(body, position, footer.log_id)
            yield FarFrame(path, position, head, bytes(body[position : position + head.size]))
            position += head.size
            offset = head.base_offset + head.count
    except CorruptFrame as error:
        reason = f"{error.message} (object {store.url}/{one.key})"
        yield Damage(path, position, footer.size, offset, footer.end_offset, reason, durable=True)


def _body(store: ObjectStore, one: Object) -> memoryview:
    """The frames, each chunk checked."""
    footer, found = one.footer, bytearray()
    for number, checksum in enumerate(footer.crcs):
        data = store.get(one.key, number * footer.chunk_bytes, footer.chunk_size(number))
        if crc32c(data) != checksum:
            raise CorruptFrame(f"the bytes at {number * footer.chunk_bytes} do not match their checksum")
        found += data
    return memoryview(found)[: footer.size]
