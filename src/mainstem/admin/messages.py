"""Reading and publishing for people: any topic, view or filter, from any starting point, a page at a time."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol, cast

from mainstem.admin.answers.topics import MessageFacts
from mainstem.admin.topics import find
from mainstem.broker.delivery.turns import Turns
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.schemas.enforcement import Shown
from mainstem.broker.topics.reading import PartitionReader
from mainstem.broker.topics.views import View, ViewSlot
from mainstem.log.away import when_local
from mainstem.model.crossing_message import PRIORITY_MAX
from mainstem.model.errors import InvalidArgument, NotFound
from mainstem.model.origin import Origin
from mainstem.model.record import Record
from mainstem.model.topic import kafka_name
from mainstem.model.topic_filter import check_filter

READ_BYTES = 1 << 20
OFFSET_MAX = 2**63 - 1
STEPS_MAX = 1_000  # slices without a match, for one page: a search through a long log goes on with the next page
PREVIEW_BYTES = 64 << 10
EXPIRES_MS_MAX = ((1 << 32) - 1) * 1000  # what MQTT can say
MS_HEADERS_KEPT = (b"ms-mqtt", b"ms-amqp")


class Reader(Protocol):
    @property
    def start_offset(self) -> int: ...
    @property
    def stable_offset(self) -> int: ...
    def records(
        self, offset: int, bytes_max: int, *, count_max: int = 10_000, until_ns: int = 0
    ) -> tuple[list[Record], int]: ...
    def count(self, start: int, end: int) -> int: ...


Show = Callable[[bytes], Shown | None]  # what the schema of a value that a serialiser wrote makes of it, for its reader


@dataclass(slots=True)
class Source:
    """What is read: its partitions, by number."""

    namespace: str
    label: str
    readers: dict[int, Reader]
    shown: Show | None  # None: nobody sees values


def open_source(
    namespace: Namespace,
    *,
    topic: str = "",
    view: str = "",
    topic_filter: str = "",
    denied: Sequence[bytes] = (),
    shown: Show | None = None,
) -> Source:
    """Exactly one of the three. A filter is a view without a name. A view shows nothing that is denied to its reader."""
    if topic:
        found = find(namespace, topic.encode())
        return Source(
            namespace.name, topic, {p.index: PartitionReader(p, namespace.topic_of) for p in found.partitions}, shown
        )
    if view:
        named = namespace.views.get(view.encode())
        if named is None:
            raise NotFound(f"there is no view {view}", fix="mainstem view ls")
        hidden = named.hidden(denied)
        slots = ((number, named.slot(number, hidden)) for number in range(len(named.slots)))
        return Source(namespace.name, view, {number: slot for number, slot in slots if slot is not None}, shown)
    if not topic_filter:
        raise InvalidArgument("say what to read: topic, view or filter")
    check_filter(topic_filter.encode())
    unnamed = View(namespace, 0, b"", topic_filter.encode(), None, {}, 0)
    logs = (log for log, _ in namespace.logs_of(unnamed.filter))
    return Source(
        namespace.name, topic_filter, {number: ViewSlot(unnamed, log) for number, log in enumerate(logs)}, shown
    )


def start_offsets(source: Source, start: str, *, now_ms: int, limit: int) -> dict[int, int]:
    """`earliest`, `latest`, `-50` (the last fifty), `@42`, `ts:<RFC 3339 or ms>`, `1.5:0.7` (partition.offset)."""
    readers = source.readers
    if start in ("", "earliest"):
        return {number: reader.start_offset for number, reader in readers.items()}
    if start == "latest":
        return {number: reader.stable_offset for number, reader in readers.items()}
    if start.startswith("-") and start[1:].isdecimal():
        return {number: offset_back(reader, int(start[1:])) for number, reader in readers.items()}
    if start.lstrip("@").isdecimal():
        return dict.fromkeys(readers, _offset(int(start.lstrip("@"))))
    if start.startswith("ts:"):
        return {number: offset_at(reader, read_time_ms(start[3:])) for number, reader in readers.items()}
    try:
        pairs = [tuple(map(int, pair.split("."))) for pair in start.split(":")]
        return {number: _offset(offset) for number, offset in pairs if number in readers}
    except ValueError:
        raise InvalidArgument(
            f"{start!r} is not understood as a place to begin",
            fix="earliest, latest, -50, @42 or ts:2026-01-31T12:00:00Z",
        ) from None


def _offset(given: int) -> int:
    if not 0 <= given <= OFFSET_MAX:
        raise InvalidArgument(f"{given} is not an offset", fix=f"offsets are numbers from 0 to {OFFSET_MAX}")
    return given


def offset_back(reader: Reader, count: int, end: int | None = None) -> int:
    """The smallest offset with at most `count` records from it to the end, found by counting, not by reading."""
    low, high = reader.start_offset, reader.stable_offset if end is None else min(end, reader.stable_offset)
    end = high = max(low, high)
    if reader.count(low, end) <= count:
        return low
    while low < high:
        middle = (low + high) // 2
        if reader.count(middle, end) > count:
            low = middle + 1
        else:
            high = middle
    return low


def offset_at(reader: Reader, time_ms: int) -> int:
    find_time = getattr(reader, "find_time", None)
    found = find_time(time_ms) if find_time is not None else None
    return reader.stable_offset if found is None else int(found[0])


async def read_page(
    turns: Turns,
    source: Source,
    offsets: dict[int, int],
    *,
    limit: int,
    contains: str = "",
    partition: int | None = None,
) -> tuple[list[MessageFacts], dict[int, int]]:
    """Up to `limit` records in the order they were appended, and the offsets to go on from. It reads a slice at a time, in
    turns with all else that reads much."""
    found: list[tuple[int, Record]] = []
    after = dict(offsets)
    needle = contains.encode()
    for number, reader in source.readers.items():
        if (partition is not None and number != partition) or number not in offsets:
            continue
        taken = steps = 0
        while taken < limit and steps < STEPS_MAX and after[number] < reader.stable_offset:
            await turns.turn(source.namespace)
            begin, until_ns = after[number], turns.slice_end_ns()
            records, after[number] = await when_local(
                partial(reader.records, begin, READ_BYTES, count_max=limit - taken, until_ns=until_ns)
            )
            kept = [one for one in records if not needle or _holds(one, needle)]
            found += ((number, one) for one in kept)
            taken += len(kept)
            steps += not kept
    found.sort(key=lambda pair: pair[1].stamp)
    for number, record in found[limit:]:  # read, but not shown: they come with the next page
        after[number] = min(after[number], record.offset)
    return [record_facts(number, record, source.shown) for number, record in found[:limit]], after


def _holds(record: Record, needle: bytes) -> bool:
    return (
        needle in (record.value or b"")
        or needle in (record.key or b"")
        or needle in record.topic
        or any(needle in name or needle in (value or b"") for name, value in record.headers)
    )


def record_facts(partition: int, record: Record, shown: Show | None = None) -> MessageFacts:
    """`shown`: a value that a serialiser wrote is told as its schema reads it, beside its bytes."""
    value = record.value
    facts = {
        "topic": _text(record.topic),
        "partition": partition,
        "offset": record.offset,
        "stamp": record.stamp,
        "time_ms": record.time_ms,
        "origin": Origin(record.origin).name.lower(),
        "key": _readable(record.key),
        "headers": [[_text(name), _readable(one)] for name, one in record.headers if name not in MS_HEADERS_KEPT],
        "size": len(value or b""),
    }
    facts.update(value_facts(value))
    if shown is not None and value is not None and value[:1] == b"\0" and (found := shown(value)) is not None:
        raw = base64.b64encode(value).decode()
        facts.update({"format": "json", "value": found.json, "value_base64": raw, "schema": found.facts()})
    return cast("MessageFacts", facts)  # two steps above add what depends on the value


def value_facts(value: bytes | None) -> dict[str, Any]:
    """A value as people read it: JSON, text or hex; long ones are cut and say so."""
    if value is None:
        return {"format": "null", "value": None}
    cut = value[:PREVIEW_BYTES]
    facts: dict[str, Any] = {"truncated": True} if len(cut) < len(value) else {}
    try:
        text = value.decode() if not facts else cut.decode(errors="ignore")
    except UnicodeDecodeError:
        return {"format": "hex", "value": cut.hex(" "), "value_base64": base64.b64encode(cut).decode(), **facts}
    if text[:1] in ("{", "[") and not facts:
        try:
            json.loads(text)
        except (ValueError, RecursionError):  # nested deeper than anyone reads
            pass
        else:
            return {"format": "json", "value": text}
    return {"format": "text", "value": text, **facts}


def encode_position(offsets: dict[int, int]) -> str:
    return ":".join(f"{number}.{offset}" for number, offset in offsets.items())


def page_before(source: Source, offsets: dict[int, int], limit: int) -> dict[int, int] | None:
    """Where the page before these offsets begins; None where there is none."""
    begin = {number: offset_back(reader, limit, offsets.get(number, 0)) for number, reader in source.readers.items()}
    return begin if any(at < offsets.get(number, 0) for number, at in begin.items()) else None


def at_end(source: Source, offsets: dict[int, int], partition: int | None = None) -> bool:
    wanted = source.readers if partition is None else (partition,)
    return all(offsets.get(number, 0) >= source.readers[number].stable_offset for number in wanted)


def value_of(body: dict[str, Any]) -> bytes | None:
    """`value` (text), `value_json`, `value_base64`, or none of them for a null value."""
    given = [name for name in ("value", "value_json", "value_base64") if body.get(name) is not None]
    if len(given) > 1:
        raise InvalidArgument(f"give one of value, value_json and value_base64, not {', '.join(given)}")
    if not given:
        return None
    if given[0] == "value_json":
        return json.dumps(body["value_json"], ensure_ascii=False).encode()
    if given[0] == "value":
        return str(body["value"]).encode()
    try:
        return base64.b64decode(body["value_base64"], validate=True)
    except ValueError:
        raise InvalidArgument("value_base64 is not base64") from None


def headers_of(body: dict[str, Any]) -> list[tuple[bytes, bytes | None]]:
    """`headers` as an object, or as a list of pairs where names repeat."""
    given = body.get("headers") or {}
    pairs: Sequence[Any] = list(given.items()) if isinstance(given, dict) else given
    try:
        return [(name.encode(), _header_value(value)) for name, value in pairs]
    except (AttributeError, TypeError, ValueError):
        raise InvalidArgument("headers must be an object, or a list of [name, value] pairs") from None


def fields_of(body: dict[str, Any], now_ms: int) -> list[tuple[bytes, bytes | None]]:
    """What each protocol has a word of its own for (docs/mapping.md), as the headers that crossing reads."""
    found: list[tuple[bytes, bytes | None]] = []
    for name in ("content_type", "correlation_id", "message_id"):
        if body.get(name):
            found.append((name.replace("_", "-").encode(), str(body[name]).encode()))
    if body.get("reply_to"):
        found.append((b"reply-to", kafka_name(str(body["reply_to"]).encode()).encode()))
    priority, expires = body.get("priority"), body.get("expires_ms")
    if priority is not None:
        if not 0 <= priority <= PRIORITY_MAX:
            raise InvalidArgument(f"priority must be 0 to {PRIORITY_MAX}, not {priority}")
        found.append((b"ms-priority", b"%d" % priority))
    if expires is not None:
        if not 0 < expires <= EXPIRES_MS_MAX:
            raise InvalidArgument(f"expires_ms must be 1 to {EXPIRES_MS_MAX}, not {expires}")
        found.append((b"ms-expires-at", b"%d" % (now_ms + expires)))
    return found


def _header_value(given: Any) -> bytes | None:
    if given is None or isinstance(given, str):
        return None if given is None else given.encode()
    return json.dumps(given, ensure_ascii=False).encode()


def read_time_ms(text: str) -> int:
    """RFC 3339, or milliseconds since 1970."""
    if text.isdecimal() and len(text) <= 18:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"{text!r} is not a time", fix="2026-01-31T12:00:00Z, or milliseconds since 1970"
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _readable(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
