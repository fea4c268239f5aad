"""Kafka messages ⇄ bytes: straight-line functions, made from `schema` for each (message, version) on first use.

    request   i32 size · i16 api key · i16 version · i32 correlation · i16-prefixed client id or -1 · [tags] · body
    response  i32 size · i32 correlation · [tags] · body

Tags are there in flexible versions only; the response of ApiVersions never has them in its header. A message is an
object with one slot per field, of whatever version. Decoding never copies records (they are slices of the buffer),
never allocates for a length that the remaining bytes cannot hold, and skips tagged fields it does not know.
Encoding appends buffers to a list: records go to the socket as they came from the log.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import Any

from mainstem.model.errors import PeerViolation
from mainstem.protocols.kafka.generator import decode_source, encode_source, message_source
from mainstem.protocols.kafka.schema import APIS, BY_NAME, Api, Shape

Buffer = bytes | bytearray | memoryview
Decode = Callable[[memoryview, int, int], tuple[Any, int]]
Encode = Callable[[Any, list[Buffer]], None]

ITEMS_MAX = 1_000_000  # of one array; the request size bounds them further
REQUEST_ITEMS_MAX = 100_000  # of all arrays of a request: it is decoded, and answered, by the loop
_VARINT_SHIFT_MAX = 28

HEADER = struct.Struct(">hhih")
SIZE_AND_CORRELATION = struct.Struct(">ii")


def malformed(why: str) -> PeerViolation:
    return PeerViolation(f"malformed request: {why}")


def read_varint(buffer: memoryview, at: int, value: int) -> tuple[int, int]:
    """Goes on after a first byte with its high bit set."""
    value &= 0x7F
    shift = 7
    while True:
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > _VARINT_SHIFT_MAX:
            raise malformed("a varint longer than 5 bytes")


def skip_tags(buffer: memoryview, at: int, end: int) -> int:
    count = buffer[at]
    at += 1
    if count > 0x7F:
        count, at = read_varint(buffer, at, count)
    for _ in range(count):
        at, _, size = tag_head(buffer, at, end)
        at += size
    return at


def tag_head(buffer: memoryview, at: int, end: int) -> tuple[int, int, int]:
    """Position of the content, tag, size."""
    tag = buffer[at]
    at += 1
    if tag > 0x7F:
        tag, at = read_varint(buffer, at, tag)
    size = buffer[at]
    at += 1
    if size > 0x7F:
        size, at = read_varint(buffer, at, size)
    if size > end - at:
        raise malformed(f"a tagged field of {size} bytes where {end - at} remain")
    return at, tag, size


def varint(value: int) -> bytes:
    if value < 0x80:
        return VARINTS[value]
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


VARINTS = [bytes((n,)) for n in range(0x80)]


def size_of(parts: list[Buffer]) -> int:
    return sum(map(len, parts))


class _Absent:
    """The default of an array argument: each message gets a list of its own."""


ABSENT: Any = _Absent()
_MESSAGES: dict[str, type[Any]] = {}
_DECODERS: dict[tuple[str, int], Decode] = {}
_ENCODERS: dict[tuple[str, int], Encode] = {}


def shape_of(name: str) -> tuple[Api, Shape]:
    if name.endswith("Request"):
        api = BY_NAME[name[:-7]]
        return api, api.request
    api = BY_NAME[name.removesuffix("Response")]
    return api, api.response


def message(name: str) -> type[Any]:
    """The class of `FetchRequest`, `FetchResponse`, ...; its structs are attributes of it."""
    known = _MESSAGES.get(name)
    if known is None:
        space: dict[str, Any] = {"ABSENT": ABSENT, "__name__": __name__}
        exec(message_source(shape_of(name)[1]), space)  # our own table, no input from outside
        known = _MESSAGES[name] = space[name]
    return known


def decoder(name: str, version: int) -> Decode:
    known = _DECODERS.get((name, version))
    if known is None:
        api, shape = shape_of(name)
        known = _DECODERS[name, version] = _compile(
            name, shape, decode_source(shape, version, flexible=api.is_flexible(version)), "decode"
        )
    return known


def encoder(name: str, version: int) -> Encode:
    known = _ENCODERS.get((name, version))
    if known is None:
        api, shape = shape_of(name)
        known = _ENCODERS[name, version] = _compile(
            name, shape, encode_source(shape, version, flexible=api.is_flexible(version)), "encode"
        )
    return known


def _compile(name: str, shape: Shape, source: str, entry: str) -> Any:
    root = message(name)
    space: dict[str, Any] = {
        "Struct": struct.Struct,
        "ITEMS_MAX": ITEMS_MAX,
        "TOTAL_MAX": REQUEST_ITEMS_MAX if name.endswith("Request") else sys.maxsize,
        "VARINTS": VARINTS,
        "malformed": malformed,
        "read_varint": read_varint,
        "size_of": size_of,
        "skip_tags": skip_tags,
        "tag_head": tag_head,
        "varint": varint,
        "new": object.__new__,
        name: root,
        **{struct_name: getattr(root, struct_name) for struct_name in shape.structs},
    }
    exec(source, space)
    return space[entry]


def decode(name: str, version: int, buffer: Buffer, at: int = 0, *, rest_allowed: bool = False) -> Any:
    """One whole message; bytes missing are the peer's fault, and so are bytes left over unless they are allowed.

    A broker must allow them, as Kafka does: librdkafka asks for all topics with a length of the older form.
    """
    view = memoryview(buffer)
    end = len(view)
    try:
        value, at = decoder(name, version)(view, at, end)
    except (struct.error, IndexError, ValueError) as fault:  # ValueError: not UTF-8
        raise malformed(f"{name} v{version}: {fault}") from fault
    if at != end and not rest_allowed:
        raise malformed(f"{name} v{version}: {end - at} bytes too many")
    return value


def encode(name: str, version: int, value: Any) -> list[Buffer]:
    parts: list[Buffer] = []
    encoder(name, version)(value, parts)
    return parts


class RequestHead:
    __slots__ = ("body_at", "client_id", "correlation", "key", "version")

    def __init__(self, key: int, version: int, correlation: int, client_id: str | None, body_at: int) -> None:
        self.key, self.version, self.correlation = key, version, correlation
        self.client_id, self.body_at = client_id, body_at


def decode_head(buffer: memoryview) -> RequestHead:
    """`buffer` is one request without its size. An unknown key has no known header: it is read as version 1."""
    end = len(buffer)
    try:
        key, version, correlation, size = HEADER.unpack_from(buffer)
        at = HEADER.size
        client_id = None
        if size >= 0:
            if size > end - at:
                raise malformed("a client id beyond the end of the request")
            client_id = str(buffer[at : at + size], "utf-8", "replace")  # it is only ever shown
            at += size
        api = APIS.get(key)
        if api is not None and api.first <= version <= api.last and version >= api.flexible:
            at = skip_tags(buffer, at, end)
    except (struct.error, IndexError, ValueError) as fault:
        raise malformed(f"header: {fault}") from fault
    return RequestHead(key, version, correlation, client_id, at)


def encode_request(name: str, version: int, value: Any, *, correlation: int, client_id: str | None) -> list[Buffer]:
    """Whole request with its size: the client's side, for tests and load."""
    api, _ = shape_of(name)
    client = b"" if client_id is None else client_id.encode()
    head = HEADER.pack(api.key, version, correlation, -1 if client_id is None else len(client)) + client
    parts: list[Buffer] = [b"", head + b"\0" if api.is_flexible(version) else head]
    encoder(name, version)(value, parts)
    parts[0] = struct.pack(">i", size_of(parts))
    return parts


def encode_response(api: Api, version: int, value: Any, correlation: int) -> list[Buffer]:
    """Whole response with its size."""
    parts: list[Buffer] = [b""]
    if version >= api.flexible and api.key != 18:
        parts.append(b"\0")
    encoder(f"{api.name}Response", version)(value, parts)
    parts[0] = SIZE_AND_CORRELATION.pack(size_of(parts) + 4, correlation)
    return parts
