"""A mapping that may have a million keys and is walked while it changes: for snapshots, which are taken in slices.

A dict cannot be walked in slices, and copying its million keys takes the loop for ten milliseconds. Here they lie in
SHARDS dicts, and only the keys of the one that is walked are copied. Which one a key lies in does not depend on the
process, so that a simulation with the same seed walks them in the same order.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, MutableMapping, ValuesView
from itertools import chain
from typing import TypeVar, cast
from zlib import crc32

SHARDS = 256

K = TypeVar("K", bytes, int)
V = TypeVar("V")


def shard_of(key: bytes | int) -> int:
    return (crc32(key) if isinstance(key, bytes) else key) % SHARDS


class Shards(MutableMapping[K, V]):
    __slots__ = ("_count", "_shards")

    def __init__(self) -> None:
        self._shards: list[dict[K, V]] = [{} for _ in range(SHARDS)]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[K]:
        return chain.from_iterable(self._shards)

    def __contains__(self, key: object) -> bool:
        return key in self._shards[shard_of(cast(K, key))]

    def __getitem__(self, key: K) -> V:
        return self._shards[shard_of(key)][key]

    def __setitem__(self, key: K, value: V) -> None:
        shard = self._shards[shard_of(key)]
        before = len(shard)
        shard[key] = value
        self._count += len(shard) - before

    def __delitem__(self, key: K) -> None:
        del self._shards[shard_of(key)][key]
        self._count -= 1

    def get(self, key: K, default: V | None = None) -> V | None:  # type: ignore[override]
        return self._shards[shard_of(key)].get(key, default)

    def pop(self, key: K, default: V | None = None) -> V | None:  # type: ignore[override]
        """The default where it is not there, and None without one."""
        shard = self._shards[shard_of(key)]
        before = len(shard)
        found = shard.pop(key) if key in shard else default
        self._count -= before - len(shard)
        return found

    def items(self) -> ItemsView[K, V]:
        return cast(ItemsView[K, V], chain.from_iterable(one.items() for one in self._shards))

    def values(self) -> ValuesView[V]:
        return cast(ValuesView[V], chain.from_iterable(one.values() for one in self._shards))

    def keys_in_slices(self) -> Iterator[K]:
        """Each that is there all the while comes once; it may change between two of them."""
        for shard in self._shards:
            yield from list(shard)
