"""Requests about streams: create, update, info, names, list, delete, purge; the account."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from mainstem.broker.rights.access import Action, Principal
from mainstem.broker.streams.mirror import Mirror
from mainstem.broker.streams.settings import StreamSettings
from mainstem.broker.streams.sourcing import Granted
from mainstem.broker.streams.stream import Stream
from mainstem.broker.streams.streams import Streams
from mainstem.model.errors import (
    AlreadyExists,
    InvalidArgument,
    InvalidName,
    MainstemError,
    NotAuthorized,
    Overloaded,
)
from mainstem.model.topic import filter_of_nats
from mainstem.model.topic_filter import filter_levels, overlap
from mainstem.protocols.nats.jetstream import errors, stream_config
from mainstem.protocols.nats.jetstream.infos import API_LEVEL, DELETED_MAX, stream_info, subjects_of
from mainstem.protocols.nats.jetstream.message_calls import offset_since
from mainstem.protocols.nats.jetstream.words import document, flag, number, string, time_ns

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker
    from mainstem.broker.namespaces.namespace import Namespace
    from mainstem.protocols.nats.jetstream.api import Call

NAMES_MAX, LIST_MAX = 1024, 256
DURABILITY = "mainstem-durability"  # in a stream's metadata
UNAVAILABLE = 503

STORAGES = ("memory", "file")
_NO_LIMITS = (
    "max_streams",
    "max_consumers",
    "max_ack_pending",
    "memory_max_stream_bytes",
    "storage_max_stream_bytes",
)


class StreamCalls:
    broker: Broker
    namespace: Namespace
    streams: Streams
    change_lock: asyncio.Lock
    calls_total: int
    calls_failed: int

    if TYPE_CHECKING:

        def now_ns(self) -> int: ...
        def stream(self, call: Call, at: int = 2) -> Stream: ...
        def require(self, principal: Principal, action: Action, filters: tuple[bytes, ...]) -> None: ...
        def advise_stream(self, action: str, stream: Stream) -> None: ...

    # -- the account -------------------------------------------------------------------------------------------------

    def on_account_info(self, call: Call) -> dict[str, Any]:
        streams = list(self.streams.by_name.values())
        used = {kind: sum(s.stored_bytes for s in streams if s.config["storage"] == kind) for kind in STORAGES}
        stored_max = self.namespace.settings.quota.stored_bytes_max or -1  # of all its logs, wherever they are
        limits = dict.fromkeys(("max_memory", "max_storage"), stored_max) | dict.fromkeys(_NO_LIMITS, -1)
        return {
            "memory": used["memory"],
            "storage": used["file"],
            "reserved_memory": self._reserved("memory"),
            "reserved_storage": self._reserved("file"),
            "streams": len(streams),
            "consumers": sum(len(stream.consumers) for stream in streams),
            "limits": {**limits, "max_bytes_required": False},
            "api": {"level": API_LEVEL, "total": self.calls_total - 1, "errors": self.calls_failed},
        }

    def _reserved(self, storage: str, other_than: str = "") -> int:
        """What its streams may hold, by their own limits."""
        return sum(
            max(0, stream.config["max_bytes"])
            for stream in self.streams.by_name.values()
            if stream.config["storage"] == storage and stream.name != other_than
        )

    def _check_quota(self, config: dict[str, Any]) -> None:
        """What streams may hold together must be within what the namespace may store."""
        most = self.namespace.settings.quota.stored_bytes_max
        if most and config["max_bytes"] > 0:
            others = sum(self._reserved(kind, other_than=config["name"]) for kind in STORAGES)
            if others + config["max_bytes"] > most:
                raise errors.NO_STORAGE if config["storage"] == "file" else errors.NO_MEMORY

    # -- what exists -------------------------------------------------------------------------------------------------

    async def change_stream_create(self, call: Call) -> dict[str, Any]:
        config = self._config(call)
        known = self.streams.by_name.get(config["name"])
        if known is not None:
            if {**known.config, "mirror_direct": False} != {**config, "mirror_direct": False}:
                raise errors.NAME_TAKEN
            return {**stream_info(known, self.now_ns()), "did_create": True}
        stream_config.check_create(config)
        if "mirror" in config:
            stream = await self._create_mirror(call, config)
        else:
            stream = await self._create(call.principal, config)
        self.advise_stream("create", stream)
        return {**stream_info(stream, self.now_ns()), "did_create": True}

    async def declare_stream(self, principal: Principal, given: dict[str, Any], durability: str) -> Stream:
        """For an operator, who asks by HTTP: what STREAM.CREATE does, in turn with clients' changes."""
        async with self.change_lock:
            try:
                config = stream_config.complete(given)
                if config["name"] in self.streams.by_name:
                    raise AlreadyExists(f"stream {config['name']} already exists")
                stream = await self._create(principal, config, durability)
            except errors.NotAllowed:
                subjects = ", ".join(config.get("subjects") or ())
                raise NotAuthorized(f"user {principal.name} may not create all that {subjects} means") from None
            except errors.JsError as error:
                kind: type[MainstemError] = Overloaded if error.code == UNAVAILABLE else InvalidArgument
                raise kind(f"stream {given['name']} was not created: {error.description}") from None
            self.advise_stream("create", stream)
            return stream

    async def _create(self, principal: Principal, config: dict[str, Any], durability: str = "") -> Stream:
        settings = StreamSettings.of(config)
        self.require(principal, Action.CREATE, settings.captured)
        self._check_quota(config)
        if self.streams.overlapping(settings.filters) is not None:
            raise errors.OVERLAP
        granted = self._check_sources(principal, config)
        self._check_republish(principal, config)
        self.streams.check_topics(settings.filters)
        durability = durability or _durability(config)
        try:
            return await self.broker.streams.create(self.namespace, config, durability=durability, granted=granted)
        except Overloaded as error:
            raise errors.insufficient(str(error)) from None

    async def _create_mirror(self, call: Call, config: dict[str, Any]) -> Stream:
        """A view of another stream, for who may read that one."""
        asked = config["mirror"]
        if asked["name"] == config["name"]:
            raise errors.stream_config("detected cycle")
        origin = self.streams.by_name.get(asked["name"])
        if origin is None or isinstance(origin, Mirror):
            what = "is a mirror itself" if origin is not None else "is not there"
            raise errors.stream_config(f"a mirror here is a view, and stream {asked['name']!r} {what}")
        self.require(call.principal, Action.CONSUME, origin.rights)
        config["mirror_direct"] = origin.config["allow_direct"]
        start = max(0, asked.get("opt_start_seq", 0) - 1)
        if "opt_start_time" in asked:
            start = offset_since(origin, time_ns(asked["opt_start_time"]))
        return await self.broker.streams.create_mirror(origin, config, start)

    def _check_republish(self, principal: Principal, config: dict[str, Any]) -> None:
        """Who has messages published again must be allowed to publish there."""
        if "republish" in config:
            goal = filter_of_nats(stream_config.pattern_of(config["republish"]["dest"]).encode())
            self.require(principal, Action.PUBLISH, (goal,))

    def _check_sources(self, principal: Principal, config: dict[str, Any]) -> Granted:
        """Who copies must be allowed to read, then and later; and no copy may come back to where it is from."""
        granted: Granted = {}
        for one in config.get("sources") or ():
            origin = self.streams.by_name.get(one["name"])
            if principal.admin:
                continue
            if origin is None:
                raise errors.stream_config(f"only an admin may name a source that is not there: {one['name']!r}")
            self.require(principal, Action.CONSUME, origin.rights)
            granted[origin.name] = [right.decode() for right in origin.rights]
        reached, waiting = set[str](), [one["name"] for one in config.get("sources") or ()]
        while waiting:
            name = waiting.pop()
            if name == config["name"]:
                raise errors.stream_config("detected cycle")
            if name not in reached and (known := self.streams.by_name.get(name)) is not None:
                waiting += [one["name"] for one in known.config.get("sources") or ()]
                waiting += [known.config["mirror"]["name"]] if "mirror" in known.config else []
            reached.add(name)
        return granted

    async def change_stream_update(self, call: Call) -> dict[str, Any]:
        config = self._config(call)
        stream = self.stream(call)
        stream_config.check_update(stream.config, config)
        durability = _durability(config) if _durability(stream.config) != _durability(config) else None
        if durability is not None and isinstance(stream, Mirror):
            raise errors.stream_config(f"metadata {DURABILITY}: a mirror here is a view, and its origin's holds")
        stream_config.seal(config)
        consumers = {name: one.config for name, one in stream.consumers.items()}
        if names := stream_config.limited_consumers(stream.config, config, consumers):
            raise errors.limits_violated(names)
        settings = StreamSettings.of(config)
        if isinstance(stream, Mirror):
            config["mirror_direct"] = stream.config["mirror_direct"]
        self.require(call.principal, Action.CREATE, (*stream.rights, *settings.captured))
        self._check_quota(config)
        if self.streams.overlapping(settings.filters, stream.name) is not None:
            raise errors.OVERLAP
        granted = self._check_sources(call.principal, config)
        self._check_republish(call.principal, config)
        fresh = tuple(one for one in settings.filters if one not in stream.settings.filters)
        self.streams.check_topics(fresh)
        await self.broker.streams.update(stream, config, granted, durability=durability)
        self.advise_stream("modify", stream)
        return stream_info(stream, self.now_ns())

    def _config(self, call: Call) -> dict[str, Any]:
        given = document(call.payload)
        name = call.tokens[2] if len(call.tokens) == 3 else ""
        if string(given, "name") != name:
            raise errors.NAME_MISMATCH
        return stream_config.complete(given)

    async def change_stream_delete(self, call: Call) -> dict[str, Any]:
        if call.payload:
            raise errors.NOT_EMPTY
        stream = self.stream(call)
        self.require(call.principal, Action.DELETE, stream.rights)
        if stream.mirrors:
            names = ", ".join(sorted(one.name for one in stream.mirrors))
            raise errors.JsError(500, 10050, f"its mirrors are views of it and would be empty: delete {names} first")
        await self.broker.streams.delete(stream)
        self.advise_stream("delete", stream)
        return {"success": True}

    def on_stream_info(self, call: Call) -> dict[str, Any]:
        given = document(call.payload)
        try:
            stream = self.stream(call)
        except errors.JsError as error:
            return {"error": error.to_document(), "total": 0, "offset": 0, "limit": 0}
        self.require(call.principal, Action.DESCRIBE, stream.rights)
        info = stream_info(stream, self.now_ns())
        page = {"total": 0, "offset": 0, "limit": 0}
        if subjects := string(given, "subjects_filter"):
            offset = max(0, number(given, "offset"))
            found, total = subjects_of(stream, [filter_of_nats(subjects.encode())], offset)
            page = {"total": total, "offset": min(offset, total), "limit": 100_000}
            if found:
                info["state"]["subjects"] = found
        if flag(given, "deleted_details") and info["state"].get("num_deleted"):
            deleted = [offset + 1 for offset in stream.removed.all() if offset >= stream.first]
            info["state"]["deleted"] = deleted[:DELETED_MAX]
        return {**page, **info}

    def _visible(self, call: Call) -> list[Stream]:
        """Streams by name, those of a subject if the request has one."""
        given = document(call.payload)
        found = sorted(self.streams.by_name.values(), key=lambda stream: stream.name)
        if subject := string(given, "subject"):
            try:
                wanted = filter_levels(filter_of_nats(subject.encode()))
            except InvalidName:
                return []
            found = [s for s in found if any(overlap(wanted, filter_levels(f)) for f in s.settings.filters)]
        return [stream for stream in found if self._may_see(call, stream)]

    def _may_see(self, call: Call, stream: Stream) -> bool:
        principal = call.principal
        allows = self.broker.access.allows_filter
        return principal.admin or all(allows(principal, Action.DESCRIBE, one) for one in stream.rights)

    def on_stream_names(self, call: Call) -> dict[str, Any]:
        names = [stream.name for stream in self._visible(call)]
        offset = min(max(0, number(document(call.payload), "offset")), len(names))
        page = names[offset : offset + NAMES_MAX]
        return {"total": len(names), "offset": offset, "limit": NAMES_MAX, "streams": page or None}

    def on_stream_list(self, call: Call) -> dict[str, Any]:
        found = self._visible(call)
        offset = min(max(0, number(document(call.payload), "offset")), len(found))
        page = [stream_info(stream, self.now_ns()) for stream in found[offset : offset + LIST_MAX]]
        return {"total": len(found), "offset": offset, "limit": LIST_MAX, "streams": page}

    # -- purging -----------------------------------------------------------------------------------------------------

    async def change_stream_purge(self, call: Call) -> dict[str, Any]:
        try:
            return {"success": True, "purged": await self._purge(call)}
        except errors.JsError as error:
            return {"error": error.to_document(), "purged": 0}

    async def _purge(self, call: Call) -> int:
        stream = self.stream(call)
        self.require(call.principal, Action.DELETE, stream.rights)
        given = document(call.payload)
        seq, keep, subject = number(given, "seq"), number(given, "keep"), string(given, "filter")
        if seq and keep:
            raise errors.bad_request()
        if stream.config["sealed"]:
            raise errors.SEALED
        if stream.config["deny_purge"]:
            raise errors.PURGE_DENIED
        if isinstance(stream, Mirror):
            raise errors.JsError(500, 10110, f"a mirror here is a view: purge its origin {stream.origin.name}")
        self.broker.ticker.write_now()
        await self.broker.ticker.settle([stream.log])
        end = min(seq - 1, stream.log.stable) if seq else stream.log.stable
        if not subject:
            if keep:
                end = stream.offset_after(max(0, stream.messages - keep), stream.log.stable)
            purged = stream.remove_front(end)
        else:
            purged = self._purge_subject(stream, filter_of_nats(subject.encode()), end, keep)
        stream.flush_removed()
        ticket = self.broker.journal.unsynced()
        if ticket is not None:
            await self.broker.ticker.settle([self.broker.journal.stem])
        return purged

    def _purge_subject(self, stream: Stream, topic_filter: bytes, end: int, keep: int) -> int:
        found, _ = stream.index.find_many(stream.bitmap((topic_filter,)), stream.first, end)
        offsets = list(stream.removed.visible(found))
        return stream.remove(offsets[: len(offsets) - keep] if keep else offsets)


def _durability(config: dict[str, Any]) -> str:
    """What the client asks for; empty: as the namespace's topics."""
    return str(config.get("metadata", {}).get(DURABILITY, "")) or ("os" if config.get("persist_mode") else "")
