"""AMQP 0-9-1 methods: their numbers and fields, to and from bytes. The hot four (publish, deliver, get-ok, ack) are in wire.

method frame payload = u16 class, u16 method, fields
s short string   S long string   F table   B u8   H u16   I u32   Q u64   t bit (up to eight share an octet)
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from mainstem.model.amqp_content import decode_table, encode_table
from mainstem.model.errors import PeerViolation
from mainstem.protocols.amqp.faults import Fault, undecodable

TABLE_BYTES_MAX = 1 << 20


class Method(NamedTuple):
    name: str
    number: int  # class << 16 | method
    fields: tuple[tuple[str, str], ...]


def _method(name: str, class_id: int, method_id: int, spec: str = "") -> Method:
    fields = tuple((field[0], field[1:]) for field in spec.split())
    return Method(name, class_id << 16 | method_id, fields)


# One line per method: a field is its type's letter and its name.
METHODS = (
    _method("connection.start", 10, 10, "Bversion_major Bversion_minor Fserver_properties Smechanisms Slocales"),
    _method("connection.start-ok", 10, 11, "Fclient_properties smechanism Sresponse slocale"),
    _method("connection.secure", 10, 20, "Schallenge"),
    _method("connection.secure-ok", 10, 21, "Sresponse"),
    _method("connection.tune", 10, 30, "Hchannel_max Iframe_max Hheartbeat"),
    _method("connection.tune-ok", 10, 31, "Hchannel_max Iframe_max Hheartbeat"),
    _method("connection.open", 10, 40, "svirtual_host sreserved1 treserved2"),
    _method("connection.open-ok", 10, 41, "sreserved1"),
    _method("connection.close", 10, 50, "Hreply_code sreply_text Hclass_id Hmethod_id"),
    _method("connection.close-ok", 10, 51),
    _method("connection.blocked", 10, 60, "sreason"),
    _method("connection.unblocked", 10, 61),
    _method("connection.update-secret", 10, 70, "Snew_secret sreason"),
    _method("connection.update-secret-ok", 10, 71),
    _method("channel.open", 20, 10, "sreserved1"),
    _method("channel.open-ok", 20, 11, "Sreserved1"),
    _method("channel.flow", 20, 20, "tactive"),
    _method("channel.flow-ok", 20, 21, "tactive"),
    _method("channel.close", 20, 40, "Hreply_code sreply_text Hclass_id Hmethod_id"),
    _method("channel.close-ok", 20, 41),
    _method(
        "exchange.declare",
        40,
        10,
        "Hreserved1 sexchange stype tpassive tdurable tauto_delete tinternal tno_wait Farguments",
    ),
    _method("exchange.declare-ok", 40, 11),
    _method("exchange.delete", 40, 20, "Hreserved1 sexchange tif_unused tno_wait"),
    _method("exchange.delete-ok", 40, 21),
    _method("exchange.bind", 40, 30, "Hreserved1 sdestination ssource srouting_key tno_wait Farguments"),
    _method("exchange.bind-ok", 40, 31),
    _method("exchange.unbind", 40, 40, "Hreserved1 sdestination ssource srouting_key tno_wait Farguments"),
    _method("exchange.unbind-ok", 40, 51),
    _method("queue.declare", 50, 10, "Hreserved1 squeue tpassive tdurable texclusive tauto_delete tno_wait Farguments"),
    _method("queue.declare-ok", 50, 11, "squeue Imessage_count Iconsumer_count"),
    _method("queue.bind", 50, 20, "Hreserved1 squeue sexchange srouting_key tno_wait Farguments"),
    _method("queue.bind-ok", 50, 21),
    _method("queue.purge", 50, 30, "Hreserved1 squeue tno_wait"),
    _method("queue.purge-ok", 50, 31, "Imessage_count"),
    _method("queue.delete", 50, 40, "Hreserved1 squeue tif_unused tif_empty tno_wait"),
    _method("queue.delete-ok", 50, 41, "Imessage_count"),
    _method("queue.unbind", 50, 50, "Hreserved1 squeue sexchange srouting_key Farguments"),
    _method("queue.unbind-ok", 50, 51),
    _method("basic.qos", 60, 10, "Iprefetch_size Hprefetch_count tglobal"),
    _method("basic.qos-ok", 60, 11),
    _method(
        "basic.consume", 60, 20, "Hreserved1 squeue sconsumer_tag tno_local tno_ack texclusive tno_wait Farguments"
    ),
    _method("basic.consume-ok", 60, 21, "sconsumer_tag"),
    _method("basic.cancel", 60, 30, "sconsumer_tag tno_wait"),
    _method("basic.cancel-ok", 60, 31, "sconsumer_tag"),
    _method("basic.publish", 60, 40, "Hreserved1 sexchange srouting_key tmandatory timmediate"),
    _method("basic.return", 60, 50, "Hreply_code sreply_text sexchange srouting_key"),
    _method("basic.deliver", 60, 60, "sconsumer_tag Qdelivery_tag tredelivered sexchange srouting_key"),
    _method("basic.get", 60, 70, "Hreserved1 squeue tno_ack"),
    _method("basic.get-ok", 60, 71, "Qdelivery_tag tredelivered sexchange srouting_key Imessage_count"),
    _method("basic.get-empty", 60, 72, "sreserved1"),
    _method("basic.ack", 60, 80, "Qdelivery_tag tmultiple"),
    _method("basic.reject", 60, 90, "Qdelivery_tag trequeue"),
    _method("basic.recover-async", 60, 100, "trequeue"),
    _method("basic.recover", 60, 110, "trequeue"),
    _method("basic.recover-ok", 60, 111),
    _method("basic.nack", 60, 120, "Qdelivery_tag tmultiple trequeue"),
    _method("confirm.select", 85, 10, "tno_wait"),
    _method("confirm.select-ok", 85, 11),
    _method("tx.select", 90, 10),
    _method("tx.select-ok", 90, 11),
    _method("tx.commit", 90, 20),
    _method("tx.commit-ok", 90, 21),
    _method("tx.rollback", 90, 30),
    _method("tx.rollback-ok", 90, 31),
)
BY_NUMBER = {method.number: method for method in METHODS}
BY_NAME = {method.name: method for method in METHODS}
# What a client may say, though not always: the rest is 503. The connection's own are its state's to judge.
ASKED = (
    frozenset(
        method.number
        for method in METHODS
        if not method.name.endswith("-ok") and method.name not in ("basic.return", "basic.deliver", "basic.get-empty")
    )
    | {
        BY_NAME[name].number
        for name in ("connection.start-ok", "connection.secure-ok", "connection.tune-ok", "connection.close-ok")
    }
    | {BY_NAME[name].number for name in ("channel.flow-ok", "channel.close-ok", "basic.cancel-ok")}
)

_NUMBERS = {"B": 1, "H": 2, "I": 4, "Q": 8}


def name_of(number: int) -> str:
    method = BY_NUMBER.get(number)
    return method.name if method is not None else f"{number >> 16}.{number & 0xFFFF}"


def decode(number: int, payload: bytes) -> dict[str, Any]:
    """The fields of a method whose class and method ids are taken off `payload`."""
    method = BY_NUMBER.get(number)
    if method is None:
        raise undecodable(payload)
    if number not in ASKED:
        raise Fault(503, "unimplemented method")
    values: dict[str, Any] = {}
    at = bit = 0
    for kind, name in method.fields:
        if kind == "t":
            values[name] = bool(_octet(payload, at) >> bit & 1)
            bit += 1
            continue
        if bit:
            at, bit = at + 1, 0
        start = at
        values[name], at = _field(kind, payload, at, name_of(number))
        if kind == "F":
            values[name + "_raw"] = payload[start + 4 : at]  # types that Python does not tell apart
    if at + (bit > 0) != len(payload):
        raise undecodable(payload)
    return values


def _octet(payload: bytes, at: int) -> int:
    if at >= len(payload):
        raise undecodable(payload)
    return payload[at]


def _field(kind: str, payload: bytes, at: int, method: str) -> tuple[Any, int]:
    if kind in _NUMBERS:
        end = at + _NUMBERS[kind]
        value: Any = int.from_bytes(payload[at:end], "big")
    elif kind == "s":
        end = at + 1 + _octet(payload, at)
        try:
            value = payload[at + 1 : end].decode()
        except UnicodeDecodeError:
            raise Fault(501, "Malformed UTF-8 in shortstr") from None
    else:
        end = at + 4 + int.from_bytes(payload[at : at + 4], "big")
        if end - at > TABLE_BYTES_MAX:
            raise Fault(502, f"a field of {method} is longer than {TABLE_BYTES_MAX} bytes")
        value = payload[at + 4 : end]
    if end > len(payload):
        raise undecodable(payload)
    if kind == "F":
        try:
            value = decode_table(value)
        except (PeerViolation, IndexError) as error:
            raise Fault(502, f"{method}: {error}") from None
    return value, end


def encode(name: str, **values: Any) -> bytes:
    """A method frame's payload."""
    method = BY_NAME[name]
    out = bytearray(struct.pack(">I", method.number))
    bit = 0
    for kind, field in method.fields:
        value = values.get(field, 0 if kind in "BHIQt" else b"" if kind == "S" else {} if kind == "F" else "")
        if kind == "t":
            if not bit:
                out.append(0)
            out[-1] |= bool(value) << bit
            bit += 1
            continue
        bit = 0
        _put(out, kind, value)
    return bytes(out)


def _put(out: bytearray, kind: str, value: Any) -> None:
    if kind in _NUMBERS:
        out += value.to_bytes(_NUMBERS[kind], "big")
    elif kind == "F":
        out += encode_table(value)
    else:
        raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)
        if kind == "s":
            raw = raw[:255]
            out.append(len(raw))
        else:
            out += struct.pack(">I", len(raw))
        out += raw
