"""The one interface to the small facts; SQLite implements it, PostgreSQL can with the same schema.

Reading is done once: `load()` at start; from then on the broker's own memory is the truth and every change is
written through. A write is queued in call order and returns at once with a `Written`: done when the change would
survive a power cut. Where the disk is full it waits for room. Writes of one moment share a transaction, and with it
the fsync. `declare-ok`, `CreateTopics` and their kin wait for it; nobody else has to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from mainstem.metadata.rows import (
    Catalog,
    Document,
    LogRow,
    NamespaceRow,
    SlotRow,
    SpanRow,
    TopicRow,
    ViewRow,
)


class Written(Future[None]):
    """Done once durable. `await` it on a loop, `.result()` it in a thread, or `add_done_callback` (store's thread)."""

    def __await__(self) -> Generator[object, None, None]:
        return asyncio.wrap_future(self).__await__()

    def cancel(self) -> bool:
        """Never: it is under way whoever stops waiting (a client that left), and logs wait for it, too."""
        return False


class Room(Protocol):
    """What the store knows of its disk."""

    def check(self) -> None:
        """Raises DiskFull where there is no room for anything new."""

    def give_up(self) -> bool:
        """A write met a full disk: whether room was made for it."""


class MetadataStore(Protocol):
    def load(self) -> Catalog:
        """Everything stored, once, at start."""

    def next_id(self, sequence: str) -> int:
        """A number never given before and never again (see rows.Sequence); waits for the disk once per block at most."""

    def check_room(self) -> None:
        """Raises DiskFull before anything is changed that a full disk could not keep. Deletions do without."""

    def together(self) -> AbstractContextManager[Written]:
        """The puts and deletes inside the `with` (which must not await) become durable all or none; yields their Written."""

    def put_namespace(self, row: NamespaceRow) -> Written: ...
    def put_topic(self, row: TopicRow) -> Written: ...
    def put_log(self, row: LogRow) -> Written: ...
    def put_span(self, row: SpanRow) -> Written: ...
    def put_view(self, row: ViewRow) -> Written: ...
    def put_slot(self, row: SlotRow) -> Written: ...
    def put_item(self, kind: str, namespace: str, name: str, body: Document) -> Written: ...
    def put_value(self, key: str, value: bytes) -> Written: ...

    def delete_namespace(self, name: str) -> Written:
        """The namespace and everything in it: topics, spans, logs, views, slots, items."""

    def delete_topic(self, topic_id: int) -> Written:
        """The topic and its spans. Its logs stay until `delete_log`, so that a crash between leaves an orphan to sweep."""

    def delete_log(self, log_id: int) -> Written: ...
    def delete_span(self, topic_id: int, partition: int, seq: int) -> Written: ...

    def delete_view(self, view_id: int) -> Written:
        """The view and its slots."""

    def delete_item(self, kind: str, namespace: str, name: str) -> Written: ...
    def delete_value(self, key: str) -> Written: ...

    def flush(self) -> Written:
        """Done when everything put before it is durable."""

    def copy_to(self, path: Path) -> Written:
        """A consistent copy of everything put before it, as one file, for a backup."""

    def end_waiting(self) -> None:
        """Before a stop: from now on a write that meets a full disk fails instead of waiting for room."""

    def close(self) -> None:
        """Write what is queued, then let go. A second call does nothing."""
