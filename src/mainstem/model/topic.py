"""One topic, four spellings: MQTT's is canonical; Kafka's, AMQP's and NATS's are made from it and lead back to it.

    MQTT                 Kafka                  AMQP routing key      NATS subject
    sensors/dev_1/temp   sensors.dev_1.temp     sensors.dev_1.temp    sensors.dev_1.temp
    10.0.0.1/x           10_.0_.0_.1.x          10%2E0%2E0%2E1.x      10%2E0%2E0%2E1.x
    /a//b                .a..b                  .a..b                 %.a.%.b
    a b/c                a_x20b.c               a b.c                 a%20b.c

A topic is a list of levels; a level is any text. MQTT joins levels by `/` and writes `/ + #`, U+0000 and bytes that are not
UTF-8 as `%XX`. AMQP joins them by `.` and writes `.` as `%2E`. NATS joins them by `.` too, writes `.` and white space as
`%XX`, an empty level as `%`, and the levels `*` and `>` as `%2A` and `%3E`. All write `%25` for a `%` that would else read
as an escape. Kafka has few characters, so its codec works on the whole MQTT spelling: `/` is `.`, `.` is `_.`, `_` is `_`
or, where it would else read as an escape, `__`, and any other byte `_xHH`.

Some names no codec ever writes: `a__b` in Kafka, `%C3%A9` in MQTT. Such a name stands for the text as it is, and that text
is spelled so. (Then the text that is spelled like the codec's answer for it must give way, and so on: `_Codec` follows
that chain, as in the proof of the Schröder-Bernstein theorem.) So every name of every protocol is exactly one topic
and every topic has exactly one name in each: nothing is merged, and nothing need be refused or remembered.

Only names that are too long for a protocol need memory: they are cut to 200 bytes plus a hash of the topic, and
`cut_names.py` knows what the hash stands for. (A name that only looks like a cut one is cut too, so that a cut name never
stands for anything else.)
"""

from __future__ import annotations

import re
from collections.abc import Callable

from mainstem.model.cut_names import CUT_NAMES, is_cut
from mainstem.model.errors import InvalidName
from mainstem.model.topic_filter import escape_level

KAFKA_BYTES_MAX = 249
AMQP_BYTES_MAX = 255

_KAFKA_LEGAL = re.compile(rb"[A-Za-z0-9._-]+")
_AMQP_PLAIN = re.compile(rb"[A-Za-z0-9._:$ -]*")
_MQTT_PLAIN = re.compile(rb"[A-Za-z0-9/_:$ -]*")
_NATS_PLAIN = re.compile(rb"[A-Za-z0-9_:$-]+(?:[/.][A-Za-z0-9_:$-]+)*")


def kafka_name(topic: bytes) -> str:
    """The topic's name in Kafka; of one that is too long, a cut name with a hash."""
    return _kafka_bytes(topic).decode("ascii")


def _kafka_bytes(topic: bytes) -> bytes:
    return _within(_KAFKA.spell(topic), KAFKA_BYTES_MAX, topic)


def topic_of_kafka(name: str) -> bytes:
    """The topic that a Kafka name stands for."""
    spelled = name.encode(errors="replace")
    if not is_kafka_name(spelled):
        raise InvalidName(
            f"{name[:60]!r} cannot be a Kafka topic: 1 to {KAFKA_BYTES_MAX} characters of A-Z a-z 0-9 . _ -, not '.' or '..'"
        )
    return CUT_NAMES.topic_of(spelled, _kafka_bytes) if is_cut(spelled) else _KAFKA.read(spelled)


def is_kafka_name(name: bytes) -> bool:
    return len(name) <= KAFKA_BYTES_MAX and name not in (b".", b"..") and bool(_KAFKA_LEGAL.fullmatch(name))


def amqp_key(topic: bytes) -> bytes:
    """The topic as a routing key; of one that is too long, a cut key with a hash."""
    if _MQTT_PLAIN.fullmatch(topic):
        key = topic.replace(b"/", b".")
    else:
        key = b".".join(_AMQP.spell(_MQTT.read(level)) for level in topic.split(b"/"))
    return _within(key, AMQP_BYTES_MAX, topic)


def topic_of_amqp(key: bytes) -> bytes:
    """The topic that a routing key stands for. The empty key is the exchange's own topic: that the caller must know."""
    if is_cut(key):
        return CUT_NAMES.topic_of(key, amqp_key)
    if _AMQP_PLAIN.fullmatch(key):
        return key.replace(b".", b"/")
    return b"/".join(_MQTT.spell(_AMQP.read(word)) for word in key.split(b"."))


def filter_of_amqp(pattern: bytes) -> bytes:
    """A binding pattern of a topic exchange as a filter: `*` is one word, `#` any number, all else literal."""
    if is_cut(pattern):
        return b"/".join(map(escape_level, CUT_NAMES.topic_of(pattern, amqp_key).split(b"/")))
    levels = []
    for word in pattern.split(b"."):
        if word == b"*":
            levels.append(b"+")
        elif word == b"#":
            levels.append(b"#")
        else:
            levels.append(escape_level(_MQTT.spell(_AMQP.read(word))))
    return b"/".join(levels)


def nats_subject(topic: bytes) -> bytes:
    """The topic as a NATS subject."""
    if _NATS_PLAIN.fullmatch(topic) and b"." not in topic:
        return topic.replace(b"/", b".")
    return b".".join(_NATS.spell(_MQTT.read(level)) for level in topic.split(b"/"))


def topic_of_nats(subject: bytes) -> bytes:
    """The topic that a subject stands for. InvalidName where it has an empty token: NATS delivers that to nobody."""
    if _NATS_PLAIN.fullmatch(subject) and b"/" not in subject:
        return subject.replace(b".", b"/")
    return b"/".join(_MQTT.spell(_NATS.read(token)) for token in _tokens(subject))


def filter_of_nats(subject: bytes) -> bytes:
    """A subscription's subject as a filter: `*` is one token, `>` at the end one or more, all else literal."""
    tokens, levels = _tokens(subject), []
    for place, token in enumerate(tokens):
        if token == b"*":
            levels.append(b"+")
        elif token == b">":
            if place != len(tokens) - 1:
                raise InvalidName(f"subject {subject[:60]!r}: '>' may only be the last token")
            levels.append(b">")
        else:
            levels.append(escape_level(_MQTT.spell(_NATS.read(token))))
    return b"/".join(levels)


def _tokens(subject: bytes) -> list[bytes]:
    tokens = subject.split(b".")
    if b"" in tokens:
        raise InvalidName(f"subject {subject[:60]!r} has an empty token")
    return tokens


def spelled_level(text: bytes) -> bytes:
    """Any text as one level of a topic: the inverse of what `topic_levels` does to each."""
    return _MQTT.spell(text)


def topic_levels(topic: bytes) -> list[bytes]:
    """The levels as text: what `%XX` stands for put in its place."""
    return [_MQTT.read(level) for level in topic.split(b"/")]


class _Codec:
    """Texts to names and back, one to one, from a codec that is only one to one into the names.

    `encode` maps any text to a name that `decode` leads back. A name that `encode` never writes stands for itself as a
    text. A text is spelled as itself if walking back from it (as a name, what text is it the encoding of? that as a
    name, ...) ends at such a name, and encoded otherwise. Each step of the walk is shorter than the one before.
    """

    def __init__(
        self, encode: Callable[[bytes], bytes], decode: Callable[[bytes], bytes], is_name: Callable[[bytes], bool]
    ) -> None:
        self._encode = encode
        self._decode = decode
        self._is_name = is_name

    def spell(self, text: bytes) -> bytes:
        return text if self._stands(text) else self._encode(text)

    def read(self, name: bytes) -> bytes:
        text = self._text_of(name)
        return name if text is None or self._stands(text) else text

    def _stands(self, text: bytes) -> bool:
        while self._is_name(text):
            before = self._text_of(text)
            if before is None:
                return True
            if before == text:
                return False  # it is its own encoding: all the same
            text = before
        return False

    def _text_of(self, name: bytes) -> bytes | None:
        """What `name` is the encoding of; None if it is not an encoding."""
        text = self._decode(name)
        return text if self._encode(text) == name else None


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode(errors="surrogateescape"))


def _unpercent(match: re.Match[bytes]) -> bytes:
    return bytes([int(match[1], 16)])


_MQTT_ESCAPE = re.compile(rb"%(00|23|25|2B|2F|[89A-F][0-9A-F])")
_MQTT_ESCAPED = re.compile("[/+#\0\udc80-\udcff]|%(?=00|23|25|2B|2F|[89A-F][0-9A-F])")
_AMQP_ESCAPE = re.compile(rb"%(25|2E)")
_AMQP_ESCAPED = re.compile(rb"\.|%(?=25|2E)")
_KAFKA_ESCAPE = re.compile(rb"_(?:x([0-9A-F]{2})|([._])|(?=[A-Za-wyz0-9-]))|\.")
_KAFKA_ESCAPED = re.compile(rb"_(?![A-Za-wyz0-9-])|[^A-Za-z0-9_-]")


def _mqtt_encode(text: bytes) -> bytes:
    return _MQTT_ESCAPED.sub(_percent, text.decode(errors="surrogateescape")).encode()


def _mqtt_decode(name: bytes) -> bytes:
    return _MQTT_ESCAPE.sub(_unpercent, name)


def _is_mqtt_level(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return not any(wildcard in text for wildcard in (b"/", b"+", b"#", b"\0"))


def _amqp_encode(text: bytes) -> bytes:
    return _AMQP_ESCAPED.sub(lambda match: b"%%%02X" % match[0][0], text)


def _amqp_decode(name: bytes) -> bytes:
    return _AMQP_ESCAPE.sub(_unpercent, name)


def _kafka_encode(topic: bytes) -> bytes:
    if topic in (b"/", b"//"):  # would be `.` and `..`, which Kafka refuses
        return b"_x2F" * len(topic)
    return _KAFKA_ESCAPED.sub(lambda match: _KAFKA_BYTES[match[0][0]], topic)


_KAFKA_BYTES = [b"_x%02X" % byte for byte in range(256)]
_KAFKA_BYTES[ord("/")] = b"."
_KAFKA_BYTES[ord(".")] = b"_."
_KAFKA_BYTES[ord("_")] = b"__"


def _kafka_decode(name: bytes) -> bytes:
    def decoded(match: re.Match[bytes]) -> bytes:
        if match[1]:
            return bytes([int(match[1], 16)])
        return match[2] or (b"/" if match[0] == b"." else b"_")

    text = _KAFKA_ESCAPE.sub(decoded, name)
    # What no topic can contain is not an encoding of one: answer what surely does not encode to this name.
    return text if all(_is_mqtt_level(level) for level in text.split(b"/")) else name + b"/"


def _is_kafka_text(text: bytes) -> bool:
    return bool(_KAFKA_LEGAL.fullmatch(text)) and text not in (b".", b"..")


_NATS_ESCAPE = re.compile(rb"%(00|09|0A|0C|0D|20|25|2A|2E|3E)")
_NATS_ESCAPED = re.compile(rb"[\0\t\n\f\r .]|%(?=00|09|0A|0C|0D|20|25|2A|2E|3E)")
_NATS_WHOLE = {b"": b"%", b"%": b"%25", b"*": b"%2A", b">": b"%3E"}


def _nats_encode(text: bytes) -> bytes:
    return _NATS_WHOLE.get(text) or _NATS_ESCAPED.sub(lambda match: b"%%%02X" % match[0][0], text)


def _nats_decode(name: bytes) -> bytes:
    return b"" if name == b"%" else _NATS_ESCAPE.sub(_unpercent, name)


def _is_nats_token(text: bytes) -> bool:
    return text not in _NATS_WHOLE and not re.search(rb"[\0\t\n\f\r .]", text)


_MQTT = _Codec(_mqtt_encode, _mqtt_decode, _is_mqtt_level)
_AMQP = _Codec(_amqp_encode, _amqp_decode, lambda text: b"." not in text)
_NATS = _Codec(_nats_encode, _nats_decode, _is_nats_token)
_KAFKA = _Codec(_kafka_encode, _kafka_decode, _is_kafka_text)


def _within(name: bytes, bytes_max: int, topic: bytes) -> bytes:
    return name if len(name) <= bytes_max and not is_cut(name) else CUT_NAMES.cut(name, topic)
