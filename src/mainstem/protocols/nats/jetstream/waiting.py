"""The pulls that wait for one consumer, and which of them the next message is for.

no policy       in turns, a message each
prioritized     the lowest number first; in turns among equals
overflow        in turns, but who names a limit only where so many messages wait (or are unacked)
pinned_client   one client has them all, until it is silent for the consumer's `priority_timeout` or is unpinned
"""

from __future__ import annotations

import asyncio
import os
from base64 import b32encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mainstem.model.times import duration_text

if TYPE_CHECKING:
    from mainstem.protocols.nats.adapter import NatsConnection

NS_PER_S = 1_000_000_000
PINNED_NS = 120 * NS_PER_S  # nats-server's default


@dataclass(slots=True, eq=False)
class Pull:
    reply: bytes
    asked: NatsConnection
    batch: int = 1
    expires_ns: int = 0  # from now; 0: never
    no_wait: bool = False
    bytes_left: int = 0  # 0: no limit
    heartbeat_ns: int = 0
    has_limit: bool = False
    group: str = ""
    min_pending: int = 0
    min_ack_pending: int = 0
    pin: str = ""
    priority: int = 0
    spoken: bool = False  # it is a document, which may say something of priorities
    delivered: int = 0
    timers: list[asyncio.TimerHandle] = field(default_factory=list)

    def end(self) -> None:
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()


def fault_of(pull: Pull, config: dict[str, Any]) -> tuple[int, str] | None:
    """Why a consumer with this configuration refuses it: a status."""
    if pull.heartbeat_ns and (not pull.expires_ns or pull.heartbeat_ns * 2 > pull.expires_ns):
        return 400, "Bad Request - heartbeat value too large"
    if 0 < config.get("max_batch", 0) < pull.batch:
        return 409, f"Exceeded MaxRequestBatch of {config['max_batch']}"
    if 0 < config.get("max_expires", 0) < pull.expires_ns:
        return 409, f"Exceeded MaxRequestExpires of {duration_text(config['max_expires'])}"
    if 0 < config.get("max_bytes", 0) < pull.bytes_left:
        return 409, f"Exceeded MaxRequestMaxBytes of {config['max_bytes']}"
    return _group_fault(pull, config)


def _group_fault(pull: Pull, config: dict[str, Any]) -> tuple[int, str] | None:
    policy = config.get("priority_policy", "none")
    if (pull.min_pending or pull.min_ack_pending) and policy != "overflow":
        return 400, "Bad Request - Not a Overflow Priority consumer"
    if pull.pin and policy != "pinned_client":
        return 400, "Bad Request - Not a Pinned Client Priority consumer"
    if not 0 <= pull.priority <= 9:
        return 400, "Bad Request - Priority must be between 0 and 9"
    if policy != "none" and pull.spoken:
        if not pull.group:
            return 400, "Bad Request - Priority Group missing"
        if pull.group not in config["priority_groups"]:
            return 400, "Bad Request - Invalid Priority Group"
    return None


class Waiting:
    """`on_pinned` and `on_unpinned` tell of a pinned client that came or went."""

    def __init__(self, loop: asyncio.AbstractEventLoop, config: dict[str, Any]) -> None:
        self._loop = loop
        self._pulls: list[Pull] = []
        self.pin = ""
        self.pinned_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self.on_pinned: Callable[[str], None] = lambda group: None
        self.on_unpinned: Callable[[str, str], None] = lambda group, reason: None
        self.on_wrong_pin: Callable[[Pull], None] = lambda pull: None
        self.change(config)

    def change(self, config: dict[str, Any]) -> None:
        self.policy: str = config.get("priority_policy", "none")
        self._groups: list[str] = config.get("priority_groups") or []
        self._timeout_ns: int = config.get("priority_timeout") or PINNED_NS
        if self.policy != "pinned_client":
            self._forget_pin()

    def __len__(self) -> int:
        return len(self._pulls)

    def __iter__(self) -> Iterator[Pull]:
        return iter(list(self._pulls))

    def __contains__(self, pull: Pull) -> bool:
        return pull in self._pulls

    def add(self, pull: Pull) -> None:
        at = len(self._pulls)
        if self.policy == "prioritized":
            while at and self._pulls[at - 1].priority > pull.priority:
                at -= 1
        self._pulls.insert(at, pull)

    def remove(self, pull: Pull) -> None:
        if pull in self._pulls:
            self._pulls.remove(pull)
        pull.end()

    def next(self, now_ns: int, pending: Callable[[], int], ack_pending: Callable[[], int]) -> Pull | None:
        """Who the message that is ready is for; None: nobody who waits may have it."""
        if self.policy == "overflow":
            return next((one for one in self._pulls if _overflows(one, pending, ack_pending)), None)
        if self.policy == "pinned_client":
            return self._next_pinned(now_ns)
        return self._pulls[0] if self._pulls else None

    def served(self, pull: Pull) -> None:
        """It got a message: others first, or it has all it asked for."""
        if pull.delivered >= pull.batch:
            self.remove(pull)
        elif len(self._pulls) > 1:
            self._pulls.remove(pull)
            self.add(pull)

    def first(self, count: int) -> list[Pull]:
        """Those whose turn is next."""
        return self._pulls[:count]

    def turned(self, served: list[Pull], left: list[Pull]) -> None:
        """Several got messages, in turns; `left` want more, in this order, behind whoever got none."""
        for pull in served:
            if pull not in left:
                self.remove(pull)
        self._pulls = [one for one in self._pulls if one not in left] + left

    # -- the pinned client -------------------------------------------------------------------------------------------

    def _next_pinned(self, now_ns: int) -> Pull | None:
        for pull in list(self._pulls):
            if pull.pin and pull.pin != self.pin:  # of a pin that is no more
                self.remove(pull)
                self.on_wrong_pin(pull)
            elif not self.pin:
                self.pin = pull.pin = b32encode(os.urandom(15)).decode().rstrip("=")[:22]
                self.pinned_ns = now_ns
                self.keep_pin()
                self.on_pinned(pull.group or self._group())
                return pull
            elif pull.pin == self.pin:
                return pull
        return None

    def _group(self) -> str:
        return self._groups[0] if self._groups else ""

    def keep_pin(self) -> None:
        """The pinned client asked again."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._timeout_ns / NS_PER_S, self.unpin, "timeout")

    def unpin(self, reason: str) -> None:
        if self.pin:
            self._forget_pin()
            self.on_unpinned(self._group(), reason)

    def _forget_pin(self) -> None:
        self.pin, self.pinned_ns = "", 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        self._forget_pin()


def _overflows(pull: Pull, pending: Callable[[], int], ack_pending: Callable[[], int]) -> bool:
    if not pull.min_pending and not pull.min_ack_pending:
        return True
    return (0 < pull.min_pending <= pending()) or (0 < pull.min_ack_pending <= ack_pending())
