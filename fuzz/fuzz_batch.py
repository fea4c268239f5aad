"""Rubbish for the codec: whatever comes, it is read or refused with a MainstemError, and both implementations agree.

    python -m fuzz.fuzz_batch [seconds] [seed]

Its own inputs are random mutations of valid frames; how it runs: `driver.py`.
"""

from __future__ import annotations

import importlib
import random
import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from fuzz.driver import main
from mainstem.model.errors import MainstemError

LOG_ID = 5
INFLATED_BYTES_MAX = 1 << 20
WAYS = 4  # how an input may be dressed up, see `dressed`


@dataclass(frozen=True, slots=True)
class Implementation:
    batch: ModuleType
    frames: ModuleType
    records: ModuleType


def implementations() -> list[Implementation]:
    """The plain one first."""
    return [
        Implementation(*(importlib.import_module(f"{package}{name}") for name in NAMES))
        for package in ("tests.oracles.", "mainstem.codec._")
    ]


NAMES = ("batch", "frames", "records")
CODECS = implementations()
PLAIN = CODECS[0]


def dressed(data: bytes) -> bytes:
    """The first byte says how much of the input is made to fit, so that rubbish also gets behind the checksums."""
    if not data:
        return data
    way, body = data[0] % WAYS, bytearray(data[1:])
    if way == 0 or len(body) < 61:
        return bytes(body)
    struct.pack_into(">i", body, 8, len(body) - 12)
    body[16] = 2
    struct.pack_into(">I", body, 17, PLAIN.batch.crc32c(bytes(body[21:])))
    if way == 1:
        return bytes(body)
    try:
        head, batch = PLAIN.batch.make_frame(body, LOG_ID, 0, 9, 0, way - 1, 0, 0)
    except MainstemError:
        return bytes(body)
    return bytes(head + batch)


def outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except MainstemError as error:
        return type(error).__name__


def calls(
    codec: Implementation, data: bytes, chosen: array[int], bad: list[tuple[int, MainstemError]]
) -> list[Callable[[], object]]:
    batch, frames, records, limit = codec.batch, codec.frames, codec.records, INFLATED_BYTES_MAX
    return [
        lambda: [str(head.size) for head in frames.frame_heads(data, LOG_ID)],
        lambda: frames.verify_frame(data, 0, LOG_ID).size,
        lambda: records.decode_frames(data, LOG_ID, inflated_bytes_max=limit),
        lambda: records.decode_frames(data, LOG_ID, inflated_bytes_max=limit, bad=bad),
        lambda: records.decode_chosen(data, LOG_ID, chosen, inflated_bytes_max=limit),
        lambda: records.decode_batch(data, inflated_bytes_max=limit),
        lambda: frames.check_batch(data, bytes_max=1 << 20).count,
        lambda: [bytes(part) for part in frames.split_batches(data)],
        lambda: batch.decode_headers(data, 3),
    ]


def check(data: bytes) -> None:
    data = dressed(data)
    chosen = array("q", sorted({byte % 8 for byte in data[:3]}))
    results = []
    for codec in CODECS:
        bad: list[tuple[int, MainstemError]] = []
        results.append([*map(outcome, calls(codec, data, chosen, bad)), [offset for offset, _ in bad]])
    assert all(result == results[0] for result in results), f"the implementations differ: {results}"


def seeds() -> list[bytes]:
    """Small valid batches to start from, one of each compression, and one with gaps."""
    result = []
    for attributes in range(5):
        builder = PLAIN.batch.BatchBuilder()
        for number in range(4):
            builder.add(b"a/%d" % number, b"value" * number, [(b"ms-topic", b"t"), (b"n", None)], 1000 + number, 8)
        result.append(builder.seal_batch(0, 0, attributes))
    kept = PLAIN.records.decode_batch(result[0], inflated_bytes_max=INFLATED_BYTES_MAX)[::2]
    return [*result, PLAIN.batch.rebuild_batches(kept, last_offset=20)]


def mutated(rng: random.Random, corpus: list[bytes]) -> bytes:
    data = bytearray(rng.choice(corpus)) if rng.random() < 0.95 else bytearray(rng.randbytes(rng.randrange(300)))
    for _ in range(rng.choice((0, 1, 1, 2, 3, 8))):
        if not data:
            break
        at = rng.randrange(len(data))
        match rng.randrange(5):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.choice((0, 1, 2, 127, 128, 254, 255, rng.randrange(256)))
            case 2:
                del data[at : at + rng.randrange(1, 9)]
            case 3:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 4:
                data[at : at + 4] = struct.pack(">i", rng.choice((-1, 0, 1, 1 << 30, (1 << 31) - 1, -(1 << 31))))
    return bytes([rng.randrange(WAYS)]) + bytes(data)


if __name__ == "__main__":
    CORPUS = seeds()
    main(check, lambda rng: mutated(rng, CORPUS))
