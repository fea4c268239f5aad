"""What a NATS client said in CONNECT, and what it subscribed to. Knows no socket and no clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mainstem.protocols.nats.commands import INVALID_PROTOCOL, NO_RESPONDERS, WireError
from mainstem.protocols.nats.documents import parse
from mainstem.protocols.nats.outbound import Subscription

__all__ = ["Options", "Subscription", "Subscriptions"]


@dataclass(slots=True)
class Options:
    """CONNECT's, with nats-server's defaults for what a client leaves out."""

    verbose: bool = True
    pedantic: bool = True
    echo: bool = True
    headers: bool = False
    no_responders: bool = False
    protocol: int = 0
    user: str = ""
    password: str = ""
    token: str = ""
    jwt: str = ""
    nkey: str = ""
    signature: str = ""
    name: str = ""
    lang: str = ""
    version: str = ""

    @classmethod
    def parse(cls, text: bytes) -> Options:
        """WireError where it cannot be understood; nats-server closes without a word, too."""
        try:
            given: Any = parse(text)
        except ValueError:
            raise WireError("") from None
        if not isinstance(given, dict):
            raise WireError("")
        options = cls(
            verbose=given.get("verbose") is not False,
            pedantic=given.get("pedantic") is not False,
            echo=given.get("echo") is not False,
            headers=given.get("headers") is True,
            no_responders=given.get("no_responders") is True,
            protocol=given.get("protocol", 0),
            user=str(given.get("user") or ""),
            password=str(given.get("pass") or ""),
            token=str(given.get("auth_token") or ""),
            jwt=str(given.get("jwt") or ""),
            nkey=str(given.get("nkey") or ""),
            signature=str(given.get("sig") or ""),
            name=str(given.get("name") or ""),
            lang=str(given.get("lang") or ""),
            version=str(given.get("version") or ""),
        )
        if options.protocol not in (0, 1):
            raise WireError(INVALID_PROTOCOL)
        if options.no_responders and not options.headers:
            raise WireError(NO_RESPONDERS)
        return options

    def login(self) -> tuple[str, bytes]:
        """Name and password. A token is both, joined by a colon, or what another issuer signed."""
        if self.token and not self.user:
            name, colon, password = self.token.partition(":")
            return (name, password.encode()) if colon else ("", self.token.encode())
        if self.jwt and not self.user:
            return "", self.jwt.encode()
        return self.user, self.password.encode()


@dataclass(slots=True)
class Subscriptions:
    """Of one connection, by their own number and by filter."""

    by_sid: dict[bytes, Subscription] = field(default_factory=dict)
    plain: dict[bytes, list[Subscription]] = field(default_factory=dict)  # canonical filter → those without a queue
    inboxes: int = 0

    def add(self, one: Subscription) -> None:
        self.by_sid[one.sid] = one
        if not one.queue:
            self.plain.setdefault(one.filter, []).append(one)

    def remove(self, one: Subscription) -> None:
        one.closed = True
        del self.by_sid[one.sid]
        if not one.queue:
            left = self.plain[one.filter]
            left.remove(one)
            if not left:
                del self.plain[one.filter]
