"""Order by key among competing consumers: while one holds records of a key, no other is given any of that key.

    free ──lease──▶ held by one consumer ──last lease ends──▶ free
                        │  ▲
             set_aside  ▼  │ wake, wake_for
                      waiting        positions of the key whose holder has no credit, lowest first

A holder may be given more of its own keys. Waiting positions are ready and belong to nobody; while any waits, later ones
of its key wait behind it. When a key becomes free its lowest waiting position is woken, and its taker holds the key next.
A key is a number, usually a hash: two that fall together are merely ordered among each other.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

WAITING_MAX = 10_000  # positions; beyond it nothing further is read until some are taken


@dataclass(slots=True)
class _Key:
    holder: Hashable | None = None
    leases: int = 0
    waiting: list[int] = field(default_factory=list)  # heap


class KeyOrder:
    def __init__(self, waiting_max: int = WAITING_MAX) -> None:
        self.waiting_max = waiting_max
        self._keys: dict[int, _Key] = {}  # held, or waited for
        self._key_of: dict[int, int] = {}  # leased position → key
        self._waiting: dict[int, int] = {}  # waiting position → key
        self._waits_for: dict[Hashable, dict[int, None]] = {}  # holder → keys of its that are waited for
        self._free: set[int] = set()  # keys that are waited for and held by nobody

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        return len(self._waiting) >= self.waiting_max

    def waiting_positions(self) -> Iterable[int]:
        return self._waiting

    def holder(self, key: int) -> Hashable | None:
        """Who alone may be given records of the key; None: anybody."""
        found = self._keys.get(key)
        return None if found is None else found.holder

    def must_wait(self, key: int, position: int) -> bool:
        """Whether an older position of the key waits."""
        found = self._keys.get(key)
        return found is not None and bool(found.waiting) and found.waiting[0] < position

    def lease(self, position: int, key: int, holder: Hashable) -> None:
        one = self._keys.setdefault(key, _Key())
        assert one.holder is None or one.holder == holder, "another consumer holds the key"
        self._key_of[position] = key
        one.leases += 1
        if one.holder is None:
            one.holder = holder
            self._free.discard(key)
            if one.waiting:
                self._waits_for.setdefault(holder, {})[key] = None

    def set_aside(self, position: int, key: int) -> None:
        """The position waits for its key's holder, or for the key to become free."""
        one = self._keys.setdefault(key, _Key())
        self._waiting[position] = key
        heappush(one.waiting, position)
        if one.holder is not None:
            self._waits_for.setdefault(one.holder, {})[key] = None
        else:
            self._free.add(key)

    def end(self, position: int) -> int | None:
        """A lease ended; the position that is woken by it, if its key became free."""
        key = self._key_of.pop(position, None)
        if key is None:
            return None
        one = self._keys[key]
        one.leases -= 1
        if one.leases:
            return None
        keys = self._waits_for.get(one.holder)
        if keys is not None:
            keys.pop(key, None)
            if not keys:
                del self._waits_for[one.holder]
        one.holder = None
        if len(one.waiting) > 1:
            self._free.add(key)
        return self._wake(key, one)

    def wake_for(self, holder: Hashable, count: int) -> list[int]:
        """The holder has credit: up to `count` positions that waited for it."""
        woken: list[int] = []
        keys = self._waits_for.get(holder)
        while keys and len(woken) < count:
            key = next(iter(keys))
            position = self._wake(key, self._keys[key])
            if position is None:
                keys.pop(key)
            else:
                woken.append(position)
        if keys is not None and not keys:
            del self._waits_for[holder]
        return woken

    def wake_free(self) -> list[int]:
        """Of each key that is free and waited for, the lowest position."""
        woken: list[int] = []
        for key in list(self._free):
            position = self._wake(key, self._keys[key])
            if position is not None:
                woken.append(position)
        return woken

    def forget_waiting(self) -> list[int]:
        """All of them are settled, or ready for anybody: the queue says which."""
        forgotten = sorted(self._waiting)
        for key in set(self._waiting.values()):
            self._keys[key].waiting.clear()
            self._drop(key)
        self._waiting.clear()
        self._waits_for.clear()
        self._free.clear()
        return forgotten

    def _wake(self, key: int, one: _Key) -> int | None:
        position = heappop(one.waiting) if one.waiting else None
        if position is not None:
            del self._waiting[position]
        if not one.waiting:
            self._free.discard(key)
        self._drop(key)
        return position

    def _drop(self, key: int) -> None:
        one = self._keys[key]
        if not one.leases and not one.waiting:
            del self._keys[key]
