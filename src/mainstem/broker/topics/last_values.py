"""A last-value view: of each key (or topic) the newest record, like a table that publishing updates.

Nothing is copied: the table maps a key to where its newest record lies. It is built on first use by reading the view
once, and read on from there whenever it is asked again: on the loop for a slice, and where that is not enough whoever asked
is told `NotBuilt`, waits while it is built in turns with all else that reads much, and asks again. A null value deletes the
key. Keys beyond KEYS_MAX are refused: such a table belongs into the lakehouse.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from mainstem.broker.delivery.turns import SLICE_NS
from mainstem.log.away import may_wait, when_local
from mainstem.model.errors import InvalidArgument, Overloaded
from mainstem.model.record import Record
from mainstem.storage.engine import NotLocal

if TYPE_CHECKING:
    from mainstem.broker.topics.views import View

KEYS_MAX = 1_000_000
READ_BYTES = 1 << 20
BUILDS_MAX = 4  # tables at once
BY_KEY, BY_TOPIC = "key", "topic"


class Place(NamedTuple):
    slot: int
    offset: int
    stamp: int


class NotBuilt(NotLocal):
    """More was appended since the table was last read than the loop reads at once."""

    threads = ThreadPoolExecutor(BUILDS_MAX, thread_name_prefix="table")  # which only wait

    def __init__(self, table: LastValues, loop: asyncio.AbstractEventLoop) -> None:
        Exception.__init__(self, "the table is being built")
        self._table, self._loop = table, loop

    def bring(self) -> None:
        asyncio.run_coroutine_threadsafe(self._table.build(), self._loop).result()


class LastValues:
    def __init__(self, view: View, by: str) -> None:
        if by not in (BY_KEY, BY_TOPIC):
            raise InvalidArgument(f"--last-by must be {BY_KEY} or {BY_TOPIC}, not {by!r}")
        self._view = view
        self._by = by
        self._places: dict[bytes, Place] = {}
        self._read_to: dict[int, int] = {}  # slot → offset

    def __len__(self) -> int:
        self.refresh()
        return len(self._places)

    def key_of(self, record: Record) -> bytes | None:
        return record.topic if self._by == BY_TOPIC else record.key

    def refresh(self) -> None:
        """Read what was appended since the last call."""
        until_ns = 0 if may_wait() else time.monotonic_ns() + SLICE_NS
        for number in range(len(self._view.slots)):
            while self._read(number, until_ns):
                if until_ns and time.monotonic_ns() >= until_ns:
                    raise NotBuilt(self, asyncio.get_running_loop())

    async def build(self) -> None:
        turns = self._view.namespace.broker.turns
        for number in range(len(self._view.slots)):
            more = True
            while more:
                await turns.turn(self._view.namespace.name)
                more = await when_local(lambda: self._read(number, turns.slice_end_ns()))  # noqa: B023

    def _read(self, number: int, until_ns: int) -> bool:
        """Read on in one slot; whether there is more."""
        slot = self._view.slot(number)
        if slot is None:
            return False
        offset = max(self._read_to.get(number, 0), slot.start_offset)
        if offset >= slot.stable_offset:
            return False
        records, after = slot.all_records(offset, READ_BYTES, until_ns=until_ns)
        for record in records:
            self._apply(number, record)
        self._read_to[number] = max(offset, after)
        return offset < after < slot.stable_offset  # else the rest belongs to an open transaction

    def _apply(self, slot: int, record: Record) -> None:
        key = self.key_of(record)
        if key is None:
            return
        known = self._places.get(key)
        if known is not None and known.stamp > record.stamp:
            return
        if known is None and len(self._places) >= KEYS_MAX:
            raise Overloaded(
                f"view {self._view.name.decode()!r} has more than {KEYS_MAX} keys",
                fix="archive it and query the table: mainstem lake archive",
            )
        self._places[key] = Place(slot, record.offset, record.stamp)

    def is_last(self, record: Record) -> bool:
        """Whether it is its key's newest, as far as was read; records without a key belong to no table."""
        key = self.key_of(record)
        if key is None:
            return False
        place = self._places.get(key)
        return place is None or record.stamp >= place.stamp

    def get(self, key: bytes) -> Record | None:
        """The newest record of the key; None if there is none or it was deleted."""
        self.refresh()
        return self._fetch(key)

    def items(self, prefix: bytes = b"", after: bytes = b"", limit: int = 100) -> list[Record]:
        """The table's rows in the order of their keys."""
        self.refresh()
        keys = sorted(key for key in self._places if key.startswith(prefix) and key > after)
        rows: list[Record] = []
        for key in keys:
            record = self._fetch(key)
            if record is not None:
                rows.append(record)
                if len(rows) == limit:
                    break
        return rows

    def _fetch(self, key: bytes) -> Record | None:
        place = self._places.get(key)
        slot = self._view.slot(place.slot) if place is not None else None
        if place is None or slot is None:
            return None
        records, _ = slot.all_records(place.offset, 1, count_max=1)
        if not records or records[0].offset != place.offset:
            del self._places[key]  # retention took it
            return None
        return records[0] if records[0].value is not None else None
