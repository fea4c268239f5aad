"""A topic's name in each protocol: one reversible spelling each of the canonical (MQTT) one.

Kafka        `/` becomes `.`, a literal `.` `_.`; `_` stays where what follows keeps it readable and is doubled where not;
             any other byte is `_xHH`. Over 249 characters: the first 200, `_h` and a hash.
AMQP         each level is a word, words joined by `.`; a literal `.` is `%2E`. Bytes that MQTT cannot write inside a level
             (`/`, `+`, `#`, NUL, what is not UTF-8) stand as they are in AMQP and as `%XX` in the canonical name.
             Over 255 bytes, or where no key says it: cut, `_h` and a hash.

What reads like an escape but is meant literally gets one more `25` behind its `%` (`%2E` → `%252E` → `%25252E`), so that
both directions are one to one. A name that no spelling yields (`a__b` in Kafka) is a topic of its own, whose canonical
name is that text; the registry keeps its exact spelling as an alias and refuses a clash.
"""

from __future__ import annotations

import re
from base64 import b32encode
from hashlib import blake2b

KAFKA_CHARACTERS_MAX = 249
AMQP_BYTES_MAX = 255
CUT_BYTES = 200

_KAFKA_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-")
_UNDERSCORE_STAYS = _KAFKA_PLAIN - frozenset(b"x")
_KAFKA_TOKEN = re.compile(rb"_x([0-9A-F]{2})|_([._])|(.)", re.DOTALL)
_CANONICAL_ESCAPE = re.compile(rb"%((?:25)*)(2F|2B|23|00|[89A-F][0-9A-F])")
_AMQP_ESCAPE = re.compile(rb"%((?:25)*)2E")


def levels_of(topic: bytes) -> list[bytes]:
    return topic.split(b"/")


def hashed(spelling: bytes, topic: bytes) -> bytes:
    """A name too long for its protocol: cut at a character, and told apart by a hash of the canonical name."""
    cut = spelling[:CUT_BYTES].decode("utf-8", "ignore").encode()
    digest = b32encode(blake2b(topic, digest_size=16).digest()).rstrip(b"=").lower()
    return cut + b"_h" + digest


# -- Kafka --------------------------------------------------------------------------------------------------------------


def to_kafka(topic: bytes) -> str:
    """The codec's spelling; a declared topic may have an alias instead (`Topic.kafka_alias`)."""
    out = bytearray()
    for at, byte in enumerate(topic):
        if byte in _KAFKA_PLAIN:
            out.append(byte)
        elif byte == 0x2F:
            out += b"."
        elif byte == 0x2E:
            out += b"_."
        elif byte == 0x5F:
            out += b"_" if at + 1 < len(topic) and topic[at + 1] in _UNDERSCORE_STAYS else b"__"
        else:
            out += b"_x%02X" % byte
    if out in (b".", b".."):
        out = out.replace(b".", b"_x2F")
    if len(out) > KAFKA_CHARACTERS_MAX:
        return hashed(bytes(out), topic).decode()
    return out.decode()


def from_kafka(name: str) -> bytes:
    """The canonical name; the text itself where the codec never yields this name."""
    raw = name.encode()
    topic = b"".join(_kafka_token(found) for found in _KAFKA_TOKEN.finditer(raw))
    return topic if to_kafka(topic) == name else raw


def _kafka_token(found: re.Match[bytes]) -> bytes:
    escaped, doubled, plain = found.groups()
    if escaped is not None:
        return bytes([int(escaped, 16)])
    if doubled is not None:
        return doubled
    return b"/" if plain == b"." else plain


# -- AMQP ---------------------------------------------------------------------------------------------------------------


def level_of_amqp(word: bytes) -> bytes:
    """One word of a routing key as a canonical level."""
    literal = _AMQP_ESCAPE.sub(lambda found: b"." if not found[1] else b"%" + found[1][2:] + b"2E", word)
    kept = _CANONICAL_ESCAPE.sub(rb"%25\1\2", literal)
    escaped = kept.replace(b"/", b"%2F").replace(b"+", b"%2B").replace(b"#", b"%23").replace(b"\0", b"%00")
    return _escape_invalid(escaped)


def word_of_level(level: bytes) -> bytes:
    """The inverse of `level_of_amqp`, for every level that it yields."""
    literal = _CANONICAL_ESCAPE.sub(_unescape_canonical, level)
    return _AMQP_ESCAPE.sub(rb"%25\g<1>2E", literal).replace(b".", b"%2E")


def topic_of_amqp(key: bytes) -> bytes:
    """Every word of a routing key is one level."""
    return b"/".join(level_of_amqp(word) for word in key.split(b"."))


def amqp_of_topic(topic: bytes) -> bytes:
    """The routing key under which AMQP sees the topic."""
    key = b".".join(word_of_level(level) for level in levels_of(topic))
    if len(key) > AMQP_BYTES_MAX or topic_of_amqp(key) != topic:
        return hashed(key, topic)
    return key


def _unescape_canonical(found: re.Match[bytes]) -> bytes:
    if found[1]:
        return b"%" + found[1][2:] + found[2]
    return bytes([int(found[2], 16)])


def _escape_invalid(level: bytes) -> bytes:
    """What is not UTF-8, byte by byte as %XX."""
    try:
        level.decode()
    except UnicodeDecodeError:
        text = level.decode("utf-8", "surrogateescape")
        parts = (b"%%%02X" % (ord(c) - 0xDC00) if "\udc80" <= c <= "\udcff" else c.encode() for c in text)
        return b"".join(parts)
    return level
