"""Reading a slice of a log straight from the object store that a part of it lies in, past the broker.

The plan names the object and where in it the frames and their index lie. Credentials are the task's own (the environment's,
or the machine's role). Pieces are asked for one ahead, so that decoding and downloading overlap.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mainstem.model.errors import CorruptFrame
from mainstem.storage.segment.index import SparseIndex
from mainstem.storage.tier.store import ObjectStore, StoreSettings

GET_BYTES = 4 << 20

_stores: dict[StoreSettings, ObjectStore] = {}
_lock = threading.Lock()


def open_store(told: Mapping[str, Any]) -> ObjectStore:
    """One for all tasks of a process: it keeps its connections."""
    settings = StoreSettings(**told)
    with _lock:
        if settings not in _stores:
            _stores[settings] = ObjectStore(settings)
        return _stores[settings]


class FarPart:
    """The frames of one part in an object. CorruptFrame, StoreAway or ConfigError where it cannot be had: then the broker
    is asked."""

    def __init__(self, place: Mapping[str, Any]) -> None:
        self._store, self._key, self._base = open_store(place["store"]), str(place["key"]), int(place["at"])
        self._size = int(place["size"])
        found = SparseIndex.decode(self._store.get(self._key, int(place["index_at"]), int(place["index_size"])))
        if found is None:
            raise CorruptFrame(f"{self._key}: its index does not validate")
        self._index = found[0]

    def place_of(self, start: int, end: int) -> tuple[int, int]:
        """Bytes from a frame at or before the one that holds `start`, to the first that begins at or beyond `end`, or a
        little further."""
        last = self._index.at_or_after(end)
        return self._index.before_offset(start), self._size if last is None else last

    def read(self, at: int, last: int) -> Iterator[bytes]:
        with ThreadPoolExecutor(1) as ahead:
            coming = None
            while at < last or coming is not None:
                current = coming
                coming = None
                if at < last:
                    coming = ahead.submit(self._store.get, self._key, self._base + at, min(GET_BYTES, last - at))
                    at += GET_BYTES
                if current is not None:
                    yield current.result()


def frames_of(place: Mapping[str, Any], start: int, end: int) -> Iterator[bytes]:
    part = FarPart(place)
    yield from part.read(*part.place_of(start, end))
