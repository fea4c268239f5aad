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


def frames_of(place: Mapping[str, Any], start: int, end: int) -> Iterator[bytes]:
    """Stored bytes from a frame at or before the one that holds `start`, to the first that begins at or beyond `end` or a
    little further. CorruptFrame, StoreAway or ConfigError where the object cannot be had: then the broker is asked."""
    store, key, base = open_store(place["store"]), str(place["key"]), int(place["at"])
    found = SparseIndex.decode(store.get(key, int(place["index_at"]), int(place["index_size"])))
    if found is None:
        raise CorruptFrame(f"{key}: its index does not validate")
    index, size = found[0], int(place["size"])
    first, last = index.before_offset(start), index.at_or_after(end)
    last = size if last is None else last
    with ThreadPoolExecutor(1) as ahead:
        at, coming = first, None
        while at < last or coming is not None:
            current = coming
            coming = None
            if at < last:
                coming = ahead.submit(store.get, key, base + at, min(GET_BYTES, last - at))
                at += GET_BYTES
            if current is not None:
                yield current.result()
