"""A mirror: a view of another stream, with that one's messages, sequences and times, and consumers of its own.

Nothing is written twice: what the origin's limits, purges and deletions remove is gone here, too. It has no subjects and
takes no messages; a filter and a start leave some of the origin's out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from mainstem.broker.streams.settings import StreamSettings
from mainstem.broker.streams.sourcing import Granted, Sourcing
from mainstem.broker.streams.stream import Stream
from mainstem.broker.streams.tap import OVERHEAD_BYTES
from mainstem.model.topic import filter_of_nats

if TYPE_CHECKING:
    from mainstem.broker.streams.consumer import Consumer


def _of_origin(name: str) -> Any:
    return property(lambda mirror: getattr(mirror.origin, name))


class Mirror(Stream):
    """What it does not have itself, its origin has: `__getattr__`."""

    last_seq, last_stamp, sizes = _of_origin("last_seq"), _of_origin("last_stamp"), _of_origin("sizes")
    gathered, gathered_topics, last_id = _of_origin("gathered"), _of_origin("gathered_topics"), _of_origin("last_id")

    def __init__(self, origin: Stream, name: str, config: dict[str, Any], created_ns: int, start: int) -> None:
        # Not Stream's: it has no log of its own.
        self.origin = origin
        self.service, self.namespace, self.log = origin.service, origin.namespace, origin.log
        self.index, self.bitmaps = origin.index, origin.bitmaps
        self.name, self.created_ns = name, created_ns
        self.start = start  # the offset of the first message it may show
        self.consumers: dict[str, Consumer] = {}
        self.watchers: list[Callable[[], None]] = []
        self.mirrors: list[Mirror] = []
        self.deleted = False
        self._configure(config)
        self.granted: Granted = {}
        self.sourcing = Sourcing(self, self.service.of(self.namespace))

    def _configure(self, config: dict[str, Any]) -> None:
        self.config, self.settings = config, StreamSettings.of(config)
        subject = config["mirror"].get("filter_subject")
        self._shown = (filter_of_nats(subject.encode()),) if subject and subject != ">" else ()

    def __getattr__(self, name: str) -> Any:
        if name == "origin":
            raise AttributeError(name)
        return getattr(self.origin, name)

    @property
    def first(self) -> int:  # type: ignore[override]  # a stream counts, a mirror looks
        return max(self.origin.first, self.start)

    @property
    def messages(self) -> int:  # type: ignore[override]
        return self.count((), self.first, self.written) if self._shown or self.start else self.origin.messages

    @property
    def stored_bytes(self) -> int:  # type: ignore[override]
        origin = self.origin
        if not self._shown and not self.start:
            return origin.stored_bytes
        return self.messages * (origin.stored_bytes // origin.messages if origin.messages else OVERHEAD_BYTES)

    # -- its life --------------------------------------------------------------------------------------------------

    def attach(self) -> None:
        self.origin.mirrors.append(self)

    def detach(self) -> None:
        if self in self.origin.mirrors:
            self.origin.mirrors.remove(self)

    def change(self, config: dict[str, Any]) -> None:
        self._configure(config)

    @property
    def rights(self) -> tuple[bytes, ...]:
        return self.origin.rights

    @property
    def first_seq(self) -> int:
        record = self.next_of((), self.first) if self._shown and self.messages else None
        return record.offset + 1 if record is not None else super().first_seq

    # -- what it shows ---------------------------------------------------------------------------------------------

    def bitmap(self, filters: Sequence[bytes]) -> bytes | bytearray:
        if not self._shown:
            return super().bitmap(filters)
        shown = super().bitmap(self._shown)
        if not filters:
            return shown
        asked = super().bitmap(filters)
        return bytes(one & other for one, other in zip(shown, asked, strict=False))

    def count(self, filters: Sequence[bytes], start: int, end: int) -> int:
        return super().count(filters or self._shown, start, end)

    # -- nothing is removed through it -----------------------------------------------------------------------------

    def remove(self, offsets: Iterable[int]) -> int:
        raise AssertionError("a mirror removes nothing")

    def remove_front(self, end: int) -> int:
        raise AssertionError("a mirror removes nothing")

    def enforce(self, *, all_subjects: bool = False) -> None:
        """Its limits are its origin's."""
