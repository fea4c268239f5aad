"""The log of topics that are not stored (`store = false`): what is published goes to who listens now, and nowhere else.

It is a log like any other to publishers and to live delivery, so that both are the same code: batches are gathered, sealed
and stamped. Its engine keeps none of them. It is known to no metadata, has no files, and nobody reads it by offset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mainstem.log.durability import parse_durability
from mainstem.log.log import Log
from mainstem.model.errors import NotStored
from mainstem.storage.engine import Buffer, FrameRef, Part, Slice, Stat
from mainstem.storage.reservation import Reservation

if TYPE_CHECKING:
    from pathlib import Path

    from mainstem.codec.batch import BatchHead
    from mainstem.log.appended import Appended
    from mainstem.log.gather import TopicRef
    from mainstem.log.stamps import Stamps

LOG_ID = 0  # the store numbers logs from 1


class NothingKept:
    """An engine in which nothing is ever found."""

    is_local = True
    durable_offset = 0

    def append(self, data: Sequence[Buffer], frames: Sequence[FrameRef]) -> None:
        """Live delivery has the batches in its own hands."""

    def sync(self) -> None:
        """There is nothing to sync."""

    def read(self, offset: int, bytes_max: int, end_offset: int | None = None) -> Slice | None:
        return None

    read_now = read

    def find_stamp(self, stamp: int) -> int:
        return 0

    def roll(self) -> None:
        """It has no parts."""

    def trim(self, before_offset: int) -> int:
        return 0

    def replace(self, part: Part, frames: Sequence[Buffer]) -> None:
        """It has no parts."""

    def stat(self) -> Stat:
        return Stat(0, 0, 0, 0, (), None, clean=True)

    def close(self) -> None:
        """It holds nothing."""


class LiveLog(Log):
    """One for each namespace."""

    keeps = False
    engine_name = "none"

    def __init__(self, stamps: Stamps, on_dirty: Callable[[Log], None]) -> None:
        nothing = NothingKept()
        super().__init__(
            LOG_ID, nothing, stamps, Reservation(0, 0), durability=parse_durability("none"), on_dirty=on_dirty
        )
        self.on_disk = False

    def _take(self, count: int, stamps_more: int = 0) -> tuple[int, int]:
        """Offsets here are never seen again, so none is reserved."""
        base, self.next_offset = self.next_offset, self.next_offset + count
        return base, self._stamps.take(count + stamps_more)

    def append_batch(
        self,
        batch: Buffer,
        head: BatchHead,
        route: TopicRef,
        *,
        origin: int,
        topic_id: int,
        owned: bool = False,
        prepared: Path | None = None,
    ) -> Appended:
        raise not_stored(route.topic)


def not_stored(name: bytes) -> NotStored:
    """What needs a record that stays cannot have one here."""
    shown = name.decode(errors="replace")
    return NotStored(
        f"{shown!r} is live only (store = false): it takes NATS core, MQTT QoS 0 without retain and AMQP transient without"
        " a queue",
        fix=f"mainstem topic alter {shown} --store true",
    )
