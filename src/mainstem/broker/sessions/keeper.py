"""Persistent sessions, retained messages and wills, kept and driven whether or not an MQTT listener is open.

Sessions and retained messages hold records against retention, a will that waits is published when it is due, and a session
expires: none of it depends on a client being able to reach the broker. What needs a connection is asked of the MQTT service,
which hooks itself in where one is open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mainstem.broker.delayed import TOPIC as DELAYED_TOPIC
from mainstem.broker.sessions.limits import BYTES_MAX, MESSAGES_MAX, HeldLimits, PlannedHolds
from mainstem.broker.sessions.retained import RETAINED_MAX, Retained
from mainstem.broker.sessions.sessions import SESSIONS_MAX, Session, Sessions
from mainstem.broker.sessions.wills import Wills
from mainstem.broker.state.journal import first_namespace
from mainstem.broker.state.snapshot import SIZES
from mainstem.codec.batch import decode_frames
from mainstem.log.damaged import readable_offset, readable_pieces
from mainstem.log.gather import Ticket
from mainstem.log.inflating import inflate_soon
from mainstem.log.log import Log
from mainstem.log.retention import Holds
from mainstem.model.origin import Origin, RecordFlag
from mainstem.model.record import Header, Record
from mainstem.model.topic_filter import literal_filter
from mainstem.model.topic_tries import FilterTrie

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker
    from mainstem.broker.namespaces.namespace import Namespace

logger = logging.getLogger("mainstem.broker")

TICK_S = 1.0
TAIL_READ_BYTES = 4 << 20
INFLATED_BYTES_MAX = 64 << 20
HELD_MS_MAX = 7 * 24 * 3_600_000
SHARE_PREFIX = b"$share/"
RETAINED = "retained"  # a journal kind
QOS_2_IDENTITY = b"ms-qos2"  # packet identifier and client id of a publish that a session may repeat
QOS_2_DELAYED = b"ms-qos2-delayed"  # the same of a delayed one, which counts where it waits, not where it ends up

Unreleased = tuple[Session, list[int]]  # a connected client's session and its pending QoS 2 identifiers


@dataclass(frozen=True, slots=True)
class SessionLimits:
    sessions_max: int = SESSIONS_MAX
    retained_max: int = RETAINED_MAX  # per namespace
    held_ms_max: int = HELD_MS_MAX
    held_messages_max: int = MESSAGES_MAX
    held_bytes_max: int = BYTES_MAX


class SessionKeeper:
    def __init__(self, broker: Broker, limits: SessionLimits) -> None:
        self._broker = broker
        self._limits = limits
        self.sessions = Sessions(broker.journal, sessions_max=limits.sessions_max)
        self.wills = Wills(broker, self)
        self.held = HeldLimits(
            broker,
            ms_max=limits.held_ms_max,
            messages_max=limits.held_messages_max,
            bytes_max=limits.held_bytes_max,
        )
        self.held.on_over = self.sessions.end_hold
        self.no_local = FilterTrie()  # filters of No Local subscriptions, present or absent
        self.on_no_local: Callable[[], None] = lambda: None  # they changed
        self.unreleased: Callable[[], Iterable[Unreleased]] = lambda: ()
        self.expired_total = 0
        self.closed = False
        self._retained: dict[str, Retained] = {}
        self._shares: dict[tuple[str, str], set[bytes]] = {}  # namespace, shared group's queue → keys of its sessions
        self._candidate: tuple[int, list[tuple[Log, int]]] | None = None
        broker.journal.register(
            RETAINED, self._apply_retained, self._dump_retained, first_namespace, bulk=_BulkRetained(self)
        )
        self._planned: PlannedHolds | None = None
        broker.maintenance.around_round = self.planned_holds
        broker.maintenance.holders.update(sessions=self.session_holds, retained=self.retained_holds)

    def close(self) -> None:
        """After the last client has left: from here on nothing is journaled any more."""
        if not self.closed:
            while self.sessions.save_places():
                pass
            self.wills.close()
            self.closed = True

    # -- publishing ------------------------------------------------------------------------------------------------

    def retained(self, namespace: Namespace) -> Retained:
        found = self._retained.get(namespace.name)
        if found is None or not found.is_of(namespace):
            broker = self._broker
            found = Retained(namespace, broker.journal, broker.ticker, retained_max=self._limits.retained_max)
            self._retained[namespace.name] = found
        return found

    def publish(
        self,
        namespace: Namespace,
        topic: bytes,
        payload: bytes,
        *,
        qos: int,
        retain: bool,
        properties: bytes = b"",
        client_id: bytes = b"",
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        time_ms: int | None = None,
    ) -> Ticket:
        """One MQTT message, as its client would publish it: a will, or a publish with `ms-` properties."""
        if retain and payload:
            self._broker.quotas.check_retained(namespace)
        stored = list(headers)
        if properties:
            stored.append((b"ms-mqtt", properties))
        if client_id and (retain or self.no_local.match(topic)):  # a retained one may meet No Local later
            stored.append((b"ms-client", client_id))
        return namespace.publish(
            topic,
            None if retain and not payload else payload,
            key=key,
            headers=stored,
            time_ms=time_ms,
            flags=qos | (RecordFlag.RETAIN if retain else 0),
            origin=Origin.MQTT,
        )

    # -- subscriptions that concern others -------------------------------------------------------------------------

    def want_client(self, topic_filter: bytes, holder: object) -> None:
        """A No Local subscription: publishers to these topics say from now on who they are."""
        self.no_local.add(literal_filter(topic_filter), holder)
        self.on_no_local()

    def unwant_client(self, topic_filter: bytes, holder: object) -> None:
        self.no_local.remove(literal_filter(topic_filter), holder)
        self.on_no_local()

    def join_share(self, name: str, key: bytes) -> None:
        self._shares.setdefault((_namespace_name(key), name), set()).add(key)

    def leave_share(self, namespace: Namespace, name: str, key: bytes) -> None:
        """A group ends with its last session."""
        members = self._shares.get((namespace.name, name), set())
        members.discard(key)
        if not members:
            self._shares.pop((namespace.name, name), None)
            queues = self._broker.queues.of(namespace)
            queue = queues.find(name)
            if queue is not None:
                queues.delete(queue)

    def end_session(self, session: Session) -> Ticket | None:
        """Its time is over, or its client wants a clean start: nothing of it is owed any more."""
        for subscription in session.subscriptions.values():
            if subscription.no_local:
                self.unwant_client(subscription.filter, session)
            if subscription.filter.startswith(SHARE_PREFIX):
                namespace = self._namespace_of(session)
                if namespace is not None:
                    self.leave_share(namespace, share_name(subscription.filter), session.key)
        self.wills.fire(session.key)
        return self.sessions.end(session)

    def session_count(self, namespace: str) -> int:
        start = namespace.encode() + b"\0"
        return sum(1 for _ in self.sessions.keys_from(start))

    def forget_namespace(self, name: str) -> Iterator[None]:
        """It is removed: no will is sent, no session comes back, nothing is retained."""
        start = name.encode() + b"\0"
        for key in self.wills.keys_from(start):
            self.wills.forget(key)
            yield
        for key in list(self.sessions.keys_from(start)):
            session = self.sessions.find(key)
            if session is None:
                continue
            for subscription in session.subscriptions.values():
                if subscription.no_local:
                    self.unwant_client(subscription.filter, session)
            for members in self._shares.values():
                members.discard(session.key)
            self.sessions.end(session)
            yield
        retained = self._retained.pop(name, None)
        if retained is not None:
            yield from retained.forget_all()

    def _namespace_of(self, session: Session) -> Namespace | None:
        return self._broker.namespaces.get(_namespace_name(session.key))

    # -- figures ---------------------------------------------------------------------------------------------------

    @property
    def all_retained(self) -> list[bytes]:
        return [topic for retained in self._retained.values() for topic in retained.topics]

    def retained_count(self) -> int:
        return sum(map(len, self._retained.values()))

    def retained_refused(self) -> int:
        return sum(one.refused for one in self._retained.values())

    def share_count(self) -> int:
        return sum(len(members) for members in self._shares.values())

    # -- every second ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                while self.tick():
                    await self._broker.turns.turn()
            except Exception:
                logger.exception("periodic work of sessions failed; it is tried again")

    def tick(self) -> bool:
        """True if more sessions have expired than it ended."""
        if self.closed:
            return False
        expired = self.sessions.expired(self._broker.clock.now_ns())
        for session in expired:
            self.expired_total += 1
            self.end_session(session)
        self._checkpoint()
        return bool(expired)

    def _checkpoint(self) -> None:
        """Once everything below a past head is stable, state derived from records below it is journaled, then it."""
        head = self._broker.ticker.head_stamp
        if self._candidate is None:
            if head > self.sessions.checkpoint:
                self._candidate = head, [(log, log.written) for log in self._broker.logs.by_id.values()]
            return
        stamp, logs = self._candidate
        if all(log.stable >= written for log, written in logs):
            self._candidate = None
            self.sessions.save_checkpoint(stamp, self.unreleased())

    def all_is_stable(self) -> None:
        """A clean stop, before the last snapshot: that has all that records say, so the next start looks at none."""
        self.sessions.checkpoint = max(self.sessions.checkpoint, self._broker.ticker.head_stamp)

    # -- recovery --------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Before the first client: what records beyond the checkpoint say of identifiers and retained messages."""
        for namespace in self._broker.namespaces.values():
            logs = set(namespace.stems.values())
            logs.update(span.log for topic in namespace.topics.values() for p in topic.partitions for span in p.spans)
            for log in logs:
                self._recover_log(namespace, log)
        retained = [one.write_derived() for one in self._retained.values()]
        self.sessions.write_derived(self._broker.ticker.head_stamp, more=any(retained))
        self.sessions.recovered(self._broker.clock.now_ns(), self._recover_session)
        self.wills.start()
        for queues in self._broker.queues.used():
            namespace = queues.namespace
            shared = [one for one in queues if one.name.startswith(SHARE_PREFIX.decode())]
            for queue in [one for one in shared if (namespace.name, one.name) not in self._shares]:
                queues.delete(queue)  # its members were connections, and are gone

    def _recover_session(self, session: Session) -> None:
        for subscription in session.subscriptions.values():
            if subscription.no_local:
                self.no_local.add(literal_filter(subscription.filter), session)
            if subscription.filter.startswith(SHARE_PREFIX):
                self.join_share(share_name(subscription.filter), session.key)

    def _recover_log(self, namespace: Namespace, log: Log) -> None:
        checkpoint = self.sessions.checkpoint
        if log.last_stamp < checkpoint:
            return
        log.engine.sync()  # what it says is about to be written down elsewhere
        offset = readable_offset(log, checkpoint)
        unknown = "and retained messages and identifiers in them are not known"
        for piece in readable_pieces(log, offset, TAIL_READ_BYTES, unknown):
            if piece is None:
                continue
            records = decode_frames(
                piece.data,
                log.id,
                inflated_bytes_max=INFLATED_BYTES_MAX,
                inflate=inflate_soon,
                topic_of=namespace.topic_of,
            )
            for record in records:
                if record.stamp >= checkpoint and (record.origin == Origin.MQTT or record.topic == DELAYED_TOPIC):
                    self._recover_record(namespace, log, record)

    def _recover_record(self, namespace: Namespace, log: Log, record: Record) -> None:
        if record.flags & RecordFlag.RETAIN:
            self.retained(namespace).recover(record.topic, log, record)
        name = QOS_2_DELAYED if record.topic == DELAYED_TOPIC else QOS_2_IDENTITY
        identity = record.header(name) if name == QOS_2_DELAYED or record.flags & RecordFlag.QOS_2 else None
        if identity is not None:
            key = session_key(namespace, identity[2:])
            self.sessions.recover_received(key, int.from_bytes(identity[:2], "big"), record.stamp)

    def _apply_retained(self, key: bytes, value: bytes | None) -> None:
        name, _, topic = key.partition(b"\0")
        namespace = self._broker.namespaces.get(name.decode())
        if namespace is not None:
            self.retained(namespace).apply(topic, value)

    def _dump_retained(self) -> Iterator[tuple[bytes, bytes]]:
        for retained in list(self._retained.values()):
            yield from retained.dump()

    # -- retention -------------------------------------------------------------------------------------------------

    def session_holds(self, log: Log) -> Holds:
        """What persistent sessions still need of a log."""
        owner = self._broker.maintenance.planning
        if self._planned is not None and owner is not None:
            return Holds(from_stamp=self._planned.of(owner, log))
        for session in self.held.check(self.sessions.holders()):  # the one furthest behind first
            namespace = self._namespace_of(session)
            filters = (literal_filter(one.filter) for one in session.subscriptions.values() if one.qos)
            if namespace is not None and namespace.may_hold(log, filters):
                return Holds(from_stamp=session.oldest())
        return Holds()

    @asynccontextmanager
    async def planned_holds(self) -> AsyncIterator[None]:
        """For a round of maintenance: sessions are looked at once, not for each log."""
        planned = PlannedHolds()
        self.sessions.on_saved = planned.add
        try:
            await planned.look_at(self._broker, self.sessions, self.held)
            self._planned = planned
            yield
        finally:
            self._planned = self.sessions.on_saved = None

    def retained_holds(self, log: Log) -> Holds:
        """The records of a log that retained pointers name."""
        for retained in self._retained.values():  # a log is one namespace's
            if offsets := retained.held_offsets(log):
                return Holds(offsets=offsets)
        return Holds()

    def all_retained_of(self, name: str) -> Retained | None:
        """What the namespace retains; None without such a namespace."""
        namespace = self._broker.namespaces.get(name)
        return self.retained(namespace) if namespace is not None else None

    @property
    def retaining(self) -> dict[str, Retained]:
        """By namespace."""
        return dict(self._retained)


class _BulkRetained:
    """Retained messages in a snapshot: each namespace packs and loads its own."""

    def __init__(self, keeper: SessionKeeper) -> None:
        self._keeper = keeper

    def pieces(self, took: Callable[[bytes], None]) -> Iterator[bytes]:
        for name, retained in self._keeper.retaining.items():
            yield from retained.pieces(_snapshot_prefix(name))

    def load(self, data: bytes, at: int, end: int) -> tuple[int, int]:
        name_end = data.index(b"\0", at + SIZES.size + len(RETAINED) + 1)
        name = data[at + SIZES.size + len(RETAINED) + 1 : name_end].decode()
        retained = self._keeper.all_retained_of(name)
        return (at, 0) if retained is None else retained.load(data, at, end, _snapshot_prefix(name))

    def replay(self, data: bytes, at: int, end: int, offset: int, taken: dict[bytes, int]) -> tuple[int, int]:
        """Those that end are left for `apply`."""
        return self.load(data, at, end)


def _snapshot_prefix(namespace: str) -> bytes:
    """Kind, namespace, and again the namespace, with which the keys of retained messages begin."""
    return b"%b\0%b\0%b\0" % (RETAINED.encode(), namespace.encode(), namespace.encode())


def session_key(namespace: Namespace, client_id: bytes) -> bytes:
    return namespace.name.encode() + b"\0" + client_id


def share_name(text: bytes) -> str:
    """The name of a shared group's own queue, of `$share/<group>/<filter>`."""
    group, _, topic_filter = text.removeprefix(SHARE_PREFIX).partition(b"/")
    return f"{SHARE_PREFIX.decode()}{group.decode()}/{literal_filter(topic_filter).decode()}"


def _namespace_name(key: bytes) -> str:
    """Of a session, by its key."""
    return key.partition(b"\0")[0].decode()
