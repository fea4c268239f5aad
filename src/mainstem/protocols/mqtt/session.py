"""What a client is subscribed to and owed, while it is connected. Pure: no socket, no clock, no broker.

Catching up asks `choose` about each stored record the filters may mean:

    sent before, not acknowledged   again, with its old packet identifier and DUP
    below the position              no: it was offered before
    no subscription counts yet      no: each one begins at its own stamp
    QoS 0, from before connecting   no: QoS 0 is not kept for an absent client
    otherwise                       yes, once, whatever filters overlap
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from mainstem.broker.delivery.live import RecordRef
from mainstem.broker.sessions.sessions import DONE, Flight, Subscription
from mainstem.broker.sessions.wills import Will
from mainstem.model.origin import Origin
from mainstem.model.topic_filter import literal_filter
from mainstem.model.topic_tries import FilterTrie
from mainstem.protocols.mqtt.outgoing.outbound import AWAIT_PUBCOMP, Grant
from mainstem.protocols.mqtt.wire.properties import Property, encode_property

GRANTS_CACHED_MAX = 1024  # topics; then the cache starts anew
GRANTS_SHARED_MAX = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Interest:
    """One plain subscription as deliveries see it."""

    filter: bytes  # canonical
    grant: Grant
    start: int


def grant_of(subscription: Subscription) -> Grant:
    identifiers = b""
    if subscription.identifier:
        identifiers = encode_property(Property.SUBSCRIPTION_ID, subscription.identifier)
    return _grant(
        subscription.qos, subscription.no_local, subscription.retain_as_published, identifiers, subscription.meta
    )


@lru_cache(maxsize=GRANTS_SHARED_MAX)
def _grant(qos: int, no_local: bool, retain_as_published: bool, identifiers: bytes, meta: bool) -> Grant:
    """Grants never change, so equal ones are one: routes with the same listener and options share their deliveries."""
    return Grant(qos, no_local=no_local, retain_as_published=retain_as_published, identifiers=identifiers, meta=meta)


class MqttSession:
    """One connection's view of its session: the plain subscriptions, and what is to be sent again."""

    __slots__ = (
        "_again",
        "_again_last",
        "_again_more",
        "_again_seen",
        "_cache",
        "_trie",
        "connected_at",
        "interests",
        "position",
        "will",
    )

    def __init__(self, connected_at: int) -> None:
        self.connected_at = connected_at
        self.position = connected_at
        self.interests: dict[bytes, Interest] = {}
        self.will: Will | None = None
        self._trie: FilterTrie | None = None  # made when it is first needed: most sessions never fall behind
        self._cache: dict[bytes, list[Interest]] = {}
        self._again: dict[int, tuple[int, int]] = {}
        self._again_seen: set[int] = set()
        self._again_last = -1
        self._again_more: list[Flight] = []

    @property
    def filters(self) -> list[bytes]:
        return list(self.interests)

    def subscribe(self, subscription: Subscription) -> Interest:
        interest = Interest(literal_filter(subscription.filter), grant_of(subscription), subscription.start)
        self.unsubscribe(interest.filter)
        self.interests[interest.filter] = interest
        if self._trie is not None:
            self._trie.add(interest.filter, interest)
            self._cache.clear()
        return interest

    def unsubscribe(self, topic_filter: bytes) -> bool:
        interest = self.interests.pop(topic_filter, None)
        if interest is not None and self._trie is not None:
            self._trie.remove(topic_filter, interest)
            self._cache.clear()
        return interest is not None

    def resume(self, position: int, flight: Iterable[Flight]) -> int:
        """The session goes on from here; returns the stamp from which the log must be read."""
        self.position = position
        self._again, self._again_more = {}, []
        for packet_id, state, stamp in flight:
            if stamp in self._again:  # a retained message may be in flight twice
                self._again_more.append((packet_id, state, stamp))
            else:
                self._again[stamp] = packet_id, state
        self._again_seen = {stamp for stamp, (_, state) in self._again.items() if state >= AWAIT_PUBCOMP}
        self._again_last = max(self._again, default=-1)
        return min(position, min(self._again, default=position))

    def redelivers(self, position: int) -> bool:
        """Whether catching up, from there on, may find what was in flight before."""
        return bool(self._again) and position <= self._again_last

    def done_beyond(self, position: int, flight: Iterable[Flight]) -> list[Flight]:
        """What was in flight before and is completed since, although catching up has not passed it yet."""
        if not self.redelivers(position):
            return []
        open_ones = {stamp for _, _, stamp in flight}
        return [(0, DONE, stamp) for stamp in self._again if stamp >= position and stamp not in open_ones]

    def lost_flight(self) -> list[Flight]:
        """What catching up has passed without finding it: gone from the log, or no subscription means it any more."""
        again, seen = self._again, self._again_seen
        lost = [(packet_id, state, stamp) for stamp, (packet_id, state) in again.items() if stamp not in seen]
        lost += [one for one in self._again_more if one[1] < AWAIT_PUBCOMP]
        self._again, self._again_seen, self._again_more = {}, set(), []
        return lost

    def choose(self, record: RecordRef) -> Grant | None:
        again = self._again.get(record.stamp) if self._again else None
        if again is not None:
            return self._choose_again(record, *again)
        if record.stamp < self.position:
            return None
        grants = [one.grant for one in self._matching(record.topic) if one.start <= record.stamp]
        if not grants:
            return None
        grant: Grant = grants[0] if len(grants) == 1 else Grant.merged(grants)
        if record.stamp < self.connected_at:
            kept = 1 if record.origin == Origin.KAFKA else record.flags & 3
            if min(kept, grant.qos) == 0:
                return None
        return grant

    def _choose_again(self, record: RecordRef, packet_id: int, state: int) -> Grant | None:
        if state >= AWAIT_PUBCOMP:
            return None  # the client has it; only the release goes again
        self._again_seen.add(record.stamp)
        matching = self._matching(record.topic)
        grants = [one.grant for one in matching]
        return Grant(
            state,
            # What is older than the subscription was its retained message.
            retain_as_published=any(one.grant.retain_as_published or one.start > record.stamp for one in matching),
            identifiers=b"".join(one.identifiers for one in grants),
            meta=any(one.meta for one in grants),
            packet_id=packet_id,
        )

    def _matching(self, topic: bytes) -> list[Interest]:
        found = self._cache.get(topic)
        if found is None:
            if self._trie is None:
                self._trie = FilterTrie()
                for interest in self.interests.values():
                    self._trie.add(interest.filter, interest)
            if len(self._cache) >= GRANTS_CACHED_MAX:
                self._cache.clear()
            found = [one for one in self._trie.match(topic) if isinstance(one, Interest)]
            self._cache[topic] = found
        return found
