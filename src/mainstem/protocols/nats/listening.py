"""Who listens by NATS: sinks for what is stored, and a trie for what is live only.

A slow subscriber to a stored subject misses nothing: it is served from the log (`outbound.py`). Of live-only subjects
(inboxes, `$...`) there is no log: who leaves PENDING_BYTES_MAX unread is cut off.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from mainstem.broker.delivery.live import Sink
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.model.topic_tries import FilterTrie
from mainstem.protocols.nats.outbound import GroupSink, Subscription

if TYPE_CHECKING:
    from mainstem.protocols.nats.adapter import NatsConnection

LIVE_ONLY = (b"_INBOX", b"_R_", b"_GR_", b"$")  # beginnings of first tokens
_ROOT = b"n/"  # before topics and filters of the live trie: there a leading wildcard means `$` and `_INBOX`, too


def is_live_only(subject: bytes) -> bool:
    return subject.startswith(LIVE_ONLY)


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
