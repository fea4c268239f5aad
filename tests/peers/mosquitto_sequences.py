"""mosquitto's wire sequences against this broker: python -m tests.peers.mosquitto_sequences <checkout of mosquitto>

A sequence is bytes to send and bytes to expect (test/broker/data/*.json). Packets are compared by what they mean: of a
DISCONNECT, a CONNACK and the answer to a refused publish the reason, because we add a reason string or say our limits.
Whether the broker hangs up, and what else it says, is compared as it stands. Exits with the number of sequences that differ.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mainstem.testing import Broker

CONNACK, PUBACK, PUBREC, DISCONNECT = 2, 4, 5, 14
ANSWER_S_MAX = 1.0


class Sequence(NamedTuple):
    name: str
    version: int
    connects: bool  # first, as any client does
    ends: bool  # the broker hangs up
    messages: list[dict[str, Any]]


class Differs(Exception):
    """What came instead."""


def sequences(checkout: Path) -> Iterator[Sequence]:
    for path in sorted((checkout / "test" / "broker" / "data").glob("*.json")):
        for group in json.loads(path.read_text()):
            if group.get("disable"):
                continue
            for one in group["tests"]:
                asked = {**group, **one}
                name = f"{path.stem}: {group['group'].strip()} {one['name']}"
                ends = asked.get("expect_disconnect", True)
                yield Sequence(name, asked.get("ver", 4), asked.get("connect", True), ends, one["msgs"])


def parse(text: str) -> bytes:
    """`40 r2 m1 'text'`: hex bytes, r or v variable byte integers, m k s H 16 bits, i 8 bits, L 32 bits, strings."""
    data, rest = b"", text.strip()
    while rest:
        if rest[0] == "'":
            value, _, rest = rest[1:].partition("'")
            data += value.encode()
        else:
            word, _, rest = rest.partition(" ")
            data += _word(word)
        rest = rest.strip()
    return data


def _word(word: str) -> bytes:
    sizes = {"i": 1, "H": 2, "k": 2, "m": 2, "s": 2, "L": 4}
    if word[0] in sizes:
        return int(word[1:]).to_bytes(sizes[word[0]], "big")
    if word[0] in "rv":
        number, digits = int(word[1:]), bytearray()
        while True:
            digits.append(number % 128 | (0x80 if number > 127 else 0))
            number //= 128
            if not number:
                return bytes(digits)
    return bytes.fromhex(word)


class Peer:
    def __init__(self, broker: Broker) -> None:
        self._socket = socket.create_connection((broker.host, broker.mqtt_port), timeout=ANSWER_S_MAX)

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except ConnectionError:
            raise Differs("it hung up too early") from None

    def packet(self) -> bytes:
        """The next one; empty: the broker hung up."""
        try:
            head = self._read(2)
            size, shift = head[1] & 0x7F, 7
            while head and head[-1] & 0x80:
                head += self._read(1)
                size |= (head[-1] & 0x7F) << shift
                shift += 7
            return head + self._read(size)
        except ConnectionError:
            return b""
        except TimeoutError:
            raise Differs("nothing came") from None

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise ConnectionError
            data += more
        return data

    def expect(self, wanted: bytes) -> None:
        while wanted:  # one expectation may be several packets
            got = self.packet()
            kind = wanted[0] >> 4
            if kind == CONNACK and got[:1] == wanted[:1]:
                if got[2:4] != wanted[2:4]:
                    raise Differs(f"got {got.hex()} instead of {wanted.hex()}")
                return
            if kind == DISCONNECT and got[:1] == wanted[:1]:
                if got[2] != wanted[2]:
                    raise Differs(f"hung up with {got[2]:#04x} instead of {wanted[2]:#04x}")
                return
            if kind in (PUBACK, PUBREC) and got[:1] == wanted[:1] and len(got) > 5:
                got = bytes((got[0], 3)) + got[2:5]
            if not got or not wanted.startswith(got):
                raise Differs(f"got {got.hex() or 'the end'} instead of {wanted.hex()}")
            wanted = wanted[len(got) :]

    def expect_end(self) -> None:
        got = self.packet()
        if got[:1] == b"\xe0" or (
            got[:1] == b"\x20" and got[3]
        ):  # why it hangs up, which mosquitto does not always say
            got = self.packet()
        if got:
            raise Differs(f"it did not hang up, it said {got.hex()}")

    def expect_life(self) -> None:
        self.send(b"\xc0\0")
        got = self.packet()
        if got != b"\xd0\0":
            raise Differs(f"it hung up or said {got.hex() or 'nothing'}")


def connect_packet(version: int, client_id: str) -> bytes:
    body = b"\0\4MQTT" + bytes([version, 2]) + (60).to_bytes(2, "big") + (b"\0" if version == 5 else b"")
    if version == 3:
        body = b"\0\6MQIsdp\3\2" + (60).to_bytes(2, "big")
    body += len(client_id).to_bytes(2, "big") + client_id.encode()
    return bytes([0x10, len(body)]) + body


def publish_packet(message: dict[str, Any], packet_id: int = 1) -> bytes:
    topic, qos = str(message["topic"]).encode(), int(message["qos"])
    body = len(topic).to_bytes(2, "big") + topic + (packet_id.to_bytes(2, "big") if qos else b"")
    body += str(message["payload"]).encode()
    return bytes([0x30 | qos << 1 | bool(message.get("retain")), len(body)]) + body


def publish_elsewhere(broker: Broker, message: dict[str, Any]) -> None:
    other = Peer(broker)
    other.send(connect_packet(4, "helper"))
    other.packet()
    other.send(publish_packet(message))
    for _ in range(message["qos"]):
        if other.packet()[:1] == b"\x50":
            other.send(b"\x62\2\0\1")
    other.expect_life()
    other.close()


def subscribe(peer: Peer, version: int, message: dict[str, Any]) -> None:
    topic = message["topic"].encode()
    listed = b"\0" if version == 5 else b""
    body = b"\0\1" + listed + len(topic).to_bytes(2, "big") + topic + bytes([message["qos"]])
    peer.send(bytes([0x82, len(body)]) + body)
    answer = b"\0\1" + listed + bytes([message["qos"]])
    peer.expect(bytes([0x90, len(answer)]) + answer)


def run(broker: Broker, sequence: Sequence) -> None:
    """Raises Differs where the broker did not do as mosquitto does."""
    peer = Peer(broker)
    try:
        if sequence.connects:
            peer.send(connect_packet(sequence.version, sequence.name.replace("/", "")[:100]))
            if peer.packet()[:1] != b"\x20":
                raise Differs("it was not let in")
        for message in sequence.messages:
            if message["type"] == "send":
                peer.send(parse(message["payload"]))
            elif message["type"] == "recv":
                peer.expect(parse(message["payload"]))
            elif message["type"] == "external_publish":
                publish_elsewhere(broker, message)
            elif message["type"] == "subscribe":
                subscribe(peer, sequence.version, message)
        if sequence.ends:
            peer.expect_end()
        else:
            peer.expect_life()
    finally:
        peer.close()


def main(checkout: Path) -> int:
    total = differing = 0
    with Broker() as broker:
        for sequence in sequences(checkout):
            total += 1
            try:
                run(broker, sequence)
            except Differs as difference:
                differing += 1
                print(f"{sequence.name}: {difference}")
    print(f"{total - differing} of {total} sequences as on mosquitto")
    return differing


if __name__ == "__main__":
    sys.exit(min(main(Path(sys.argv[1])), 100))
