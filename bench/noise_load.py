"""The noises of `bench.noise`, each in a process of its own: `python -m bench.noise_load NAME JSON`.

It prepares, prints `ready`, and goes on until it is killed. JSON: the broker's ports, and how much of everything.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import selectors
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.machine import step_back
from mainstem.codec.batch import BatchBuilder, crc32c
from mainstem.codec.compression import deflate
from mainstem.protocols.kafka import wire
from mainstem.protocols.kafka.messages import CreateTopicsRequest, FetchRequest, ProduceRequest
from mainstem.protocols.kafka.schema import BY_NAME
from mainstem.protocols.mqtt.wire.packets import encode_packet
from mainstem.protocols.mqtt.wire.properties import encode_text
from mainstem.storage.reclaiming import remove_tree

HOST = "127.0.0.1"
ZSTD = 4
HEAD_BYTES = 61  # of a Kafka batch
TOPICS = 100  # that the stored records are spread over
BOMB_BYTES = 60_000_000
BOMB_RECORDS = 400_000
FLOOD_SECONDS = "600"
LIMITED = "limited"  # a namespace at its quota
LIMITED_BYTES_PER_S = 2_000_000
MEMBER_PERIOD_S = 10.0  # in which each of very many connections publishes once


@dataclass(frozen=True, slots=True)
class Scene:
    ports: dict[str, int]
    records: int
    stalled: int
    connects: int
    laggards: int


def ready() -> None:
    print("ready", flush=True)


# -- plain clients -----------------------------------------------------------------------------------------------------


def mqtt(port: int, name: str, *, version: int = 4, user: str = "") -> socket.socket:
    client = socket.create_connection((HOST, port), timeout=60)
    properties = b"\0" if version == 5 else b""
    flags, told = (0x82, encode_text(user.encode())) if user else (0x02, b"")
    head = encode_text(b"MQTT"), bytes((version, flags, 0, 0)), properties
    client.sendall(encode_packet(1, 0, *head, encode_text(name.encode()), told))
    assert client.recv(1024)[:1] == b"\x20"
    return client


def publish(topic: str, payload: bytes, qos: int = 0, number: int = 1) -> bytes:
    named = struct.pack(">H", number) if qos else b""
    return encode_packet(3, qos << 1, encode_text(topic.encode()), named, payload)


def subscribe(
    client: socket.socket, topic_filter: str, *, version: int = 4, earliest: bool = False, qos: int = 0
) -> None:
    words = b"\x26" + encode_text(b"stream-offset") + encode_text(b"earliest") if earliest else b""
    properties = bytes((len(words),)) + words if version == 5 else b""
    client.sendall(encode_packet(8, 2, b"\0\1", properties, encode_text(topic_filter.encode()), bytes((qos,))))
    assert client.recv(5)[:1] == b"\x90"


class Kafka:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=120)
        self._stream = self._socket.makefile("rb")

    def ask(self, name: str, version: int, value: Any) -> Any:
        parts = wire.encode_request(f"{name}Request", version, value, correlation=1, client_id="noise")
        self._socket.sendall(b"".join(parts))
        (size,) = struct.unpack(">i", self._stream.read(4))
        at = 5 if BY_NAME[name].is_flexible(version) else 4
        return wire.decode(f"{name}Response", version, self._stream.read(size)[at:])

    def create(self, topic: str, **configs: str) -> None:
        settings = [
            CreateTopicsRequest.CreatableTopicConfig(name=k.replace("_", "."), value=v) for k, v in configs.items()
        ]
        one = CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=1, replication_factor=1, configs=settings)
        self.ask("CreateTopics", 5, CreateTopicsRequest(topics=[one], timeout_ms=20_000))

    def produce(self, topic: str, batch: bytes) -> None:
        part = ProduceRequest.PartitionProduceData(index=0, records=batch)
        data = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
        self.ask("Produce", 9, ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[data]))

    def fetch(self, topic: str, offset: int) -> tuple[int, int]:
        """(where to go on, the end)."""
        part = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        body = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1 << 20,
            topics=[FetchRequest.FetchTopic(topic=topic, partitions=[part])],
        )
        answer = self.ask("Fetch", 11, body).responses[0].partitions[0]
        records = bytes(answer.records or b"")
        after = offset
        while len(records) >= HEAD_BYTES:
            base, size = struct.unpack_from(">qi", records)
            after = base + struct.unpack_from(">i", records, 23)[0] + 1
            records = records[12 + size :]
        return after, answer.high_watermark


def compressed(count: int, value: bytes, *, same_key: bool = True) -> bytes:
    """A zstd batch, far smaller than what it holds."""
    builder = BatchBuilder()
    for number in range(count):
        builder.add(b"k" if same_key else b"%d" % number, value, (), 1)
    plain = bytes(builder.seal_batch(0))
    head, packed = bytearray(plain[:HEAD_BYTES]), deflate(ZSTD, plain[HEAD_BYTES:])
    struct.pack_into(">i", head, 8, HEAD_BYTES - 12 + len(packed))
    struct.pack_into(">h", head, 21, ZSTD)
    batch = bytes(head) + packed
    return batch[:17] + struct.pack(">I", crc32c(batch[21:])) + batch[21:]


def read_all(clients: list[socket.socket]) -> None:
    """Take whatever comes, for ever."""
    selector = selectors.DefaultSelector()
    for client in clients:
        client.setblocking(False)
        selector.register(client, selectors.EVENT_READ)
    while selector.get_map():
        for key, _ in selector.select():
            assert isinstance(key.fileobj, socket.socket)
            if not key.fileobj.recv(1 << 18):
                selector.unregister(key.fileobj)


def call(scene: Scene, method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{HOST}:{scene.ports['http']}{path}", data, method=method)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.loads(answer.read() or b"null")


# -- what is there before it begins ------------------------------------------------------------------------------------


def fill(scene: Scene) -> None:
    """`records` small ones in a hundred topics of the shared log."""
    client = mqtt(scene.ports["mqtt"], "fill")
    step = b"".join(publish(f"stored/{number}", b"0123456789abcdef") for number in range(TOPICS))
    for _ in range(0, scene.records, TOPICS * 10):
        client.sendall(step * 10)
    client.sendall(publish("stored/last", b"", qos=1))
    assert client.recv(4)[:1] == b"\x40"
    client.close()


# -- the noises --------------------------------------------------------------------------------------------------------


def _bench(scene: Scene, protocol: str, *options: str) -> None:
    command = [sys.executable, "-m", "mainstem", "bench", f"{protocol}://{HOST}:{scene.ports[protocol]}", *options]
    ready()
    subprocess.run([*command, "--seconds", FLOOD_SECONDS], check=True, stdout=subprocess.DEVNULL)


def mqtt_flood(scene: Scene) -> None:
    _bench(scene, "mqtt", "--qos", "0", "--window", "10000")


def kafka_batches(scene: Scene) -> None:
    _bench(scene, "kafka", "--size", "1000", "--batch", "1000000", "--window", "4000")


def amqp_flood(scene: Scene) -> None:
    _bench(scene, "amqp", "--transient", "--window", "10000")


def nats_flood(scene: Scene) -> None:
    client = socket.create_connection((HOST, scene.ports["nats"]), timeout=60)
    client.recv(65_536)
    client.sendall(b'CONNECT {"verbose":false}\r\n')
    piece = b"PUB noise.nats 16\r\n0123456789abcdef\r\n" * 1000
    ready()
    while True:
        client.sendall(piece)


def bombs(scene: Scene) -> None:
    """Into a compacted topic, which looks into them as they come, and a plain one with a reader of each other protocol."""
    client = Kafka(scene.ports["kafka"])
    client.create("bombs-compacted", cleanup_policy="compact")
    client.create("bombs")
    one, many = compressed(1, bytes(BOMB_BYTES)), compressed(BOMB_RECORDS, b"")
    readers = [mqtt(scene.ports["mqtt"], "bombs")]
    subscribe(readers[0], "bombs")
    nats = socket.create_connection((HOST, scene.ports["nats"]), timeout=60)
    nats.sendall(b'CONNECT {"verbose":false}\r\nSUB bombs 1\r\n')
    readers.append(nats)
    ready()
    threading.Thread(target=read_all, args=(readers,), daemon=True).start()
    for topic in itertools.cycle(("bombs-compacted", "bombs")):
        client.produce(topic, one)
        client.produce(topic, many)


def view_scan(scene: Scene) -> None:
    """A view whose condition nothing fulfils, read from the beginning again and again."""
    fill(scene)
    call(scene, "POST", "/v1/views", {"name": "nothing", "filter": "stored/#", "where": "key = 'nobody'"})
    client, at = Kafka(scene.ports["kafka"]), 0
    ready()
    while True:
        after, end = client.fetch("nothing", at)
        at = 0 if after >= end or after == at else after


def http_scan(scene: Scene) -> None:
    fill(scene)
    start, asked = "earliest", urllib.parse.quote("stored/#")
    ready()
    while True:
        start = call(scene, "GET", f"/v1/messages?filter={asked}&contains=nobody&from={start}")["next"] or "earliest"


def questions(scene: Scene) -> None:
    """SQL over everything, one question after the other: the broker answers by a process of its own."""
    fill(scene)
    ready()
    while True:
        call(scene, "POST", "/v1/query", {"sql": "select topic, count(*), max(text) from 'stored/#' group by 1"})


def laggards(scene: Scene) -> None:
    fill(scene)
    ready()
    while True:
        clients = [mqtt(scene.ports["mqtt"], f"laggard-{number}", version=5) for number in range(scene.laggards)]
        for client in clients:
            subscribe(client, "$stream/stored/#", version=5, earliest=True)
        read_all(clients)


def compaction(scene: Scene) -> None:
    """Small segments of few keys, so that there is always something to compact; the broker looks every few seconds."""
    client = Kafka(scene.ports["kafka"])
    client.create("compacted", cleanup_policy="compact", segment_bytes=str(4 << 20), max_compaction_lag_ms="100")
    builder = BatchBuilder()
    for number in range(500):
        builder.add(b"%d" % (number % 50), bytes(1000), (), 1)
    batch = bytes(builder.seal_batch(0))
    ready()
    while True:
        client.produce("compacted", batch)


def backup(scene: Scene) -> None:
    fill(scene)
    folder = Path(tempfile.mkdtemp(prefix="mainstem-noise-"))
    ready()
    try:
        for number in itertools.count():
            call(scene, "POST", "/v1/backup", {"directory": str(folder / str(number))})
            remove_tree(folder / str(number))  # gently: the noise is the backup, not that it is deleted
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def connects(scene: Scene) -> None:
    """So many that come at once and stay a moment, again and again."""
    hello = encode_packet(1, 0, encode_text(b"MQTT"), b"\x04\x02\0\0", encode_text(b""))
    ready()
    while True:
        clients: list[socket.socket] = []
        for _ in range(scene.connects):
            with contextlib.suppress(OSError):
                one = socket.create_connection((HOST, scene.ports["mqtt"]), timeout=60)
                clients.append(one)
                one.sendall(hello)
        for one in clients:
            one.close()


def at_its_limit(scene: Scene) -> None:
    """A tenant that publishes with ten clients as fast as it is let."""
    quota = {"quota": {"publish_bytes_per_s": LIMITED_BYTES_PER_S}}
    call(scene, "PUT", f"/v1/namespaces/{LIMITED}", quota)
    clients = [mqtt(scene.ports["mqtt"], f"limited-{number}", user=f"{LIMITED}:noise") for number in range(10)]
    piece = publish("noise/limited", bytes(100)) * 200
    threads = [threading.Thread(target=_send_for_ever, args=(one, piece), daemon=True) for one in clients]
    for thread in threads:
        thread.start()
    ready()
    for thread in threads:
        thread.join()


def _send_for_ever(client: socket.socket, piece: bytes) -> None:
    client.settimeout(None)
    while True:
        client.sendall(piece)


def many_connections(scene: Scene) -> None:
    """So many that stay, and publish now and then."""
    clients = [mqtt(scene.ports["mqtt"], f"member-{number}") for number in range(scene.connects)]
    piece = publish("noise/members", bytes(100))
    ready()
    while True:
        for one in clients:
            one.sendall(piece)
            time.sleep(MEMBER_PERIOD_S / len(clients))


def stalled(scene: Scene) -> None:
    """Subscribers that read nothing, and one who publishes to all of them."""
    clients = []
    for number in range(scene.stalled):
        one = mqtt(scene.ports["mqtt"], f"stalled-{number}")
        subscribe(one, "noise/all")
        clients.append(one)
    publisher = mqtt(scene.ports["mqtt"], "publisher")
    piece = publish("noise/all", bytes(1000)) * 20
    ready()
    while True:
        publisher.sendall(piece)
        time.sleep(0.001)


def listings(scene: Scene) -> None:
    """The console's pages over many topics."""
    client = mqtt(scene.ports["mqtt"], "many")
    for number in range(scene.connects):
        client.sendall(publish(f"many/{number // 100}/{number % 100}", b"x"))
    ready()
    while True:
        for path in ("/v1/topics?limit=1000", "/v1/topics?search=9999", "/v1/connections"):
            call(scene, "GET", path)


NOISES: dict[str, Callable[[Scene], None]] = {
    "MQTT flood": mqtt_flood,
    "Kafka 1 MB batches": kafka_batches,
    "AMQP flood": amqp_flood,
    "NATS flood": nats_flood,
    "compressed bombs": bombs,
    "view scan without match": view_scan,
    "HTTP wildcard scan": http_scan,
    "HTTP listings": listings,
    "SQL questions": questions,
    "replay by laggards": laggards,
    "compaction": compaction,
    "backup": backup,
    "connects": connects,
    "many connections": many_connections,
    "stalled subscribers": stalled,
    "tenant at its quota": at_its_limit,
}


def main() -> int:
    step_back()
    NOISES[sys.argv[1]](Scene(**json.loads(sys.argv[2])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
