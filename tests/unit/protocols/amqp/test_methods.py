"""Control methods: our table against pamqp's classes."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from mainstem.protocols.amqp.faults import Fault
from mainstem.protocols.amqp.methods import ASKED, METHODS, Method, decode, encode, name_of

_VALUES: dict[str, Any] = {"B": 3, "H": 513, "I": 70_000, "Q": 1 << 40, "s": "name", "S": b"long", "t": True}
_TABLE = {"a": 1, "b": "text", "c": [True, None], "d": {"e": b"\x00\xff"}}


def _values(method: Method) -> dict[str, Any]:
    """Every field filled; reserved ones as the specification wants them."""
    values = {}
    for kind, name in method.fields:
        if name.startswith("reserved"):
            continue
        values[name] = _TABLE if kind == "F" else _VALUES[kind]
    return values


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_every_method_has_pamqps_number_and_fields(method: Method) -> None:
    oracle = commands.INDEX_MAPPING[method.number]
    assert len(vars(oracle)["__slots__"]) == len(method.fields)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_what_we_encode_pamqp_reads(method: Method) -> None:
    values = _values(method)
    oracle = commands.INDEX_MAPPING[method.number]()
    oracle.unmarshal(encode(method.name, **values)[4:])
    for (kind, name), slot in zip(method.fields, oracle.__slots__, strict=True):
        if name in values and kind in "BHIQt":
            assert getattr(oracle, slot) == values[name]


@pytest.mark.parametrize("method", [m for m in METHODS if m.number in ASKED], ids=lambda method: method.name)
def test_what_we_encode_we_decode(method: Method) -> None:
    values = _values(method)
    decoded = decode(method.number, encode(method.name, **values)[4:])
    assert {name: decoded[name] for name in values} == values


@pytest.mark.parametrize("method", [m for m in METHODS if m.number in ASKED], ids=lambda method: method.name)
def test_a_method_cut_anywhere_is_refused_or_read_never_worse(method: Method) -> None:
    payload = encode(method.name, **_values(method))[4:]
    for end in range(len(payload)):
        with pytest.raises(Fault) as caught:
            decode(method.number, payload[:end])
        assert caught.value.code in (501, 502)


def test_what_only_a_server_says_is_refused_from_a_client() -> None:
    for name in ("basic.return", "basic.deliver", "queue.declare-ok"):
        number = next(method.number for method in METHODS if method.name == name)
        with pytest.raises(Fault, match="unimplemented method"):
            decode(number, b"")
    assert name_of(0x003C00C8) == "60.200"


def test_what_follows_the_last_field_makes_a_method_undecodable() -> None:
    payload = encode("basic.get", queue="q")[4:]
    with pytest.raises(Fault, match=r"^FRAME_ERROR - cannot decode <<0,0,1,113,0,7>>$"):
        decode(0x003C0046, payload + b"\x07")
