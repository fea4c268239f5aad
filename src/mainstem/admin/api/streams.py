"""/v1/streams: streams of JetStream, and how durable their acks are. What else a stream is, NATS clients say."""

from __future__ import annotations

from mainstem.admin.answers import Page
from mainstem.admin.answers.topics import StreamFacts, StreamRow
from mainstem.admin.calls import AFTER, LIMIT, Call, Field, Operation, page
from mainstem.broker.rights.access import Action
from mainstem.broker.streams.mirror import Mirror
from mainstem.broker.streams.policy import alter_durability, policy_of
from mainstem.broker.streams.stream import Stream
from mainstem.model.errors import InvalidArgument, NotAuthorized, NotFound

DURABILITY = "sync, interval:<ms>, os or none."


def stream_row(stream: Stream) -> StreamRow:
    return {
        "name": stream.name,
        "subjects": list(stream.config.get("subjects") or ()),
        "storage": stream.config["storage"],
        "retention": stream.config["retention"],
        "durability": str(stream.log.durability),
        "messages": stream.messages,
        "bytes": stream.stored_bytes,
        "consumers": len(stream.consumers),
    }


def stream_facts(stream: Stream) -> StreamFacts:
    return {
        **stream_row(stream),
        "namespace": stream.namespace.name,
        "mirror_of": stream.origin.name if isinstance(stream, Mirror) else None,
        "created": stream.created_ns,
        "first_seq": stream.first_seq,
        "last_seq": stream.last_seq,
        "log": stream.log.id,
        "engine": policy_of(stream).engine,
        "config": stream.config,
    }


def _streams(call: Call) -> dict[str, Stream]:
    return call.running.broker.streams.of(call.namespace).by_name


def _may(call: Call, action: Action, stream: Stream) -> bool:
    """Who may do something with a stream may do it with all that its subjects mean."""
    return all(call.running.broker.access.allows_all(call.principal, action, one) for one in stream.rights)


def _named(call: Call, action: Action) -> Stream:
    stream = _streams(call).get(call.path["name"])
    if stream is None:
        raise NotFound(f"there is no stream {call.path['name']}", fix="mainstem stream ls")
    if not _may(call, action, stream):
        raise NotAuthorized(f"user {call.principal.name} may not {action} all that stream {stream.name} holds")
    return stream


async def list_streams(call: Call) -> Page[StreamRow]:
    streams, after, limit = _streams(call), call.query.get("after", ""), call.limit
    names = [name for name in sorted(streams) if name > after and _may(call, Action.DESCRIBE, streams[name])]
    rows = [stream_row(streams[name]) for name in names[:limit]]
    return page(rows, names[limit - 1] if len(names) > limit else None)


async def describe_stream(call: Call) -> StreamFacts:
    return stream_facts(_named(call, Action.DESCRIBE))


async def create_stream(call: Call) -> StreamFacts:
    server, body = call.running.servers.get("nats"), call.body
    if server is None:
        raise InvalidArgument("streams are JetStream's, and the NATS listener is off", fix="set listeners.nats_port")
    given = {name: body[name] for name in ("name", "subjects", "storage") if body.get(name) is not None}
    jetstream = server.jetstream(call.namespace)
    return stream_facts(await jetstream.declare_stream(call.principal, given, body.get("durability") or ""))


async def alter_stream(call: Call) -> StreamFacts:
    stream = _named(call, Action.CONFIGURE)
    if isinstance(stream, Mirror):
        raise InvalidArgument(
            f"stream {stream.name} is a mirror, a view of {stream.origin.name}: it has no acks of its own",
            fix=f"mainstem stream alter {stream.origin.name} --durability {call.body['durability']}",
        )
    await alter_durability(stream, call.body["durability"])
    if stream.deleted:
        raise NotFound(f"stream {stream.name} was deleted meanwhile", fix="mainstem stream ls")
    return stream_facts(stream)


OPERATIONS = (
    Operation("GET", "/v1/streams", list_streams, "Streams of JetStream by name.", "stream.list", query=(LIMIT, AFTER)),
    Operation(
        "POST",
        "/v1/streams",
        create_stream,
        "Create a stream. NATS clients can say more of it, and update it.",
        "stream.create",
        body=(
            Field("name", "string", "Its name.", required=True),
            Field("subjects", "array", "What it captures, as NATS spells it; without, the subject of its name."),
            Field("storage", "string", "file (the namespace's engine) or memory."),
            Field("durability", "string", f"When a publish is acked: {DURABILITY} Without: as the namespace's topics."),
        ),
    ),
    Operation("GET", "/v1/streams/{name:path}", describe_stream, "One stream in full.", "stream.describe"),
    Operation(
        "PATCH",
        "/v1/streams/{name:path}",
        alter_stream,
        "Change when a stream's publishes are acked, while it is used.",
        "stream.configure",
        body=(Field("durability", "string", DURABILITY, required=True),),
    ),
)
