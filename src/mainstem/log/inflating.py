"""Inflating compressed batches without ever making the loop wait.

A batch of a few bytes may hold 64 MiB. A reader on the loop inflates what ends below HERE_BYTES_MAX itself; where there is
more it says `NotInflated`, which every such reader already knows how to deal with (`away.py`): a thread inflates the batch,
without the interpreter's lock, and the reader runs again and finds it here. A reader in a thread inflates where it stands.

What was inflated is kept for the second run, and for whoever reads the same batch next: KEPT_BYTES_MAX of all, those used
last. A batch is looked up by some of its bytes and known by all of them, so nobody is ever given another's.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

from mainstem.codec.batch import BATCH_HEAD_SIZE, check_records, read_batch_head
from mainstem.codec.compression import inflate
from mainstem.log.away import may_wait
from mainstem.model.errors import MainstemError, MessageTooLarge
from mainstem.storage.engine import NotLocal

HERE_BYTES_MAX = 256 << 10  # inflated by the loop itself: well under a millisecond
INFLATED_BYTES_MAX = 64 << 20  # of one batch, for readers of other protocols
KEPT_BYTES_MAX = 128 << 20
THREADS = 2  # that inflate: more would only take the cores from the loop

Key = tuple[int, int, bytes]  # codec, size and last bytes of the compressed records
KEY_BYTES = 64


class Inflated:
    """The records of one batch; `fault` if they do not inflate, `checked` once they were found to decode to their end."""

    __slots__ = ("checked", "data", "fault", "packed")

    def __init__(self, packed: bytes, data: bytes, fault: MainstemError | None = None) -> None:
        self.packed = packed
        self.data = data
        self.fault = fault
        self.checked = False

    def check(self, count: int, last_delta: int) -> None:
        if not self.checked and self.fault is None:
            try:
                check_records(self.data, count, last_delta)
            except MainstemError as fault:
                self.fault = fault
            self.checked = True


class _Kept:
    def __init__(self) -> None:
        self._by_key: OrderedDict[Key, Inflated] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, codec: int, packed: bytes) -> Inflated | None:
        """Asked for at each slice of a batch that is delivered: comparing it costs less than a hash of it."""
        key = _key(codec, packed)
        with self._lock:
            found = self._by_key.get(key)
            if found is None or found.packed != packed:
                return None
            self._by_key.move_to_end(key)
            return found

    def put(self, codec: int, inflated: Inflated) -> None:
        key = _key(codec, inflated.packed)
        with self._lock:
            if key in self._by_key:
                self._forget(self._by_key.pop(key))
            self._by_key[key] = inflated
            self._bytes += len(inflated.data) + len(inflated.packed)
            while self._bytes > KEPT_BYTES_MAX and len(self._by_key) > 1:
                self._forget(self._by_key.popitem(last=False)[1])

    def _forget(self, inflated: Inflated) -> None:
        self._bytes -= len(inflated.data) + len(inflated.packed)


def _key(codec: int, packed: bytes) -> Key:
    return codec, len(packed), packed[-KEY_BYTES:]


_kept = _Kept()
_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="inflate")


class NotInflated(NotLocal):
    """A batch that holds more than the loop inflates itself."""

    threads = _threads

    def __init__(self, codec: int, data: bytes, bytes_max: int, check: tuple[int, int] | None) -> None:
        Exception.__init__(self, f"a batch of {len(data)} bytes is not inflated yet")
        self._codec, self._data, self._bytes_max, self._check = codec, data, bytes_max, check

    def bring(self) -> None:
        bring_inflated(self._codec, self._data, self._bytes_max, self._check)


def bring_inflated(codec: int, data: bytes, bytes_max: int, check: tuple[int, int] | None = None) -> Inflated:
    """Inflate it here, whatever it takes, and keep it; in a thread."""
    inflated = _kept.get(codec, data)
    if inflated is None or len(inflated.data) > bytes_max:
        try:
            inflated = Inflated(data, inflate(codec, data, bytes_max))
        except MainstemError as fault:
            inflated = Inflated(data, b"", fault)
    if check is not None:
        inflated.check(*check)
    if bytes_max >= INFLATED_BYTES_MAX or not isinstance(inflated.fault, MessageTooLarge):
        _kept.put(codec, inflated)  # else another's limit may be larger
    return inflated


def keep_inflated(batch: bytes) -> None:
    """A batch that is about to be appended and delivered: in a thread, so that the loop finds it inflated."""
    head = read_batch_head(batch, 0)
    check = head.count, head.last_offset_delta
    bring_inflated(head.codec, batch[BATCH_HEAD_SIZE : head.size], INFLATED_BYTES_MAX, check)


def inflate_soon(codec: int, data: bytes, bytes_max: int, check: tuple[int, int] | None = None) -> bytes:
    """The records of a compressed batch, `check`ed (their count and last offset delta) where that is asked for. On a loop
    that serves: NotInflated where they are many."""
    inflated = _kept.get(codec, data)
    if inflated is None and not may_wait():
        inflated = _inflated_here(codec, data, bytes_max)
        if inflated is None:
            raise NotInflated(codec, data, bytes_max, check)
    if inflated is None:
        inflated = Inflated(data, inflate(codec, data, bytes_max))
    if check is not None and not inflated.checked:
        if len(inflated.data) > HERE_BYTES_MAX and not may_wait():
            raise NotInflated(codec, data, bytes_max, check)
        inflated.check(*check)
    if inflated.fault is not None:
        raise inflated.fault
    return inflated.data


def _inflated_here(codec: int, data: bytes, bytes_max: int) -> Inflated | None:
    if len(data) > HERE_BYTES_MAX:
        return None
    try:
        return Inflated(data, inflate(codec, data, min(bytes_max, HERE_BYTES_MAX)))
    except MessageTooLarge:
        return (
            None
            if bytes_max > HERE_BYTES_MAX
            else Inflated(data, b"", MessageTooLarge("the batch inflates to too much"))
        )
