"""A log whose engine is full: whoever can make room is asked once, and what is to be written is tried again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from mainstem.codec.batch import BATCH_HEAD_SIZE
from mainstem.model.errors import Overloaded
from mainstem.storage.engine import Buffer, FrameRef, PreparingEngine

if TYPE_CHECKING:
    from mainstem.log.appended import Appended
    from mainstem.log.log import Log

MakeRoom = Callable[["Log", int], bool]  # for so many bytes more; False: there is none to make


def append(log: Log, data: Sequence[Buffer], frames: Sequence[FrameRef]) -> None:
    """Overloaded if there is no room, and none could be made."""
    try:
        log.engine.append(data, frames)
    except Overloaded:
        if not log.make_room(log, sum(frame.size for frame in frames)):
            raise
        log.engine.append(data, frames)


def append_all(log: Log, pending: list[Appended]) -> tuple[int, Overloaded | None]:
    """With as few calls as there are prepared frames between the others; how many were stored, and why not more."""
    stored = 0
    try:
        for prepared, group in groupby(pending, _prepared):
            items = list(group)
            if prepared is not None:
                assert isinstance(log.engine, PreparingEngine)
                log.engine.adopt(prepared, _front(items[0]), items[0].ref)
            else:
                data = items[0].data if len(items) == 1 else [part for item in items for part in item.data]
                append(log, data, [item.ref for item in items])
            stored += len(items)
    except Overloaded as error:
        return stored, error
    return stored, None


def _front(item: Appended) -> list[Buffer]:
    """What its place decides of a prepared frame: both heads."""
    if item.large is not None:
        return item.data
    head, batch = item.data
    return [head, memoryview(batch)[:BATCH_HEAD_SIZE]]


def _prepared(item: Appended) -> Path | None:
    return item.prepared


def refuse(log: Log, size: int) -> bool:
    """The default: publishers are told."""
    return False
