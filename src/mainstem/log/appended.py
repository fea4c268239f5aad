"""One frame between a log and those who are told of it: the engine writes it, live delivery hands it on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mainstem.storage.engine import Buffer, FrameRef

if TYPE_CHECKING:
    from pathlib import Path

    from mainstem.codec.batch import SealedFrame
    from mainstem.codec.large_record import LargeRecord
    from mainstem.log.gather import Gather, Ticket, TopicRef
    from mainstem.log.log import Log


@dataclass(slots=True, eq=False)
class Appended:
    """One frame on its way: what is written, and what live delivery needs of it."""

    log: Log
    data: list[Buffer]
    ref: FrameRef
    ticket: Ticket
    kind: int
    origin: int
    gather: Gather | None = None  # the broker's own batch: its routes, one per record
    sealed: SealedFrame | None = None
    route: TopicRef | None = None  # a batch a client made: one topic for all of it
    numbers: bytes = b""
    stamps_more: int = 0  # beyond one for each offset: a marker's, for what it makes visible
    held: tuple[Buffer, int] | None = None  # batch and topic id, until its log may be written
    large: LargeRecord | None = None  # the broker's own record that is a frame by itself (`large.py`)
    prepared: Path | None = None  # the file that has all of the frame but what its place decides

    @property
    def stamp_end(self) -> int:
        return self.ref.stamp + self.ref.count + self.stamps_more
