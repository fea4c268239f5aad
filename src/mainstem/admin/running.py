"""What the HTTP door needs of the running process. The server's App is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from mainstem.broker.broker import Broker

if TYPE_CHECKING:
    from mainstem.admin.events import Events
    from mainstem.admin.history.keeper import History
    from mainstem.admin.live_answers import LiveAnswers
    from mainstem.admin.rates import Rates
    from mainstem.admin.sessions import Sessions
    from mainstem.admin.tokens import Tokens


class Running(Protocol):
    broker: Broker
    config: Any  # server.settings.Config; the admin layer lies below the server and reads it by name
    servers: dict[str, Any]
    ports: dict[str, int]
    notices: list[str]
    started_s: float
    rates: Rates
    history: History
    events: Events
    watchdog: Any  # server.watchdog.Watchdog
    unfinished: Any  # protocols.unfinished.Unfinished
    unsent: Any  # protocols.unsent.Unsent, read by name like the configuration
    asking: Any  # admin.asking.Asking: who answers questions to the log
    cluster: Any  # cluster.figures.Figures where the broker is one of several, else None
    forward: Any  # server.cell_serving.Forwarding where other cells hold namespaces, else None
    tokens: Tokens
    sessions: Sessions
    live: LiveAnswers
    ready: bool
    protocols: dict[str, str]  # listener → the protocol its clients are counted under

    def spellings(self, name: bytes) -> dict[str, str]:
        """A topic's name as each protocol spells it."""

    def doors(self) -> list[dict[str, Any]]:
        """Each listener with a command or an address that works."""

    async def try_it(
        self, protocol: str, topic: str, value: str, login: tuple[str, str], namespace: str
    ) -> list[dict[str, Any]]:
        """Publish by one protocol, receive by all, through the real ports, with this name and password."""


Facts = Mapping[str, Any]
