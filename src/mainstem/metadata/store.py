"""The one interface to the small facts; SQLite and PostgreSQL implement it with the same tables.

    load            everything, once, at start
    transact        puts and deletes, all or none, only if its preconditions hold; a conflict is an answer (`Conflict`)
    changes_since   what others changed, by a number that only grows
    next_id         a number never given before
    copy_to, close

Whoever changes what exists commits first and changes its own memory afterwards (`broker/topics/commits.py`). Writes are
queued in call order; each returns at once with a `Written`, done when the change would survive a power cut. Where the
disk is full it waits for room. Writes of one moment share a transaction, and with it the fsync.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from mainstem.metadata.rows import (
    Document,
    Facts,
    Item,
    LogRow,
    NamespaceRow,
    Row,
    SlotRow,
    SpanRow,
    TopicRow,
    Value,
    ViewRow,
)

T = TypeVar("T")


class Pending(Future[T]):
    """`await` it on a loop, `.result()` it in a thread, or `add_done_callback` (store's thread)."""

    def __await__(self) -> Generator[object, None, T]:
        return asyncio.wrap_future(self).__await__()

    def cancel(self) -> bool:
        """Never: it is under way whoever stops waiting (a client that left), and logs wait for it, too."""
        return False


class Written(Pending[None]):
    """Done once durable."""


def done() -> Written:
    """Nothing had to be written."""
    written = Written()
    written.set_result(None)
    return written


class Room(Protocol):
    """What the store knows of its disk."""

    def check(self) -> None:
        """Raises DiskFull where there is no room for anything new."""

    def give_up(self) -> bool:
        """A write met a full disk: whether room was made for it."""


# -- what a transaction is made of


@dataclass(frozen=True, slots=True)
class Put:
    """Insert the row, or replace the one with its key. A name that another row has is a conflict."""

    row: Row


@dataclass(frozen=True, slots=True)
class Delete:
    """All rows whose first key columns have these values."""

    table: type[Row]
    key: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Clear:
    """The namespace and everything in it: topics, spans, logs, views, slots, items."""

    namespace: str


Operation = Put | Delete | Clear


@dataclass(frozen=True, slots=True)
class Absent:
    """There is no row with this key."""

    table: type[Row]
    key: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Same:
    """The row is stored exactly as given: nobody changed it since it was read."""

    row: Row


Precondition = Absent | Same


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed after a number: tables and keys, oldest first. `complete` is False where older ones were dropped:
    then everything has to be loaded again."""

    last: int
    changed: tuple[tuple[type[Row], tuple[Any, ...]], ...]
    complete: bool = True


class MetadataStore(ABC):
    _group: list[Operation] | None = None

    @abstractmethod
    def load(self) -> Facts:
        """Everything stored, once, at start."""

    @abstractmethod
    def transact(self, operations: Sequence[Operation], requires: Sequence[Precondition] = ()) -> Written:
        """All or none, in the order given. Raises (when awaited) Conflict where a precondition does not hold, and
        AlreadyExists where a name is taken; nothing has changed then."""

    @abstractmethod
    def changes_since(self, last: int) -> Pending[Changes]:
        """What anyone changed after `last`; 0 means from the beginning."""

    @abstractmethod
    def next_id(self, sequence: str) -> int:
        """A number never given before and never again (see rows.Sequence). Waits for the store only where a whole block was
        given out faster than the next one could be reserved."""

    @abstractmethod
    def prepare_ids(self, sequences: Iterable[str]) -> None:
        """Have a block of each reserved, so that its first id waits for nothing. Returns at once."""

    @abstractmethod
    def check_room(self) -> None:
        """Raises DiskFull before anything is changed that a full disk could not keep. Deletions do without."""

    @abstractmethod
    def copy_to(self, path: Path) -> Written:
        """A consistent copy of everything put before it, as one file, for a backup."""

    @abstractmethod
    def end_waiting(self) -> None:
        """Before a stop: from now on a write that cannot be kept yet fails instead of waiting."""

    @abstractmethod
    def close(self) -> None:
        """Write what is queued, then let go. A second call does nothing."""

    # -- the same in the words of its callers

    def flush(self) -> Written:
        """Done when everything put before it is durable."""
        return self.transact(())

    @contextmanager
    def together(self) -> Iterator[Written]:
        """The puts and deletes inside the `with` (which must not await) become durable all or none; yields their
        Written."""
        assert self._group is None, "together() does not nest"
        written = Written()
        operations: list[Operation] = []
        self._group = operations
        try:
            yield written
        finally:
            self._group = None
        self.transact(operations).add_done_callback(lambda done: copy_outcome(done, written))

    def _write(self, *operations: Operation) -> Written:
        if self._group is None:
            return self.transact(operations)
        self._group.extend(operations)
        return Written()  # the group's own Written is the one to wait for

    def put_namespace(self, row: NamespaceRow) -> Written:
        return self._write(Put(row))

    def put_topic(self, row: TopicRow) -> Written:
        return self._write(Put(row))

    def put_log(self, row: LogRow) -> Written:
        return self._write(Put(row))

    def put_span(self, row: SpanRow) -> Written:
        return self._write(Put(row))

    def put_view(self, row: ViewRow) -> Written:
        return self._write(Put(row))

    def put_slot(self, row: SlotRow) -> Written:
        return self._write(Put(row))

    def put_item(self, kind: str, namespace: str, name: str, body: Document) -> Written:
        return self._write(Put(Item(str(kind), namespace, name, body)))

    def put_value(self, key: str, value: bytes) -> Written:
        return self._write(Put(Value(key, value)))

    def delete_namespace(self, name: str) -> Written:
        return self._write(Clear(name))

    def delete_namespace_row(self, name: str) -> Written:
        """It alone: whoever removes a namespace step by step deletes what is in it, too."""
        return self._write(Delete(NamespaceRow, (name,)))

    def delete_topic(self, topic_id: int) -> Written:
        """The topic and its spans. Its logs stay until `delete_log`, so that a crash between leaves an orphan to sweep."""
        return self._write(Delete(SpanRow, (topic_id,)), Delete(TopicRow, (topic_id,)))

    def delete_log(self, log_id: int) -> Written:
        return self._write(Delete(LogRow, (log_id,)))

    def delete_span(self, topic_id: int, partition: int, seq: int) -> Written:
        return self._write(Delete(SpanRow, (topic_id, partition, seq)))

    def delete_view(self, view_id: int) -> Written:
        """The view and its slots."""
        return self._write(Delete(SlotRow, (view_id,)), Delete(ViewRow, (view_id,)))

    def delete_item(self, kind: str, namespace: str, name: str) -> Written:
        return self._write(Delete(Item, (str(kind), namespace, name)))

    def delete_items(self, kind: str, namespace: str) -> Written:
        """All of a kind in a namespace."""
        return self._write(Delete(Item, (str(kind), namespace)))

    def delete_value(self, key: str) -> Written:
        return self._write(Delete(Value, (key,)))


def copy_outcome(done: Future[None], written: Written) -> None:
    error = done.exception()
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)
