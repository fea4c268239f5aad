"""What a topic filter asks for, by its first level.

a/+/b                          plain: live messages, and what a persistent session missed
$share/<group>/<filter>        a group whose members share the messages
$queue/<name>[/<filter>]       a named queue, of any protocol; with a filter it is made if it is not there
$stream/<filter>               history, then live; from where says the user property `stream-offset`
$stream/@<offset>/<filter>     the same for clients without user properties; `@` so that no topic is meant by it
$SYS/...                       the broker's own figures, which are in no log
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mainstem.model.errors import InvalidName
from mainstem.model.topic_filter import check_filter, literal_filter

NAME_BYTES_MAX = 255  # of groups and queues: AMQP has no longer ones
NAME = f"has no wildcards and at most {NAME_BYTES_MAX} bytes"


class Kind(Enum):
    PLAIN = "plain"
    SHARE = "share"
    QUEUE = "queue"
    STREAM = "stream"
    SYS = "sys"


@dataclass(frozen=True, slots=True)
class Asked:
    kind: Kind
    filter: bytes  # canonical; empty where a queue is only named
    name: str = ""  # group or queue
    offset: str = ""  # of a stream


def parse_filter(text: bytes, *, bytes_max: int, levels_max: int) -> Asked:
    """Raises InvalidName for what is not a filter."""
    asked = _parse(text)
    if asked.filter:
        check_mqtt_filter(asked.filter, bytes_max=bytes_max, levels_max=levels_max)
        return Asked(asked.kind, literal_filter(asked.filter), asked.name, asked.offset)
    return asked


def check_mqtt_filter(topic_filter: bytes, *, bytes_max: int, levels_max: int) -> None:
    """MQTT's rules are narrower than ours: `#` stands last, `*` and `>` are plain text."""
    check_filter(literal_filter(topic_filter), bytes_max=bytes_max, levels_max=levels_max)
    if b"#" in topic_filter[:-1]:
        raise InvalidName(f"filter {topic_filter[:60]!r}: '#' may only be the last level")


def _parse(text: bytes) -> Asked:
    if not text:
        raise InvalidName("an empty topic filter")
    first, _, rest = text.partition(b"/")
    if first == b"$share":
        group, _, topic_filter = rest.partition(b"/")
        if not group or b"+" in group or b"#" in group or len(group) > NAME_BYTES_MAX or not topic_filter:
            raise InvalidName(f"a shared subscription is $share/<group>/<filter>; the group {NAME}")
        return Asked(Kind.SHARE, topic_filter, group.decode())
    if first == b"$queue":
        name, slash, topic_filter = rest.partition(b"/")
        if not name or b"+" in name or b"#" in name or len(name) > NAME_BYTES_MAX or (slash and not topic_filter):
            raise InvalidName(f"a queue is $queue/<name> or $queue/<name>/<filter>; the name {NAME}")
        return Asked(Kind.QUEUE, topic_filter, name.decode())
    if first == b"$stream":
        offset = b""
        if rest.startswith(b"@"):
            offset, _, rest = rest[1:].partition(b"/")
        if not rest:
            raise InvalidName("a stream is $stream/<filter> or $stream/@<offset>/<filter>")
        return Asked(Kind.STREAM, rest, offset=offset.decode())
    if first == b"$SYS":
        return Asked(Kind.SYS, text)
    return Asked(Kind.PLAIN, text)
