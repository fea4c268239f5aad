"""What RabbitMQ's management API changes: declaring, deleting, publishing, getting, definitions."""

from __future__ import annotations

import base64
import contextlib
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from mainstem.admin import rabbit_objects as objects
from mainstem.admin import rabbit_policies as policies
from mainstem.broker.queues.declaring import (
    check_alternate,
    check_reserved,
    check_same_exchange,
    check_same_queue,
    exchange_type,
    queue_settings,
)
from mainstem.broker.queues.exchange_names import DEFAULT, anything_to, filter_of, topic_of
from mainstem.broker.queues.exchanges import PREDECLARED, Binding, Exchange, Exchanges, carbon_copies
from mainstem.broker.queues.opening import check_taker, may_bind, opening_reaches, opening_rights
from mainstem.broker.queues.policies import policy_of
from mainstem.broker.queues.queue import Outcome
from mainstem.broker.queues.registry import Queues
from mainstem.broker.rights.access import Action, Kind
from mainstem.metadata.store import Written
from mainstem.model.amqp_content import NAMES, Content, encode_value
from mainstem.model.errors import AlreadyExists, InvalidArgument, NotAuthorized, NotFound
from mainstem.model.record import Record
from mainstem.model.whole_numbers import whole_number

if TYPE_CHECKING:
    from mainstem.admin.rabbit_api import Call

CREATED, NO_CONTENT = 201, 204
GET_MAX = 1_000
_OUTCOMES = {
    "ack_requeue_true": Outcome.RELEASE,
    "ack_requeue_false": Outcome.ACK,
    "reject_requeue_true": Outcome.RELEASE,
    "reject_requeue_false": Outcome.REJECT,
}
_NUMBERS = {"delivery_mode": 1, "priority": 1, "timestamp": 8}


def exchange_name(name: str) -> str:
    """The default exchange is called amq.default in paths."""
    return DEFAULT if name == "amq.default" else name


def require(call: Call, queues: Queues, name: str) -> None:
    if not call.may(queues, name):
        raise NotAuthorized(f"{call.principal.name!r} may not {call.need.action} {call.need.kind} {name!r}")


def _require_all(call: Call, action: Action, topic_filter: bytes) -> None:
    if not call.broker.access.allows_all(call.principal, action, topic_filter):
        means = topic_filter.decode(errors="replace")
        raise NotAuthorized(f"{call.principal.name!r} may not {action.value} all that {means!r} means")


def _require_binding(call: Call, queues: Queues, binding: Binding) -> None:
    kind = queues.exchanges.get(binding.source).type
    _require_all(call, Action.CONSUME, filter_of(binding.source, kind, binding.key))
    if binding.to_queue and not may_bind(call.broker.access, call.principal, binding.destination):
        raise NotAuthorized(f"{call.principal.name!r} may not bind queue {binding.destination!r}")
    if not binding.to_queue:
        _require_all(call, Action.PUBLISH, anything_to(binding.destination))


def _body(call: Call) -> dict[str, Any]:
    if call.body is None:
        return {}
    if not isinstance(call.body, dict):
        raise InvalidArgument("the body must be a JSON object")
    return call.body


def _table(body: dict[str, Any], name: str) -> dict[str, Any]:
    found = body.get(name) or {}
    if not isinstance(found, dict):
        raise InvalidArgument(f"{name} must be a JSON object")
    return dict(found)


async def _durable(written: Written | None) -> None:
    if written is not None:
        await written


# -- vhosts, queues, exchanges, bindings


async def put_vhost(call: Call, name: str) -> tuple[int, Any]:
    known = name in call.broker.namespaces
    await call.broker.declare_namespace(name)
    return (NO_CONTENT if known else CREATED), None


async def delete_vhost(call: Call, name: str) -> tuple[int, Any]:
    """As RabbitMQ does: with everything in it, unasked."""
    await call.broker.removal.remove(call.broker.namespace(name), with_data=True)
    return NO_CONTENT, None


async def put_queue(call: Call, vhost: str, name: str) -> tuple[int, Any]:
    queues, asked = call.vhost(vhost), queue_declare(name, _body(call))
    require(call, queues, name)
    found = queues.find(name)
    if found is not None:
        check_same_queue(found, asked, vhost)
        return NO_CONTENT, None
    check_reserved("queue", name)
    for action, topic_filter, _ in opening_rights(name, queue_settings(asked, vhost), vhost):
        _require_all(call, action, topic_filter)
    await _durable(declare_queue(queues, asked))
    return CREATED, None


def queue_declare(name: str, body: dict[str, Any]) -> dict[str, Any]:
    """As queue.declare has it; definitions name the type beside the arguments."""
    arguments = _table(body, "arguments")
    if body.get("type") not in (None, "classic", "default"):
        arguments.setdefault("x-queue-type", body["type"])
    return {
        "queue": name,
        "durable": bool(body.get("durable", True)),
        "exclusive": False,
        "auto_delete": bool(body.get("auto_delete", False)),
        "arguments": arguments,
    }


def declare_queue(queues: Queues, asked: dict[str, Any]) -> Written | None:
    settings = queue_settings(asked, queues.namespace.name)
    name = asked["queue"]
    reaches, condition = opening_reaches(queues, name, settings, asked["arguments"])
    _, written = queues.declare(name, settings, reaches=reaches, condition=condition)
    return written


async def delete_queue(call: Call, vhost: str, name: str) -> tuple[int, Any]:
    queues = call.vhost(vhost)
    require(call, queues, name)
    queue = queues.get(name)
    if call.query.get("if-empty") == "true" and queue.ready:
        raise InvalidArgument(f"queue {name!r} is not empty")
    if call.query.get("if-unused") == "true" and queue.takers:
        raise InvalidArgument(f"queue {name!r} is in use")
    await _durable(queue.queues.delete(queue))
    return NO_CONTENT, None


def purge_queue(call: Call, vhost: str, name: str) -> tuple[int, Any]:
    queues = call.vhost(vhost)
    require(call, queues, name)
    queues.get(name).purge()
    return NO_CONTENT, None


async def put_exchange(call: Call, vhost: str, name: str) -> tuple[int, Any]:
    queues, asked = call.vhost(vhost), exchange_declare(name, _body(call))
    require(call, queues, name)
    exchanges = queues.exchanges
    found = exchanges.find(name)
    if found is not None:
        check_same_exchange(found, asked, vhost)
        return NO_CONTENT, None
    check_reserved("exchange", name)
    alternate = asked["arguments"].get("alternate-exchange")
    if isinstance(alternate, str) and alternate:
        _require_all(call, Action.PUBLISH, anything_to(alternate))
    await _durable(declare_exchange(exchanges, asked))
    return CREATED, None


def exchange_declare(name: str, body: dict[str, Any]) -> dict[str, Any]:
    """As exchange.declare has it."""
    return {
        "exchange": name,
        "type": str(body.get("type", "direct")),
        "durable": bool(body.get("durable", True)),
        "auto_delete": bool(body.get("auto_delete", False)),
        "internal": bool(body.get("internal", False)),
        "arguments": _table(body, "arguments"),
    }


def declare_exchange(exchanges: Exchanges, asked: dict[str, Any]) -> Written | None:
    kind, arguments = exchange_type(asked), asked["arguments"]
    check_alternate(asked, exchanges.namespace.name)
    if kind != asked["type"]:
        arguments["x-declared-type"] = asked["type"]
    flags = asked["durable"], asked["auto_delete"], asked["internal"]
    return exchanges.declare(Exchange(asked["exchange"], kind, *flags, arguments))


async def delete_exchange(call: Call, vhost: str, name: str) -> tuple[int, Any]:
    queues = call.vhost(vhost)
    require(call, queues, name)
    exchanges = queues.exchanges
    exchanges.get(name)
    if name.startswith("amq.") or name == DEFAULT:
        raise NotAuthorized(f"exchange {name!r} cannot be deleted")
    if call.query.get("if-unused") == "true" and exchanges.in_use(name):
        raise InvalidArgument(f"exchange {name!r} is in use")
    await _durable(exchanges.delete(name))
    return NO_CONTENT, None


async def post_binding(call: Call, vhost: str, source: str, letter: str, destination: str) -> tuple[int, Any]:
    queues, body = call.vhost(vhost), _body(call)
    to_queue = letter == "q"
    queues.exchanges.get(exchange_name(source))
    if to_queue:
        queues.get(destination)
    else:
        queues.exchanges.get(destination)
    binding = Binding.make(
        exchange_name(source), to_queue, destination, body.get("routing_key", ""), body.get("arguments") or {}
    )
    if binding.source == DEFAULT:
        raise InvalidArgument("the default exchange binds every queue by its name; it cannot be bound")
    _require_binding(call, queues, binding)
    await _durable(queues.exchanges.bind(binding))
    return CREATED, {"properties_key": objects.properties_key(binding)}


async def delete_binding(
    call: Call, vhost: str, source: str, letter: str, destination: str, properties: str
) -> tuple[int, Any]:
    queues = call.vhost(vhost)
    exchanges = queues.exchanges
    for binding in exchanges.bindings_from(exchange_name(source)):
        known = objects.properties_key(binding)
        same = (binding.destination, binding.to_queue) == (destination, letter == "q")
        if same and properties in (known, unquote(known)):
            _require_binding(call, queues, binding)
            await _durable(exchanges.unbind(binding))
            return NO_CONTENT, None
    raise NotFound(f"no binding {properties!r} from {source!r} to {destination!r}")


def close_connection(call: Call, name: str) -> tuple[int, Any]:
    objects.find_connection(call.running, name, call.seen()).close("Closed via management plugin")
    return NO_CONTENT, None


# -- messages


def publish(call: Call, vhost: str, name: str) -> Any:
    queues, body = call.vhost(vhost), _body(call)
    exchange, key = exchange_name(name), str(body.get("routing_key", ""))
    queues.exchanges.get(exchange)
    raw = _raw(str(body.get("payload", "")), body.get("payload_encoding", "string"))
    content = content_of(_table(body, "properties"))
    keys = [key, *carbon_copies(content, blind=True)]
    for one in keys:
        topic, called = topic_of(exchange, one), exchange or "amq.default"
        if not call.broker.access.allows_named(call.principal, Action.PUBLISH, Kind.EXCHANGE, called, topic):
            raise NotAuthorized(f"{call.principal.name!r} may not publish {topic.decode(errors='replace')!r}")
    targets = queues.exchanges.route(exchange, keys, content)
    routed = queues.exchanges.is_routable(exchange, key, targets)
    queues.exchanges.publish(exchange, key, content.encode(), raw)
    return {"routed": routed}


def _raw(payload: str, encoding: Any) -> bytes:
    if encoding == "string":
        return payload.encode()
    if encoding != "base64":
        raise InvalidArgument(f"payload_encoding must be string or base64, not {encoding!r}")
    try:
        return base64.b64decode(payload, validate=True)
    except ValueError as error:
        raise InvalidArgument(f"the payload is not base64: {error}") from None


def content_of(properties: dict[str, Any]) -> Content:
    """JSON properties as AMQP's."""
    content = Content()
    for name, value in properties.items():
        if name == "headers":
            content.headers = [(key, encode_value(one)) for key, one in _table(properties, name).items()]
        elif name in _NUMBERS:
            try:
                content.fields[name] = int(value).to_bytes(_NUMBERS[name], "big")
            except (TypeError, ValueError, OverflowError):
                raise InvalidArgument(f"the property {name} is not a number in range: {value!r}") from None
        elif name in NAMES:
            content.set_text(name, str(value))
    return content


def _properties(content: Content) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name in content.fields:
        if name == "headers":
            shown[name] = {key: _plain(content.header_value(key)) for key, _ in content.headers}
        else:
            shown[name] = content.number(name) if name in _NUMBERS else content.text(name)
    return shown


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return {key: _plain(one) for key, one in value.items()} if isinstance(value, dict) else value


def get_messages(call: Call, vhost: str, name: str) -> tuple[int, Any]:
    """Not for consuming: `ack_requeue_true` (the default) leaves everything where it is."""
    queues, body = call.vhost(vhost), _body(call)
    require(call, queues, name)
    queue = queues.get(name)
    check_taker(call.broker.access, call.principal, queue)
    mode = body.get("ackmode") or ("ack_requeue_true" if body.get("requeue", True) else "ack_requeue_false")
    if mode not in _OUTCOMES:
        raise InvalidArgument(f"ackmode must be one of {', '.join(_OUTCOMES)}, not {mode!r}")
    count = whole_number(str(body.get("count", 1)))
    if count is None:
        raise InvalidArgument(f"count must be a number, not {body['count']!r}")
    call.broker.ticker.write_now()
    taken = queue.acquire(call, min(count, GET_MAX))
    rows = []
    for index, one in enumerate(taken):
        exchange, key = queue.queues.exchanges.origin_of(one.record)
        rows.append(
            {
                "payload_bytes": len(one.record.value or b""),
                "redelivered": one.redelivered,
                "exchange": exchange,
                "routing_key": key,
                "message_count": queue.ready + len(taken) - index - 1,
                "properties": _properties(queue.queues.exchanges.content_of(one.record)),
                **_payload(one.record, body),
            }
        )
    queue.settle([one.position for one in taken], _OUTCOMES[mode])
    return 200, rows


def _payload(record: Record, body: dict[str, Any]) -> dict[str, str]:
    value = record.value or b""
    truncate = body.get("truncate")
    if isinstance(truncate, int):
        value = value[:truncate]
    if body.get("encoding", "auto") == "auto":
        try:
            return {"payload": value.decode(), "payload_encoding": "string"}
        except UnicodeDecodeError:
            pass
    return {"payload": base64.b64encode(value).decode(), "payload_encoding": "base64"}


# -- definitions and health


def export_definitions(call: Call, vhost: str | None) -> dict[str, Any]:
    all_queues = call.vhosts(vhost)
    short = ("source", "vhost", "destination", "destination_type", "routing_key", "arguments")
    document: dict[str, Any] = {
        "rabbit_version": objects.VERSION,
        "rabbitmq_version": objects.VERSION,
        "product_name": "Mainstem",
        "users": [],
        "vhosts": [{"name": queues.namespace.name} for queues in all_queues],
        "permissions": [],
        "topic_permissions": [],
        "parameters": [],
        "global_parameters": [],
        "policies": [row for queues in all_queues for row in policies.rows(queues)],
        "queues": [
            {
                "name": queue.name,
                "vhost": queues.namespace.name,
                "durable": queue.settings.durable,
                "auto_delete": queue.settings.auto_delete,
                "arguments": queue.settings.arguments,
            }
            for queues in all_queues
            for queue in queues
            if queue.settings.durable and not queue.settings.exclusive
        ],
        "exchanges": [
            {name: value for name, value in objects.exchange(queues, one).items() if name in _EXCHANGE_FIELDS}
            for queues in all_queues
            for one in queues.exchanges.by_name.values()
            if one.name not in PREDECLARED and one.durable
        ],
        "bindings": [
            {name: row[name] for name in short}
            for queues in all_queues
            for row in objects.bindings(queues)
            if row["source"]
        ],
    }
    return document


_EXCHANGE_FIELDS = ("name", "vhost", "type", "durable", "auto_delete", "internal", "arguments")


async def import_definitions(call: Call, vhost: str | None) -> tuple[int, Any]:
    """Adds what is not there; what is there stays as it is. Users and permissions are not ours to take."""
    body = _body(call)
    for row in body.get("vhosts", ()):
        if row["name"] not in call.broker.namespaces:
            await call.broker.declare_namespace(row["name"])
    written: list[Written | None] = []
    for row in body.get("policies", ()):
        queues = call.vhost(row.get("vhost", vhost or "/"))
        if row["name"] not in queues.policies.by_name:
            written.append(queues.policies.put(policy_of(row["name"], row, queues.namespace.name)))
            await queues.policies.apply()
    for row in body.get("exchanges", ()):
        exchanges = call.vhost(row.get("vhost", vhost or "/")).exchanges
        if exchanges.find(row["name"]) is None:
            written.append(declare_exchange(exchanges, exchange_declare(row["name"], row)))
    for row in body.get("queues", ()):
        queues = call.vhost(row.get("vhost", vhost or "/"))
        if queues.find(row["name"]) is None:
            written.append(declare_queue(queues, queue_declare(row["name"], row)))
    for row in body.get("bindings", ()):
        queues = call.vhost(row.get("vhost", vhost or "/"))
        to_queue = row.get("destination_type", "queue") == "queue"
        binding = Binding.make(
            row["source"], to_queue, row["destination"], row.get("routing_key", ""), row.get("arguments") or {}
        )
        written.append(queues.exchanges.bind(binding))
    for one in written:
        await _durable(one)
    return NO_CONTENT, None


async def aliveness_test(call: Call, vhost: str) -> Any:
    """Declare, publish, get: the whole way through. A GET that writes, so the guard lets no other site's page ask."""
    queues, name = call.vhost(vhost), "aliveness-test"
    if queues.find(name) is None:
        with contextlib.suppress(AlreadyExists):
            await _durable(declare_queue(queues, queue_declare(name, {"durable": False})))
    queues.exchanges.publish(DEFAULT, name, b"", b"test_message")
    call.broker.ticker.write_now()
    queue = queues.get(name)
    taken = queue.acquire(call, 1)
    queue.settle([one.position for one in taken], Outcome.ACK)
    return {"status": "ok" if taken else "failed"}


def health(call: Call, *_: str) -> tuple[int, Any]:
    if call.broker.maintenance.space_low:
        return 503, {"status": "failed", "reason": "disk space is low; publishes are refused", "alarms": ["disk"]}
    return 200, {"status": "ok"}
