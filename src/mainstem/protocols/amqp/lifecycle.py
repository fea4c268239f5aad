"""One AMQP connection's life, without sockets: protocol header, login, tuning, opening, channels, closing.

    header ──▶ start ──▶ tune ──▶ open ──▶ running ──▶ closing ──▶ closed
          start-ok   tune-ok   open          close (ours: wait for close-ok, discard the rest)

Methods come in decoded; answers leave through `send`. What needs the broker is asked of `Port`.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Protocol

from mainstem.model.amqp_content import decode_table
from mainstem.model.errors import PeerViolation
from mainstem.protocols.amqp.faults import Fault
from mainstem.protocols.amqp.methods import encode
from mainstem.protocols.login import bearer_token

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
PLAIN, AMQPLAIN, OAUTHBEARER, EXTERNAL = "PLAIN", "AMQPLAIN", "OAUTHBEARER", "EXTERNAL"
CHANNEL_MAX = 2047
FRAME_MAX = 131_072
FRAME_MIN = 4_096
HEARTBEAT_S = 60
CAPABILITIES = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)


class State(Enum):
    HEADER = "header"
    START = "starting"
    TUNE = "tuning"
    OPEN = "opening"
    RUNNING = "running"
    CLOSING = "closing"
    CLOSED = "closed"


class Port(Protocol):
    """What a lifecycle asks of the adapter."""

    def send_method(self, channel: int, payload: bytes) -> None: ...

    def mechanisms(self) -> tuple[str, ...]:
        """By which it may log in."""

    def renew(self, secret: bytes) -> None:
        """Of `connection.update-secret`; then call `renewed`."""

    def login(self, name: str, password: bytes, mechanism: str) -> None:
        """Decide, then call `logged_in` or raise/report the refusal."""

    def open_namespace(self, name: str) -> None:
        """Raise a Fault if it is not there or not for this user."""

    def tuned(self, frame_max: int, heartbeat_s: int) -> None: ...

    def end(self, reason: str) -> None:
        """Close the socket once what was sent is out."""

    def finish(self) -> None:
        """Both sides have said goodbye: the peer closes the socket."""


class Lifecycle:
    def __init__(
        self,
        port: Port,
        server_properties: dict[str, Any],
        *,
        channel_max: int = CHANNEL_MAX,
        frame_max: int = FRAME_MAX,
        heartbeat_s: int = HEARTBEAT_S,
    ) -> None:
        self.port = port
        self.state = State.HEADER
        self.client_properties: dict[str, Any] = {}
        self.channel_max, self.frame_max, self.heartbeat_s = channel_max, frame_max, heartbeat_s  # offered, then agreed
        self.mechanism = ""
        self._server_properties = server_properties

    @property
    def capabilities(self) -> dict[str, Any]:
        found = self.client_properties.get("capabilities")
        return found if isinstance(found, dict) else {}

    def can(self, capability: str) -> bool:
        return self.capabilities.get(capability) is True

    def on_header(self, header: bytes) -> bool:
        """The first eight bytes; False: not ours, the answer says what we speak."""
        if header != PROTOCOL_HEADER:
            self.state = State.CLOSED
            return False
        self.state = State.START
        self.send(
            "connection.start",
            version_major=0,
            version_minor=9,
            server_properties=self._server_properties,
            mechanisms=" ".join(self.port.mechanisms()).encode(),
            locales=b"en_US",
        )
        return True

    def handle(self, name: str, a: dict[str, Any]) -> None:
        """A method on channel 0."""
        if name == "connection.close":
            self.send("connection.close-ok")
            self.state = State.CLOSED
            self.port.finish()
        elif self.state in (State.CLOSING, State.CLOSED) and name == "connection.close-ok":
            self.state = State.CLOSED
            self.port.end("")
        elif self.state is State.START and name == "connection.start-ok":
            self._start_ok(a)
        elif self.state is State.TUNE and name == "connection.tune-ok":
            self._tune_ok(a)
        elif self.state is State.OPEN and name == "connection.open":
            self._open(a)
        elif self.state is State.RUNNING and name == "connection.update-secret":
            self.port.renew(a["new_secret"])
        else:
            raise Fault(504, f"unexpected method in connection state {self.state.value}")

    def _start_ok(self, a: dict[str, Any]) -> None:
        self.client_properties = a["client_properties"]
        self.mechanism = mechanism = a["mechanism"]
        response: bytes = a["response"]
        if mechanism not in self.port.mechanisms():
            raise Fault(503, f"unknown authentication mechanism '{mechanism}'")
        name, password = b"", b""  # EXTERNAL: its certificate tells
        if mechanism == PLAIN:
            parts = response.split(b"\0")
            if len(parts) != 3:
                raise Fault(502, "a PLAIN response that is not user and password")
            name, password = parts[1], parts[2]
        elif mechanism == AMQPLAIN:
            name, password = _amqplain(response)
        elif mechanism == OAUTHBEARER:
            name, password = bearer_token(response)
        self.port.login(name.decode("utf-8", "surrogateescape"), password, mechanism)

    def logged_in(self) -> None:
        self.state = State.TUNE
        offered = {"channel_max": self.channel_max, "frame_max": self.frame_max, "heartbeat": self.heartbeat_s}
        self.send("connection.tune", **offered)

    def renewed(self) -> None:
        self.send("connection.update-secret-ok")

    def refused(self) -> None:
        """Clients that understand it are told; others are cut off, as the specification has it."""
        text = f"Login was refused using authentication mechanism {self.mechanism}. For details see the broker logfile."
        if self.can("authentication_failure_close"):
            self.close(Fault(403, text, hard=True))
        else:
            self.state = State.CLOSED
            self.port.end(text)

    def _tune_ok(self, a: dict[str, Any]) -> None:
        frame_max, channel_max = a["frame_max"], a["channel_max"]
        if frame_max and frame_max < FRAME_MIN:
            raise Fault(530, f"negotiated frame_max={frame_max} is lower than the minimum allowed value ({FRAME_MIN})")
        for what, asked, offered in (
            ("frame_max", frame_max, self.frame_max),
            ("channel_max", channel_max, self.channel_max),
        ):
            if asked > offered:
                raise Fault(530, f"negotiated {what}={asked} is higher than the maximum allowed value ({offered})")
        self.frame_max = frame_max or self.frame_max
        self.channel_max = channel_max or self.channel_max
        self.heartbeat_s = a["heartbeat"]
        self.state = State.OPEN
        self.port.tuned(self.frame_max, self.heartbeat_s)

    def _open(self, a: dict[str, Any]) -> None:
        self.port.open_namespace(a["virtual_host"])
        self.state = State.RUNNING
        self.send("connection.open-ok")

    def check_channel(self, number: int, count: int) -> None:
        """May channel `number` be opened beside `count` others?"""
        if number > self.channel_max:
            raise Fault(
                530, f"number of channels opened ({count}) has reached the negotiated channel_max ({self.channel_max})"
            )

    def close(self, fault: Fault, number: int = 0) -> None:
        """End the connection with a reason; from now on only close-ok counts."""
        if self.state in (State.CLOSING, State.CLOSED):
            return
        before = self.state
        self.state = State.CLOSING
        if before is State.HEADER:
            self.port.end(str(fault))
            return
        self.send(
            "connection.close",
            reply_code=fault.code,
            reply_text=fault.text,
            class_id=number >> 16,
            method_id=number & 0xFFFF,
        )

    def send(self, name: str, **values: Any) -> None:
        self.port.send_method(0, encode(name, **values))


def _amqplain(response: bytes) -> tuple[bytes, bytes]:
    try:
        table = decode_table(response)
    except (PeerViolation, IndexError):
        table = {}
    name, password = table.get("LOGIN"), table.get("PASSWORD")
    if not isinstance(name, str | bytes) or not isinstance(password, str | bytes):
        raise Fault(502, "an AMQPLAIN response without LOGIN and PASSWORD")
    return _raw(name), _raw(password)


def _raw(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
