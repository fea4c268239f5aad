"""Writing down the way of some messages while they go it: those of topics whose policy says `trace`, or a share of them.

A traced topic has one more live listener, which looks at each record and keeps the sampled ones. Nothing else of the broker
knows: topics without the policy cost nothing. Who else listened is read off the route once the tick has delivered. What
becomes of the record then (taken, acked, given back, dead, committed) is looked for after each turn of the loop that read
sockets, so an ack is known to within that turn; what timers do is looked for every LOOK_S. Each step says how exactly it is
known. MQTT publishers of traced topics say who they are, as for No Local.

Limits: OPEN_MAX followed at once and SAMPLES_PER_S_MAX begun each second (more are counted, not kept), each for OPEN_S at
most; a look takes LOOK_NS_MAX, and looks after turns a share of 1 / (1 + REST) of the time: turns beyond it are passed over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mainstem.broker.delivery.live import RecordRef, Sink
from mainstem.broker.queues.queue_sink import QueueSink
from mainstem.broker.tracing.kept import KeptTraces
from mainstem.broker.tracing.stations import describe, groups_of_record, listeners, queue_state
from mainstem.broker.tracing.traces import TEXT_BYTES_MAX, Step, Trace, Traces, trace_ids
from mainstem.log.log import Log
from mainstem.model.crossing import headers_for_conditions
from mainstem.model.errors import MainstemError
from mainstem.model.origin import Origin
from mainstem.model.topic_filter import literal_filter

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker
    from mainstem.broker.namespaces.namespace import Namespace
    from mainstem.broker.topics.topic import Topic

logger = logging.getLogger("mainstem.trace")

OPEN_MAX = 64
SAMPLES_PER_S_MAX = 100
OPEN_S = 30.0
LOOK_S = 0.01
LOOK_NS_MAX = 1_000_000
REST = 19  # times as long as a look took, no turn is looked at
GROUPS_NS = 10_000_000  # between two looks at groups: there may be many
FLIGHT_MAX = 1_000  # of a client with more in flight its acks are not followed
EVERYTHING = 1 << 32
LONGEST_NS = 1 << 62
_MIX, _MASK = 0x9E3779B97F4A7C15, 0xFFFFFFFF
_ENDED = frozenset({"acked", "dead"})


def threshold_of(policy: str) -> int:
    """Of "1%" how many of 2^32; 0: none."""
    return round(float(policy.rstrip("%")) / 100 * EVERYTHING) if policy not in ("", "off") else 0


@dataclass(slots=True, eq=False)
class _Followed:
    trace: Trace
    log: Log
    partition: int
    began_s: float
    sinks: list[Sink]
    states: dict[Any, str] = field(default_factory=dict)  # of queues, clients and groups that are not done with it
    durable: bool = False
    looked_ns: int = 0
    groups_ns: int = 0  # when groups were looked at last
    grouped: bool = False  # whether they were


class _Watch(Sink):
    """Listens to the traced topics of a namespace; is offered each record and never keeps anyone waiting."""

    def __init__(self, namespace: Namespace, tracer: Tracer) -> None:
        super().__init__(namespace)
        self._tracer = tracer
        self.held: dict[bytes, int] = {}  # filter → threshold

    def push(self, record: RecordRef, options: Any) -> bool:
        if ((record.stamp * _MIX) >> 32) & _MASK < options:
            self._tracer.sample(self.namespace, record)
        return True

    def choose(self, record: RecordRef) -> Any:
        return None

    def merge(self, options: list[Any]) -> Any:
        return max(options)

    def filters(self) -> Sequence[bytes]:
        return list(self.held)


class Tracer:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.traces = Traces()
        self.kept = KeptTraces(broker)
        self.skipped = 0  # sampled, and not followed for want of room
        self.exporters: list[Callable[[Trace], None]] = []
        self._watches: dict[str, _Watch] = {}
        self._open: deque[_Followed] = deque()
        self._fresh: list[_Followed] = []
        self._second = self._begun = 0
        self._wake = asyncio.Event()
        self._rest_until_ns = 0  # monotonic
        self._passed_over = False  # a turn was, since the last look at all that are open

    # -- what is traced

    def namespace_changed(self, namespace: Namespace) -> None:
        """Its defaults or rules are others now."""
        wanted = {
            topic_filter: changes["trace"] for topic_filter, changes in namespace.rules.items() if "trace" in changes
        }
        if namespace.defaults.trace:
            wanted.setdefault(b"#", namespace.defaults.trace)
        topics = {literal_filter(name) for name in namespace.traced_topics}
        watch = self._watches.get(namespace.name)
        for topic_filter in list(watch.held) if watch is not None else ():
            if topic_filter not in wanted and topic_filter not in topics:
                self._set(namespace, topic_filter, 0)
        for topic_filter, policy in wanted.items():
            self._set(namespace, topic_filter, threshold_of(policy))

    def topic_changed(self, namespace: Namespace, topic: Topic) -> None:
        """It was declared, altered or deleted. Where it says what the namespace says anyway, that is enough."""
        own = topic.name in namespace.topics and topic.policy.trace != namespace.policy(topic.name).trace
        topic_filter = literal_filter(topic.name)
        if own:
            namespace.traced_topics.add(topic.name)
            self._set(namespace, topic_filter, threshold_of(topic.policy.trace))
        elif topic.name in namespace.traced_topics:
            namespace.traced_topics.discard(topic.name)
            self._set(namespace, topic_filter, 0)

    def _set(self, namespace: Namespace, topic_filter: bytes, threshold: int) -> None:
        watch = self._watches.get(namespace.name)
        if watch is None or watch.namespace is not namespace:
            if not threshold:
                return
            watch = self._watches[namespace.name] = _Watch(namespace, self)
            namespace.observers.add(watch)
        if watch.held.get(topic_filter, 0) == threshold:
            return
        keeper = self._broker.session_keeper
        if threshold:
            namespace.subscribe(topic_filter, watch, threshold)
            if topic_filter not in watch.held:
                keeper.want_client(topic_filter, watch)
            watch.held[topic_filter] = threshold
        else:
            del watch.held[topic_filter]
            namespace.unsubscribe(topic_filter, watch)
            keeper.unwant_client(topic_filter, watch)

    # -- while it happens

    def sample(self, namespace: Namespace, record: RecordRef) -> None:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._begun = second, 0
        if self._begun >= SAMPLES_PER_S_MAX or len(self._open) + len(self._fresh) >= OPEN_MAX or record.log is None:
            self.skipped += 1
            return
        self._begun += 1
        watch = self._watches.get(namespace.name)
        sinks = [one for one in listeners(namespace, record.topic) if one is not watch]
        trace = self._trace_of(namespace, record)
        trace.add(Step(self._broker.clock.now_ns(), "stored", str(record.log.id), "log"))
        self.traces.add(trace)
        partition = namespace.partition_of(record.topic, record.log)
        followed = _Followed(trace, record.log, partition, time.monotonic(), sinks)
        if not self._fresh:
            self._broker.ticker.after_tick(self._delivered)
        self._fresh.append(followed)

    def _trace_of(self, namespace: Namespace, record: RecordRef) -> Trace:
        copy = record.copy()
        try:
            headers = dict(headers_for_conditions(copy))
        except MainstemError:  # a client's own headers need not be readable
            headers = {}
        trace_id, parent = trace_ids(headers.get(b"traceparent"), copy.stamp)
        assert record.log is not None
        return Trace(
            stamp=copy.stamp,
            namespace=namespace.name,
            topic=_text(copy.topic),
            log=record.log.id,
            offset=copy.offset,
            origin=Origin(copy.origin).name.lower(),
            client=_text(dict(copy.headers).get(b"ms-client")),
            key=_text(copy.key),
            size=len(copy.value or b""),
            trace_id=trace_id,
            parent_id=parent,
        )

    def _delivered(self) -> None:
        """After the tick that wrote them: who is still live was handed each."""
        fresh, self._fresh = self._fresh, []
        now_ns = self._broker.clock.now_ns()
        for one in fresh:
            for sink in one.sinks:
                kind, name, protocol = describe(sink)
                if isinstance(sink, QueueSink):
                    one.states[sink] = "waiting"
                elif sink.live:
                    one.trace.add(Step(now_ns, "delivered", name, kind, protocol))
                    if _in_flight(sink, one.trace.stamp):
                        one.states[sink] = "delivered"
            one.looked_ns = one.groups_ns = now_ns
        self._open.extend(fresh)
        ticker = self._broker.ticker
        ticker.on_durable, ticker.on_turn = self._durable, self._turn
        self._durable()
        ticker.loop.call_soon(self._look)  # queues have told their cursors then
        self._wake.set()

    def _durable(self) -> None:
        now_ns = self._broker.clock.now_ns()
        for one in self._open:
            if not one.durable and one.log.stable > one.trace.offset:
                one.durable = True
                one.trace.add(Step(now_ns, "durable", str(one.log.id), "log"))
                self.kept.write(one.trace)

    # -- following

    async def run(self) -> None:
        try:
            self.traces.restore(await self.kept.restored())
        except Exception:
            logger.exception("traces of before this start cannot be read")
        try:
            while True:
                await self._wake.wait()
                while self._open:
                    await asyncio.sleep(LOOK_S)
                    self._look()
                self._wake.clear()
        finally:
            for one in self._open:  # the broker stops: as far as they came
                self.kept.write(one.trace)

    def _turn(self) -> None:
        """Sockets were read: whatever they said of the records was said since `turn_ns`."""
        ticker, now_ns = self._broker.ticker, time.monotonic_ns()
        if now_ns < self._rest_until_ns:
            self._passed_over = True
            return
        began_ns = ticker.turn_ns
        try:
            self._look(turn_ns=now_ns - began_ns if began_ns and not self._passed_over else 0)
        except Exception:  # nobody's turn ends because of it
            logger.exception("messages could not be followed")
            ticker.on_turn = None
        ended_ns = time.monotonic_ns()
        self._rest_until_ns = ended_ns + REST * (ended_ns - now_ns)

    def _look(self, turn_ns: int = 0) -> None:
        """At each that is open, for LOOK_NS_MAX. With `turn_ns`: nothing happened before that long ago."""
        until_ns = time.monotonic_ns() + LOOK_NS_MAX
        left = len(self._open)
        while left:
            left -= 1
            one = self._open.popleft()
            if self._is_done(one, turn_ns):
                self._end(one)
            else:
                self._open.append(one)
            if time.monotonic_ns() > until_ns:
                break
        ticker = self._broker.ticker
        ticker.turn_ns, self._passed_over = 0, left > 0
        if not self._open:
            ticker.on_durable = ticker.on_turn = None

    def _is_done(self, one: _Followed, turn_ns: int) -> bool:
        now_ns = self._broker.clock.now_ns()
        within_us = min(now_ns - one.looked_ns, turn_ns or LONGEST_NS) // 1_000
        one.looked_ns = now_ns
        for sink, state in list(one.states.items()):
            if isinstance(sink, QueueSink):
                self._look_at_queue(one, sink, state, now_ns, within_us)
            elif isinstance(sink, Sink) and not _in_flight(sink, one.trace.stamp):
                kind, name, protocol = describe(sink)
                one.trace.add(Step(now_ns, "acked", name, kind, protocol, within_us=within_us))
                del one.states[sink]
        if now_ns - one.groups_ns >= GROUPS_NS or not one.grouped:
            self._look_at_groups(one, now_ns, (now_ns - one.groups_ns) // 1_000)
            one.groups_ns, one.grouped = now_ns, True
        waits = any(isinstance(key, Sink) or state == "waiting" for key, state in one.states.items())
        return (one.durable and not waits) or time.monotonic() - one.began_s > OPEN_S

    def _look_at_queue(self, one: _Followed, sink: QueueSink, before: str, now_ns: int, within_us: int) -> None:
        queue = sink.owner
        if queue.entry_of(one.trace.topic.encode(), one.trace.stamp) is None or queue.deleted:
            del one.states[sink]
            return
        state, attempts, why = queue_state(queue, one.trace.stamp)
        if state == before:
            return
        who = f"{queue.name} ({why})" if why else queue.name
        protocol = _protocol_of(queue) if state != "waiting" else ""
        if state in _ENDED and before == "waiting":  # both between two looks
            one.trace.add(Step(now_ns, "taken", who, "queue", protocol, attempts, within_us))
        one.trace.add(Step(now_ns, state, who, "queue", protocol, attempts, within_us))
        one.states[sink] = state
        if state in _ENDED:
            del one.states[sink]

    def _look_at_groups(self, one: _Followed, now_ns: int, within_us: int) -> None:
        namespace = self._broker.namespaces.get(one.trace.namespace)
        if namespace is None:
            return
        for station in groups_of_record(namespace, one.trace.topic.encode(), one.partition, one.trace.offset):
            before = one.states.get(station.name)
            if station.state == "committed" and before == "waiting":
                one.trace.add(Step(now_ns, "committed", station.name, "group", "kafka", within_us=within_us))
            one.states[station.name] = station.state

    def _end(self, one: _Followed) -> None:
        one.trace.open = False
        self.kept.write(one.trace)
        for export in self.exporters:
            try:
                export(one.trace)
            except Exception:
                logger.exception("a trace could not be exported")


def _in_flight(sink: Any, stamp: int) -> bool:
    """Whether an MQTT client has still to acknowledge it."""
    flight = getattr(sink, "flight", None)
    if flight is None or sink.inflight > FLIGHT_MAX:
        return False
    return any(one == stamp for _, _, one in flight())


def _protocol_of(queue: Any) -> str:
    """Of its consumers, where they are all of one."""
    found = {type(taker).__module__.split(".")[2] for taker in queue.takers if ".protocols." in type(taker).__module__}
    return found.pop() if len(found) == 1 else ""


def _text(value: bytes | None) -> str:
    return (value or b"")[:TEXT_BYTES_MAX].decode(errors="replace")
