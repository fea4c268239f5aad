"""A last-value view: of each key (or topic) the newest record, like a table that publishing updates.

Nothing is copied: the table maps a key to where its newest record lies. It is built on first use by reading the view
once, and read on from there whenever it is asked again. A null value deletes the key. Keys beyond KEYS_MAX are refused:
such a table belongs into the lakehouse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainstem.model.errors import InvalidArgument, Overloaded
from mainstem.model.record import Record

if TYPE_CHECKING:
    from mainstem.broker.views import View, ViewSlot

KEYS_MAX = 1_000_000
READ_BYTES = 1 << 20
BY_KEY, BY_TOPIC = "key", "topic"


class Place(NamedTuple):
    slot: int
    offset: int
    stamp: int


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
        for number in range(len(self._view.slots)):
            slot = self._view.slot(number)
            if slot is not None:
                self._read(number, slot)

    def _read(self, number: int, slot: ViewSlot) -> None:
        offset = max(self._read_to.get(number, 0), slot.start_offset)
        while offset < slot.stable_offset:
            records, after = slot.all_records(offset, READ_BYTES)
            for record in records:
                self._apply(number, record)
            if after <= offset:  # the rest belongs to an open transaction
                break
            offset = after
        self._read_to[number] = offset

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
        """Whether it is its key's newest; records without a key belong to no table."""
        key = self.key_of(record)
        if key is None:
            return False
        place = self._places.get(key)
        return place is not None and place.stamp == record.stamp

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
