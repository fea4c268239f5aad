"""Who may connect at all: so many at once and so many a second from one address. Loopback is not counted.

Before a login an address is all that is known of a peer; a storm from one must not take the places of all others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

BURST_S = 4  # an address may use up this many seconds of its rate at once
ADDRESSES_MAX = 65_536  # remembered; beyond it those without an open connection are forgotten


class Admission:
    """One for all listeners. `admit` on connecting, `leave` when the connection is lost."""

    def __init__(
        self, per_address_max: int, per_address_rate: int, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.per_address_max = per_address_max
        self.per_address_rate = per_address_rate
        self._monotonic = monotonic
        self._open: dict[str, int] = {}
        self._tokens: dict[str, tuple[float, float]] = {}  # address → (tokens, as of)

    def admit(self, transport: Any) -> bool:
        address = address_of(transport)
        if address is None:
            return True
        held = self._open.get(address, 0)
        if held >= self.per_address_max or not self._take_token(address):
            return False
        self._open[address] = held + 1
        return True

    def leave(self, transport: Any) -> None:
        address = address_of(transport)
        if address is None:
            return
        held = self._open.get(address, 0) - 1
        if held > 0:
            self._open[address] = held
        else:
            self._open.pop(address, None)

    def _take_token(self, address: str) -> bool:
        now = self._monotonic()
        most = float(self.per_address_rate * BURST_S)
        tokens, since = self._tokens.get(address, (most, now))
        tokens = min(most, tokens + (now - since) * self.per_address_rate)
        if len(self._tokens) >= ADDRESSES_MAX and address not in self._tokens:
            self._tokens = {known: value for known, value in self._tokens.items() if known in self._open}
        self._tokens[address] = (tokens - 1, now) if tokens >= 1 else (tokens, now)
        return tokens >= 1


def address_of(transport: Any) -> str | None:
    """The peer's address; None for loopback and what has none."""
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple) or not peer:
        return None
    address = str(peer[0])
    return None if address == "::1" or address.startswith(("127.", "::ffff:127.")) else address
