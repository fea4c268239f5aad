"""Rubbish for the Kafka wire: whatever comes, it is read or refused with a MainstemError, quickly and in little memory.

    python -m fuzz.fuzz_kafka [seconds] [seed]

Its own inputs are random mutations of valid requests; how it runs: `driver.py`.

An input is a stream of bytes as a socket would give it, cut in two at a place its first byte chooses.
"""

from __future__ import annotations

import contextlib
import random
import struct
import tracemalloc
from typing import Any

from fuzz.driver import main
from mainstem.codec.batch import BatchBuilder
from mainstem.model.errors import MainstemError
from mainstem.protocols.kafka import wire
from mainstem.protocols.kafka.request_channel import RequestChannel
from mainstem.protocols.kafka.rules import Refused, TopicRules
from mainstem.protocols.kafka.schema import APIS, Field

REQUEST_BYTES_MAX = 1 << 20
MEMORY_PER_BYTE_MAX = 400  # objects are larger than the bytes they come from, but not without bound
MEMORY_FREE = 1 << 20
RULES = TopicRules(1 << 20, True, True, None, None, 0, 1 << 20)


def one_value(rng: random.Random, field: Field, version: int, root: type[Any]) -> Any:
    if field.nullable is not None and version in field.nullable and rng.random() < 0.3:
        return None
    if field.is_array:
        element = Field(field.name, field.type, False, field.versions, None, None, None, field.fields)
        return [one_value(rng, element, version, root) for _ in range(rng.randrange(3))]
    if field.is_struct:
        return one_message(rng, getattr(root, field.type), field.fields, version, root)
    if field.type == "records":
        return one_batch(rng)
    if field.type == "uuid":
        return rng.randbytes(16)
    if field.type == "bytes":
        return rng.randbytes(rng.randrange(20))
    if field.type == "string":
        return "x" * rng.randrange(8)
    return rng.random() < 0.5 if field.type == "bool" else rng.randrange(100)


def one_message(rng: random.Random, kind: type[Any], fields: list[Field], version: int, root: type[Any]) -> Any:
    value = kind()
    for field in fields:
        if version in field.versions:
            setattr(value, field.name, one_value(rng, field, version, root))
    return value


def one_batch(rng: random.Random) -> bytes:
    builder = BatchBuilder()
    for _ in range(rng.randrange(1, 4)):
        builder.add(rng.randbytes(3), rng.randbytes(rng.randrange(30)), [(b"h", None)], rng.randrange(1 << 40))
    return bytes(builder.seal_batch(0, attributes=rng.choice((0, 1, 2, 3, 4))))


def one_request(rng: random.Random) -> bytes:
    api = rng.choice(list(APIS.values()))
    version = rng.randint(api.first, api.last)
    name = f"{api.name}Request"
    root = wire.message(name)
    value = one_message(rng, root, api.request.fields, version, root)
    return b"".join(wire.encode_request(name, version, value, correlation=rng.randrange(9), client_id="fuzz"))


def one_input(rng: random.Random) -> bytes:
    data = bytearray(b"".join(one_request(rng) for _ in range(rng.randint(1, 3))))
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        at = rng.randrange(len(data))
        action = rng.randrange(5)
        if action == 0:
            data[at] = rng.randrange(256)
        elif action == 1:
            data[at : at + 4] = struct.pack(
                ">i", rng.choice((-1, -2, 0, 1 << 30, (1 << 31) - 1, rng.randrange(1 << 20)))
            )
        elif action == 2:
            del data[at : at + rng.randrange(1, 9)]
        elif action == 3:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
        else:
            data[at : at + 2] = b"\xff\xff"
        if not data:
            data = bytearray(1)
    return bytes(data)


def feed(data: bytes) -> None:
    """What a connection does with bytes, up to the handlers; only MainstemError may come out."""
    cut = data[0] * len(data) // 256 if data else 0
    channel = RequestChannel(request_bytes_max=REQUEST_BYTES_MAX)
    for piece in (data[:cut], data[cut:]):
        for request in channel.feed(piece):
            head = wire.decode_head(request)
            api = APIS.get(head.key)
            if api is None or not api.first <= head.version <= api.last:
                continue
            body = wire.decode(f"{api.name}Request", head.version, request, head.body_at, rest_allowed=True)
            if head.key == 0:
                admit(body)


def admit(body: Any) -> None:
    for topic in body.topic_data:
        for part in topic.partition_data:
            if part.records:
                try:
                    RULES.admit(part.records, 0)
                except Refused:
                    continue


def check(data: bytes) -> None:
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    with contextlib.suppress(MainstemError):
        feed(data)
    peak = tracemalloc.get_traced_memory()[1] - before
    # A request's own size is reserved once it is announced; beyond that memory follows the bytes that came.
    assert peak < MEMORY_FREE + REQUEST_BYTES_MAX + MEMORY_PER_BYTE_MAX * len(data), f"{peak} bytes of memory"


def warm_up() -> None:
    """Codecs are made on first use; that memory is not the input's."""
    for api in APIS.values():
        for version in range(api.first, api.last + 1):
            wire.decoder(f"{api.name}Request", version)


if __name__ == "__main__":
    tracemalloc.start()
    warm_up()
    main(check, one_input)
