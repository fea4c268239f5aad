"""The way from a socket to the disk is short, and as long for a thousand messages as for one.

Counted are the product's Python functions on the loop's thread; compiled ones are not seen. A bound that is passed is
not a mistake by itself: look what came to lie in between, and whether it has to.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import mainstem
from fuzz.streams import amqp_frame
from mainstem.protocols.amqp.methods import encode
from mainstem.testing import Broker
from tests.protocol.mqtt.raw import connect_packet, publish_packet

SOURCES = str(Path(mainstem.__file__).parent)
HOPS_MAX = 6  # Python functions between the loop and the engine
CALLS_MAX = 90  # of one turn: read, parse, tick, sync, answer
MANY = 1_000
TRIES = 3  # of which the best counts: a timer may fall into one


@contextmanager
def counted() -> Iterator[list[str]]:
    """The product's Python functions that this thread calls meanwhile."""
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCES):
            calls.append(f"{frame.f_code.co_filename[len(SOURCES) + 1 :]}:{frame.f_code.co_name}")

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


async def answer_to(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], data: bytes, ending: bytes) -> None:
    reader, writer = streams
    writer.write(data)
    await asyncio.wait_for(reader.readuntil(ending), 60)


async def fewest_calls(streams: Any, tries: list[tuple[bytes, bytes]]) -> list[str]:
    found = []
    for data, ending in tries:
        with counted() as calls:
            await answer_to(streams, data, ending)
        found.append(calls)
    return min(found, key=len)


async def mqtt(broker: Broker) -> tuple[Any, Any]:
    streams = await asyncio.open_connection(broker.host, broker.mqtt_port)
    await answer_to(streams, connect_packet("hops"), b"\x20\x02\0\0")

    def published(count: int) -> tuple[bytes, bytes]:
        packets = (publish_packet("hops/one", b"x", qos=1, packet_id=n + 1) for n in range(count))
        return b"".join(packets), b"\x40\x02" + struct.pack(">H", count)

    return streams, published


async def nats(broker: Broker) -> tuple[Any, Any]:
    streams = await asyncio.open_connection(broker.host, broker.nats_port)
    await answer_to(streams, b'CONNECT {"verbose":false}\r\nPING\r\n', b"PONG\r\n")
    return streams, lambda count: (b"PUB hops.one 1\r\nx\r\n" * count + b"PING\r\n", b"PONG\r\n")


async def amqp(broker: Broker) -> tuple[Any, Any]:
    streams = await asyncio.open_connection(broker.host, broker.amqp_port)
    for asked in (
        b"AMQP\0\0\x09\x01",
        method(0, "connection.start-ok", mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US"),
        method(0, "connection.tune-ok", channel_max=100, frame_max=131_072)
        + method(0, "connection.open", virtual_host="/"),
        method(1, "channel.open"),
        method(1, "confirm.select"),
    ):
        await answer_to(streams, asked, b"\xce")
    message = method(1, "basic.publish", exchange="amq.topic", routing_key="hops.one")
    message += amqp_frame(2, 1, struct.pack(">HHQH", 60, 0, 1, 0)) + amqp_frame(3, 1, b"x")
    sent = 0

    def published(count: int) -> tuple[bytes, bytes]:
        nonlocal sent
        sent += count
        return message * count, struct.pack(">Q", sent)

    return streams, published


def method(channel: int, name: str, **values: object) -> bytes:
    return amqp_frame(1, channel, encode(name, **values))


@pytest.mark.parametrize("protocol", [mqtt, amqp, nats])
async def test_a_thousand_messages_of_one_read_take_as_many_calls_as_one(protocol: Any, tmp_path: Path) -> None:
    async with Broker(engine="segment", data=tmp_path) as broker:
        streams, published = await protocol(broker)
        await answer_to(streams, *published(1))  # makes the topic and its route
        await answer_to(streams, *published(1))
        one = await fewest_calls(streams, [published(1) for _ in range(TRIES)])
        many = await fewest_calls(streams, [published(MANY) for _ in range(TRIES)])
        streams[1].close()
    assert len(one) <= CALLS_MAX, one
    assert len(many) <= 4 * CALLS_MAX, many[:400]  # the read comes in a few pieces, each of which is a turn


async def test_few_functions_lie_between_the_loop_and_the_engine(tmp_path: Path) -> None:
    async with Broker(engine="segment", data=tmp_path) as broker:
        streams, published = await mqtt(broker)
        await answer_to(streams, *published(1))
        assert broker.app is not None
        engine: Any = broker.app.broker.namespace("/").route(b"hops/one").log.engine
        append, ways = engine.append, []

        def noted(*given: Any) -> Any:
            frame, way = sys._getframe(1), []
            while frame is not None:
                if frame.f_code.co_filename.startswith(SOURCES):
                    way.append(
                        frame.f_code.co_qualname if hasattr(frame.f_code, "co_qualname") else frame.f_code.co_name
                    )
                frame = frame.f_back
            ways.append(way)
            return append(*given)

        engine.append = noted
        await answer_to(streams, *published(1))
        streams[1].close()
    assert ways
    assert max(map(len, ways)) <= HOPS_MAX, ways
