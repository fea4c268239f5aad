"""Persistent sessions: what a client that may come back is owed, as a cursor and a few numbers, never as copies.

A session is one position (a stamp: everything below was offered), its subscriptions with the stamp each began at, the
identifiers in flight to the client, and the QoS 2 identifiers received from it that are not yet released. All of it is
journaled; a restart brings it back.

    kind "session"     expiry, when the client left, subscriptions         before SUBACK or CONNACK is sent
    kind "place"       position, identifiers that ended and began          every PLACE_MS; QoS 1: before PUBLISH is sent
    kind "flight"      QoS 2: identifiers given out, PUBRECs received      before PUBLISH or PUBREL is sent
    kind "received"    QoS 2: identifiers the client released, or sent     before PUBCOMP is sent
    kind "checkpoint"  a stamp: what records below it say of identifiers and retained messages is journaled

A received identifier lies in its record (`ms-qos2`), so that record and identifier are stored together or not at all;
records from the checkpoint on are looked through once at start (`Sessions.recover_received`). What they say is written
down before a later checkpoint passes them (`write_derived`): a second crash must not find less than the first.

Identifiers of QoS 2 are journaled as they are given out, positions only now and then. So after a crash a delivery may be
known that lies beyond the position. One that its client has completed stays in the flight as DONE, without an
identifier, until the position has passed it; otherwise it would be delivered again.

Sessions whose clients are away sleep (`table.py`). What expires is planned by the second.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from mainstem.broker.sessions._sleeping_sessions import entries_of, split
from mainstem.broker.sessions.table import Hold, SessionTable
from mainstem.broker.state.journal import Dump, Entries, Journal, first_namespace
from mainstem.broker.state.snapshot import Apply, Bulk, entry
from mainstem.log.gather import Ticket
from mainstem.model.errors import Overloaded
from mainstem.model.topic_filter import literal_filter

PLACE_MS = 50
PLACES_PER_ROUND_MAX = 500
SESSIONS_MAX = 1_000_000
EXPIRED_AT_ONCE = 200
NS = 1_000_000_000
NEVER = 0xFFFFFFFF

Flight = tuple[int, int, int]  # packet identifier, state, stamp
DONE = 4  # a state: completed, but beyond the position; its identifier is free and told as 0


@dataclass(slots=True)
class Subscription:
    """One filter as the client wrote it, with its options. `start` is the stamp from which it counts."""

    filter: bytes
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0
    start: int = 0
    meta: bool = False
    retained_from: int = 0  # its client left before it had all retained messages:
    retained_before: int = 0  # those with stamps from here to there are still owed


class Place(Protocol):
    """A connected client's outgoing half."""

    def place(self) -> tuple[int, list[Flight]]:
        """Its position and what is in flight."""

    def moves(self) -> tuple[int, list[int], list[tuple[int, int]]]:
        """Its position; since the last call the identifiers that ended, and those of QoS 1 that began, with their stamps."""


@dataclass(slots=True, eq=False)
class Session:
    key: bytes  # namespace 0x00 client id
    expiry_seconds: int = 0
    subscriptions: dict[bytes, Subscription] = field(default_factory=dict)
    position: int = 0
    flight: list[Flight] = field(default_factory=list)
    received: set[int] = field(default_factory=set)
    kept_received: set[int] = field(default_factory=set)  # of these the journal tells without looking at records
    released: dict[int, int] = field(default_factory=dict)  # since the checkpoint: identifier → stamp of its release
    left_ns: int = 0  # when its client left; 0 while it is there
    hold_ended: bool = False  # it held too much or too long: retention no longer waits for it
    user: str = ""  # whose it is; none: the next one's who logs in with its client id
    here: Place | None = None
    unsettled: int = 0  # publishes of a client that left, which are not yet durable: their identifiers come later
    planned_s: int = 0  # the second at which it is looked at whether it expires; 0: not planned
    replayed: tuple[dict[int, Flight], set[int]] | None = None  # while changes are applied: by identifier; stamps done

    @property
    def client_id(self) -> bytes:
        return self.key.partition(b"\0")[2]

    def expires_ns(self) -> int | None:
        if self.expiry_seconds == NEVER or not self.left_ns:
            return None
        return self.left_ns + self.expiry_seconds * NS

    def has_expired(self, now_ns: int) -> bool:
        """Also in the moment before it is looked at and ended."""
        expires = self.expires_ns()
        return expires is not None and expires <= now_ns

    def expiry_second(self) -> int:
        """The first second in which it has expired; 0: never."""
        expires = self.expires_ns()
        return 0 if expires is None else -(-expires // NS)

    def oldest(self) -> int:
        """The stamp of the oldest record it may still need."""
        return min(self.position, min((stamp for _, _, stamp in self.flight), default=self.position))

    def is_holding(self) -> bool:
        """Whether it may hold records of QoS 1 and 2 against retention; how far it is, is known then."""
        if self.hold_ended or not any(one.qos for one in self.subscriptions.values()):
            return False
        self.refresh()
        return True

    def hold(self) -> Hold | None:
        if not self.is_holding():
            return None
        filters = [literal_filter(one.filter) for one in self.subscriptions.values() if one.qos]
        return Hold(self.key, bool(self.left_ns), self.oldest(), filters)

    def may_sleep(self) -> bool:
        """Whether nobody counts on this object, and its bytes tell all of it."""
        return (
            self.here is None
            and self.replayed is None
            and not (self.unsettled or self.hold_ended or self.received or self.kept_received or self.released)
        )

    def replaying(self) -> tuple[dict[int, Flight], set[int]]:
        if self.replayed is None:
            done = {stamp for _, state, stamp in self.flight if state == DONE}
            self.replayed = {one[0]: one for one in self.flight if one[1] != DONE}, done
        return self.replayed

    def end_replay(self) -> None:
        if self.replayed is not None:
            flight, done = self.replayed
            beyond = ((0, DONE, stamp) for stamp in done if stamp >= self.position)
            self.flight, self.replayed = sorted((*flight.values(), *beyond), key=lambda one: one[2]), None

    def refresh(self) -> None:
        """Take position and flight from the connected client."""
        if self.here is not None:
            self.position, self.flight = self.here.place()


class Sessions:
    """All persistent sessions of the broker. Not one of them has a queue."""

    def __init__(self, journal: Journal, *, sessions_max: int = SESSIONS_MAX) -> None:
        self._journal = journal
        self._sessions_max = sessions_max
        self._table = SessionTable(_unpack, _pack)
        self._moved: dict[Session, None] = {}
        self._expiries: dict[int, list[bytes]] = {}  # second → keys of those to look at then
        self._expiry_seconds: list[int] = []  # a heap of these seconds
        self.checkpoint = 0
        self.holds_ended_total = 0
        self.on_saved: Callable[[Session], None] | None = None  # whoever plans with what they subscribe to
        self._derived: dict[Session, None] = {}  # while recovering: those whose records told of identifiers
        self._register("session", self._apply_session, self._dump_sessions, self)
        self._register("place", self._apply_place, self._dump_places)
        self._register("flight", self._apply_flight, lambda: ())
        self._register("received", self._apply_received, self._dump_received)
        journal.register("checkpoint", self._apply_checkpoint, self._dump_checkpoint)

    def _register(self, kind: str, apply: Apply, dump: Dump, bulk: Bulk | None = None) -> None:
        """All kinds change one thing, and are taken with it."""
        self._journal.register(
            kind, apply, dump, first_namespace, entries=Entries.CHANGES, part_of="session", bulk=bulk
        )

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[Session]:
        """To look at: those that sleep come as copies."""
        return iter(self._table)

    def find(self, key: bytes) -> Session | None:
        session = self._table.find(key)
        if session is not None and session.replayed is not None:
            session.end_replay()
        return session

    def look(self, key: bytes) -> Session | None:
        """To look at: one that sleeps comes as a copy."""
        return self._table.look(key)

    def keys_from(self, start: bytes) -> Iterator[bytes]:
        """Of those whose keys begin so."""
        return (key for key in self._table.all_keys() if key.startswith(start))

    def absent(self) -> tuple[int, int]:
        """How many have no client here, and how many subscriptions these have."""
        awake = [len(one.subscriptions) for one in self._table.awake() if one.here is None]
        return len(awake) + self._table.asleep_count, sum(awake) + self._table.asleep_subscriptions

    # -- their lives

    def begin(self, key: bytes, expiry_seconds: int, position: int) -> Session:
        if len(self._table) >= self._sessions_max:
            raise Overloaded(f"{self._sessions_max} persistent sessions exist already")
        session = Session(key, expiry_seconds, position=position)
        self._table.add(session)
        return session

    def save(self, session: Session) -> Ticket:
        """Journal the static part."""
        if self.on_saved is not None:
            self.on_saved(session)
        return self._journal.put("session", session.key, _encode_session(session))

    def leave(self, session: Session, now_ns: int) -> None:
        """Its client is gone; it expires unless the client comes back in time."""
        self._save_place(session)
        session.refresh()
        session.here = None
        session.left_ns = now_ns
        self._plan_expiry(session)
        self.save(session)

    def end(self, session: Session) -> Ticket | None:
        """Forget it, durably."""
        if self._table.find(session.key) is not session:
            return None
        self._table.remove(session.key)
        self._moved.pop(session, None)
        return self._journal.put("session", session.key, None)

    def expired(self, now_ns: int) -> list[Session]:
        """Some of those whose time is over, at most EXPIRED_AT_ONCE; the caller ends them."""
        found: list[Session] = []
        while self._expiry_seconds and self._expiry_seconds[0] * NS <= now_ns and len(found) < EXPIRED_AT_ONCE:
            keys = self._expiries[self._expiry_seconds[0]]
            while keys and len(found) < EXPIRED_AT_ONCE:
                session = self._table.find(keys.pop())
                if session is not None and session.here is None:
                    session.planned_s = 0
                    if session.has_expired(now_ns):
                        found.append(session)
                    else:
                        self._plan_expiry(session)
            if not keys:
                del self._expiries[heapq.heappop(self._expiry_seconds)]
        return found

    def _plan_expiry(self, session: Session) -> None:
        """Once: where it is planned for an earlier second already, it is looked at then, and planned again."""
        second = session.expiry_second()
        if not second or 0 < session.planned_s <= second:
            return
        session.planned_s = second
        planned = self._expiries.get(second)
        if planned is None:
            planned = self._expiries[second] = []
            heapq.heappush(self._expiry_seconds, second)
        planned.append(session.key)

    # -- positions

    def mark_moved(self, session: Session) -> bool:
        """True if it is the first since the last round: the caller sees to it that `save_places` runs in PLACE_MS."""
        first = not self._moved
        self._moved[session] = None
        return first

    def save_places(self) -> bool:
        """Journal positions that moved; True if some are left for the next round."""
        for _ in range(min(len(self._moved), PLACES_PER_ROUND_MAX)):
            session = next(iter(self._moved))
            del self._moved[session]
            self._save_place(session)
        return bool(self._moved)

    def save_begun(self, sessions: Iterable[Session]) -> None:
        """Journal where these stand now: their clients are about to get QoS 1 messages under new identifiers."""
        for session in sessions:
            self._save_place(session)

    def _save_place(self, session: Session) -> None:
        """A change: ended identifiers, then (identifier, how far its stamp lies before the position) of those that began."""
        if session.here is None:
            return
        position, ended, begun = session.here.moves()
        session.position = position
        flat = [number for packet_id, stamp in begun for number in (packet_id, position - stamp)]
        self._journal.put("place", session.key, msgspec.msgpack.encode((position, ended, flat)))

    def save_flight(self, session: Session, assigned: list[tuple[int, int]], recorded: list[int]) -> Ticket:
        """QoS 2: identifiers with the stamps of their records, and identifiers whose PUBREC came."""
        return self._journal.put("flight", session.key, msgspec.msgpack.encode((assigned, recorded)))

    def save_released(self, session: Session, packet_ids: list[int], stamp: int) -> Ticket:
        """QoS 2: the client released these; a record at or beyond `stamp` that uses one again is a new message."""
        session.received.difference_update(packet_ids)
        session.kept_received.difference_update(packet_ids)
        released = dict.fromkeys(packet_ids, stamp)
        session.released.update(released)
        return self._journal.put("received", session.key, msgspec.msgpack.encode((released, None)))

    def save_received(self, session: Session) -> None:
        """QoS 2: what it sent and did not release must be known beyond the next checkpoint."""
        added = sorted(session.received - session.kept_received)
        if added:
            session.kept_received.update(added)
            self._journal.put("received", session.key, msgspec.msgpack.encode(({}, None, added)))

    def save_checkpoint(self, stamp: int, pending: Iterable[tuple[Session, list[int]]]) -> None:
        """All pending identifiers of sessions that use QoS 2, then the stamp from which records must be looked at."""
        for session, packet_ids in pending:
            session.received = set(packet_ids)
            session.released = {n: released for n, released in session.released.items() if released >= stamp}
            self.save_received(session)
        self.checkpoint = stamp
        self._journal.put("checkpoint", b"", msgspec.msgpack.encode(stamp))

    # -- what they hold

    def holders(self) -> list[Session]:
        """Sessions that hold records of QoS 1 and 2 against retention, the one furthest behind first."""
        return sorted((one for one in self._table if one.is_holding()), key=Session.oldest)

    def holds(self) -> Iterator[Hold]:
        """What each needs; sessions may come, go and change between two of them."""
        return self._table.holds()

    def end_hold(self, session: Session) -> None:
        """It is behind further than the limits allow; what retention takes from here on, it does not get."""
        kept = self._table.find(session.key)  # that one may be a copy
        if kept is not None:
            kept.hold_ended = session.hold_ended = True
        self.holds_ended_total += 1

    # -- recovery

    def recover_received(self, key: bytes, packet_id: int, stamp: int) -> None:
        """A record beyond the checkpoint carries this identifier: it is pending unless it was released since."""
        session = self._table.find(key)
        if session is not None and session.released.get(packet_id, -1) <= stamp:
            session.received.add(packet_id)
            self._derived[session] = None

    def write_derived(self, stamp: int, *, more: bool) -> None:
        """What records below `stamp` told is written down, then that they need not be looked at again.

        `more`: others, too, have written down what they derived from these records.
        """
        changed = bool(self._derived)
        for session in self._table.awake():
            changed = changed or bool(session.released)
            session.released = {}  # it spoke of records below
        for session in self._derived:
            self.save_received(session)
        self._derived = {}
        if changed or more:
            self.checkpoint = stamp
            self._journal.put("checkpoint", b"", msgspec.msgpack.encode(stamp))

    def recovered(self, now_ns: int, on_each: Callable[[Session], None] = lambda session: None) -> None:
        """Nobody is connected after a start: each session's time runs from now if it was connected.

        Those that sleep concern nobody else: when they expire is known once they are settled.
        """
        self._table.settle(self._expiries, now_ns)
        self._expiry_seconds = list(self._expiries)
        heapq.heapify(self._expiry_seconds)
        for session in self._table.awake():
            session.end_replay()
            _place_at_start(session)
            session.left_ns = session.left_ns or now_ns
            session.planned_s = 0
            self._plan_expiry(session)
            on_each(session)

    def _apply_session(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._table.remove(key)
            return
        session = self._table.find(key)
        if session is None:
            session = Session(key)
            self._table.add(session)
        _decode_session(session, value)

    def _apply_place(self, key: bytes, value: bytes | None) -> None:
        session = self._table.find(key)
        if session is not None and value is not None:
            position, *rest = msgspec.msgpack.decode(value)
            session.position = position
            if len(rest) == 1:  # the whole of it, in a snapshot
                session.flight = [tuple(one) for one in rest[0]]
                session.replayed = None
            else:
                _move(session, *rest)

    def _apply_flight(self, key: bytes, value: bytes | None) -> None:
        session = self._table.find(key)
        if session is None or value is None:
            return
        assigned, recorded = msgspec.msgpack.decode(value)
        flight, done = session.replaying()
        for packet_id, stamp in assigned:
            before = flight.get(packet_id)
            if before is not None and before[2] != stamp and before[2] >= session.position:
                done.add(before[2])  # its identifier was given out again: it was completed
            flight[packet_id] = (packet_id, 2, stamp)
        for packet_id in recorded:
            if packet_id in flight:
                flight[packet_id] = (packet_id, 3, flight[packet_id][2])

    def _apply_received(self, key: bytes, value: bytes | None) -> None:
        session = self._table.find(key)
        if session is None or value is None:
            return
        released, pending, *added = msgspec.msgpack.decode(value, strict=False)
        if pending is not None:  # the whole of it, in a snapshot
            session.received, session.released = set(pending), {}
        else:
            session.received.difference_update(released)
        session.received.update(*added)
        session.kept_received = set(session.received)
        session.released.update(released)

    def _apply_checkpoint(self, key: bytes, value: bytes | None) -> None:
        self.checkpoint = msgspec.msgpack.decode(value or b"\0", type=int)

    def pieces(self, took: Callable[[bytes], None]) -> Iterator[bytes]:
        """For a snapshot: each session with its place and its identifiers, in one."""
        return self._table.pieces(took)

    def load(self, data: bytes, at: int, end: int) -> tuple[int, int]:
        return self._table.load(self._expiries, data, at, end)

    def replay(self, data: bytes, at: int, end: int, offset: int, taken: dict[bytes, int]) -> tuple[int, int]:
        return self._table.replay(self._expiries, data, at, end, offset, taken)

    def _dump_sessions(self) -> Iterator[tuple[bytes, bytes]]:
        for session in self._table:
            yield session.key, _encode_session(session)

    def _dump_places(self) -> Iterator[tuple[bytes, bytes]]:
        for session in self._table:
            yield session.key, _encode_place(session)

    def _dump_received(self) -> Iterator[tuple[bytes, bytes]]:
        for session in self._table.awake():
            if session.received or session.released:
                yield session.key, _encode_received(session)

    def _dump_checkpoint(self) -> Iterator[tuple[bytes, bytes]]:
        yield b"", msgspec.msgpack.encode(self.checkpoint)


def _move(session: Session, ended: list[int], begun: list[int]) -> None:
    """Apply a change of place. What ended beyond the position is remembered as done until the position has passed it."""
    flight, done = session.replaying()
    for packet_id in ended:
        before = flight.pop(packet_id, None)
        if before is not None and before[2] >= session.position:
            done.add(before[2])
    for packet_id, back in zip(begun[::2], begun[1::2], strict=True):
        flight[packet_id] = (packet_id, 1, session.position - back)


def _place_at_start(session: Session) -> None:
    """No place was journaled yet: it stands where its first subscription began."""
    starts = [one.start for one in session.subscriptions.values()]
    session.position = max(session.position, min(starts, default=0))


def _pack(session: Session) -> tuple[bytes, bytes, bytes]:
    """What it is asleep; its entries of a snapshot, and those beside."""
    packed, entries = entries_of(session.key, _encode_session(session), _encode_place(session))
    more = b""
    if session.received or session.released:
        name = b"received\0%b\0%b" % (session.key.partition(b"\0")[0], session.key)
        more = entry(name, _encode_received(session))
    return packed, entries, more


def _unpack(key: bytes, packed: bytes) -> Session:
    session = Session(key)
    static, place = split(packed)
    _decode_session(session, static)
    session.position, flight = msgspec.msgpack.decode(place)
    session.flight = [tuple(one) for one in flight]
    _place_at_start(session)
    session.planned_s = session.expiry_second()  # it was planned when its client left, or when it was loaded
    return session


def _decode_session(session: Session, value: bytes) -> None:
    expiry, left_ns, subscriptions, *user = msgspec.msgpack.decode(value)
    session.user = user[0] if user else ""
    session.expiry_seconds, session.left_ns = expiry, left_ns
    session.subscriptions = {one[0]: Subscription(*one) for one in subscriptions}


def _encode_place(session: Session) -> bytes:
    session.end_replay()
    session.refresh()
    return msgspec.msgpack.encode((session.position, session.flight))


def _encode_session(session: Session) -> bytes:
    subscriptions = [
        (
            one.filter,
            one.qos,
            one.no_local,
            one.retain_as_published,
            one.identifier,
            one.start,
            one.meta,
            one.retained_from,
            one.retained_before,
        )
        for one in session.subscriptions.values()
    ]
    user = (session.user,) if session.user else ()  # versions before users were kept wrote none
    return msgspec.msgpack.encode((session.expiry_seconds, session.left_ns, subscriptions, *user))


def _encode_received(session: Session) -> bytes:
    return msgspec.msgpack.encode((session.released, sorted(session.received)))
