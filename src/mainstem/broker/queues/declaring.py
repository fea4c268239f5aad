"""The arguments of queue.declare and exchange.declare: what they mean, which are wrong, and whether two are the same.

AMQP and the management API ask here; the texts are RabbitMQ's.
"""

from __future__ import annotations

import json
from typing import Any

from mainstem.broker.queues.exchanges import TYPES, Exchange
from mainstem.broker.queues.queue import Queue
from mainstem.broker.queues.settings import Kind, Overflow, QueueSettings
from mainstem.model.errors import InvalidArgument, NotAuthorized
from mainstem.model.whole_numbers import whole_number

DELIVERY_LIMIT_QUORUM = 20
PRIORITY_MAX = 255
TTL_MAX_MS = (1 << 32) - 1
_COMPARED = (
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-overflow",
    "x-single-active-consumer",
    "x-queue-type",
    "x-queue-mode",
    "x-delivery-limit",
    "x-consumer-timeout",
    "x-max-age",
    "x-stream-max-segment-size-bytes",
    "x-view",
    "x-from",
    "x-mainstem-order-by-key",
)
_NAMES = frozenset(("x-dead-letter-exchange", "x-dead-letter-routing-key"))
_NUMBERS = frozenset(
    (
        "x-expires",
        "x-message-ttl",
        "x-max-length",
        "x-max-length-bytes",
        "x-max-priority",
        "x-delivery-limit",
        "x-consumer-timeout",
        "x-stream-max-segment-size-bytes",
    )
)
_OF_STREAMS = ("x-max-age", "x-stream-max-segment-size-bytes", "x-initial-cluster-size")
_REFUSED = {  # a classic queue may have a delivery limit here, which RabbitMQ's may not
    Kind.CLASSIC: _OF_STREAMS,
    Kind.QUORUM: (*_OF_STREAMS, "x-max-priority", "x-queue-mode"),
    Kind.STREAM: (
        "x-max-priority",
        "x-message-ttl",
        "x-expires",
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-dead-letter-strategy",
        "x-max-length",
        "x-overflow",
        "x-single-active-consumer",
        "x-delivery-limit",
        "x-queue-mode",
    ),
}
_TYPE_NAMES: dict[type, str] = {
    bool: "bool",
    float: "double",
    str: "longstr",
    bytes: "binary",
    list: "array",
    dict: "table",
    type(None): "void",
}
POLICY_KEYS = (  # arguments without their `x-`, that a policy may set
    "message-ttl",
    "expires",
    "max-length",
    "max-length-bytes",
    "max-age",
    "overflow",
    "dead-letter-exchange",
    "dead-letter-routing-key",
    "delivery-limit",
    "queue-mode",
)
_SHORT_AGES = {"Y": 365 * 86_400, "M": 30 * 86_400, "D": 86_400, "h": 3_600, "m": 60, "s": 1}


def quoted(kind: str, name: str, vhost: str) -> str:
    """How RabbitMQ names a thing: queue 'x' in vhost '/'."""
    return (
        f"{kind} '{name}' in vhost '{vhost}'" if kind != "exchange" or name else f"default exchange in vhost '{vhost}'"
    )


def check_reserved(kind: str, name: str) -> None:
    if name.startswith("amq."):
        raise NotAuthorized(f"{kind} name '{name}' contains reserved prefix 'amq.*'")


def queue_settings(a: dict[str, Any], vhost: str) -> QueueSettings:
    """What queue.declare asks for. Arguments that make no sense are refused by name."""
    arguments: dict[str, Any] = a["arguments"]
    named = quoted("queue", a["queue"], vhost)
    _check_void(arguments, named)
    kind = _kind(arguments, named)
    _check_kind(kind, a, named)
    _check_mode(arguments, named)
    limit = _number(arguments, "x-delivery-limit", named, low=-1)
    if limit is None and kind is Kind.QUORUM:
        limit = DELIVERY_LIMIT_QUORUM
    _number(arguments, "x-consumer-timeout", named)
    dead_letter_exchange = _name(arguments, "x-dead-letter-exchange", named)
    dead_letter_key = _name(arguments, "x-dead-letter-routing-key", named)
    if dead_letter_key is not None and dead_letter_exchange is None:
        raise _invalid("x-dead-letter-routing-key", named, "routing_key_but_no_dlx_defined")
    single = arguments.get("x-single-active-consumer", False)
    if not isinstance(single, bool):
        raise _invalid("x-single-active-consumer", named, _unacceptable(single))
    by_key = arguments.get("x-mainstem-order-by-key", False)
    if not isinstance(by_key, bool):
        raise _invalid("x-mainstem-order-by-key", named, _unacceptable(by_key))
    if by_key and ("x-max-priority" in arguments or kind is Kind.STREAM):
        raise _invalid("x-mainstem-order-by-key", named, "not with priorities, nor for streams")
    max_age = _max_age_ms(arguments, named)
    return QueueSettings(
        durable=a["durable"],
        exclusive=a["exclusive"],
        auto_delete=a["auto_delete"],
        kind=kind,
        message_ttl_ms=_number(arguments, "x-message-ttl", named, high=TTL_MAX_MS) if max_age is None else max_age,
        expires_ms=_number(arguments, "x-expires", named, low=1, high=TTL_MAX_MS),
        length_max=_number(arguments, "x-max-length", named),
        bytes_max=_number(arguments, "x-max-length-bytes", named),
        overflow=_overflow(arguments, named),
        dead_letter_exchange=dead_letter_exchange,
        dead_letter_key=dead_letter_key,
        priority_max=_number(arguments, "x-max-priority", named, high=PRIORITY_MAX) or 0,
        single_active=single,
        order_by_key=by_key,
        deliveries_max=limit + 1 if limit is not None and limit >= 0 else 0,
        view=_text(arguments, "x-view", named) or "",
        arguments=json.loads(json.dumps(arguments, default=_shown)),
    )


def _max_age_ms(arguments: dict[str, Any], named: str) -> int | None:
    """How long a stream keeps its records, unless it is longer than any queue can say."""
    if (asked := arguments.get("x-max-age")) is None:
        return None
    if (seconds := age_seconds(asked)) is None:
        raise _invalid("x-max-age", named, "invalid_max_age")
    return seconds * 1000


def _kind(arguments: dict[str, Any], named: str) -> Kind:
    text = _text(arguments, "x-queue-type", named)
    if text is None:
        return Kind.CLASSIC
    try:
        return Kind(text)
    except ValueError:
        raise _invalid("x-queue-type", named, f"\"unsupported queue type '{text}'\"") from None


def _check_void(arguments: dict[str, Any], named: str) -> None:
    """An argument that is there must have a value: void is none."""
    for name in _COMPARED:
        if name in arguments and arguments[name] is None:
            if name in _NAMES:
                raise _wrong_type(name, named, None)
            raise _invalid(name, named, _no_integer(None) if name in _NUMBERS else _unacceptable(None))


def _check_mode(arguments: dict[str, Any], named: str) -> None:
    """Lazy or not: messages lie in the log anyway."""
    mode = _text(arguments, "x-queue-mode", named)
    if mode not in (None, "default", "lazy"):
        raise _invalid("x-queue-mode", named, f"\"unsupported queue mode '{mode}'\"")


def _check_kind(kind: Kind, a: dict[str, Any], named: str) -> None:
    """Quorum and stream queues have fewer freedoms, and each kind arguments that are not for it."""
    if kind is not Kind.CLASSIC:
        for wrong, name in (
            (a["auto_delete"], "auto-delete"),
            (a["exclusive"], "exclusive-owner"),
            (not a["durable"], "non-durable"),
        ):
            if wrong:
                raise InvalidArgument(f"invalid property '{name}' for {named}")
    for name in _REFUSED[kind]:
        if name in a["arguments"]:
            raise InvalidArgument(f"invalid arg '{name}' for {named} of queue type rabbit_{kind.value}_queue")


def _overflow(arguments: dict[str, Any], named: str) -> Overflow:
    text = _text(arguments, "x-overflow", named)
    try:
        return Overflow(text) if text is not None else Overflow.DROP_HEAD
    except ValueError:
        raise _invalid("x-overflow", named, "invalid_overflow") from None


def _text(arguments: dict[str, Any], name: str, named: str) -> str | None:
    value = arguments.get(name)
    if value is not None and not isinstance(value, str):
        raise _invalid(name, named, _unacceptable(value))
    return value


def _name(arguments: dict[str, Any], name: str, named: str) -> str | None:
    value = arguments.get(name)
    if value is not None and not isinstance(value, str):
        raise _wrong_type(name, named, value)
    return value


def _number(arguments: dict[str, Any], name: str, named: str, *, low: int = 0, high: int = (1 << 63) - 1) -> int | None:
    value = arguments.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise _invalid(name, named, _no_integer(value))
    if value < low:
        raise _invalid(name, named, f"{{value_zero,{value}}}" if value == 0 else f"{{value_negative,{value}}}")
    if value > high:
        why = "max_value_exceeded" if name == "x-max-priority" else "value_too_large"
        raise _invalid(name, named, f"{{{why},{value}}}")
    return value


def _invalid(argument: str, named: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"invalid arg '{argument}' for {named}: {why}")


def _wrong_type(argument: str, named: str, value: Any) -> InvalidArgument:
    return InvalidArgument(f"invalid type '{type_name(value)}' for arg '{argument}' in {named}")


def _unacceptable(value: Any) -> str:
    return f"{{unacceptable_type,{type_name(value)}}}"


def _no_integer(value: Any) -> str:
    return f'"expected integer, got {type_name(value)}"'


def age_seconds(text: Any) -> int | None:
    """`7D`, `12h`: RabbitMQ's spelling of a time span; None if it is none."""
    if not isinstance(text, str) or text[-1:] not in _SHORT_AGES:
        return None
    number = whole_number(text[:-1])
    return None if number is None else number * _SHORT_AGES[text[-1]]


def _shown(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def check_same_queue(queue: Queue, a: dict[str, Any], vhost: str) -> None:
    """Declaring again must ask for the same."""
    settings, named = queue.settings, quoted("queue", queue.name, vhost)
    _same("durable", named, a["durable"], settings.durable)
    _same("auto_delete", named, a["auto_delete"], settings.auto_delete)
    asked = json.loads(json.dumps(a["arguments"], default=_shown))
    for name in _COMPARED:
        _same_argument(name, named, asked, settings.arguments)


def check_same_exchange(exchange: Exchange, a: dict[str, Any], vhost: str) -> None:
    named = quoted("exchange", exchange.name, vhost)
    _same("type", named, a["type"], exchange.arguments.get("x-declared-type", exchange.type))
    _same("durable", named, a["durable"], exchange.durable)
    _same("auto_delete", named, a["auto_delete"], exchange.auto_delete)
    _same("internal", named, a["internal"], exchange.internal)
    _same_argument("alternate-exchange", named, a["arguments"], exchange.arguments)


def _same(name: str, named: str, received: Any, current: Any) -> None:
    if received != current:
        raise _different(name, named, _plain(received), _plain(current))


def _same_argument(name: str, named: str, asked: dict[str, Any], current: dict[str, Any]) -> None:
    one, other = asked.get(name), current.get(name)
    if one != other and not (name == "x-queue-type" and {one, other} <= {None, "classic"}):
        show = _plain if one is not None and other is not None else _typed
        raise _different(name, named, show(one), show(other))


def _different(name: str, named: str, received: str, current: str) -> InvalidArgument:
    return InvalidArgument(f"inequivalent arg '{name}' for {named}: received {received} but current is {current}")


def _plain(value: Any) -> str:
    return f"'{str(value).lower() if isinstance(value, bool) else value}'"


def _typed(value: Any) -> str:
    if value is None:
        return "none"
    return f"the value {_plain(value)} of type '{type_name(value)}'"


def type_name(value: Any) -> str:
    """What RabbitMQ calls the type of a table's value, as far as Python tells them apart."""
    if isinstance(value, int) and not isinstance(value, bool):
        return "signedint" if -(1 << 31) <= value < 1 << 31 else "long"
    return _TYPE_NAMES.get(type(value), "timestamp")


def exchange_type(a: dict[str, Any]) -> str:
    """The type that routes; the delayed-message plugin's type names it in an argument."""
    kind: str = a["type"]
    if kind == "x-delayed-message":
        kind = a["arguments"].get("x-delayed-type", "direct")
    if kind not in TYPES:
        raise InvalidArgument(f"unknown exchange type '{kind}'")
    return kind


def check_alternate(a: dict[str, Any], vhost: str) -> None:
    """The one argument of an exchange that means something here."""
    alternate = a["arguments"].get("alternate-exchange", "")
    if not isinstance(alternate, str):
        raise _wrong_type("alternate-exchange", quoted("exchange", a["exchange"], vhost), alternate)
