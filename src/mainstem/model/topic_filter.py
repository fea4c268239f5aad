"""Topic names and topic filters: what may be one, and which topics a filter means.

A topic is its MQTT spelling in UTF-8: levels joined by `/`; a level may be empty. A filter is the same with wildcards,
each of which fills a whole level:

    + *   one level, also an empty one
    #     zero or more levels, anywhere and any number of times (`a/#` also means `a`)
    >     one or more levels, at the end only (`a/>` does not mean `a`)

A topic whose first level begins with `$` is meant by no filter whose first level is a wildcard.

Literal `*` and `>` levels are legal in MQTT topics. A filter writes them `%2A` and `%3E`, and a level that reads like
such an escape with one `25` more after its `%` (`literal_filter` does both), so that every topic can be named exactly.
"""

from __future__ import annotations

import re

from mainstem.model.errors import InvalidName

TOPIC_BYTES_MAX = 1024
LEVELS_MAX = 256
MQTT_BYTES_MAX = 65535

# What `filter_levels` puts in place of wildcards. No topic contains U+0000, so they equal no level.
ONE = b"\0+"
MANY = b"\0#"

_ONE_SPELLINGS = (b"+", b"*")
_ESCAPED_LITERAL = re.compile(rb"%(25)*(2A|3E)")


def check_topic(topic: bytes, *, bytes_max: int = TOPIC_BYTES_MAX, levels_max: int = LEVELS_MAX) -> None:
    """Raise InvalidName unless records can be published to this topic."""
    _check_name("topic", topic, bytes_max, levels_max)
    for wildcard in (b"+", b"#"):
        if wildcard in topic:
            raise InvalidName(f"topic {_shown(topic)} contains the wildcard {wildcard.decode()!r}; only filters may")


def check_filter(topic_filter: bytes, *, bytes_max: int = TOPIC_BYTES_MAX, levels_max: int = LEVELS_MAX) -> None:
    """Raise InvalidName unless this is a filter as drawn above."""
    _check_name("filter", topic_filter, bytes_max, levels_max)
    levels = topic_filter.split(b"/")
    for level in levels:
        if len(level) > 1 and (b"+" in level or b"#" in level):
            raise InvalidName(f"filter {_shown(topic_filter)}: '+' and '#' must fill a whole level")
    if b">" in levels[:-1]:
        raise InvalidName(f"filter {_shown(topic_filter)}: '>' may only be the last level; write '#' in the middle")


def matches(topic_filter: bytes, topic: bytes) -> bool:
    """Whether the filter means the topic. One pair; for many at once there are the tries.

    At most levels × levels steps: only the last `#` is ever retried, because an earlier one could not do better.
    """
    wanted, levels = topic_filter.split(b"/"), topic.split(b"/")
    if wanted[-1] == b">":
        wanted[-1:] = [b"+", b"#"]
    if levels[0].startswith(b"$") and wanted[0] in (b"+", b"*", b"#"):
        return False
    w = t = 0
    retry_w = retry_t = -1
    while t < len(levels):
        if w < len(wanted) and wanted[w] == b"#":
            retry_w, retry_t = w, t
            w += 1
        elif w < len(wanted) and (wanted[w] in _ONE_SPELLINGS or unescape_level(wanted[w]) == levels[t]):
            w, t = w + 1, t + 1
        elif retry_w >= 0:
            retry_t += 1
            w, t = retry_w + 1, retry_t
        else:
            return False
    return all(level == b"#" for level in wanted[w:])


def is_pattern(topic_filter: bytes) -> bool:
    """Whether the filter has wildcards, that is, may mean more than one topic."""
    levels = topic_filter.split(b"/")
    return any(level in (b"+", b"*", b"#") for level in levels) or levels[-1] == b">"


def filter_levels(topic_filter: bytes) -> list[bytes]:
    """The filter as the tries keep it: one spelling for filters that mean the same.

    `>` becomes `+/#`, and in a run of wildcards the `+` come first and one `#` stays: `#/#/+/#` is `+/#`. That bounds
    the work of runs of wildcards, which else grows with every way to share out the levels among them.
    """
    spelled = topic_filter.split(b"/")
    if spelled[-1] == b">":
        spelled[-1:] = [b"+", b"#"]
    levels: list[bytes] = []
    many = False
    for level in spelled:
        if level == b"#":
            many = True
        elif level in _ONE_SPELLINGS:
            levels.append(ONE)
        else:
            if many:
                levels.append(MANY)
                many = False
            levels.append(unescape_level(level))
    if many:
        levels.append(MANY)
    return levels


def covers(outer: list[bytes], inner: list[bytes]) -> bool:
    """Whether everything `inner` (levels of a filter or of a topic) can mean, `outer` means too.

    Inner wildcards are symbols that only wildcards at least as wide can stand for, so yes is always true; a no may be
    too careful where several rules would cover the filter only together.
    """
    if outer[0] in (ONE, MANY) and inner[0].startswith(b"$"):
        return False
    reachable = {0}  # positions in inner that outer's levels so far can end at
    for level in outer:
        if level == MANY:
            reachable = set(range(min(reachable), len(inner) + 1))
        elif level == ONE:
            reachable = {at + 1 for at in reachable if at < len(inner) and inner[at] != MANY}
        else:
            reachable = {at + 1 for at in reachable if at < len(inner) and inner[at] == level}
        if not reachable:
            return False
    return len(inner) in reachable


def overlap(one: list[bytes], other: list[bytes]) -> bool:
    """Whether two filters, as levels, can mean the same topic. At most levels × levels steps.

    No is always true; a yes may be too careful where a `#` before a `$` level would have to mean no level at all.
    """
    first = [levels[0] for levels in (one, other)]
    if any(level in (ONE, MANY) for level in first) and any(level.startswith(b"$") for level in first):
        return False
    reachable = {0}  # positions in other that the levels of one so far can end at
    for level in one:
        reachable = _skip_many(other, reachable)
        if level == MANY:
            reachable = set(range(min(reachable), len(other) + 1))
        else:
            stays = {at for at in reachable if at < len(other) and other[at] == MANY}
            moves = {
                at + 1
                for at in reachable
                if at < len(other) and (level == ONE or other[at] in (ONE, level)) and other[at] != MANY
            }
            reachable = stays | moves
        if not reachable:
            return False
    return len(other) in _skip_many(other, reachable)


def _skip_many(levels: list[bytes], positions: set[int]) -> set[int]:
    """A `#` may mean no level at all. (No two stand side by side.)"""
    return positions | {at + 1 for at in positions if at < len(levels) and levels[at] == MANY}


def literal_filter(topic_filter: bytes) -> bytes:
    """An MQTT filter or a topic as our filter: only `+` and `#` stay wildcards, `*` and `>` become literal levels."""
    if b"*" not in topic_filter and b">" not in topic_filter and b"%" not in topic_filter:
        return topic_filter
    return b"/".join(escape_level(level) for level in topic_filter.split(b"/"))


def unescape_level(level: bytes) -> bytes:
    if not level.startswith(b"%") or not _ESCAPED_LITERAL.fullmatch(level):
        return level
    if level == b"%2A":
        return b"*"
    if level == b"%3E":
        return b">"
    return b"%" + level[3:]


def escape_level(level: bytes) -> bytes:
    if level == b"*":
        return b"%2A"
    if level == b">":
        return b"%3E"
    if _ESCAPED_LITERAL.fullmatch(level):
        return b"%25" + level[1:]
    return level


def _check_name(kind: str, name: bytes, bytes_max: int, levels_max: int) -> None:
    if not name:
        raise InvalidName(f"a {kind} must have at least one character")
    if len(name) > min(bytes_max, MQTT_BYTES_MAX):
        raise InvalidName(f"{kind} of {len(name)} bytes ({_shown(name)}), limit {min(bytes_max, MQTT_BYTES_MAX)}")
    if name.count(b"/") >= levels_max:
        raise InvalidName(f"{kind} of {name.count(b'/') + 1} levels ({_shown(name)}), limit {levels_max}")
    if b"\0" in name:
        raise InvalidName(f"{kind} {_shown(name)} contains U+0000")
    try:
        name.decode()
    except UnicodeDecodeError:
        raise InvalidName(f"{kind} {_shown(name)} is not UTF-8") from None


def _shown(name: bytes) -> str:
    """A name for an error message: readable, and short however long it is."""
    text = name.decode(errors="backslashreplace")
    return repr(text if len(text) <= 60 else text[:60] + "…")
