"""Who listens by NATS: sinks for what is stored, and a trie for what is live only.

A connection's plain subscriptions are one sink; a queue group is one for all its members, of which each record goes to
one. A sink that has no room is served from the log when it has, like any other: a slow subscriber to a stored subject
misses nothing. Of live-only subjects (inboxes, `$...`) there is no log: who leaves PENDING_BYTES_MAX unread is cut off.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mainstem.broker.live import RecordRef, Sink
from mainstem.broker.namespace import Namespace
from mainstem.model.topic_filter import matches
from mainstem.model.topic_tries import FilterTrie
from mainstem.protocols.nats.session import Subscription

if TYPE_CHECKING:
    from mainstem.protocols.nats.adapter import NatsConnection

LIVE_ONLY = (b"_INBOX", b"_R_", b"_GR_", b"$")  # beginnings of first tokens
_ROOT = b"n/"  # before topics and filters of the live trie: there a leading wildcard means `$` and `_INBOX`, too


def is_live_only(subject: bytes) -> bool:
    return subject.startswith(LIVE_ONLY)


class PlainSink(Sink):
    """The subscriptions of one connection that are in no queue group."""

    def __init__(self, connection: NatsConnection, namespace: Namespace) -> None:
        super().__init__(namespace)
        self.connection = connection

    def push(self, record: RecordRef, options: Any) -> bool:
        connection = self.connection
        if connection.closing:
            return True
        if connection.is_full():
            return False
        for one in options:
            connection.deliver(one, record)
        return True

    def choose(self, record: RecordRef) -> Any:
        plain = self.connection.subscriptions.plain
        found = [one for topic_filter, held in plain.items() if matches(topic_filter, record.topic) for one in held]
        return found or None

    def merge(self, options: list[Any]) -> Any:
        return [one for held in options for one in held]

    def filters(self) -> Sequence[bytes]:
        return list(self.connection.subscriptions.plain)


class GroupSink(Sink):
    """A queue group: each record goes to one member, at random among those that have room."""

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(namespace)
        self.members: dict[bytes, list[Subscription]] = {}  # by filter

    def push(self, record: RecordRef, options: Any) -> bool:
        open_ones = [one for one in options if not one.closed and not one.owner.closing]
        if not open_ones:
            return True
        ready = [one for one in open_ones if not one.owner.is_full()]
        if not ready:
            return False
        random.shuffle(ready)
        any(one.owner.deliver(one, record) for one in ready)
        return True

    def choose(self, record: RecordRef) -> Any:
        found = [one for f, held in self.members.items() if matches(f, record.topic) for one in held]
        return found or None

    def merge(self, options: list[Any]) -> Any:
        return [one for held in options for one in held]

    def filters(self) -> Sequence[bytes]:
        return list(self.members)


class Listening:
    """All NATS subscriptions of one namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self._live = FilterTrie()
        self._groups: dict[bytes, GroupSink] = {}
        self.on_interest: Callable[[], None] = lambda: None  # somebody subscribed

    def add(self, one: Subscription) -> None:
        self._live.add(_ROOT + one.filter, one)
        if not one.queue:
            self._listen(one.owner.sink, one.filter, one.owner.subscriptions.plain[one.filter])
        else:
            group = self._groups.get(one.queue)
            if group is None:
                group = self._groups[one.queue] = GroupSink(self.namespace)
            group.members.setdefault(one.filter, []).append(one)
            self._listen(group, one.filter, group.members[one.filter])
        one.start = self.namespace.broker.stamps.next
        self.on_interest()

    def remove(self, one: Subscription) -> None:
        """After its connection has let go of it."""
        self._live.remove(_ROOT + one.filter, one)
        if not one.queue:
            self._listen(one.owner.sink, one.filter, one.owner.subscriptions.plain.get(one.filter, []))
            return
        group = self._groups[one.queue]
        held = group.members[one.filter]
        held.remove(one)
        self._listen(group, one.filter, held)
        if not held:
            del group.members[one.filter]
        if not group.members:
            del self._groups[one.queue]
            self.namespace.broker.pump.stop(group)

    def _listen(self, sink: Sink, topic_filter: bytes, held: list[Subscription]) -> None:
        """From now on the sink is pushed what these mean. One that catches up goes on with its changed filters."""
        if held:
            self.namespace.subscribe(topic_filter, sink, tuple(held))
        else:
            self.namespace.unsubscribe(topic_filter, sink)
        if not sink.live:
            self.namespace.broker.pump.stop(sink)
            if sink.filters():
                self.namespace.resume(sink)
            else:
                sink.live = True

    def group(self, queue: bytes) -> GroupSink | None:
        return self._groups.get(queue)

    def matching(self, topic: bytes) -> list[Subscription]:
        """All that mean the topic, members of groups too."""
        return [one for one in self._live.match(_ROOT + topic) if isinstance(one, Subscription)]

    def live(self, topic: bytes, sender: NatsConnection | None) -> list[Subscription]:
        """Who is delivered one message of a live-only subject: all without a queue, one of each group."""
        plain: list[Subscription] = []
        groups: dict[bytes, list[Subscription]] = {}
        for found in self._live.match(_ROOT + topic):
            assert isinstance(found, Subscription)
            if sender is not None and found.owner is sender and not sender.options.echo:
                continue
            if found.queue:
                groups.setdefault(found.queue, []).append(found)
            else:
                plain.append(found)
        return [*plain, *(random.choice(members) for members in groups.values())]
