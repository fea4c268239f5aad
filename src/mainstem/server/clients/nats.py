"""A NATS client: core publish and subscribe, headers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress

from mainstem.model.crossing_nats import LINE, VERSION, header_lines
from mainstem.model.errors import InvalidArgument, MainstemError
from mainstem.server.cli.failures import Refused, WrongPeer
from mainstem.server.clients.client import Address, Message, Start, Stream

SID = b"1"
PING_S = 30.0


class NatsClient:
    def __init__(self, address: Address) -> None:
        self._stream = Stream(address)
        first = self._line()
        if not first.startswith(b"INFO "):
            raise WrongPeer(f"{self._stream.where} does not answer like NATS")
        options = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "protocol": 1,
            "lang": "mainstem",
            "name": address.options.get("client_id", "mainstem-cli"),
            **({"user": address.user, "pass": address.password} if address.user else {}),
        }
        self._stream.send(b"CONNECT " + json.dumps(options).encode() + b"\r\n")
        self.flush()

    def publish(self, message: Message) -> None:
        headers = [(name.encode(), value or b"") for name, value in message.headers]
        if message.key is not None:
            headers.append((b"Ms-Key", message.key))
        subject, value = message.topic.encode(), message.value or b""
        if any(byte in b"\r\n" for _, text in headers for byte in text):
            raise InvalidArgument("NATS carries headers as lines", fix="publish it by kafka:// or amqp://")
        if not headers:
            self._stream.send(b"PUB %b %d\r\n%b\r\n" % (subject, len(value), value))
            return
        block = LINE.join([VERSION, *(name + b": " + text for name, text in headers), b"", b""])
        self._stream.send(b"HPUB %b %d %d\r\n%b%b\r\n" % (subject, len(block), len(block) + len(value), block, value))

    def flush(self) -> None:
        self._stream.send(b"PING\r\n")
        while True:
            line = self._line()
            if line == b"PONG":
                return
            self._check(line)

    def subscribe(self, target: str, start: Start) -> None:
        if start.kind != "latest":
            raise InvalidArgument(
                "core NATS has no history", fix="mainstem sub kafka://HOST/TOPIC --from earliest reads the same records"
            )
        self._stream.send(b"SUB %b %b\r\n" % (target.encode(), SID))
        self.flush()

    def messages(self, idle_s: float | None = None) -> Iterator[Message]:
        heard = time.monotonic()
        while True:
            try:
                line = self._line(PING_S if idle_s is None else min(idle_s, PING_S))
            except TimeoutError:
                if idle_s is not None and time.monotonic() - heard >= idle_s:
                    return
                self._stream.send(b"PING\r\n")
                continue
            words = line.split()
            if words and words[0] in (b"MSG", b"HMSG"):
                heard = time.monotonic()
                yield self._message(words)
            else:
                self._check(line)

    def close(self) -> None:
        with suppress(MainstemError):  # it is gone already, which is what we want
            self.flush()
        self._stream.close()

    def _message(self, words: list[bytes]) -> Message:
        total = int(words[-1])
        head = int(words[-2]) if words[0] == b"HMSG" else 0
        data = self._stream.read(total + 2)
        headers: list[tuple[str, bytes | None]] = [
            (name.decode(errors="replace"), value) for name, value in header_lines(data[:head])
        ]
        sizes = 2 if words[0] == b"HMSG" else 1
        reply = words[3] if len(words) == 4 + sizes else b""
        facts: dict[str, object] = {"reply": reply.decode(errors="replace")} if reply else {}
        key = next((value for name, value in headers if name.lower() == "ms-key"), None)
        return Message(data[head:total], words[1].decode(errors="replace"), key, headers, facts)

    def _check(self, line: bytes) -> None:
        if line == b"PING":
            self._stream.send(b"PONG\r\n")
        elif line.startswith(b"-ERR"):
            fix = "where users exist: nats://USER:PASSWORD@HOST/SUBJECT"
            if b"Permissions" in line:  # the login was good
                fix = "mainstem user may NAME publish TOPIC --why, then: mainstem user allow NAME publish TOPIC"
            raise Refused(f"{self._stream.where} refuses: {line[5:].decode(errors='replace').strip(chr(39))}", fix=fix)

    def _line(self, wait_s: float | None = None) -> bytes:
        buffer = self._stream.peek()
        while (end := buffer.find(b"\r\n")) < 0:
            self._stream.fill(wait_s if not buffer else None)
            buffer = self._stream.peek()
        line = bytes(buffer[:end])
        self._stream.skip(end + 2)
        return line
