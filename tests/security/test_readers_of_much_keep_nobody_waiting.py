"""Readers of what is large, or of much: the others are served all the while."""

from __future__ import annotations

import json
import socket
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mainstem.codec.compression import deflate
from mainstem.protocols.kafka.messages import FetchRequest
from mainstem.protocols.mqtt.wire.packets import encode_packet
from mainstem.protocols.mqtt.wire.properties import encode_text
from mainstem.testing import BrokerProcess
from tests.protocol.kafka.raw import RawClient
from tests.security.canary import ask_all
from tests.security.test_compressed_batches_stall_nobody import ZSTD, bomb, records_of, sealed

LAST = b"the last one"
RECORDS = 60_000


def many() -> bytes:
    return sealed(deflate(ZSTD, records_of(RECORDS, b"")), ZSTD, RECORDS)


@contextmanager
def mqtt_reader(broker: BrokerProcess, topic: str, *, stream: bool) -> Iterator[socket.socket]:
    """Subscribed, to what comes or to all there is."""
    with socket.create_connection(("127.0.0.1", broker.mqtt_port), 60) as client:
        client.sendall(encode_packet(1, 0, encode_text(b"MQTT"), b"\x05\x02\0\0", b"\0", encode_text(b"")))
        assert client.recv(1024)[:1] == b"\x20"
        name = f"$stream/{topic}" if stream else topic
        client.sendall(encode_packet(8, 2, b"\0\1\0", encode_text(name.encode()), b"\0"))
        assert client.recv(6)[:1] == b"\x90"
        yield client


@contextmanager
def nats_reader(broker: BrokerProcess, topic: str) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", broker.nats_port), 60) as client:
        client.sendall(b'CONNECT {"verbose":false}\r\nSUB ' + topic.encode() + b" 1\r\nPING\r\n")
        heard = b""
        while b"PONG" not in heard:
            heard += client.recv(65_536)
        yield client


def read_to_the_last(client: socket.socket, counted: bytes) -> int:
    """How often `counted` came before the last record."""
    count, kept = 0, b""
    while LAST not in kept:
        piece = client.recv(1 << 18)
        assert piece, "the broker hung up"
        kept = kept[-100:] + piece
        count += kept.count(counted) - kept[: len(kept) - len(piece)].count(counted)
    return count


@pytest.mark.parametrize("batch", [many, bomb])
def test_a_compressed_batch_reaches_its_live_readers_and_nobody_waits(attacked: BrokerProcess, batch: object) -> None:
    topic = f"live-{batch.__name__}"  # type: ignore[attr-defined]
    with RawClient(attacked) as client:
        client.produce(topic, sealed(records_of(1, b"first"), 0, 1))
        with mqtt_reader(attacked, topic, stream=False) as mqtt, nats_reader(attacked, topic) as nats:
            counts: list[int] = []
            reader = threading.Thread(target=lambda: counts.append(read_to_the_last(nats, b"MSG " + topic.encode())))
            reader.start()
            sender = threading.Thread(target=lambda: send(client, topic, [batch(), sealed(records_of(1, LAST), 0, 1)]))  # type: ignore[operator]
            sender.start()
            while sender.is_alive() or reader.is_alive():
                ask_all(attacked)
            assert counts == [RECORDS + 1 if batch is many else 2]
            assert mqtt.recv(1)[0] >> 4 == 3  # QoS 0, and it read nothing: it gets what fits


def test_a_compressed_batch_is_replayed_to_many_and_nobody_waits(attacked: BrokerProcess) -> None:
    topic = "replayed"
    with RawClient(attacked) as client:
        send(client, topic, [many(), bomb(), sealed(records_of(1, LAST), 0, 1)])
    counts: list[int] = []

    def read() -> None:
        with mqtt_reader(attacked, topic, stream=True) as reader:
            counts.append(read_to_the_last(reader, encode_text(topic.encode())))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    while any(reader.is_alive() for reader in readers):
        ask_all(attacked)
    assert all(count >= RECORDS for count in counts)
    assert len(counts) == len(readers)


def send(client: RawClient, topic: str, batches: list[bytes]) -> None:
    for batch in batches:
        assert client.produce(topic, batch).error_code == 0


def test_scans_without_a_match_keep_nobody_waiting(attacked: BrokerProcess) -> None:
    """By a Kafka reader of a view that shows nothing, and by a search over HTTP; each comes to its end."""
    stored = 50_000
    with socket.create_connection(("127.0.0.1", attacked.mqtt_port), 60) as client:
        client.sendall(encode_packet(1, 0, encode_text(b"MQTT"), b"\x04\x02\0\0", encode_text(b"")))
        assert client.recv(4)[:1] == b"\x20"
        client.sendall(encode_packet(3, 0, encode_text(b"stored/x"), b"0123456789") * stored)
        client.sendall(encode_packet(3, 2, encode_text(b"stored/x"), b"\0\1", b"last"))
        assert client.recv(4)[:1] == b"\x40"
    view = {"name": "nothing", "filter": "stored/#", "where": "key = 'nobody'"}
    assert ask_json(attacked, "POST", "/v1/views", view)["name"] == "nothing"
    ends: dict[str, int] = {}
    readers = [
        threading.Thread(target=lambda: ends.update(view=scan_view(attacked, "nothing"))),
        threading.Thread(target=lambda: ends.update(http=search(attacked, "stored/#", "nobody"))),
    ]
    for reader in readers:
        reader.start()
    while any(reader.is_alive() for reader in readers):
        ask_all(attacked)
    assert ends["view"] > stored
    assert ends["http"] == 0


def scan_view(broker: BrokerProcess, view: str) -> int:
    """Fetch to the end as clients do; where that is."""
    at, end = 0, 1
    with RawClient(broker) as client:
        while at < end:
            part = FetchRequest.FetchPartition(partition=0, fetch_offset=at, partition_max_bytes=1 << 20)
            topic = FetchRequest.FetchTopic(topic=view, partitions=[part])
            body = FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, topics=[topic])
            answer = client.ask("Fetch", 11, body).responses[0].partitions[0]
            assert answer.error_code == 0
            records, end = bytes(answer.records or b""), answer.high_watermark
            if records:
                at = int.from_bytes(records[:8], "big") + int.from_bytes(records[23:27], "big") + 1
    return end


def search(broker: BrokerProcess, topic_filter: str, needle: str) -> int:
    """How many it finds in all pages."""
    place, count = "earliest", 0
    while place:
        query = urllib.parse.urlencode({"filter": topic_filter, "contains": needle, "from": place})
        page = ask_json(broker, "GET", f"/v1/messages?{query}")
        place, count = page["next"], count + len(page["items"])
    return count


def ask_json(broker: BrokerProcess, method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(broker.http_url + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())
