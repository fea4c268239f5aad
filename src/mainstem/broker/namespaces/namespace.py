"""A namespace: its topics, its stems, and who listens to what. Publishing and subscribing for all protocols.

`routes` is the hot path's table: canonical topic → Route (where it is written, who gets it live). It is a cache of
at most ROUTES_MAX entries, emptied as a whole when full; a topic's Route is made again from the registry and the trie.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from mainstem.broker.delivery.live import Delivery, Route, Sink
from mainstem.broker.namespaces.quotas import NAMESPACE
from mainstem.broker.namespaces.record_rules import NEEDS_STORING, RecordRules
from mainstem.broker.namespaces.settings import NamespaceSettings
from mainstem.broker.namespaces.undeclared import topic_in_stems, topic_in_stream
from mainstem.broker.rights.rules import AUDIT_TOPIC
from mainstem.broker.schemas.enforcement import DEAD
from mainstem.broker.topics.policy import Policy, policy_of
from mainstem.broker.topics.topic import Topic
from mainstem.log.gather import Ticket
from mainstem.log.live_log import LiveLog, not_stored
from mainstem.log.log import Log
from mainstem.model.cut_names import note_name
from mainstem.model.errors import InvalidName, NotFound, QuotaExceeded
from mainstem.model.origin import Origin, RecordFlag
from mainstem.model.partitioner import partition_of_key
from mainstem.model.record import Header
from mainstem.model.topic_filter import (
    check_filter,
    check_topic,
    covers,
    filter_levels,
    is_pattern,
    literal_filter,
    matches,
    overlap,
    unescape_level,
)
from mainstem.model.topic_tries import FilterTrie, TopicTrie

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker
    from mainstem.broker.streams.streams import Streams
    from mainstem.broker.topics.commits import Commit
    from mainstem.broker.topics.views import View

ROUTES_MAX = 250_000
SHARED_DELIVERIES_MAX = 10_000
ALWAYS_STORED = (DEAD, b"$", b"_schemas")  # whatever the namespace's defaults say: the broker relies on them
LIVE_ORIGINS = (Origin.NATS, Origin.MQTT, Origin.AMQP)  # whose publishers may do without storing

Interest = tuple[Sink, Any, int]  # with the options of one filter, and the stamp it begins at


class Namespace:
    def __init__(
        self, broker: Broker, name: str, defaults: Policy, settings: NamespaceSettings | None = None, created: int = 0
    ) -> None:
        """`defaults` are the configuration's, which the namespace's own settings change."""
        self.broker = broker
        self.name = name
        self.created = created  # stamp
        self.settings = settings or NamespaceSettings()
        self.defaults = defaults.with_changes(self.settings.policy)
        self.refusal: QuotaExceeded | None = None  # of everything published, by any protocol
        self.removed = False  # whoever still has it in hand finds nothing and makes nothing
        self._rules: dict[bytes, dict[str, Any]] = {}
        self.topics: dict[bytes, Topic] = {}  # declared ones
        self.views: dict[bytes, View] = {}
        self.stems: dict[tuple[object, ...], Log] = {}
        self.stem_policies: dict[Log, Policy] = {}
        self.stream_logs: dict[Log, Policy] = {}  # those of the stems that are a stream's
        self._live_log: LiveLog | None = None
        self.streams: Streams | None = None
        self.routes: dict[bytes, Route] = {}
        self.route_clears = 0  # grows when a route stops to count: whoever keeps routes drops them then
        self.topic_of: dict[int, bytes] = {}  # declared id → name, for frames that name their topic by id
        self.topic_of_log: dict[Log, bytes] = {}  # of logs that hold one topic only
        self._declared = TopicTrie()  # their names, for filters
        self.record_rules = RecordRules(self)
        self.observers: set[Sink] = set()  # who look on and take nothing: a topic they listen to has no reader by that
        self.traced_topics: set[bytes] = set()  # with a `trace` of their own
        self.changing: dict[bytes, Commit[Any]] = {}  # names of topics and views whose change is being committed
        self._interests = FilterTrie()
        self._entries: dict[tuple[bytes, Sink], Interest] = {}
        self._shared_deliveries: dict[tuple[int, ...], list[Delivery]] = {}  # by the ids of sinks and options
        self._shared_epoch = 0

    # -- publishing ------------------------------------------------------------------------------------------------

    def route(self, topic: bytes) -> Route:
        """Where the topic is written and who gets it live; made on first use. Refuses what cannot be a topic."""
        found = self.routes.get(topic)
        return found if found is not None else self._make_route(topic)

    def _make_route(self, topic: bytes) -> Route:
        declared = self.topics.get(topic)
        if declared is not None:
            route = declared.partitions[partition_of_key(topic, len(declared.partitions))].route
        else:
            check_topic(topic)
            note_name(topic)
            self.check_there()
            if topic in self.views:
                raise InvalidName(f"{topic.decode()!r} is a view; publish to a topic that it shows")
            policy = self.policy(topic)
            stream = self.streams.capture(topic) if self.streams is not None else None
            if stream is not None:
                assert stream.log.index is not None
                route = Route(topic, stream.log.index.topics.number(topic), stream.log, self)
            elif not policy.store:
                route = Route(topic, 1, self.live_log, self)
            elif policy.dedicated:
                created = self.broker.begin_topic(self, topic, policy).value
                route = created.partitions[partition_of_key(topic, len(created.partitions))].route
            else:
                route = self._shared_route(topic, policy)
        if len(self.routes) >= ROUTES_MAX:
            self.routes.clear()
            self.route_clears += 1
        self.routes[topic] = route
        return route

    def check_there(self) -> None:
        if self.removed:
            raise NotFound(f"namespace {self.name!r} was removed", fix=f"mainstem namespace add {self.name}")

    def give(self, settings: NamespaceSettings) -> None:
        """Other settings from now on: topics are resolved anew, and those without settings of their own follow."""
        self.settings = settings
        self.defaults = self.broker.options.defaults.with_changes(settings.policy)
        self.rules = self._rules
        self.broker.quotas.changed(NAMESPACE, self.name)

    def creation(self, name: bytes) -> Commit[Topic] | None:
        """Of a topic that is being created: its publishers know it, nobody else does yet."""
        commit = self.changing.get(name)
        return commit if commit is not None and isinstance(commit.value, Topic) else None

    def _shared_route(self, topic: bytes, policy: Policy) -> Route:
        stem = self.stem(policy)
        assert stem.index is not None
        known = topic_in_stems(self, topic) if len(self.stems) > 1 and not stem.index.topics.find(topic) else None
        if known is not None and known.partitions[0].log is not stem:
            # It lives in the stem of another policy: from now on it has two spans, so that its offsets go on.
            return self.broker.begin_topic(self, topic, policy).value.partitions[0].route
        if self.settings.quota.topics_max and not stem.index.topics.find(topic):
            self.broker.quotas.check_topics(self)
        return Route(topic, stem.index.topics.number(topic), stem, self)

    def forget_route(self, topic: bytes) -> None:
        """The topic was declared, moved or deleted: it is resolved anew."""
        if self.routes.pop(topic, None) is not None:
            self.route_clears += 1

    def forget_routes(self) -> None:
        """What a record may be has changed: whoever keeps routes asks again."""
        self.routes.clear()
        self.route_clears += 1

    def renumber(self, route: Route) -> None:
        """The stem forgot the topic when its last record went; it is published again."""
        index = route.log.index
        route.number = index.topics.number(route.topic) if index is not None else 1

    def forget_numbers(self, log: Log, numbers: Iterable[int]) -> None:
        """Topics whose last record is gone leave the dictionary; their routes ask again before the next publish."""
        index, removed = log.index, False
        for number in numbers:
            assert index is not None
            name = index.topics.name(number)
            declared = self.topics.get(name)
            routes = [partition.route for partition in declared.partitions] if declared is not None else []
            for route in (*routes, self.routes.get(name)):
                if route is not None and route.log is log:
                    route.number = 0
            index.topics.remove(number)
            removed = True
        if removed and log.bitmaps is not None:
            log.bitmaps.forget()

    def publish(
        self,
        topic: bytes,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        time_ms: int | None = None,
        flags: int = 0,
        origin: int = Origin.BROKER,
    ) -> Ticket:
        """Append one record; the ticket is released when it is durable under its topic's policy."""
        return self.publish_at(topic, value, key=key, headers=headers, time_ms=time_ms, flags=flags, origin=origin)[0]

    def publish_at(
        self,
        topic: bytes,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        time_ms: int | None = None,
        flags: int = 0,
        origin: int = Origin.BROKER,
    ) -> tuple[Ticket, int]:
        """The same, and which record of the ticket's batch it is."""
        topic, headers = self.record_rules.admit(topic, value, headers)
        route = self.route(topic)
        if not route.log.keeps and (flags & NEEDS_STORING or origin not in LIVE_ORIGINS):
            raise not_stored(topic)
        if key is None:
            key, flags = topic, flags | RecordFlag.KEY_IS_TOPIC
        else:
            headers = [(b"ms-topic", topic), *headers]
            route = self.keyed_route(topic, key, route)
        gather = route.open_gather(origin)
        time_ms = self.broker.clock.now_ns() // 1_000_000 if time_ms is None else time_ms
        index = gather.add_routed(route, key, value, headers, time_ms, flags)
        if flags & RecordFlag.RETAIN:
            self.broker.session_keeper.retained(self).note(
                route, gather.ticket, index, value is not None, len(value or b"")
            )
        return gather.ticket, index

    def keyed_route(self, topic: bytes, key: bytes, route: Route) -> Route:
        """A key that is not the topic chooses among a declared topic's partitions."""
        declared = self.topics.get(topic)
        if declared is None and (creation := self.creation(topic)) is not None:
            declared = creation.value
        if declared is None or len(declared.partitions) == 1:
            return route
        return declared.partitions[partition_of_key(key, len(declared.partitions))].route

    # -- listening -------------------------------------------------------------------------------------------------

    def subscribe(self, topic_filter: bytes, sink: Sink, options: Any) -> int:
        """From now on: returns the stamp at which it starts. The same filter and sink again replaces the options."""
        check_filter(topic_filter)
        note_name(topic_filter)  # perhaps a topic: somebody waits for an answer there
        known = self._entries.get((topic_filter, sink))
        self.unsubscribe(topic_filter, sink)
        # One that is not live stands at a position of its own, and is served from there.
        since = (self.broker.stamps.next if sink.live else 0) if known is None else known[2]
        entry = (sink, options, since)
        self._entries[topic_filter, sink] = entry
        self._interests.add(topic_filter, entry)
        self.broker.dispatcher.epoch += 1
        return self.broker.stamps.next

    def unsubscribe(self, topic_filter: bytes, sink: Sink) -> bool:
        entry = self._entries.pop((topic_filter, sink), None)
        if entry is None:
            return False
        self._interests.remove(topic_filter, entry)
        self.broker.dispatcher.epoch += 1
        return True

    def detach(self, sink: Sink) -> None:
        """The sink takes nothing for now: remember where it stands, so that `resume` misses nothing."""
        self.broker.pump.stop(sink)
        if sink.live:
            sink.live, sink.position = False, self.broker.ticker.head_stamp

    def resume(self, sink: Sink) -> None:
        """The sink has room (again): serve it from its position on, then live."""
        if not sink.live:
            self.broker.pump.resume(sink, sink.filters())

    def refresh(self, route: Route) -> None:
        """Find who listens to a route again, after subscriptions changed. A sink appears once, its options merged.

        Routes with the same listeners share one list: with many topics, what delivery touches stays in the cache.
        """
        epoch = self.broker.dispatcher.epoch
        if epoch != self._shared_epoch:
            self._shared_deliveries.clear()
            self._shared_epoch = epoch
        interests = cast(list[Interest], self._interests.match(route.topic))
        if not route.log.keeps:
            interests = [one for one in interests if one[0].takes_unstored]
        key = tuple([part for sink, options, since in interests for part in (id(sink), id(options), since)])
        deliveries = self._shared_deliveries.get(key)
        if deliveries is None:
            by_sink: dict[Sink, list[Any]] = {}
            since_of: dict[Sink, int] = {}
            for sink, options, since in interests:
                by_sink.setdefault(sink, []).append(options)
                since_of[sink] = min(since, since_of.get(sink, since))
            deliveries = [
                Delivery(sink, one[0] if len(one) == 1 else sink.merge(one), since_of[sink])
                for sink, one in by_sink.items()
            ]
            if len(self._shared_deliveries) < SHARED_DELIVERIES_MAX:  # its ids stay taken until the next change
                self._shared_deliveries[key] = deliveries
        route.deliveries = deliveries
        route.epoch = epoch

    def listened(self, topic: bytes) -> bool:
        """Whether any live subscriber, queue or view takes the topic (AMQP's `mandatory`)."""
        listening = [one for one in self.listening(topic) if one not in self.observers]
        if not self.stores(topic):
            return any(one.takes_unstored for one in listening)
        return bool(listening) or any(view.covers(topic) for view in self.views.values())

    def has_live(self, topic: bytes) -> bool:
        """Whether a record of the topic is handed on as soon as it is written."""
        return bool(self._interests.match(topic))

    def listening(self, topic: bytes) -> Iterator[Sink]:
        """Who is handed its records as they are written; once for each filter."""
        for sink, _, _ in cast(list[Interest], self._interests.match(topic)):
            yield sink

    def partition_of(self, topic: bytes, log: Log) -> int:
        """Which partition of the topic is written to that log; 0 where it shares one."""
        declared = self.topics.get(topic)
        return next((one.index for one in declared.partitions if one.log is log), 0) if declared is not None else 0

    # -- where records lie -----------------------------------------------------------------------------------------

    @property
    def rules(self) -> Mapping[bytes, Mapping[str, Any]]:
        """Topic filter → what it changes of the defaults. Set it as a whole: routes are resolved anew then."""
        return self._rules

    @rules.setter
    def rules(self, rules: Mapping[bytes, Mapping[str, Any]]) -> None:
        for topic_filter, changes in rules.items():
            check_filter(topic_filter)
            self.defaults.with_changes(changes)  # refuses what cannot be, before anything is published under it
        self._rules = {topic_filter: dict(changes) for topic_filter, changes in rules.items()}
        self.record_rules.use(self._rules)
        self.broker.note_traced(self)
        self.routes.clear()
        self.route_clears += 1

    def policy(self, topic: bytes) -> Policy:
        if topic == AUDIT_TOPIC:
            return self.broker.audit.policy(self.defaults)
        found = policy_of(topic, self.defaults, self._rules)
        return found if found.store or not topic.startswith(ALWAYS_STORED) else replace(found, store=True)

    @property
    def live_log(self) -> LiveLog:
        """Of topics that are not stored; most namespaces have none."""
        if self._live_log is None:
            self._live_log = LiveLog(self.broker.stamps, self.broker.ticker.add_log)
        return self._live_log

    @property
    def unstored_count(self) -> int:
        """Records that were delivered and kept nowhere."""
        return self._live_log.written if self._live_log is not None else 0

    def stores(self, topic: bytes) -> bool:
        """False: the topic is live only."""
        known = self.routes.get(topic)
        if known is not None:
            return known.log.keeps
        declared = self.topics.get(topic)
        policy = declared.policy if declared is not None else self.policy(topic)
        return policy.store or (self.streams is not None and self.streams.capture(topic) is not None)

    def reader_of(self, topic: bytes) -> str:
        """Who reads just this topic, and needs it stored; empty: nobody."""
        wanted = literal_filter(topic)
        for sink in self.listening(topic):
            if not sink.takes_unstored and sink not in self.observers and (wanted, sink) in self._entries:
                return "a queue, stream or group"
        return next((f"view {view.name.decode()!r}" for view in self.views.values() if view.filter == wanted), "")

    def check_stored(self, topic_filter: bytes) -> None:
        """Refuse what wants to keep or read records of topics of which none is stored."""
        if not is_pattern(topic_filter):
            topic = b"/".join(map(unescape_level, topic_filter.split(b"/")))
            if not self.stores(topic):
                raise not_stored(topic)
            return
        levels = filter_levels(topic_filter)
        rules = {rule: changes["store"] for rule, changes in self._rules.items() if "store" in changes}
        live = any(not store and covers(filter_levels(rule), levels) for rule, store in rules.items())
        if not live and (self.defaults.store or topic_filter.startswith(ALWAYS_STORED)):
            return
        kept = any(store and overlap(filter_levels(rule), levels) for rule, store in rules.items())
        kept = kept or any(topic.policy.store for topic in self.declared(topic_filter))
        if not kept and not (self.streams is not None and self.streams.overlapping((topic_filter,))):
            raise not_stored(topic_filter)

    def stem(self, policy: Policy) -> Log:
        """The shared log of all topics with this policy."""
        found = self.stems.get(policy.stem_key())
        if found is None:
            self.check_there()
        return found if found is not None else self.broker.create_stem(self, policy)

    def names(self) -> Iterator[bytes]:
        """Every topic and view there is, for whoever must look at all of them once."""
        yield from list(self.topics)
        yield from list(self.views)
        for stem in list(self.stems.values()):
            assert stem.index is not None
            topics = stem.index.topics
            for number in range(1, topics.numbers_end):
                with contextlib.suppress(NotFound):  # a number that is free
                    yield topics.name(number)

    @property
    def topic_count(self) -> int:
        """Declared ones, and those that lie in a stem; the audit is the broker's and not counted."""
        declared = len(self.topics) - (AUDIT_TOPIC in self.topics)
        return declared + sum(stem.topic_count for stem in self.stems.values())

    def find_topic(self, topic: bytes) -> Topic | None:
        """A declared topic, or one that lives in a stem as if it were declared with one partition; None if unknown."""
        declared = self.topics.get(topic)
        if declared is not None:
            return declared
        stream = self.streams.capture(topic) if self.streams is not None else None
        if stream is not None:
            return topic_in_stream(self, topic, stream.log)
        return topic_in_stems(self, topic)

    def add_topic(self, topic: Topic) -> None:
        """A topic was declared, moved or got partitions."""
        self.topics[topic.name] = topic
        self.topic_of[topic.id] = topic.name
        self._declared.number(topic.name)
        for partition in topic.partitions:
            for span in partition.spans:
                if not span.shared:
                    self.topic_of_log[span.log] = topic.name
        self.forget_route(topic.name)
        self.broker.note_traced(self, topic)
        for view in self.views.values():
            view.add_topic(topic)

    def remove_topic(self, topic: Topic) -> None:
        """It is deleted. Its id stays known: frames in a stem still name it, until the next start."""
        del self.topics[topic.name]
        self._declared.remove(self._declared.find(topic.name))
        for partition in topic.partitions:
            for span in partition.spans:
                self.topic_of_log.pop(span.log, None)
        self.forget_route(topic.name)
        self.broker.note_traced(self, topic)

    def declared(self, topic_filter: bytes) -> list[Topic]:
        """The declared topics that a filter means, oldest first."""
        found = [self.topics[self._declared.name(number)] for number in self._declared.match(topic_filter)]
        return sorted(found, key=lambda topic: topic.id)

    def has_log(self, log: Log) -> bool:
        return log in self.topic_of_log or log in self.stem_policies

    def logs(self) -> Iterator[Log]:
        """Every log that is this namespace's."""
        yield from list(self.stems.values())
        yield from list(self.topic_of_log)

    def may_hold(self, log: Log, filters: Iterable[bytes]) -> bool:
        """Whether records that one of the filters means may lie in the log: see `logs_of`."""
        topic = self.topic_of_log.get(log)
        if topic is None:
            return log in self.stems.values()
        return any(matches(one, topic) for one in filters)

    def logs_of(self, topic_filter: bytes) -> list[tuple[Log, bytes | None]]:
        """The logs that may hold records the filter means: each stem (topic None), each log of a matching topic."""
        found: dict[Log, bytes | None] = dict.fromkeys(list(self.stems.values()))
        for topic in self.declared(topic_filter):
            for partition in topic.partitions:
                for span in partition.spans:
                    found.setdefault(span.log, topic.name if not span.shared else None)
        return list(found.items())
