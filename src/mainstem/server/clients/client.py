"""What the clients share: an address, a message, a starting point, and a socket that says what went wrong."""

from __future__ import annotations

import difflib
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from mainstem.model.errors import InvalidArgument
from mainstem.server.cli.failures import Unreachable, WrongPeer
from mainstem.server.clients.secured import TLS_OPTIONS, secured
from mainstem.server.protocols import PROTOCOLS
from mainstem.server.units import parse_duration_ms

PORTS = {one.name: one.port for one in PROTOCOLS}
TLS_PORTS = {f"{one.name}s": one.tls_port for one in PROTOCOLS}
OPTIONS = {one.name: (*one.options, *TLS_OPTIONS) for one in PROTOCOLS}  # of an address, behind `?`
CONNECT_S = 5.0
ANSWER_S = 15.0
RECEIVE_BYTES = 1 << 18
OFFSET_MAX = 2**63 - 1
TIME_MS_MAX = 253_402_300_799_999  # the end of the year 9999


@dataclass(frozen=True, slots=True)
class Address:
    scheme: str
    host: str
    port: int
    user: str = ""
    password: str = ""
    path: str = ""  # the topic, filter, routing key or queue, in the protocol's own spelling
    options: dict[str, str] = field(default_factory=dict)
    secure: bool = False  # over TLS; options ca, cert, key and insecure say how


def read_address(url: str) -> Address:
    """`kafka://host:port/topic?option=value`."""
    scheme, mark, rest = url.partition("://")
    usual = {**PORTS, **TLS_PORTS}.get(scheme) if mark else None
    if usual is None:
        raise InvalidArgument(
            f"{url!r} is not an address",
            fix=f"{', '.join(one.example for one in PROTOCOLS)}; with TLS {', '.join(TLS_PORTS)}",
        )
    try:  # '#' and '+' are wildcards here, not a fragment
        parts = urlsplit(f"//{rest.replace('#', '%23')}")
        port = parts.port or usual
    except ValueError as error:
        raise InvalidArgument(f"{url!r}: {error}", fix=f"{scheme}://localhost:{usual}/...") from None
    return Address(
        scheme.removesuffix("s") if scheme in TLS_PORTS else scheme,
        parts.hostname or "localhost",
        port,
        unquote(parts.username or ""),
        unquote(parts.password or ""),
        unquote(parts.path.removeprefix("/")),
        _read_options(url, scheme.removesuffix("s") if scheme in TLS_PORTS else scheme, parts.query),
        scheme in TLS_PORTS,
    )


def _read_options(url: str, scheme: str, query: str) -> dict[str, str]:
    """What stands behind `?`: an option that nobody reads would be a wish not heard."""
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name, value in options.items():
        if name not in OPTIONS[scheme]:
            near = difflib.get_close_matches(name, OPTIONS[scheme], 1)
            fix = f"did you mean {near[0]}?" if near else f"known are {', '.join(OPTIONS[scheme])}"
            raise InvalidArgument(f"{url!r}: unknown option {name!r}", fix=fix)
        if name == "qos" and value not in ("0", "1"):
            raise InvalidArgument(f"{url!r}: qos is 0 or 1")
    return options


@dataclass(slots=True)
class Message:
    value: bytes | None
    topic: str = ""  # in the protocol's spelling
    key: bytes | None = None
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)  # offset, partition, qos, ... : what the protocol tells


@dataclass(frozen=True, slots=True)
class Start:
    """Where a consumer begins."""

    kind: str  # earliest | latest | offset | last | time | stamp
    value: int = 0  # an offset, a count, milliseconds since 1970, or a stamp in microseconds


def read_start(text: str, now_ms: int | None = None) -> Start:
    """`earliest`, `latest`, `-10` (the last ten), `5m` (the last five minutes), `@42` (offset), `ts:<RFC 3339>`."""
    if text in ("earliest", "beginning"):
        return Start("earliest")
    if text in ("latest", "end"):
        return Start("latest")
    try:
        if re.fullmatch(r"-\d+", text):
            return Start("last", _at_most(OFFSET_MAX, int(text[1:])))
        if re.fullmatch(r"@?\d+", text):
            return Start("offset", _at_most(OFFSET_MAX, int(text.lstrip("@"))))
        if text.startswith("ts:"):
            return Start("time", _at_most(TIME_MS_MAX, read_time_ms(text[3:])))
        now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        return Start("time", max(0, now_ms - parse_duration_ms(text)))
    except ValueError:
        raise InvalidArgument(
            f"--from {text!r} is not understood", fix="earliest, latest, -10, 5m, @42 or ts:2026-01-31T12:00:00Z"
        ) from None


def _at_most(most: int, number: int) -> int:
    if number > most:
        raise ValueError(f"{number} is more than {most}")
    return number


def read_time_ms(text: str) -> int:
    """RFC 3339 or milliseconds since 1970."""
    from datetime import UTC, datetime

    if text.isdigit():
        return int(text)
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


class Client(Protocol):
    def publish(self, message: Message) -> None:
        """Send; may not have arrived before `flush` returns."""

    def flush(self) -> None:
        """Wait until the broker has taken everything published."""

    def subscribe(self, target: str, start: Start) -> None:
        """Begin to consume the topic, filter or queue; returns once the broker knows."""

    def messages(self, idle_s: float | None = None) -> Iterator[Message]:
        """What arrives, for ever, or until nothing came for `idle_s`."""

    def close(self) -> None: ...


class Stream:
    """A socket with a read buffer. Silence, refusal and a closed door become errors that name the place."""

    def __init__(self, address: Address) -> None:
        self.where = f"{address.scheme}{'s' if address.secure else ''}://{address.host}:{address.port}"
        try:
            self.socket = socket.create_connection((address.host, address.port), CONNECT_S)
        except OSError as error:
            raise Unreachable(
                f"nobody answers at {self.where} ({error.strerror or error})",
                fix="mainstem up, or give another host or port",
            ) from error
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.secure:
            self.socket = secured(self.socket, address.host, address.options, self.where)
        self._buffer = bytearray()
        self._greeting = b""  # how the peer began: AMQP and HTTP say their names

    def send(self, *parts: bytes | bytearray | memoryview) -> None:
        try:
            self.socket.settimeout(ANSWER_S)
            self.socket.sendall(parts[0] if len(parts) == 1 else b"".join(parts))
        except OSError as error:
            raise self._lost(error) from error

    def read(self, size: int, *, wait_s: float | None = None) -> bytes:
        """Exactly `size` bytes. With `wait_s`, TimeoutError when none of them came; else the peer must answer."""
        while len(self._buffer) < size:
            self.fill(wait_s if not self._buffer else None)
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def peek(self) -> bytearray:
        return self._buffer

    def skip(self, size: int) -> None:
        del self._buffer[:size]

    def fill(self, wait_s: float | None = None) -> None:
        """Read once from the socket into the buffer."""
        self.socket.settimeout(ANSWER_S if wait_s is None else wait_s)
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except TimeoutError:
            if wait_s is None:
                raise WrongPeer(f"{self.where} did not answer within {ANSWER_S:.0f} s") from None
            raise
        except OSError as error:
            raise self._lost(error) from error
        if not data:
            raise self._lost(None)
        self._greeting = self._greeting or data[:4]
        self._buffer += data

    def close(self) -> None:
        self.socket.close()

    def _lost(self, error: OSError | None) -> WrongPeer:
        why = f" ({error.strerror or error})" if error else ""
        if self._greeting in (b"", b"AMQP", b"HTTP"):
            usual = ", ".join(f"{name} {port}" for name, port in {**PORTS, **TLS_PORTS}.items())
            return WrongPeer(
                f"{self.where} closed the connection "
                + (f"after saying {self._greeting.decode()}" if self._greeting else "without a word")
                + why,
                fix=f"is it the port of another protocol? Usual are {usual}",
            )
        return WrongPeer(
            f"{self.where} closed the connection{why}",
            fix="mainstem conn ls, or the broker's log, may say why; where users exist: SCHEME://USER:PASSWORD@HOST/...",
        )
