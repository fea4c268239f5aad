"""Publishes and subscriptions that rules refuse, counted until the audit tells them.

A client may be refused a million times a second. Whoever refuses it adds one here, which costs a look into a dict: an
event is made for each connection, action and name and second, with how often it happened. Of one connection the first
NAMES_MAX names are told apart, what it tries beyond is one more event; of all together REFUSALS_MAX events wait.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from mainstem.broker.rights.access import Principal

REFUSALS_MAX = 1_000
NAMES_MAX = 10
OTHER_NAMES = "(more names)"


@dataclass(frozen=True, slots=True)
class Client:
    """Who was refused, and where."""

    principal: Principal | None
    address: str
    protocol: str
    namespace: str = ""  # that it concerns, where not the principal's own


@dataclass(slots=True)
class Refusal:
    client: Client
    action: str
    name: str
    why: str
    times: int


class Refusals:
    def __init__(self) -> None:
        self._waiting: dict[tuple[Hashable, str, str | bytes], Refusal] = {}
        self._names: dict[Hashable, int] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(
        self,
        whose: Hashable,
        client: Callable[[], Client],
        action: str,
        name: str | bytes,
        why: str = "",
        times: int = 1,
    ) -> bool:
        """`whose`: the connection, or whatever else tells clients apart; `client` is asked once. False: no room is left."""
        found = self._waiting.get((whose, action, name))
        if found is None:
            count = self._names.get(whose, 0)
            if count >= NAMES_MAX and name != OTHER_NAMES:
                return self.add(whose, client, action, OTHER_NAMES, times=times)
            if len(self._waiting) >= REFUSALS_MAX:
                return False
            self._names[whose] = count + 1
            shown = name.decode(errors="replace") if isinstance(name, bytes) else name
            self._waiting[whose, action, name] = Refusal(client(), action, shown, why, times)
        else:
            found.times += times
        return True

    def take(self) -> list[Refusal]:
        found = list(self._waiting.values())
        self._waiting.clear()
        self._names.clear()
        return found
