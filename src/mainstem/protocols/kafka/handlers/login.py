"""SaslHandshake and SaslAuthenticate: PLAIN, SCRAM and OAUTHBEARER. Until a user exists any login is accepted.

Who came with a token is told how long it lives, and shows the next one on the same connection (KIP-368)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mainstem.broker.identity.login import Shown
from mainstem.model.errors import MainstemError, NotAuthorized
from mainstem.protocols.kafka.errors import ErrorCode
from mainstem.protocols.kafka.messages import SaslAuthenticateResponse, SaslHandshakeResponse
from mainstem.protocols.login import bearer_token, shown_by

if TYPE_CHECKING:
    from mainstem.broker.identity.login import Identity
    from mainstem.broker.rights.access import Principal
    from mainstem.protocols.kafka.adapter import Request

OAUTHBEARER = "OAUTHBEARER"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


def handshake(request: Request) -> Any:
    mechanism, offered = request.body.mechanism, [*MECHANISMS]
    if request.service.broker.identity.tokens is not None:
        offered.append(OAUTHBEARER)
    if mechanism not in offered:
        return SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=offered)
    simple = {"PLAIN": _Plain, OAUTHBEARER: _Bearer}
    request.connection.login = simple[mechanism]() if mechanism in simple else _Scram(mechanism)
    return SaslHandshakeResponse(mechanisms=offered)  # clients want the list also when it went well


async def authenticate(request: Request) -> Any:
    exchange = request.connection.login
    if exchange is None:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message="SaslHandshake must come first"
        )
    try:
        identity, shown = request.service.broker.identity, shown_by(request.connection)
        answer, principal = await exchange.step(request.body.auth_bytes, identity, shown)
        if principal is not None and request.service.broker.placement.elsewhere(principal.namespace) is not None:
            request.connection.moving = principal
        elif principal is not None:
            request.connection.log_in(request.service.access.of_client(principal, request.client_id or ""))
    except MainstemError as fault:
        request.connection.login = None
        return SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=fault.message)
    if principal is not None:
        request.connection.login = None
    lifetime_ms = 0
    if principal is not None and principal.expires_s:
        lifetime_ms = max(1, principal.expires_s * 1000 - request.service.clock.now_ns() // 1_000_000)
    return SaslAuthenticateResponse(auth_bytes=answer, error_message=None, session_lifetime_ms=lifetime_ms)


class _Plain:
    """[authorization id] NUL user NUL password"""

    async def step(self, data: bytes, identity: Identity, shown: Shown) -> tuple[bytes, Principal | None]:
        parts = data.split(b"\0")
        if len(parts) != 3:
            raise NotAuthorized("PLAIN: expected [authorization id] NUL user NUL password")
        name = parts[1].decode(errors="replace")
        return b"", await identity.login(replace(shown, name=name, password=parts[2]))


class _Bearer:
    """RFC 7628, in one step: Kafka's error code tells what its second one would."""

    async def step(self, data: bytes, identity: Identity, shown: Shown) -> tuple[bytes, Principal | None]:
        name, token = bearer_token(data)
        return b"", await identity.login(
            replace(shown, name=name.decode(errors="replace"), password=token, token_only=True)
        )


class _Scram:
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


HANDLERS = {17: handshake, 36: authenticate}
