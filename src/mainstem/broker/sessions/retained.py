"""Retained messages: per topic a pointer to its last retained record in the log. Nothing is copied.

`note` is called where a record with the retain flag is put into an open batch; the pointer is known once the tick has
sealed it, and journaled once it is stable. What a crash cuts off in between is found again by looking through the
records beyond the checkpoint (see `sessions.py`). A pointer holds its record against retention.

    journal kind "retained": key = namespace 0x00 topic, value = u32 log, i64 offset, i64 stamp (null: none any more)
"""

from __future__ import annotations

import asyncio
import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from mainstem.broker.delivery.live import Route
from mainstem.broker.delivery.ticker import Ticker
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.sessions._retained_pointers import Pointers
from mainstem.broker.sessions.retained_bytes import RetainedBytes
from mainstem.broker.state.journal import Journal
from mainstem.codec.batch import decode_chosen
from mainstem.log.gather import Ticket
from mainstem.log.inflating import inflate_soon
from mainstem.log.log import Log
from mainstem.model.record import Record
from mainstem.model.topic_filter import is_pattern
from mainstem.model.topic_tries import TopicTrie
from mainstem.storage.engine import NotLocal

RETAINED_MAX = 1_000_000  # per namespace; beyond it new topics are not retained and counted
INFLATED_BYTES_MAX = 64 << 20
MEASURED_AT_ONCE = 200  # of messages whose size is not known: read in one go of a thread
PIECE_ENTRIES = 1_000  # of a snapshot: packed in a quarter of a millisecond
_POINTER = struct.Struct(">Iqq")


class Pointer(NamedTuple):
    log_id: int
    offset: int
    stamp: int


class _Noted(NamedTuple):
    route: Route
    ticket: Ticket
    at: int
    has_value: bool
    size: int


class Retained:
    """The retained messages of one namespace."""

    def __init__(self, namespace: Namespace, journal: Journal, ticker: Ticker, *, retained_max: int = RETAINED_MAX):
        self._namespace = namespace
        self._journal = journal
        self._ticker = ticker
        self._retained_max = retained_max
        self._topics = TopicTrie()
        self._pointers = Pointers()
        self._noted: list[_Noted] = []
        self._unsettled: dict[Ticket, list[tuple[bytes, Pointer | None]]] = {}
        self._derived: dict[bytes, int] = {}  # while recovering: topic → stamp of the newest that set or ended it
        self.refused = 0
        self.bytes: RetainedBytes | None = None  # where a quota asks for them

    def __len__(self) -> int:
        return len(self._pointers)

    # -- publishing

    def note(self, route: Route, ticket: Ticket, index: int, has_value: bool, size: int = 0) -> None:
        """Record `index` of the batch behind `ticket` is this topic's retained message from now on (or ends it).

        `size`: of its payload, where that is known."""
        if not self._noted:
            self._ticker.after_tick(self._resolve)
        self._noted.append(_Noted(route, ticket, index, has_value, size + len(route.topic)))

    def _resolve(self) -> None:
        noted, self._noted = self._noted, []
        later: list[_Noted] = []
        for one in noted:
            ticket = one.ticket
            if ticket.error is not None:
                continue
            if ticket.stamp < 0:  # its log writes nothing before its metadata is committed
                later.append(one)
                continue
            topic = one.route.topic
            pointer = Pointer(ticket.log.id, ticket.base_offset + one.at, ticket.stamp + one.at)
            if self._set(topic, pointer if one.has_value else None, one.size):
                self._settle_with(ticket, topic, pointer if one.has_value else None)
        if later:
            self._noted = later + self._noted
            self._ticker.after_write(self._resolve)

    def _settle_with(self, ticket: Ticket, topic: bytes, pointer: Pointer | None) -> None:
        changes = self._unsettled.get(ticket)
        if changes is None:
            changes = self._unsettled[ticket] = []
            changes.append((topic, pointer))
            ticket.wait(self)
        else:
            changes.append((topic, pointer))

    def released(self, ticket: Ticket) -> None:
        """The records are stable: so may the pointers be."""
        for topic, pointer in self._unsettled.pop(ticket, ()):
            self._put(topic, pointer)

    def _put(self, topic: bytes, pointer: Pointer | None) -> None:
        value = None if pointer is None else _POINTER.pack(*pointer)
        self._journal.put("retained", self._namespace.name.encode() + b"\0" + topic, value)

    def _set(self, topic: bytes, pointer: Pointer | None, size: int = 0) -> bool:
        number = self._topics.find(topic)
        if pointer is None:
            if number:
                if self.bytes is not None:
                    self.bytes.put(number, 0)
                self._pointers.remove(number)
                self._topics.remove(number)
            return bool(number)
        if not number:
            if len(self._pointers) >= self._retained_max:
                self.refused += 1
                return False
            number = self._topics.number(topic)
        self._pointers.put(number, *pointer)
        if self.bytes is not None:
            self.bytes.put(number, size)
        return True

    # -- how many bytes they may have

    @property
    def full(self) -> bool:
        """Whether nothing more is retained until something is cleared."""
        limit = self._namespace.settings.quota.retained_bytes_max
        return bool(limit) and self.bytes is not None and self.bytes.total >= limit

    async def review(self) -> None:
        """Count bytes from now on, or no longer, as the quota says; those that are not known are read."""
        if not self._namespace.settings.quota.retained_bytes_max:
            self.bytes = None
        elif self.bytes is None:
            self.bytes = RetainedBytes()
            await self._measure(self.bytes)

    async def _measure(self, sizes: RetainedBytes) -> None:
        turns, name = self._namespace.broker.turns, self._namespace.name
        batch: list[tuple[int, bytes, Pointer]] = []
        for number in chain(self._numbers(), (0,)):
            found = self._pointers.get(number) if number and not sizes.knows(number) else None
            if found is not None:
                batch.append((number, self._topics.name(number), Pointer(*found)))
            if batch and (not number or len(batch) >= MEASURED_AT_ONCE):
                await turns.turn(name)
                read = await asyncio.to_thread(self._sizes_of, [(topic, pointer) for _, topic, pointer in batch])
                for (at, topic, pointer), size in zip(batch, read, strict=True):
                    if self.current(topic) == pointer and not sizes.knows(at):
                        sizes.put(at, size)
                batch = []

    def _sizes_of(self, found: list[tuple[bytes, Pointer]]) -> list[int]:
        sizes = []
        for topic, pointer in found:
            try:
                record = self.read_one(topic, pointer)
            except NotLocal:  # it lies in the object store; its topic counts
                record = None
            sizes.append(len(topic) + len(record.value or b"" if record is not None else b""))
        return sizes

    # -- reading

    def find(self, topic_filter: bytes) -> list[tuple[bytes, Pointer]]:
        """Topic and pointer of every retained message the filter means, in log order."""
        if not is_pattern(topic_filter):
            pointer = self.current(topic_filter)
            return [(topic_filter, pointer)] if pointer is not None else []
        matching = ((n, self._pointers.get(n)) for n in self._topics.match(topic_filter))
        found = [(self._topics.name(n), Pointer(*pointer)) for n, pointer in matching if pointer is not None]
        found.sort(key=lambda one: one[1].stamp)
        return found

    def current(self, topic: bytes) -> Pointer | None:
        found = self._pointers.get(self._topics.find(topic))
        return Pointer(*found) if found is not None else None

    def read(self, found: Sequence[tuple[bytes, Pointer]]) -> list[Record]:
        """The records behind pointers; one that the log has lost is left out. Blocks: for many, call it in a thread."""
        records = []
        for topic, pointer in found:
            record = self.read_one(topic, pointer)
            if record is not None:
                records.append(record)
        return records

    def read_one(self, topic: bytes, pointer: Pointer) -> Record | None:
        log = self._namespace.broker.logs.by_id.get(pointer.log_id)
        piece = log.read_anywhere(pointer.offset, 1) if log is not None else None
        if piece is None or log is None:
            return None
        chosen = decode_chosen(
            piece.data,
            log.id,
            array("q", [pointer.offset]),
            inflated_bytes_max=INFLATED_BYTES_MAX,
            inflate=inflate_soon,
            topic_of=self._namespace.topic_of,
        )
        for record in chosen:
            record.topic = topic
            return record
        return None

    @property
    def topics(self) -> list[bytes]:
        return [self._topics.name(number) for number in self._numbers()]

    def _numbers(self) -> Iterator[int]:
        """Of those that are there when it comes to them."""
        number = 1
        while number := self._pointers.next_number(number):
            yield number
            number += 1

    def is_of(self, namespace: Namespace) -> bool:
        return self._namespace is namespace

    def forget_all(self) -> Iterator[None]:
        """The namespace is removed."""
        self._noted.clear()
        self._unsettled.clear()
        for topic in self.topics:
            self._set(topic, None)
            self._put(topic, None)
            yield

    # -- holding and recovering

    def held_offsets(self, log: Log) -> array[int]:
        """Ascending."""
        return self._pointers.offsets_in(log.id)

    def apply(self, topic: bytes, value: bytes | None) -> None:
        if value is None:
            self._set(topic, None)
        else:
            self._pointers.put(self._topics.number(topic), *_POINTER.unpack(value))

    def recover(self, topic: bytes, log: Log, record: Record) -> None:
        """A retained record beyond the checkpoint; they come in stamp order per log, not across logs."""
        known = self.current(topic)
        newest = max(self._derived.get(topic, -1), known.stamp if known is not None else -1)
        if record.stamp > newest:
            pointer = Pointer(log.id, record.offset, record.stamp)
            if self._set(topic, pointer if record.value is not None else None) or record.value is None:
                self._derived[topic] = record.stamp

    def write_derived(self) -> bool:
        """Write down what `recover` found, before a checkpoint passes it; False if there was nothing."""
        derived, self._derived = self._derived, {}
        for topic in derived:
            self._put(topic, self.current(topic))
        return bool(derived)

    def dump(self) -> Iterator[tuple[bytes, bytes]]:
        prefix = self._namespace.name.encode() + b"\0"
        for number in self._numbers():
            found = self._pointers.get(number)
            assert found is not None
            yield prefix + self._topics.name(number), _POINTER.pack(*found)

    def pieces(self, prefix: bytes) -> Iterator[bytes]:
        """The same as entries of a snapshot, whose names begin with `prefix`."""
        number = 1
        while number:
            piece, number = self._pointers.pack(self._topics, prefix, number, PIECE_ENTRIES)
            if piece:
                yield piece

    def load(self, data: bytes, at: int, end: int, prefix: bytes) -> tuple[int, int]:
        """Take the entries of a snapshot that `pieces` gave: where they end, and how many."""
        return self._pointers.load(self._topics, data, at, end, prefix)
