"""The plain Python halves are the compiled ones' oracle: any bytes, cut anywhere, bring the same."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from mainstem.model.errors import Overloaded
from mainstem.model.origin import Origin
from mainstem.model.record import Record
from mainstem.protocols.mqtt.wire.packets import encode_packet
from mainstem.protocols.mqtt.wire.properties import encode_text, encode_varint
from tests.oracles.mqtt_halves import Bench

names = st.sampled_from([b"a", b"a/b", b"known/x", b"denied", b"refused", b"$x", b"", "ü".encode(), b"\xff", b"a\0"])
values = st.sampled_from([b"", b"1", b"x" * 200, "ß".encode(), b"\xed\xa0\x80"])


def prop(identifier: int, body: bytes) -> bytes:
    return bytes((identifier,)) + body


properties = st.lists(
    st.one_of(
        st.sampled_from([b"\0", b"\1", b"\2"]).map(lambda b: prop(1, b)),
        st.binary(min_size=4, max_size=4).map(lambda b: prop(2, b)),
        values.map(lambda b: prop(3, encode_text(b))),
        st.sampled_from([b"r", b"", b"r/#", b"r/+"]).map(lambda b: prop(8, encode_text(b))),
        st.binary(max_size=5).map(lambda b: prop(9, encode_text(b))),
        st.integers(0, 10).map(lambda n: prop(35, n.to_bytes(2, "big"))),
        st.tuples(st.sampled_from([b"k", b"ms-key", b"ms-"]), values).map(
            lambda p: prop(38, encode_text(p[0]) + encode_text(p[1]))
        ),
        st.sampled_from([b"\x0b\x01", b"\x11\0\0\0\1", b"\x01", b"\xff"]),
    ),
    max_size=6,
).map(lambda parts: encode_varint(len(b"".join(parts))) + b"".join(parts))


@st.composite
def publishes(draw: st.DrawFn, version: int) -> bytes:
    qos = draw(st.sampled_from([0, 0, 1, 2, 3]))
    flags = draw(st.sampled_from([0, 8])) | qos << 1 | draw(st.sampled_from([0, 1]))
    body = encode_text(draw(names))
    if qos:
        body += draw(st.sampled_from([0, 1, 2, 3, 300, 65_535])).to_bytes(2, "big")
    if version == 5:
        body += draw(st.one_of(st.just(b"\0"), properties))
    return encode_packet(3, flags, body, draw(st.one_of(values, st.just(b"x" * 2000))))


@st.composite
def acks(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from([4, 5, 6, 7]))
    flags = draw(st.sampled_from([2, 2, 2, 0])) if kind == 6 else draw(st.sampled_from([0, 0, 0, 1]))
    body = draw(st.sampled_from([0, 1, 2, 3, 5, 300])).to_bytes(2, "big")
    return encode_packet(
        kind, flags, body, draw(st.sampled_from([b"", b"", b"\0", b"\x80", b"\0\0", b"\0\5", b"\x10\0"]))
    )


OTHERS = [
    b"\xc0\x00",
    b"\xe0\x00",
    encode_packet(8, 2, b"\0\1", encode_text(b"a/#"), b"\1"),
    encode_packet(8, 2, b"\0\1\0", encode_text(b"a/#"), b"\1"),
    encode_packet(10, 2, b"\0\1\0", encode_text(b"a/#")),
    b"\x30\x80\x00",
    b"\x00\x00",
    b"\x30\xff\xff\xff\x7f",
]


@st.composite
def reads(draw: st.DrawFn) -> tuple[int, bool, list[bytes]]:
    version = draw(st.sampled_from([4, 5]))
    packet = st.one_of(publishes(version), publishes(version), acks(), st.sampled_from(OTHERS))
    data = b"".join(draw(st.lists(packet, max_size=12)))
    if draw(st.booleans()) and data:
        at = draw(st.integers(0, len(data) - 1))
        data = data[:at] + draw(st.binary(max_size=4)) + data[at + draw(st.integers(0, 4)) :]
    pieces = []
    while data:
        size = draw(st.sampled_from([1, 2, 3, 10, 100, 100_000]))
        pieces.append(data[:size])
        data = data[size:]
    return version, draw(st.booleans()), pieces


# A PUBREL of which nothing is known waits behind a publish that cannot be written, and no QoS 2 publish ever came.
UNKNOWN_RELEASE = encode_packet(3, 2, encode_text(b"a"), b"\0\1", b"x") + encode_packet(6, 2, b"\0\7")


@settings(max_examples=600, deadline=None)
@given(reads(), st.booleans())
@example((4, True, [UNKNOWN_RELEASE]), True)
@example((4, False, [UNKNOWN_RELEASE]), True)
@example((5, True, [UNKNOWN_RELEASE]), True)
def test_whatever_comes_in(read: tuple[int, bool, list[bytes]], fails: bool) -> None:
    version, durable, pieces = read
    plain, compiled = (Bench(way, version=version, durable=durable) for way in ("plain", "compiled"))
    assert plain.feed(pieces) == compiled.feed(pieces)
    error = Overloaded("full") if fails else None
    assert plain.settle(error) == compiled.settle(error)
    assert plain.state() == compiled.state()


records = st.builds(
    Record,
    value=st.sampled_from([None, b"", b"hello", b"x" * 300]),
    headers=st.sampled_from(
        [
            [],
            [(b"ms-mqtt", b"\x02\0\0\0\x0a")],
            [(b"ms-mqtt", b"\x01\1\x26\0\1k\0\1v\x02\0\0\0\x03")],
            [(b"ms-client", b"me")],
            [(b"ms-client", b"you"), (b"ms-mqtt", b"\x03\0\1t")],
        ]
    ),
    flags=st.sampled_from([8, 9, 10, 12, 13]),
    offset=st.integers(0, 1000),
    stamp=st.integers(1, 10).map(lambda n: n * 1_000_000_000),
    origin=st.sampled_from([Origin.MQTT, Origin.MQTT, Origin.KAFKA]),
    topic=st.sampled_from([b"a", b"a/long/topic", b"another/topic"]),
)
grants = st.fixed_dictionaries(
    {
        "qos": st.integers(0, 2),
        "no_local": st.booleans(),
        "retain_as_published": st.booleans(),
        "identifiers": st.sampled_from([b"", b"\x0b\x07"]),
        "meta": st.booleans(),
    }
)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from([4, 5]),
    st.booleans(),
    st.sampled_from([0, 1, 2]),
    st.sampled_from([1, 3, 1000]),
    st.sampled_from([60, 100_000]),
    st.lists(st.one_of(st.tuples(records, st.lists(grants, min_size=1, max_size=3)), acks()), max_size=20),
)
def test_whatever_goes_out(
    version: int, durable: bool, aliases: int, window: int, packet_bytes_max: int, steps: list[object]
) -> None:
    benches = [Bench(way, version=version, durable=durable) for way in ("plain", "compiled")]
    for bench in benches:
        outbound = bench.outbound
        outbound.alias_max, outbound.window, outbound.packet_bytes_max = aliases, window, packet_bytes_max
        outbound.encoder.now_ns = 8_000_000_000
    for step in steps:
        if isinstance(step, tuple):
            record, overlapping = step
            told = [bench.push(record, *overlapping) for bench in benches]
        else:
            told = [bench.feed([step]) for bench in benches]  # type: ignore[list-item]
        assert told[0] == told[1]
    assert benches[0].state() == benches[1].state()
