"""Clients of bench tier, in processes of their own where they would disturb what is measured.

A bare Kafka reader fetches and looks at the heads of batches, so that what is measured is the broker.

python -m bench.tier_load read HOST:PORT COUNT: so many readers, from the beginning again and again, until they are killed.
python -m bench.tier_load beat PORT: pings over MQTT until its input ends; then the longest round trip, in ms.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time

from mainstem.protocols.kafka import wire
from mainstem.protocols.kafka.messages import FetchRequest
from tests.protocol.mqtt.raw import Raw

TOPIC = "b.all"
FETCH_BYTES = 4 << 20
BATCH_HEAD_BYTES = 61


class BareReader:
    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        host, _, port = bootstrap_servers.partition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=300)
        self._topic = topic
        self._buffer = memoryview(bytearray(2 * FETCH_BYTES))

    def fetch(self, offset: int) -> tuple[int, int]:
        """(where to go on, bytes of records)."""
        part = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
        topics = [FetchRequest.FetchTopic(topic=self._topic, partitions=[part])]
        request = FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=FETCH_BYTES, topics=topics)
        self._socket.sendall(
            b"".join(wire.encode_request("FetchRequest", 11, request, correlation=1, client_id="bench"))
        )
        (size,) = struct.unpack(">i", self._receive(4))
        return _after(self._receive(size), offset)

    def _receive(self, size: int) -> memoryview:
        if size > len(self._buffer):
            self._buffer = memoryview(bytearray(size))
        got = 0
        while got < size:
            more = self._socket.recv_into(self._buffer[got:size])
            assert more, "closed by the broker"
            got += more
        return self._buffer[:size]

    def read_to(self, end: int) -> tuple[float, int]:
        """Seconds and bytes of everything from the first offset to there."""
        at = total = 0
        began = time.perf_counter()
        while at < end:
            at, size = self.fetch(at)
            total += size
        return time.perf_counter() - began, total

    def close(self) -> None:
        self._socket.close()


def _after(answer: memoryview, offset: int) -> tuple[int, int]:
    """Of an answer of version 11 about one partition."""
    (name_size,) = struct.unpack_from(">h", answer, 18)
    at = 20 + name_size + 4
    _, error, _, _, _, aborted = struct.unpack_from(">ihqqqi", answer, at)
    assert error == 0, f"the broker answers with error {error}"
    at += 34 + 16 * max(aborted, 0) + 4
    (size,) = struct.unpack_from(">i", answer, at)
    at += 4
    end = at + max(size, 0)
    while end - at >= BATCH_HEAD_BYTES:
        base, length = struct.unpack_from(">qi", answer, at)
        if at + 12 + length > end:
            break
        offset = base + struct.unpack_from(">i", answer, at + 23)[0] + 1
        at += 12 + length
    return offset, max(size, 0)


def _again_and_again(bootstrap_servers: str, topic: str) -> None:
    reader, at = BareReader(bootstrap_servers, topic), 0
    while True:
        at, size = reader.fetch(at)
        if not size:
            at = 0


def read_until_killed(bootstrap_servers: str, count: int) -> None:
    for _ in range(count):
        threading.Thread(target=_again_and_again, args=(bootstrap_servers, TOPIC), daemon=True).start()
    threading.Event().wait()


def beat(port: int) -> None:
    longest, ended = 0.0, threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    with Raw.connected(port, keep_alive=0) as client:
        print("beating", flush=True)
        threading.Thread(target=wait, daemon=True).start()
        while not ended.is_set():
            began = time.perf_counter()
            client.send(b"\xc0\x00")
            client.packet()
            longest = max(longest, time.perf_counter() - began)
            time.sleep(0.002)
    print(longest * 1e3, flush=True)


def main() -> None:
    what, where, *rest = sys.argv[1:]
    if what == "read":
        read_until_killed(where, int(rest[0]))
    else:
        beat(int(where))


if __name__ == "__main__":
    main()
