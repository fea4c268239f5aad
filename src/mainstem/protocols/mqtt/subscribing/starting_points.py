"""From where a stream is read, as a stamp."""

from __future__ import annotations

from datetime import UTC, datetime

from mainstem.broker.namespaces.namespace import Namespace
from mainstem.codec.batch import frame_heads
from mainstem.log.away import bring
from mainstem.log.log import Log
from mainstem.model.errors import InvalidArgument, Overloaded
from mainstem.model.topic_filter import is_pattern
from mainstem.storage.engine import NotLocal

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
STAMP_MAX = (1 << 63) - 1
FORMS = "earliest, latest, an offset, ts:<RFC 3339 or epoch ms> or stamp:<µs>"


def starting_stamp(namespace: Namespace, topic_filter: bytes, text: str) -> int:
    """`earliest` is 1: a stamp below all others, and not 0, which a subscription uses for not yet begun."""
    if text == "earliest":
        return 1
    if text == "latest":
        return namespace.broker.stamps.next
    if _is_number(text):
        return _stamp_of_offset(namespace, topic_filter, int(text))
    kind, _, value = text.partition(":")
    stamp = -1
    if kind == "stamp" and _is_number(value):
        stamp = max(1, int(value) * NS_PER_US)
    if kind == "ts" and value:
        stamp = max(1, _time_ns(value))
    if not 0 < stamp <= STAMP_MAX:
        raise InvalidArgument(f"stream-offset {text[:60]!r} is not {FORMS}")
    return stamp


def _is_number(text: str) -> bool:
    """`isdigit` alone is true of superscripts, too."""
    return text.isascii() and text.isdigit() and len(text) < 20


def _time_ns(text: str) -> int:
    if _is_number(text):
        return int(text) * NS_PER_MS
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(f"stream-offset ts:{text[:60]} is neither RFC 3339 nor epoch milliseconds") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1_000_000) * NS_PER_US


def _stamp_of_offset(namespace: Namespace, topic_filter: bytes, offset: int) -> int:
    """Offsets are one log's; a filter that may lie in several has no order of offsets."""
    log = _only_log(namespace, topic_filter, offset)
    try:
        piece = log.read_now(offset, 1)
    except NotLocal as missing:
        bring(missing, lambda: None)
        raise Overloaded(
            f"stream-offset {offset} lies in the object store and is being fetched; subscribe again"
        ) from None
    if piece is None:
        return namespace.broker.stamps.next
    head = frame_heads(piece.data, log.id)[0]
    return head.stamp + max(0, offset - head.base_offset)


def _only_log(namespace: Namespace, topic_filter: bytes, offset: int) -> Log:
    if not is_pattern(topic_filter):
        topic = namespace.find_topic(topic_filter)
        if topic is not None and len(topic.partitions) == 1:
            spans = topic.partitions[0].spans
            return next((span.log for span in spans if offset < span.end_offset), spans[-1].log)
    logs = namespace.logs_of(topic_filter)
    if len(logs) != 1:
        raise InvalidArgument(
            f"stream-offset {offset}: the filter's records lie in {len(logs)} logs, each with offsets of its own; "
            "use ts: or stamp:"
        )
    return logs[0][0]
