"""An AMQP content header's properties as bytes: taken apart and put together without changing what is not touched.

    properties = u16 flags (bit 15 first property … bit 2 fourteenth), the present ones in that order
    table      = u32 length, then per entry: u8 name length, name, a type octet, the value

Values stay as they were sent, type octet included, so that a header nobody touches comes out byte for byte.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from mainstem.model.errors import PeerViolation

NAMES = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
_FIXED = {"delivery_mode": 1, "priority": 1, "timestamp": 8}
_SIZES = {
    **dict.fromkeys(b"tbB", 1),
    **dict.fromkeys(b"sUu", 2),
    **dict.fromkeys(b"Iif", 4),
    **dict.fromkeys(b"lLdT", 8),
    ord("D"): 5,
    ord("V"): 0,
}
_LONG = b"SxAF"
NESTING_MAX = 64

Value = None | bool | int | float | str | bytes | list["Value"] | dict[str, "Value"]


@dataclass(slots=True)
class Content:
    """Properties by name, each in its encoded form, and the headers table as (name, type octet + value) pairs."""

    fields: dict[str, bytes] = field(default_factory=dict)
    headers: list[tuple[str, bytes]] = field(default_factory=list)

    @classmethod
    def parse(cls, data: bytes) -> Content:
        if len(data) < 2:
            return cls()
        flags, at = int.from_bytes(data[:2], "big"), 2
        content = cls()
        for index, name in enumerate(NAMES):
            if not flags & 1 << (15 - index):
                continue
            if name == "headers":
                end = at + 4 + int.from_bytes(data[at : at + 4], "big")
                content.headers = split_table(data[at + 4 : end])
                content.fields[name] = b""
            else:
                end = at + (_FIXED.get(name) or 1 + _byte(data, at))
                content.fields[name] = data[at:end]
            if end > len(data):
                raise PeerViolation(f"property {name} is longer than its content header")
            at = end
        return content

    def encode(self) -> bytes:
        flags, parts = 0, [b""]
        if self.headers:
            self.fields.setdefault("headers", b"")
        for index, name in enumerate(NAMES):
            value = self.fields.get(name)
            if value is None:
                continue
            flags |= 1 << (15 - index)
            parts.append(join_table(self.headers) if name == "headers" else value)
        parts[0] = flags.to_bytes(2, "big")
        return b"".join(parts) if flags else b""

    def text(self, name: str) -> str | None:
        """A short-string property."""
        value = self.fields.get(name)
        return None if value is None else value[1:].decode("utf-8", "surrogateescape")

    def set_text(self, name: str, text: str) -> None:
        raw = text.encode("utf-8", "surrogateescape")[:255]
        self.fields[name] = bytes((len(raw),)) + raw

    def number(self, name: str) -> int | None:
        value = self.fields.get(name)
        return None if value is None else int.from_bytes(value, "big")

    def header(self, name: str) -> bytes | None:
        """The encoded value of a header: type octet first."""
        return next((value for key, value in self.headers if key == name), None)

    def header_value(self, name: str) -> Value:
        raw = self.header(name)
        return None if raw is None else decode_value(raw)[0]

    def set_header(self, name: str, value: Value) -> None:
        self.remove_header(name)
        self.headers.append((name, encode_value(value)))

    def remove_header(self, name: str) -> None:
        self.headers = [pair for pair in self.headers if pair[0] != name]


def _byte(data: bytes, at: int) -> int:
    if at >= len(data):
        raise PeerViolation("a content header ends inside its properties")
    return data[at]


def split_table(data: bytes) -> list[tuple[str, bytes]]:
    """The entries of a table (its length taken off), values as sent."""
    pairs, at = [], 0
    while at < len(data):
        name_end = at + 1 + data[at]
        end = value_end(data, name_end, 0)
        pairs.append((data[at + 1 : name_end].decode("utf-8", "surrogateescape"), data[name_end:end]))
        at = end
    return pairs


def join_table(pairs: list[tuple[str, bytes]]) -> bytes:
    parts: list[bytes] = []
    for name, value in pairs:
        raw = name.encode("utf-8", "surrogateescape")[:255]
        parts += (bytes((len(raw),)), raw, value)
    body = b"".join(parts)
    return len(body).to_bytes(4, "big") + body


def value_end(data: bytes, at: int, depth: int) -> int:
    """Where the value whose type octet is at `at` ends; checks all it contains."""
    kind = _byte(data, at)
    if kind in _SIZES:
        end = at + 1 + _SIZES[kind]
    elif kind in _LONG:
        end = at + 5 + int.from_bytes(data[at + 1 : at + 5], "big")
        if end <= len(data):
            _check_nested(data[at + 5 : end], kind, depth)
    else:
        raise PeerViolation(f"a table has a value of unknown type {chr(kind)!r}")
    if end > len(data):
        raise PeerViolation("a table ends inside a value")
    return end


def _check_nested(inside: bytes, kind: int, depth: int) -> None:
    if kind not in b"AF":
        return
    if depth >= NESTING_MAX:
        raise PeerViolation(f"a table is nested deeper than {NESTING_MAX}")
    at = 0
    while at < len(inside):
        if kind == ord("F"):
            at += 1 + inside[at]
        at = value_end(inside, at, depth + 1)


def decode_value(data: bytes, at: int = 0) -> tuple[Value, int]:
    """A value for reading only: types that Python does not tell apart are not kept. Returns it and where it ends."""
    kind, start = chr(data[at]), at + 1
    end = value_end(data, at, 0)
    raw = data[start:end]
    if kind in "bBsuUIilLT":
        return int.from_bytes(raw, "big", signed=kind not in "BuiT"), end
    if kind == "t":
        return raw != b"\0", end
    if kind == "f" or kind == "d":
        return struct.unpack(">f" if kind == "f" else ">d", raw)[0], end
    if kind == "D":
        return float(int.from_bytes(raw[1:], "big", signed=True) / 10 ** raw[0]), end
    if kind == "S":
        try:
            return raw[4:].decode(), end
        except UnicodeDecodeError:
            return raw[4:], end
    if kind == "x":
        return raw[4:], end
    if kind == "F":
        return {name: decode_value(value)[0] for name, value in split_table(raw[4:])}, end
    if kind == "A":
        return _decode_array(raw[4:]), end
    return None, end


def _decode_array(data: bytes) -> list[Value]:
    values, at = [], 0
    while at < len(data):
        value, at = decode_value(data, at)
        values.append(value)
    return values


def decode_table(data: bytes) -> dict[str, Value]:
    """A table with its length taken off."""
    return {name: decode_value(value)[0] for name, value in split_table(data)}


def encode_table(table: dict[str, Value]) -> bytes:
    return join_table([(name, encode_value(value)) for name, value in table.items()])


def encode_value(value: Value) -> bytes:
    """As RabbitMQ would write it: long strings, 64-bit integers, doubles."""
    if value is None:
        return b"V"
    if isinstance(value, bool):
        return b"t\1" if value else b"t\0"
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            return encode_value(str(value))
        return b"l" + value.to_bytes(8, "big", signed=True)
    if isinstance(value, float):
        return b"d" + struct.pack(">d", value)
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogateescape")
        return b"S" + len(raw).to_bytes(4, "big") + raw
    if isinstance(value, bytes):
        return b"x" + len(value).to_bytes(4, "big") + value
    if isinstance(value, list):
        body = b"".join(encode_value(item) for item in value)
        return b"A" + len(body).to_bytes(4, "big") + body
    return b"F" + encode_table(value)


def timestamp_value(seconds: int) -> bytes:
    return b"T" + seconds.to_bytes(8, "big")
