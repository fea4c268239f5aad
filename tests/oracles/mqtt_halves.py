"""Both halves of an MQTT connection without a broker, in either implementation: for equality tests and fuzzing.

A `Bench` feeds bytes to one implementation and tells everything that came of it: events, the violation that ended it, what
was sent back, and the records it put into the log, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mainstem.broker.delivery.live import Route
from mainstem.log.gather import Gather
from mainstem.model.record import Record
from mainstem.protocols.mqtt.limits import Limits
from mainstem.protocols.mqtt.outgoing import outbound
from mainstem.protocols.mqtt.wire import wire
from mainstem.protocols.mqtt.wire.reasons import Reason, Violation
from tests.oracles import mqtt_outbound, mqtt_wire

TIME_MS = 1_700_000_000_000
LIMITS = Limits(packet_bytes_max=100_000, receive_maximum=50, topic_alias_maximum=8, user_properties_max=4)
REFUSED = {b"denied": Reason.NOT_AUTHORIZED, b"refused": Reason.TOPIC_NAME_INVALID}


class _Log:
    def __init__(self) -> None:
        self.id = 1
        self.gathers: list[Any] = [None] * 16
        self.opened: list[Any] = []

    def open(self, origin: int, kind: int = 1) -> Any:
        gather = Gather(self, origin, kind)  # type: ignore[arg-type]
        self.gathers[origin] = gather
        self.opened.append(gather)
        return gather


class _Ticker:
    def mark_dirty(self, connection: Any) -> None: ...


class _Retained:
    def __init__(self) -> None:
        self.full = False  # its quota is not used up
        self.noted: list[tuple[bytes, int, bool, int]] = []

    def note(self, route: Any, ticket: Any, index: int, has_value: bool, size: int) -> None:
        self.noted.append((route.topic, index, has_value, size))


class Bench:
    """One client's connection."""

    def __init__(self, way: str, *, version: int = 5, durable: bool = False) -> None:
        """`way` is "plain" for the oracle, "compiled" for what the broker runs."""
        plain = way == "plain"
        self._half: Any = mqtt_outbound if plain else outbound
        wires: Any = mqtt_wire if plain else wire
        self._log = _Log()
        self._routes: dict[bytes, Any] = {}
        self.failed: list[str] = []
        self.held = 0
        self.retained = _Retained()
        encoder = self._half.Encoder(lambda record, now_ns: b"", lambda record: b"")
        self.outbound: Any = self._half.Outbound(None, encoder, _Ticker())
        self.outbound.connection = self.outbound.session = self
        self.outbound.version = version
        self.inbound: Any = wires.Inbound(self.outbound, LIMITS)
        self.inbound.version = version
        self.inbound.packet_bytes_max = LIMITS.packet_bytes_max
        self.inbound.client_id = self.outbound.client_id = b"me"
        self.inbound.durable = self.outbound.durable = durable
        self.inbound.retained = self.retained
        self.inbound.routes = wires.RouteTable(self._resolve, 64)

    def _resolve(self, topic: bytes) -> tuple[Any, int, int, int]:
        if topic in REFUSED:
            return None, REFUSED[topic], 0, 0
        if topic not in self._routes:
            self._routes[topic] = Route(topic, len(self._routes) + 1, self._log, None)  # type: ignore[arg-type]
        return self._routes[topic], 0, topic.startswith(b"known"), 1000

    # -- what the outgoing half asks of its connection and session

    def fail(self, error: Exception) -> None:
        self.failed.append(str(error))

    def note_held(self) -> None:
        self.held += 1

    def note_recorded(self) -> None:
        self.held += 1

    def note_begun(self) -> None:
        """The oracle keeps no moves."""

    # -- what a test does

    def feed(self, pieces: Iterable[bytes]) -> list[Any]:
        """Everything that came of these reads, in order."""
        told: list[Any] = []
        try:
            for piece in pieces:
                self.inbound.receive(piece)
                while (event := self.inbound.next(TIME_MS)) is not None:
                    told.append(event)
        except Violation as violation:
            told.append(("violation", violation.reason))
        return [*told, self.state()]

    def state(self) -> tuple[Any, ...]:
        inbound, outbound = self.inbound, self.outbound
        return (
            inbound.messages,
            inbound.unacked,
            inbound.received_ids(),
            inbound.released_ids(),
            outbound.take(),
            outbound.take_held(),
            outbound.take_recorded(),
            outbound.flight(),
            outbound.messages,
            outbound.dropped,
            tuple(self.retained.noted),
            tuple(self.failed),
        )

    def settle(self, error: Exception | None = None) -> bytes:
        """The log is synced, or failed: what it stored. Acks leave."""
        frames = b""
        for gather in self._log.opened:
            if error is None:
                frames += bytes(gather.seal_frame(1, 0, 1, 0, 1, 1, 0, 0))
            self._log.gathers[gather.origin] = None
            gather.ticket.fail(error) if error is not None else gather.ticket.release()
        self._log.opened.clear()
        return frames

    def push(self, record: Record, *overlapping: dict[str, Any]) -> bool:
        grants = [self._half.Grant(**grant) for grant in overlapping]
        return bool(self.outbound.push(outbound.ref_of(record), self._half.Grant.merged(grants)))
