"""The mechanisms of SASL that more than one protocol speaks: Kafka's SaslAuthenticate, MQTT's AUTH.

An exchange takes what the client says, step by step: `step(data)` → (what to answer, who it is once that is known). It
raises NotAuthorized where it fails.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from mainstem.broker.identity.login import Shown
from mainstem.model.errors import NotAuthorized
from mainstem.protocols.login import bearer_token

if TYPE_CHECKING:
    from mainstem.broker.identity.login import Identity
    from mainstem.broker.rights.access import Principal

OAUTHBEARER = "OAUTHBEARER"
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class Exchange(Protocol):
    async def step(self, data: bytes, identity: Identity, shown: Shown) -> tuple[bytes, Principal | None]: ...


class Plain:
    """[authorization id] NUL user NUL password"""

    async def step(self, data: bytes, identity: Identity, shown: Shown) -> tuple[bytes, Principal | None]:
        parts = data.split(b"\0")
        if len(parts) != 3:
            raise NotAuthorized("PLAIN: expected [authorization id] NUL user NUL password")
        name = parts[1].decode(errors="replace")
        return b"", await identity.login(replace(shown, name=name, password=parts[2]))


class Bearer:
    """RFC 7628, in one step: the protocol's own answer tells what its second one would."""

    async def step(self, data: bytes, identity: Identity, shown: Shown) -> tuple[bytes, Principal | None]:
        name, token = bearer_token(data)
        return b"", await identity.login(
            replace(shown, name=name.decode(errors="replace"), password=token, token_only=True)
        )


class Scram:
    """RFC 5802 without channel binding: client-first, server-first, client-final, server-final."""

    def __init__(self, mechanism: str) -> None:
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._nonce = self._signed = ""
        self._shown = Shown()
        self._verifier: Any = None

    async def step(self, data: bytes, identity: Identity, shown: Shown) -> tuple[bytes, Principal | None]:
        text = data.decode(errors="replace")
        if self._verifier is None:
            return self._first(text, identity, shown), None
        return await self._final(text, identity)

    def _first(self, text: str, identity: Identity, shown: Shown) -> bytes:
        parts = text.split(",", 2)
        if len(parts) != 3 or parts[0] not in ("n", "y"):
            raise NotAuthorized("SCRAM: malformed first message")
        fields = _fields(parts[2])
        self._shown = replace(shown, name=fields.get("n", "").replace("=2C", ",").replace("=3D", "="))
        self._nonce = fields.get("r", "") + base64.b64encode(os.urandom(18)).decode()
        self._verifier = identity.scram(self._shown, self._mechanism)
        salt = base64.b64encode(self._verifier.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._verifier.iterations}"
        self._signed = f"{parts[2]},{answer}"
        return answer.encode()

    async def _final(self, text: str, identity: Identity) -> tuple[bytes, Principal | None]:
        bare, _, proof_text = text.rpartition(",p=")
        fields = _fields(bare)
        signed = f"{self._signed},{bare}".encode()
        try:
            proof = base64.b64decode(proof_text, validate=True)
        except ValueError:
            proof = b""
        signature = hmac.digest(self._verifier.stored_key, signed, self._hash)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=False))
        right = (
            len(proof) == len(signature)
            and fields.get("r") == self._nonce
            and hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), self._verifier.stored_key)
        )
        principal = await identity.scram_done(self._shown, right)
        answer = base64.b64encode(hmac.digest(self._verifier.server_key, signed, self._hash)).decode()
        return f"v={answer}".encode(), principal


def _fields(text: str) -> dict[str, str]:
    return {part[0]: part[2:] for part in text.split(",") if part[1:2] == "="}
