"""Exchanges and bindings of a namespace: RabbitMQ's routing on top of the one log.

Routing never copies. A direct, topic or fanout binding is a filter through which the queue sees the log (see
queue_bindings.py). Only where that cannot say it (headers exchanges, exchange-to-exchange bindings, alternate exchanges,
CC and BCC, a full queue that refuses) the queues are computed here and written into the record (`ms-queues`), which then
alone decides.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mainstem.broker.queues.bindings import DEFAULT as DEFAULT_REACH
from mainstem.broker.queues.bindings import NAMED, READING, Reach
from mainstem.broker.queues.exchange_names import DEFAULT, TOPIC, all_of, filter_of, key_of, reach_of, topic_of
from mainstem.broker.queues.queue_sink import QueueSink
from mainstem.broker.queues.settings import Overflow
from mainstem.log.gather import Ticket
from mainstem.log.live_log import not_stored
from mainstem.metadata.rows import Item, ItemKind
from mainstem.metadata.store import MetadataStore, Written
from mainstem.model import crossing, crossing_amqp
from mainstem.model.amqp_content import Content, Value
from mainstem.model.errors import AlreadyExists, NotFound
from mainstem.model.origin import Origin, RecordFlag
from mainstem.model.record import Header, Record
from mainstem.model.topic_filter import literal_filter, matches

if TYPE_CHECKING:
    from mainstem.broker.queues.queue import Queue
    from mainstem.broker.queues.registry import Queues

TYPES = ("direct", "fanout", "topic", "headers")
PREDECLARED = {
    DEFAULT: "direct",
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.headers": "headers",
    "amq.match": "headers",
    "amq.rabbitmq.trace": "topic",
    TOPIC: "topic",
}
PERSISTENT = 2


@dataclass(slots=True, eq=False)
class Exchange:
    name: str
    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def alternate(self) -> str | None:
        return self.arguments.get("alternate-exchange")


@dataclass(frozen=True, slots=True)
class Binding:
    """Bindings are a set: the same four make the same binding."""

    source: str
    to_queue: bool
    destination: str
    key: str
    arguments: str = "{}"  # JSON, keys sorted

    @classmethod
    def make(cls, source: str, to_queue: bool, destination: str, key: str, arguments: dict[str, Any]) -> Binding:
        return cls(source, to_queue, destination, key, json.dumps(arguments, sort_keys=True, default=_text))

    @property
    def table(self) -> dict[str, Any]:
        table: dict[str, Any] = json.loads(self.arguments)
        return table

    @property
    def id(self) -> str:
        return json.dumps([self.source, self.to_queue, self.destination, self.key, self.arguments])


class Exchanges:
    """All of one namespace. `version` grows with every change, so that callers may cache what they were told."""

    def __init__(self, queues: Queues) -> None:
        self.queues = queues
        self.namespace = queues.namespace
        self.by_name = {name: Exchange(name, kind) for name, kind in PREDECLARED.items()}
        self.by_name["amq.rabbitmq.trace"].internal = True
        self.version = 0
        self._from: dict[str, dict[Binding, None]] = {}  # by source, in the order they were made
        queues.deleted_listeners.append(self._queue_deleted)

    # -- declaring

    def find(self, name: str) -> Exchange | None:
        return self.by_name.get(name)

    def get(self, name: str) -> Exchange:
        exchange = self.by_name.get(name)
        if exchange is None:
            raise NotFound(f"no exchange {name!r} in namespace {self.namespace.name!r}")
        return exchange

    def declare(self, exchange: Exchange) -> Written | None:
        if exchange.name in self.by_name:
            raise AlreadyExists(f"exchange {exchange.name!r} already exists")
        if exchange.durable:
            self._store.check_room()
        self.by_name[exchange.name] = exchange
        self.version += 1
        if not exchange.durable:
            return None
        body = {
            "type": exchange.type,
            "auto_delete": exchange.auto_delete,
            "internal": exchange.internal,
            "arguments": exchange.arguments,
        }
        return self._store.put_item(ItemKind.EXCHANGE, self.namespace.name, exchange.name, body)

    def delete(self, name: str) -> Written | None:
        exchange = self.by_name.pop(name)
        self.version += 1
        for binding in [*self.bindings_from(name), *self.bindings_to(name, to_queue=False)]:
            self.unbind(binding)
        return self._store.delete_item(ItemKind.EXCHANGE, self.namespace.name, name) if exchange.durable else None

    def in_use(self, name: str) -> bool:
        return bool(self._from.get(name))

    def load(self, items: Sequence[Item]) -> None:
        """What metadata kept of this namespace. The queues' own reaches were loaded with them."""
        for item in items:
            if item.kind == ItemKind.EXCHANGE:
                body = item.body
                self.by_name[item.name] = Exchange(
                    item.name, body["type"], True, body["auto_delete"], body["internal"], body["arguments"]
                )
        for item in items:
            if item.kind == ItemKind.BINDING:
                binding = Binding(*json.loads(item.name))
                self._from.setdefault(binding.source, {})[binding] = None
        self.version += 1

    @property
    def _store(self) -> MetadataStore:
        return self.queues.service.broker.store

    # -- binding

    def bindings(self) -> Iterator[Binding]:
        for bindings in self._from.values():
            yield from bindings

    def bindings_from(self, source: str) -> list[Binding]:
        return list(self._from.get(source, ()))

    def bindings_to(self, destination: str, *, to_queue: bool) -> list[Binding]:
        return [b for b in self.bindings() if b.destination == destination and b.to_queue == to_queue]

    def bind(self, binding: Binding) -> Written | None:
        """From now on. Binding twice is binding once."""
        bound = self._from.setdefault(binding.source, {})
        if binding in bound:
            return None
        source = self.get(binding.source)
        queue = self.queues.get(binding.destination) if binding.to_queue else None
        if queue is not None:
            durable = source.durable and queue.settings.durable and not queue.settings.exclusive
        else:
            durable = source.durable and self.get(binding.destination).durable
        if durable:
            self._store.check_room()
        reach = reach_of(source.name, source.type, binding.key, self._now())
        if queue is not None and reach.kind in READING:
            self.namespace.check_stored(reach.filter)
        if queue is not None and queue.add_reach(reach):
            self.queues.save(queue)
        bound[binding] = None
        self.version += 1
        return self._store.put_item(ItemKind.BINDING, self.namespace.name, binding.id, {}) if durable else None

    def unbind(self, binding: Binding) -> Written | None:
        """What entered so far stays. Unbinding what is not bound is no error."""
        bound = self._from.get(binding.source, {})
        if binding not in bound:
            return None
        stamp = self._now()
        del bound[binding]
        if not bound:
            self._from.pop(binding.source, None)
        self.version += 1
        queue = self.queues.find(binding.destination) if binding.to_queue else None
        if queue is not None:
            self._end_reach(queue, binding, stamp)
        written = self._store.delete_item(ItemKind.BINDING, self.namespace.name, binding.id)
        source = self.by_name.get(binding.source)
        if source is not None and source.auto_delete and not bound:
            self.delete(source.name)
        return written

    def _end_reach(self, queue: Queue, binding: Binding, stamp: int) -> None:
        kind = self._type_of(binding.source)
        wanted = reach_of(binding.source, kind, binding.key, stamp)
        others = (b for b in self.bindings_from(binding.source) if b.to_queue and b.destination == queue.name)
        if any(reach_of(b.source, kind, b.key, stamp).same_as(wanted) for b in others):
            return
        if queue.end_reach(wanted, stamp) is not None:
            self.queues.save(queue)

    def _type_of(self, name: str) -> str:
        exchange = self.by_name.get(name)
        return exchange.type if exchange is not None else "fanout"

    def _now(self) -> int:
        """What was published before belongs before."""
        self.queues.ticker.write_now()
        return self.queues.service.broker.stamps.take(1)

    def _queue_deleted(self, queue: Queue) -> None:
        for binding in self.bindings_to(queue.name, to_queue=True):
            self.unbind(binding)
        self.version += 1

    def default_reach(self, queue_name: str, start: int) -> Reach:
        """Every queue is bound to the default exchange by its name."""
        return Reach(DEFAULT_REACH, literal_filter(topic_of(DEFAULT, queue_name)), "", start)

    # -- routing

    def is_simple(self, name: str, key: str) -> bool:
        """Whether filters alone say who gets what is published there."""
        exchange = self.by_name[name]
        if name == DEFAULT:
            return True
        return (
            exchange.type != "headers"
            and bool(key or name != TOPIC)  # no level at all: its topic has one, which a `*` would match
            and exchange.alternate is None
            and all(binding.to_queue for binding in self._from.get(name, ()))
        )

    def depends_on_headers(self, name: str) -> bool:
        """Whether some exchange that a publish may reach looks at headers."""
        seen, waiting = {name}, [name]
        while waiting:
            exchange = self.by_name.get(waiting.pop())
            if exchange is None:
                continue
            if exchange.type == "headers":
                return True
            onward = [b.destination for b in self._from.get(exchange.name, ()) if not b.to_queue]
            if exchange.alternate is not None:
                onward.append(exchange.alternate)
            waiting += [other for other in onward if other not in seen]
            seen.update(onward)
        return False

    def route(self, name: str, keys: list[str], content: Content | None = None) -> list[Queue]:
        """The queues that a publish to the exchange reaches, each once."""
        found: dict[Queue, None] = {}
        headers = _Headers(content)
        seen, waiting = {name}, [name]
        while waiting:
            exchange = self.by_name.get(waiting.pop())
            if exchange is None:
                continue
            onward = self._match(exchange, keys, headers, found)
            if onward is None and exchange.alternate is not None:
                onward = [exchange.alternate]
            waiting += [other for other in onward or () if other not in seen]
            seen.update(onward or ())
        return list(found)

    def _match(
        self, exchange: Exchange, keys: list[str], headers: _Headers, found: dict[Queue, None]
    ) -> list[str] | None:
        """Add the queues one exchange leads to; the exchanges it leads to, or None if it leads nowhere."""
        if exchange.name == DEFAULT:
            named = [queue for queue in map(self.queues.find, keys) if queue is not None]
            found.update(dict.fromkeys(named))
            return [] if named else None
        onward: list[str] = []
        matched = False
        for binding in self._from.get(exchange.name, ()):
            if not self._leads(exchange, binding, keys, headers):
                continue
            matched = True
            if not binding.to_queue:
                onward.append(binding.destination)
            elif (queue := self.queues.find(binding.destination)) is not None:
                found[queue] = None
        return onward if matched else None

    def _leads(self, exchange: Exchange, binding: Binding, keys: list[str], headers: _Headers) -> bool:
        if exchange.type == "fanout":
            return True
        if exchange.type == "direct":
            return binding.key in keys
        if exchange.type == "headers":
            return headers.match(binding.table)
        pattern = filter_of(exchange.name, "topic", binding.key)
        return any(
            matches(pattern, topic_of(exchange.name, key))
            if key or exchange.name != TOPIC
            else not binding.key.strip("#.")
            for key in keys
        )

    def is_routable(self, name: str, key: str, targets: list[Queue]) -> bool:
        """Whether some queue, live subscriber or view in any protocol takes it."""
        if targets:
            return True
        topic = topic_of(name, key)
        route = self.namespace.route(topic)
        self.namespace.refresh(route)
        if any(not isinstance(delivery.sink, QueueSink) for delivery in route.deliveries):
            return True
        return any(view.covers(topic) for view in self.namespace.views.values())

    def name_queues(self, name: str, topic: bytes, targets: Iterable[Queue]) -> bytes:
        """The value of `ms-queues`; from now on these queues look at the topic for records that name them."""
        wanted = Reach(NAMED, literal_filter(topic) if name in (DEFAULT, TOPIC) else all_of(name))
        for queue in targets:
            if not any(matches(reach.filter, topic) for reach in queue.reaches.open_ones()):
                wanted.start = self._now()
                queue.add_reach(Reach(NAMED, wanted.filter, "", wanted.start))
                self.queues.save(queue)
        return b"".join(queue.id.to_bytes(4, "big") for queue in targets)

    # -- records

    def headers_of(self, name: str, key: str, topic: bytes) -> list[Header]:
        """What the topic alone does not tell of where a record was published."""
        headers: list[Header] = []
        if name not in (DEFAULT, TOPIC):
            headers.append((b"ms-exchange", name.encode("utf-8", "surrogateescape")))
        if key_of(name, topic) != key:
            headers.append((b"ms-routing-key", key.encode("utf-8", "surrogateescape")))
        return headers

    def publish(
        self, name: str, key: str, properties: bytes, value: bytes | None, time_ms: int | None = None
    ) -> Ticket | None:
        """Route and store, as a client's publish would be. Full queues that refuse do not get it; None: no other would."""
        content = Content.parse(properties)
        keys = [key, *carbon_copies(content, blind=True)]
        content.remove_header("BCC")
        plain = len(keys) == 1 and self.is_simple(name, key)
        targets = self.route(name, keys, content)
        full = [queue for queue in targets if queue.settings.refuses and queue.limits.refuses(len(value or b""))]
        for queue in full:
            self.queues.service.drops["maxlen"] += 1
            if queue.settings.overflow is Overflow.REJECT_DEAD_LETTER:
                self.queues.dead_letters.send_refused(queue, name, key, content, value or b"")
        if full and len(full) == len(targets):
            return None
        named = [queue for queue in targets if queue not in full] if full or not plain else None
        return self.append(name, key, content.encode(), value, time_ms, targets=named)

    def append(
        self,
        name: str,
        key: str,
        properties: bytes,
        value: bytes | None,
        time_ms: int | None = None,
        *,
        targets: list[Queue] | None = None,
        more: Sequence[Header] = (),
    ) -> Ticket:
        """Store one publish; `targets` names the queues that get it, else the bindings decide."""
        topic = topic_of(name, key)
        if name == DEFAULT and not self.namespace.stores(topic) and self.route(name, [key]):
            raise not_stored(topic)  # the queue it names could not keep it
        headers = [*self.headers_of(name, key, topic), *more]
        if targets is not None:
            headers.append((b"ms-queues", self.name_queues(name, topic, targets)))
        if properties:
            headers.append((b"ms-amqp", properties))
        content = Content.parse(properties)
        asked = crossing_amqp.asked_by_client(content)
        if asked.expires_at_us is not None:
            headers.append((b"ms-expires-at", b"%d" % (asked.expires_at_us // 1000)))
        if asked.event_time_us is not None:
            time_ms = asked.event_time_us // 1000
        flags = int(RecordFlag.QOS_1) if content.number("delivery_mode") == PERSISTENT else 0
        flags |= RecordFlag.DEFAULT_EXCHANGE if name == DEFAULT else 0
        return self.namespace.publish(
            topic, value, key=asked.key, headers=headers, time_ms=time_ms, flags=flags, origin=Origin.AMQP
        )

    def origin_of(self, record: Record) -> tuple[str, str]:
        """The exchange and routing key a record was published with, or that stand for where it was."""
        if record.origin != Origin.AMQP:
            return TOPIC, key_of(TOPIC, record.topic)
        if record.flags & RecordFlag.DEFAULT_EXCHANGE:
            exchange = DEFAULT
        else:
            exchange = (record.header(b"ms-exchange") or TOPIC.encode()).decode("utf-8", "surrogateescape")
        key = record.header(b"ms-routing-key")
        return exchange, key_of(exchange, record.topic) if key is None else key.decode("utf-8", "surrogateescape")

    def content_of(self, record: Record) -> Content:
        """The properties as AMQP has them, or as they read in AMQP."""
        if record.origin == Origin.AMQP:
            return Content.parse(record.header(b"ms-amqp") or b"")
        return Content.parse(crossing.amqp_properties(record, self.queues.service.broker.clock.now_ns()) or b"")


def carbon_copies(content: Content, *, blind: bool = False) -> list[str]:
    """The further routing keys in the CC header; `blind`: and those in BCC."""
    keys: list[str] = []
    for name in ("CC", "BCC") if blind else ("CC",):
        copies = content.header_value(name)
        keys += [key for key in copies if isinstance(key, str)] if isinstance(copies, list) else []
    return keys


class _Headers:
    """A message's headers table, decoded when the first binding asks."""

    def __init__(self, content: Content | None) -> None:
        self._content = content
        self._table: dict[str, Value] | None = None

    def match(self, wanted: dict[str, Any]) -> bool:
        """x-match: all (the default), any, all-with-x, any-with-x; without `-with-x` keys that begin with x- are ignored."""
        if self._table is None:
            content = self._content or Content()
            self._table = {name: content.header_value(name) for name, _ in content.headers}
        mode = str(wanted.get("x-match", "all"))
        with_x = mode.endswith("-with-x")
        pairs = [(k, v) for k, v in wanted.items() if k != "x-match" and (with_x or not k.startswith("x-"))]
        holds = (k in self._table and (v is None or _equal(self._table[k], v)) for k, v in pairs)
        return any(holds) if mode.startswith("any") else all(holds)


def _equal(one: Value, other: Any) -> bool:
    one = _text(one) if isinstance(one, bytes) else one
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _text(value: Any) -> str:
    """What JSON has no word for; bytes match text, as in RabbitMQ."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
