"""Raw Kafka load: prebuilt requests sent in a loop, answers counted by their size. No work per record on this side.

    python bench/kafka_load.py produce|fetch|scan PORT PID TOPIC SECONDS RECORDS RECORD_BYTES WINDOW CONNECTIONS

A fetch asks for the beginning of the topic each time; a scan goes on, and its connections are at different places.
Closed loop: at most WINDOW requests of a connection are unanswered. Prints one JSON object.
"""

from __future__ import annotations

import itertools
import json
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator

import psutil

from mainstem.codec.batch import BatchBuilder, read_batch_head
from mainstem.protocols.kafka import wire
from mainstem.protocols.kafka.messages import FetchRequest, ProduceRequest

READ_BUFFER = bytearray(1 << 18)
FETCH_BYTES = 1 << 20
SCAN_REQUESTS_MAX = 200  # more than what any cache of a processor holds
LEADER_S_MAX = 10.0


def produce_request(topic: str, records: int, record_bytes: int) -> bytes:
    builder = BatchBuilder()
    now_ms = int(time.time() * 1000)  # an old time would let Kafka's retention take the records at once
    for _ in range(records):
        builder.add(None, bytes(record_bytes), (), now_ms)
    part = ProduceRequest.PartitionProduceData(index=0, records=bytes(builder.seal_batch(0)))
    data = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data])
    return b"".join(wire.encode_request("ProduceRequest", 9, request, correlation=1, client_id="load"))


def fetch_request(topic: str, offset: int = 0) -> bytes:
    part = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
    line = FetchRequest.FetchTopic(topic=topic, partitions=[part])
    request = FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=FETCH_BYTES, session_epoch=-1, topics=[line])
    return b"".join(wire.encode_request("FetchRequest", 11, request, correlation=1, client_id="load"))


def check(request: memoryview, answer: bytes) -> None:
    """The first answer of each connection is read: errors are fast, and must not be measured."""
    key = wire.decode_head(request[4:]).key
    if key == 0:
        line = wire.decode("ProduceResponse", 9, answer[5:]).responses[0].partition_responses[0]
        if line.error_code:
            raise Refused(f"produce: error {line.error_code}")
    else:
        line = wire.decode("FetchResponse", 11, answer[4:]).responses[0].partitions[0]
        if line.error_code:
            raise Refused(f"fetch: error {line.error_code}")
        assert len(line.records) > FETCH_BYTES // 2, f"fetch: only {len(line.records)} bytes"


def scan_requests(port: int, topic: str) -> list[bytes]:
    """For one stretch of the topic after the other. One that ends with a file gives a smaller answer: it is left out."""
    requests: list[bytes] = []
    offset = 0
    stream = connect(port, fetch_request(topic))
    with stream.socket:
        stream.socket.setblocking(True)
        while len(requests) < SCAN_REQUESTS_MAX:
            request = fetch_request(topic, offset)
            stream.socket.sendall(request)
            answer = stream.exactly(int.from_bytes(stream.exactly(4)))
            line = wire.decode("FetchResponse", 11, answer[4:]).responses[0].partitions[0]
            if len(answer) + 4 == stream.answer_bytes:
                requests.append(request)
            offset = end_offset(line.records, offset)
            if offset >= line.high_watermark:
                break
    return requests


def end_offset(records: bytes, offset: int) -> int:
    """Behind the last whole batch; Kafka sends a part of another."""
    at = 0
    while len(records) - at >= 12 and 12 + int.from_bytes(records[at + 8 : at + 12]) <= len(records) - at:
        head = read_batch_head(records, at)
        offset, at = head.base_offset + head.last_offset_delta + 1, at + head.size
    return offset


class Refused(Exception):
    """An error code in an answer."""


def connect(port: int, request: bytes) -> Stream:
    """A topic that was just made may not be led by anyone yet."""
    deadline = time.monotonic() + LEADER_S_MAX
    while True:
        try:
            return Stream(port, request)
        except Refused:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


class Stream:
    """One connection: what is still to be sent, and how much of the answers has come."""

    def __init__(self, port: int, request: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request = memoryview(request)
        self.requests: Iterator[memoryview] = itertools.repeat(self.request)
        self.answer_bytes = self._ask_once()
        self.socket.setblocking(False)
        self.unsent: list[memoryview] = []
        self.answered = 0
        self.sent_at: list[float] = []

    def _ask_once(self) -> int:
        self.socket.sendall(self.request)
        (size,) = struct.unpack(">i", self.exactly(4))
        check(self.request, self.exactly(size))
        return int(size) + 4

    def exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = self.socket.recv(size - len(data))
            assert chunk, "the broker hung up"
            data += chunk
        return bytes(data)

    def send_in_turn(self, requests: list[bytes], first: int) -> None:
        """These over and over, instead of one."""
        self.requests = itertools.cycle([memoryview(one) for one in requests[first:] + requests[:first]])

    def push(self, count: int, now: float) -> None:
        self.unsent += itertools.islice(self.requests, count)
        self.sent_at += [now] * count

    def flush(self) -> bool:
        """Whether everything went out."""
        while self.unsent:
            try:
                sent = self.socket.sendmsg(self.unsent[:64])
            except BlockingIOError:
                return False
            while sent:
                first = self.unsent[0]
                if sent < len(first):
                    self.unsent[0] = first[sent:]
                    break
                sent -= len(first)
                del self.unsent[0]
        return True

    def receive(self) -> int:
        """Whole answers that came; they are all of one size. Reads until nothing is left: events tell of changes only."""
        try:
            while True:
                read = self.socket.recv_into(READ_BUFFER)
                assert read, "the broker hung up"
                self.answered += read
        except BlockingIOError:
            pass
        count, self.answered = divmod(self.answered, self.answer_bytes)
        return count


def run(port: int, pid: int, requests: list[bytes], seconds: float, window: int, connections: int) -> dict[str, float]:
    request = requests[0]
    streams = {s.socket.fileno(): s for s in (connect(port, request) for _ in range(connections))}
    for number, stream in enumerate(streams.values() if len(requests) > 1 else ()):
        stream.send_in_turn(requests, len(requests) * number // connections)
    poll = select.epoll()
    for number, stream in streams.items():
        poll.register(number, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
        stream.push(window, time.perf_counter())
        stream.flush()
    process = psutil.Process(pid)
    cpu_before, began = cpu_s(process), time.perf_counter()
    end, done, latencies = began + seconds, 0, []
    while (now := time.perf_counter()) < end:
        for number, _ in poll.poll(0.2):
            stream = streams[number]
            if count := stream.receive():
                now = time.perf_counter()
                latencies += [now - at for at in stream.sent_at[:count]]
                del stream.sent_at[:count]
                done += count
                stream.push(count, now)
            stream.flush()
    took, cpu = time.perf_counter() - began, cpu_s(process) - cpu_before
    latencies.sort()
    size = max(len(request), next(iter(streams.values())).answer_bytes)
    return {
        "requests_per_s": done / took,
        "mb_per_s": done * size / took / 1e6,
        "cpu_ms_per_mb": cpu * 1e3 / max(done * size / 1e6, 1e-9),
        "cpu_us_per_request": cpu * 1e6 / max(done, 1),
        "p50_ms": latencies[len(latencies) // 2] * 1e3 if latencies else 0.0,
        "p99_ms": latencies[len(latencies) * 99 // 100] * 1e3 if latencies else 0.0,
        "rss_mb": process.memory_info().rss / 1e6,
    }


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    kind, port, pid, topic, seconds, records, record_bytes, window, connections = sys.argv[1:]
    if kind == "produce":
        requests = [produce_request(topic, int(records), int(record_bytes))]
    else:
        requests = scan_requests(int(port), topic) if kind == "scan" else [fetch_request(topic)]
    print(json.dumps(run(int(port), int(pid), requests, float(seconds), int(window), int(connections))))


if __name__ == "__main__":
    main()
