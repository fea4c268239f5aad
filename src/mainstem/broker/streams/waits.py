"""What messages of a stream wait for, in the journal: when they end, or that they are schedules.

stored ──note──▶ new ──take──▶ the journal, every COUNT_EVERY messages     (a snapshot has all that still wait)
start: what the journal told ──bring_back──▶ `Expiring`, `Schedules`; only messages it does not tell of are looked at
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mainstem.model.errors import CorruptFrame

if TYPE_CHECKING:
    from mainstem.broker.streams.stream import Stream

logger = logging.getLogger("mainstem.broker")

ITS_OWN_WORDS = -1  # in place of a time: the message itself says
Wait = tuple[int, int]  # offset; when it ends in ns, or ITS_OWN_WORDS


class Waits:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._new: list[Wait] = []  # in order of offsets; no more than the messages of COUNT_EVERY and a second
        self._told: list[Wait] = []  # while recovering
        self.told_end = 0  # the journal tells of all messages below it

    @property
    def wanted(self) -> bool:
        config = self._stream.config
        return bool(config.get("allow_msg_ttl") or config.get("allow_msg_schedules"))

    def note(self, offset: int, due_ns: int) -> None:
        self._new.append((offset, due_ns))

    def take(self, end: int) -> list[Wait]:
        """Those below an offset that the journal does not tell of yet."""
        count = bisect_left(self._new, (end, ITS_OWN_WORDS))
        taken, self._new = self._new[:count], self._new[count:]
        self.told_end = end
        return taken

    def all(self, end: int) -> list[Wait]:
        """Those below an offset that still wait."""
        stream = self._stream
        found = [(offset, due_ns) for offset, due_ns in stream.expiring.all() if offset < end]
        found += [(offset, ITS_OWN_WORDS) for offset in stream.schedules.offsets() if offset < end]
        return sorted(found)

    # -- recovery

    def recovered(self, end: int, waits: Iterable[Wait]) -> None:
        """An entry of the journal."""
        self._told.extend(waits)
        self.told_end = max(self.told_end, end)

    def bring_back(self) -> None:
        stream, told = self._stream, sorted(set(self._told))
        self._told = []
        there = [one for one in told if one[0] >= stream.first and one[0] not in stream.removed]
        stream.expiring.add_all((due_ns, offset) for offset, due_ns in there if due_ns != ITS_OWN_WORDS)
        for offset, due_ns in there:
            if due_ns == ITS_OWN_WORDS:
                self._look_again(offset)

    def _look_again(self, offset: int) -> None:
        stream = self._stream
        try:
            record = stream.read_one(offset)
        except CorruptFrame as error:
            logger.error("stream %r: a schedule cannot be read: %s", stream.name, error)
            return
        if record is not None and (block := record.header(b"ms-nats")):
            stream.schedules.note(offset, record.topic, record.stamp, block)
