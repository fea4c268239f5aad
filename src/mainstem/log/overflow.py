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


class Partly(Exception):
    """There was no room for what came after the first `stored` frames."""

    def __init__(self, stored: int, error: Overloaded) -> None:
        super().__init__(error.message)
        self.stored, self.error = stored, error


def append_apart(log: Log, pending: list[Appended]) -> None:
    """With prepared frames among them, each of which is a call of its own."""
    stored = 0
    for prepared, group in groupby(pending, _prepared):
        items = list(group)
        try:
            if prepared is not None:
                assert isinstance(log.engine, PreparingEngine)
                log.engine.adopt(prepared, _front(items[0]), items[0].ref)
            else:
                append(log, [part for item in items for part in item.data], [item.ref for item in items])
        except Overloaded as error:
            if not stored:
                raise
            raise Partly(stored, error) from None
        stored += len(items)


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
