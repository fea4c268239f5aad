"""Rubbish for the codec: whatever comes, it is read or refused with a MainstemError, and both implementations agree.

    python fuzz/fuzz_batch.py [seconds] [seed]

Runs on plain random mutations of valid frames; coverage-guided instead where `atheris` can be imported. A failure
prints the seed and the input as hex, which `python fuzz/fuzz_batch.py --input <hex>` repeats.
"""

from __future__ import annotations

import importlib
import random
import struct
import sys
import time
from array import array
from collections.abc import Callable
from types import ModuleType

from mainstem.model.errors import MainstemError

LOG_ID = 5
INFLATED_BYTES_MAX = 1 << 20
WAYS = 4  # how an input may be dressed up, see `dressed`


def implementations() -> list[tuple[ModuleType, ModuleType]]:
    """(writing, reading) of each implementation that is there; the plain one first."""
    plain = ("mainstem.codec._batch_reference", "mainstem.codec._frames_reference")
    found = [tuple(map(importlib.import_module, plain))]
    try:
        found.append(tuple(map(importlib.import_module, ("mainstem.codec._batch", "mainstem.codec._frames"))))
    except ImportError:
        print("the compiled modules are not built; only the plain ones run")
    return found  # type: ignore[return-value]


CODECS = implementations()
PLAIN_BATCH, PLAIN_FRAMES = CODECS[0]


def dressed(data: bytes) -> bytes:
    """The first byte says how much of the input is made to fit, so that rubbish also gets behind the checksums."""
    if not data:
        return data
    way, body = data[0] % WAYS, bytearray(data[1:])
    if way == 0 or len(body) < 61:
        return bytes(body)
    struct.pack_into(">i", body, 8, len(body) - 12)
    body[16] = 2
    struct.pack_into(">I", body, 17, PLAIN_BATCH.crc32c(bytes(body[21:])))
    if way == 1:
        return bytes(body)
    try:
        head, batch = PLAIN_BATCH.make_frame(body, LOG_ID, 0, 9, 0, way - 1, 0, 0)
    except MainstemError:
        return bytes(body)
    return bytes(head + batch)


def outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except MainstemError as error:
        return type(error).__name__


def run_one(data: bytes) -> None:
    data = dressed(data)
    chosen = array("q", sorted({byte % 8 for byte in data[:3]}))
    limit = INFLATED_BYTES_MAX
    results = []
    for writing, reading in CODECS:
        bad: list[tuple[int, MainstemError]] = []
        results.append(
            [
                outcome(lambda r=reading: [str(head.size) for head in r.frame_heads(data, LOG_ID)]),
                outcome(lambda r=reading: r.verify_frame(data, 0, LOG_ID).size),
                outcome(lambda r=reading: r.decode_frames(data, LOG_ID, inflated_bytes_max=limit)),
                outcome(lambda r=reading, b=bad: r.decode_frames(data, LOG_ID, inflated_bytes_max=limit, bad=b)),
                outcome(lambda r=reading: r.decode_chosen(data, LOG_ID, chosen, inflated_bytes_max=limit)),
                outcome(lambda r=reading: r.decode_batch(data, inflated_bytes_max=limit)),
                outcome(lambda r=reading: r.check_batch(data, bytes_max=1 << 20).count),
                outcome(lambda r=reading: [bytes(part) for part in r.split_batches(data)]),
                outcome(lambda w=writing: w.decode_headers(data, 3)),
                [offset for offset, _ in bad],
            ]
        )
    assert all(result == results[0] for result in results), f"the implementations differ: {results}"


def seeds() -> list[bytes]:
    """Small valid batches to start from, one of each compression, and one with gaps."""
    result = []
    for attributes in range(5):
        builder = PLAIN_BATCH.BatchBuilder()
        for number in range(4):
            builder.add(b"a/%d" % number, b"value" * number, [(b"ms-topic", b"t"), (b"n", None)], 1000 + number, 8)
        result.append(builder.seal_batch(0, 0, attributes))
    kept = PLAIN_FRAMES.decode_batch(result[0], inflated_bytes_max=INFLATED_BYTES_MAX)[::2]
    return [*result, PLAIN_BATCH.rebuild_batches(kept, last_offset=20)]


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


def run_random(seconds: float, seed: int) -> int:
    rng, corpus = random.Random(seed), seeds()
    deadline, count = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        data = mutated(rng, corpus)
        try:
            run_one(data)
        except Exception:
            print(f"seed {seed}, input {count}: --input {data.hex()}")
            raise
        count += 1
    print(f"{count} inputs in {seconds:g} s, seed {seed}: each read or refused, {len(CODECS)} implementations agree")
    return 0


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--input"]:
        run_one(bytes.fromhex(arguments[1]))
        return 0
    seconds = float(arguments[0]) if arguments else 10.0
    try:
        import atheris  # type: ignore[import-not-found]
    except ImportError:
        return run_random(seconds, int(arguments[1]) if len(arguments) > 1 else random.randrange(1 << 32))
    atheris.instrument_all()
    atheris.Setup([sys.argv[0], f"-max_total_time={int(seconds)}"], run_one)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
