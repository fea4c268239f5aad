"""A log whose engine is full: whoever can make room is asked once, and what is to be written is tried again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mainstem.model.errors import Overloaded
from mainstem.storage.engine import Buffer, FrameRef

if TYPE_CHECKING:
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


def refuse(log: Log, size: int) -> bool:
    """The default: publishers are told."""
    return False
