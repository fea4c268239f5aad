"""All persistent sessions by key: those whose client is here as objects, the others asleep, as the bytes a snapshot has.

There may be a million, and nearly all of them wait for a client that is away. As an object one takes 1.5 KB and some
microseconds to load, asleep a sixth of it and less than one. Whoever asks for a session by its key wakes it. It falls asleep
again when a snapshot takes it, which makes these bytes anyway, unless somebody counts on the object: its client is here,
QoS 2 identifiers are open, others know it (No Local, a shared subscription), or retention no longer waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from mainstem.broker.sessions._sleeping_sessions import (
    held_by,
    load,
    pack,
    replay,
    settle,
    subscriptions_of,
)
from mainstem.broker.state.shards import SHARDS, shard_of
from mainstem.model.topic_filter import literal_filter

if TYPE_CHECKING:
    from mainstem.broker.sessions.sessions import Session

ASLEEP_PIECE, AWAKE_PIECE = 500, 20  # sessions of a piece of a snapshot: a quarter of a millisecond each


class Hold(NamedTuple):
    """What a session may still need of the logs."""

    key: bytes
    absent: bool
    oldest: int  # stamp
    filters: list[bytes]  # of QoS 1 and 2, without what is before a shared or queue's filter


class SessionTable:
    def __init__(
        self,
        unpack: Callable[[bytes, bytes], Session],
        pack: Callable[[Session], tuple[bytes, bytes, bytes]],
    ) -> None:
        """`pack` gives what it is asleep, its entries of a snapshot with that, and its other entries."""
        self._unpack, self._pack = unpack, pack
        self._awake: list[dict[bytes, Session]] = [{} for _ in range(SHARDS)]
        self._asleep: list[dict[bytes, bytes]] = [{} for _ in range(SHARDS)]
        self._undecided = set[bytes]()  # while recovering: bytes of those that may have to wake, or were not left yet
        self._count = 0
        self.asleep_count = 0
        self.asleep_subscriptions = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Session]:
        """To look at: those that sleep come as copies. Nothing may change meanwhile."""
        yield from self.awake()
        for shard in self._asleep:
            for key, packed in shard.items():
                yield self._unpack(key, packed)

    def awake(self) -> Iterator[Session]:
        return chain.from_iterable(shard.values() for shard in self._awake)

    def all_keys(self) -> Iterator[bytes]:
        return chain.from_iterable(chain(self._awake, self._asleep))

    def find(self, key: bytes) -> Session | None:
        place = shard_of(key)
        session = self._awake[place].get(key)
        if session is not None:
            return session
        packed = self._asleep[place].pop(key, None)
        return None if packed is None else self._woken(place, key, packed)

    def look(self, key: bytes) -> Session | None:
        """To look at: one that sleeps comes as a copy."""
        place = shard_of(key)
        packed = self._asleep[place].get(key)
        return self._awake[place].get(key) if packed is None else self._unpack(key, packed)

    def _woken(self, place: int, key: bytes, packed: bytes) -> Session:
        session = self._awake[place][key] = self._unpack(key, packed)
        self.asleep_count -= 1
        self.asleep_subscriptions -= len(session.subscriptions)
        return session

    def add(self, session: Session) -> None:
        """One that is new."""
        self._awake[shard_of(session.key)][session.key] = session
        self._count += 1

    def remove(self, key: bytes) -> None:
        if self.find(key) is not None:
            del self._awake[shard_of(key)][key]
            self._count -= 1

    # -- snapshots

    def pieces(self, took: Callable[[bytes], None]) -> Iterator[bytes]:
        """Each once. One that wakes before it was taken comes with those that are awake."""
        for place, (awake, asleep) in enumerate(zip(self._awake, self._asleep, strict=True)):
            keys, taken = list(asleep), set[bytes]()
            for at in range(0, len(keys), ASLEEP_PIECE):
                found = [key for key in keys[at : at + ASLEEP_PIECE] if key in asleep]
                taken.update(found)
                if found:
                    yield pack(found, asleep)
            keys = [key for key in awake if key not in taken]
            for at in range(0, len(keys), AWAKE_PIECE):
                sessions = [awake[key] for key in keys[at : at + AWAKE_PIECE] if key in awake]
                if sessions:
                    yield b"".join([self._taken(place, session, took) for session in sessions])

    def _taken(self, place: int, session: Session, took: Callable[[bytes], None]) -> bytes:
        took(session.key)
        packed, entries, more = self._pack(session)
        if not more and session.may_sleep():
            self._fall_asleep(place, session, packed)
        return entries + more

    def _fall_asleep(self, place: int, session: Session, packed: bytes) -> None:
        subscriptions = subscriptions_of(packed)
        if subscriptions >= 0:
            del self._awake[place][session.key]
            self._asleep[place][session.key] = packed
            self.asleep_count += 1
            self.asleep_subscriptions += subscriptions

    # -- recovery

    def load(self, expiries: dict[int, list[bytes]], data: bytes, at: int, end: int) -> tuple[int, int]:
        """Take sessions from a snapshot for as long as they come: where it stopped, and how many entries these were."""
        return self._grown(*load(self._asleep, expiries, self._undecided, data, at, end))

    def replay(
        self, expiries: dict[int, list[bytes]], data: bytes, at: int, end: int, offset: int, taken: dict[bytes, int]
    ) -> tuple[int, int]:
        """The same with entries of the journal, for as long as they need no object."""
        return self._grown(*replay(self._awake, self._asleep, expiries, self._undecided, data, at, end, offset, taken))

    def _grown(self, after: int, entries: int, sessions: int, subscriptions: int) -> tuple[int, int]:
        self._count += sessions
        self.asleep_count += sessions
        self.asleep_subscriptions += subscriptions
        return after, entries

    def settle(self, expiries: dict[int, list[bytes]], now_ns: int) -> None:
        """Everything is replayed: what sleeps from here on may sleep."""
        undecided, self._undecided = self._undecided, set()
        for key in settle(self._asleep, expiries, undecided, now_ns):
            self.find(key)

    # -- retention

    def holds(self) -> Iterator[Hold]:
        """Of all that hold something; sessions may come, go and change between two of them."""
        for awake, asleep in zip(self._awake, self._asleep, strict=True):
            for key in list(asleep):
                packed = asleep.get(key)
                found = held_by(packed) if packed is not None else None
                if found is not None:
                    yield Hold(key, True, found[0], [literal_filter(one) for one in found[1]])
            for session in list(awake.values()):
                hold = session.hold()
                if hold is not None:
                    yield hold
