"""/v1/messages: browse and publish; /v1/tail: follow live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import msgspec

from mainstem.admin.answers import Events
from mainstem.admin.answers.topics import Arrival, MessageFacts, Messages, Published, Tried
from mainstem.admin.calls import LIMIT, Call, Field, Operation, check_ordinary
from mainstem.admin.messages import (
    at_end,
    encode_position,
    fields_of,
    headers_of,
    open_source,
    read_page,
    start_offsets,
    value_of,
)
from mainstem.admin.tail import Tail
from mainstem.broker.rights.access import Action
from mainstem.model.errors import InvalidArgument, MessageTooLarge, NotAuthorized, NotFound, Overloaded
from mainstem.model.origin import Origin, RecordFlag
from mainstem.model.record import Header
from mainstem.model.topic_filter import check_topic

SUBJECT = (
    Field("topic", "string", "The topic to read, as MQTT spells it."),
    Field("view", "string", "Or the view."),
    Field("filter", "string", "Or everything a topic filter means."),
)
KEEP_ALIVE_S = 15.0


async def browse(call: Call) -> Messages:
    topic, view, topic_filter = (call.query.get(name, "") for name in ("topic", "view", "filter"))
    require_consume(call, topic, view, topic_filter)
    namespace = call.namespace
    source = open_source(
        namespace, topic=topic, view=view, topic_filter=topic_filter, denied=call.denied(), shown=call.shown()
    )
    now_ms = call.running.broker.clock.now_ns() // 1_000_000
    offsets = start_offsets(source, call.query.get("from", "earliest"), now_ms=now_ms, limit=call.limit)
    partition = call.number("partition", 0) if call.query.get("partition") else None
    if partition is not None and partition not in source.readers:
        raise NotFound(f"{source.label} has no partition {partition}", fix=f"mainstem topic describe {source.label}")
    rows, after = await read_page(
        call.running.broker.turns,
        source,
        offsets,
        limit=call.limit,
        contains=call.query.get("contains", ""),
        partition=partition,
    )
    call.running.servers["http"].counters.messages_out += len(rows)
    return {
        "items": rows,
        "next": None if at_end(source, after, partition) else encode_position(after),
        "end": encode_position(after),
    }


async def publish(call: Call) -> Published:
    topic = call.body["topic"].encode()
    check_ordinary(topic)
    given = call.body.get("key")
    key = None if given is None else given.encode()
    now_ms = call.running.broker.clock.now_ns() // 1_000_000
    value, headers = value_of(call.body), [*headers_of(call.body), *fields_of(call.body, now_ms)]
    _check_limits(call, topic, key, value, headers)
    flags = RecordFlag.RETAIN if call.body.get("retain") else 0
    ticket = call.namespace.publish(topic, value, key=key, headers=headers, flags=flags, origin=Origin.HTTP)
    await durable(ticket)
    call.running.servers["http"].counters.messages_in += 1
    return {"topic": call.body["topic"], "durable": True}


def _check_limits(call: Call, topic: bytes, key: bytes | None, value: bytes | None, headers: list[Header]) -> None:
    """What MQTT publishers keep to as well; the value alone is looked at where it is published."""
    limits = call.running.config.limits
    check_topic(topic, bytes_max=limits.topic_bytes_max, levels_max=limits.topic_levels_max)
    if len(headers) > limits.headers_max:
        raise InvalidArgument(f"{len(headers)} headers; limits.headers_max is {limits.headers_max}")
    beside = len(key or b"") + sum(len(name) + len(text or b"") for name, text in headers)
    bytes_max = call.namespace.record_rules.policy(topic).message_bytes_max
    if beside > bytes_max - len(value or b"") >= 0:
        raise MessageTooLarge(
            f"key and headers of {beside} bytes beside a value of {len(value or b'')}; message_bytes_max is {bytes_max}"
        )


async def durable(ticket: Any) -> None:
    """Wait until what the ticket stands for is stored as its topic's policy demands; None stands for nothing."""
    if ticket is None or ticket.stable:
        return
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    class Waiter:
        def released(self, ticket: Any) -> None:
            if done.done():
                return
            error = getattr(ticket, "error", None)
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(None)

    ticket.wait(Waiter())
    await done


async def tail(call: Call) -> Events[MessageFacts]:
    topic_filter = call.query.get("filter", "")
    require_consume(call, "", "", topic_filter, each_asked=True)
    if len(Tail.open_tails) >= call.running.config.http.tails_max:
        raise Overloaded(f"{len(Tail.open_tails)} live tails are open already")
    one = Tail(call.namespace, topic_filter, lambda topic: call.allows(Action.CONSUME, topic), call.shown())

    access = call.running.broker.access

    async def events() -> AsyncIterator[bytes]:
        access.listeners.append(one.look_again)
        version = access.version
        try:
            one.start()
            yield b": following\n\n"
            while True:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        rows, dropped = await one.next()
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                if access.version != version:
                    version = access.version
                    try:
                        require_consume(call, "", "", topic_filter, each_asked=True)
                    except NotAuthorized as error:
                        yield b"event: ended\ndata: " + str(error).encode() + b"\n\n"
                        return
                call.running.servers["http"].counters.messages_out += len(rows)
                for row in rows:
                    yield b"data: " + msgspec.json.encode(row) + b"\n\n"
                if dropped:
                    yield b"event: dropped\ndata: " + str(dropped).encode() + b"\n\n"
        finally:
            access.listeners.remove(one.look_again)
            one.stop()

    return Events(events())


def require_consume(call: Call, topic: str, view: str, topic_filter: str, *, each_asked: bool = False) -> None:
    """`each_asked`: the reader is asked again for each record, so the filter may overlap what is denied."""
    given = [name for name, text in (("topic", topic), ("view", view), ("filter", topic_filter)) if text]
    if len(given) > 1:
        raise InvalidArgument(f"give one of topic, view and filter, not {' and '.join(given)}")
    access = call.running.broker.access
    allows = access.allows_filter if each_asked else access.allows_all
    if topic or view:
        call.require(Action.CONSUME, (topic or view).encode())
    elif not topic_filter:
        raise InvalidArgument("say what to read: topic, view or filter")
    elif not allows(call.principal, Action.CONSUME, topic_filter.encode()):
        raise NotAuthorized(f"user {call.principal.name} may not consume all that {topic_filter} means")


async def try_it(call: Call) -> Tried:
    """Its clients log in as whoever asks, in the namespace that was asked for: they may do what that user may."""
    body = call.body
    check_ordinary(body["topic"].encode())
    check_topic(body["topic"].encode())
    caller, value = call.principal, body.get("value") or ""
    if not caller.anonymous:
        caller = replace(caller, namespace=call.namespace.name)
    with call.running.broker.identity.lent(caller) as login:
        arrivals = await call.running.try_it(body["protocol"], body["topic"], value, login, caller.namespace)
    return {"topic": body["topic"], "arrivals": [cast("Arrival", one) for one in arrivals]}


OPERATIONS = (
    Operation(
        "GET",
        "/v1/messages",
        browse,
        "Records of a topic, a view or a filter, from any point.",
        "topic.consume",
        query=(
            *SUBJECT,
            Field(
                "from", "string", "earliest, latest, -50, @offset, ts:<RFC 3339 or ms>, or `next` of the page before."
            ),
            Field("partition", "integer", "Only this partition."),
            Field("contains", "string", "Only records with these bytes in value, key, topic or headers."),
            LIMIT,
        ),
    ),
    Operation(
        "POST",
        "/v1/messages",
        publish,
        "Publish one record; answers once it is durable.",
        "topic.publish",
        body=(
            Field("topic", "string", "The topic, as MQTT spells it.", required=True),
            Field("value", "string", "The value as text."),
            Field("value_json", "any", "Or as JSON."),
            Field("value_base64", "string", "Or as bytes."),
            Field("key", "string", "The key; the topic's name if there is none."),
            Field(
                "headers",
                "any",
                "An object, or a list of [name, value] pairs; values that are not text are written as JSON.",
            ),
            Field("content_type", "string", "Each protocol's own field; so are those below (docs/mapping.md)."),
            Field("correlation_id", "string", "For who answers."),
            Field("reply_to", "string", "The topic for answers, as MQTT spells it."),
            Field("message_id", "string", "The publisher's own."),
            Field("priority", "integer", "0 to 255; queues with priorities go by it."),
            Field("expires_ms", "integer", "Milliseconds after which nobody wants it."),
            Field("retain", "boolean", "Keep it as the topic's last value for MQTT subscribers to come."),
        ),
        names="topic",
    ),
    Operation(
        "POST",
        "/v1/try",
        try_it,
        "Publish by one protocol, as the user who asks, and report how it arrived by all of them, with the microseconds "
        "since the append.",
        "topic.publish",
        body=(
            Field("protocol", "string", "mqtt, kafka or amqp.", required=True),
            Field("topic", "string", "The topic, as MQTT spells it.", required=True),
            Field("value", "string", "The value as text."),
        ),
        names="topic",
    ),
    Operation(
        "GET",
        "/v1/tail",
        tail,
        "Follow what is published from now on, as server-sent events; a slow reader is told how many it missed.",
        "topic.consume",
        query=(Field("filter", "string", "What to follow, for example sensors/#.", required=True),),
        streams=True,
    ),
)
