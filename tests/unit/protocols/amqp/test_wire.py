"""The compiled wire against the plain one: the same bytes give the same events, records and answers, cut anywhere."""

from __future__ import annotations

import itertools
import random
import struct
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.broker.delivery.live import RecordRef
from mainstem.log.gather import Ticket
from mainstem.model.amqp_content import Content, encode_value
from mainstem.model.errors import Overloaded, PeerViolation
from mainstem.protocols.amqp import wire as compiled
from mainstem.protocols.amqp.faults import Fault
from mainstem.protocols.amqp.methods import encode
from tests.oracles import amqp_wire as plain

WIRES = [plain, compiled]


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def publish(
    body: bytes, properties: bytes = b"\0\0", *, mandatory: bool = True, channel: int = 1, cut: int = 0
) -> bytes:
    """A publish that always comes out as an event: mandatory ones are looked at."""
    pieces = [body[:cut], body[cut:]] if cut else [body]
    return b"".join(
        (
            frame(1, channel, encode("basic.publish", exchange="x", routing_key="a.b", mandatory=mandatory)),
            frame(2, channel, struct.pack(">HHQ", 60, 0, len(body)) + properties),
            *(frame(3, channel, piece) for piece in pieces if piece),
        )
    )


class Ticker:
    ticks = 0

    def mark_dirty(self, connection: Any) -> None:
        pass


class Session:
    """Notes what a channel is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def confirmed(self, until: int) -> None:
        self.told.append(("confirmed", until))

    def refused(self, until: int) -> None:
        self.told.append(("refused", until))


class Holder:
    """Whoever a delivery was made for; notes its acks."""

    def __init__(self) -> None:
        self.positions: list[int] = []

    def acked(self, position: int) -> None:
        self.positions.append(position)


def opened(wire: ModuleType) -> tuple[Any, Any]:
    inbound = wire.Inbound()
    inbound.frame_max = 131_072
    inbound.targets = wire.TargetTable(
        lambda exchange, key: wire.Target(None, exchange.hex(), key.hex(), flags=8, head=b"", head_count=0, plain=False)
    )
    channel = wire.ChannelWire(1, wire.Outbound(Ticker(), lambda r: b"", lambda r: b""), Session())
    inbound.open(channel)
    return inbound, channel


def events(wire: ModuleType, pieces: list[bytes]) -> list[Any]:
    """All that comes out, faults included; the targets by name, since each wire has its own class."""
    inbound, _ = opened(wire)
    found: list[Any] = []
    for piece in pieces:
        inbound.receive(piece)
        while True:
            try:
                event = inbound.next(5)
            except Fault as fault:
                found.append((fault.code, str(fault), inbound.channel_number, inbound.method_number))
                if fault.hard:
                    return found
                continue
            if event is None:
                break
            found.append(tuple(part.key if hasattr(part, "key") and hasattr(part, "plain") else part for part in event))
    return found


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


PROPERTIES = st.builds(
    lambda texts, numbers, headers: _encoded(texts, numbers, headers),
    st.dictionaries(
        st.sampled_from(["content_type", "reply_to", "expiration", "message_id", "user_id"]), st.text(max_size=20)
    ),
    st.dictionaries(st.sampled_from(["delivery_mode", "priority"]), st.integers(0, 255)),
    st.dictionaries(
        st.sampled_from(["a", "CC", "BCC", "x-delay", "ms-key", "CCC", "m"]),
        st.one_of(st.integers(-5, 5), st.text(max_size=5), st.lists(st.text(max_size=3), max_size=2), st.none()),
    ),
)


def _encoded(texts: dict[str, str], numbers: dict[str, int], headers: dict[str, Any]) -> bytes:
    content = Content()
    for name, text in texts.items():
        content.set_text(name, text)
    for name, number in numbers.items():
        content.fields[name] = bytes((number,))
    content.headers = [(name, encode_value(value)) for name, value in headers.items()]
    return content.encode() or b"\0\0"


def nested(levels: int, inside: bytes = b"") -> bytes:
    """A content header with a table that many levels deep."""
    value = inside
    for _ in range(levels):
        entry = b"\1n" + value if value else b""
        value = b"F" + len(entry).to_bytes(4, "big") + entry
    entry = b"\1n" + value
    return b"\x20\0" + len(entry).to_bytes(4, "big") + entry


@pytest.mark.parametrize("inside", [b"", b"t\1"])
def test_tables_may_be_nested_64_levels_deep_and_no_deeper(inside: bytes) -> None:
    assert compiled.check_properties(nested(64, inside))[0]
    assert not compiled.check_properties(nested(65, inside))[0]
    assert Content.parse(nested(64, inside)).headers
    with pytest.raises(PeerViolation, match="nested deeper than 64"):
        Content.parse(nested(65, inside))


@settings(max_examples=200, deadline=None)
@given(PROPERTIES)
def test_both_say_the_same_of_properties(properties: bytes) -> None:
    assert compiled.check_properties(properties) == plain.check_properties(properties)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=40))
def test_both_say_the_same_of_rubbish_properties(properties: bytes) -> None:
    assert compiled.check_properties(properties)[0] == plain.check_properties(properties)[0]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.binary(max_size=60), PROPERTIES, st.integers(0, 60)), max_size=4),
    st.lists(st.integers(0, 5000)),
)
def test_publishes_cut_anywhere_give_the_same_events(
    messages: list[tuple[bytes, bytes, int]], places: list[int]
) -> None:
    data = b"".join(publish(body, properties, cut=at) for body, properties, at in messages)
    whole = events(plain, [data])
    assert [event[5] for event in whole] == [body for body, _, _ in messages]
    assert events(plain, cut(data, places)) == whole
    assert events(compiled, cut(data, places)) == whole


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 1 << 30))
def test_damaged_streams_give_the_same_events_and_faults(seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(
        publish(rng.randbytes(rng.randrange(30)))
        + frame(1, 1, encode("queue.declare", queue="q"))
        + frame(8, 0, b"")
        + publish(b"x", cut=1)
    )
    for _ in range(rng.randrange(1, 4)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    pieces = cut(bytes(data), [rng.randrange(len(data)) for _ in range(3)])
    assert events(compiled, pieces) == events(plain, pieces)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 30))
def test_tags_are_settled_alike(seed: int) -> None:
    rng = random.Random(seed)
    channels = [opened(wire)[1] for wire in WIRES]
    holders = [Holder(), Holder()]
    for step in range(60):
        kind, tag, multiple = rng.randrange(5), rng.randrange(40), rng.random() < 0.5
        answers: list[Any] = []
        for channel, holder in zip(channels, holders, strict=True):
            if kind <= 1 and hasattr(channel, "skip_tag"):
                answers.append(channel.skip_tag() if kind == 0 else None)
                if kind == 1:
                    _hold(channel, holder, step)
                continue
            try:
                if kind <= 3:
                    answers.append(channel.acknowledge(tag, multiple))
                else:
                    answers.append([(held, position) for held, _, position in channel.take_held(tag, multiple)])
            except Fault as fault:
                answers.append(str(fault))
        assert answers[0] == answers[1]
        assert channels[0].unacked == channels[1].unacked
        assert channels[0].next_tag == channels[1].next_tag
    assert holders[0].positions == holders[1].positions


def _hold(channel: Any, holder: Holder, position: int) -> None:
    """A delivery made by hand: `write_deliver` holds it under the next tag."""
    record = _record(position)
    channel.write_deliver(b"\0\x3c\0\x3c\x00", record, holder, None)


def _record(position: int) -> RecordRef:
    record = RecordRef()
    record.origin, record.stamp = 3, position
    return record


@pytest.mark.parametrize("wire", WIRES, ids=["plain", "compiled"])
def test_a_message_held_for_long_costs_one_place_however_many_follow(wire: ModuleType) -> None:
    channel = opened(wire)[1]
    holder = Holder()
    _hold(channel, holder, 0)
    for position in range(1, 100_000):
        _hold(channel, holder, position)
        channel.acknowledge(position + 1, False)
    channel.out.take()
    assert channel.unacked == 1
    channel.acknowledge(1, False)
    assert holder.positions[-1] == 0
    with pytest.raises(Fault, match="unknown delivery tag 1"):
        channel.acknowledge(1, False)


@pytest.mark.parametrize("wire", WIRES, ids=["plain", "compiled"])
def test_confirms_leave_in_publish_order_and_refusals_in_their_place(wire: ModuleType) -> None:
    _, channel = opened(wire)
    told = channel.owner.told
    ticket = Ticket(None)  # type: ignore[arg-type]
    channel.note_published(ticket, True)
    channel.note_published(ticket, True)
    channel.after_read()
    channel.refuse_next()
    channel.note_published(None, False)
    channel.after_read()
    channel.out.ticker.ticks += 1
    channel.released(None)
    assert told == []  # the first two are not durable yet
    ticket.release()
    assert told == [("confirmed", 2), ("refused", 3), ("confirmed", 4)]


@pytest.mark.parametrize("wire", WIRES, ids=["plain", "compiled"])
def test_a_transient_publish_is_confirmed_once_it_is_written_and_refused_with_its_log(wire: ModuleType) -> None:
    _, channel = opened(wire)
    told = channel.owner.told
    kept, full = Ticket(None), Ticket(None)  # type: ignore[arg-type]
    channel.note_published(kept, False)
    channel.note_published(full, False)
    channel.note_published(kept, False)
    channel.after_read()
    full.fail(Overloaded("the log is full"))
    channel.released(None)
    assert told == [], "the tick that writes is not over"
    channel.out.ticker.ticks += 1
    channel.released(None)
    assert told == [("confirmed", 1), ("refused", 2), ("confirmed", 3)]
    assert not kept.awaited, "nobody hurries the disk for it"
