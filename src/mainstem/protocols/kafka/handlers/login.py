"""SaslHandshake and SaslAuthenticate: PLAIN and SCRAM. Until a user exists any login is accepted."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from typing import TYPE_CHECKING, Any

from mainstem.model.errors import MainstemError, NotAuthorized
from mainstem.protocols.kafka.errors import ErrorCode
from mainstem.protocols.kafka.messages import SaslAuthenticateResponse, SaslHandshakeResponse

if TYPE_CHECKING:
    from mainstem.broker.access import Access, Principal
    from mainstem.protocols.kafka.adapter import Request

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


def handshake(request: Request) -> Any:
    mechanism = request.body.mechanism
    if mechanism not in MECHANISMS:
        return SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=list(MECHANISMS))
    request.connection.login = _Plain() if mechanism == "PLAIN" else _Scram(mechanism, request.service.access)
    return SaslHandshakeResponse(mechanisms=list(MECHANISMS))  # clients want the list also when it went well


async def authenticate(request: Request) -> Any:
    exchange = request.connection.login
    if exchange is None:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message="SaslHandshake must come first"
        )
    try:
        answer, principal = await exchange.step(
            request.body.auth_bytes, request.service.access, request.connection.peer_host()
        )
        if principal is not None:
            request.connection.log_in(request.service.access.of_client(principal, request.client_id))
    except MainstemError as fault:
        request.connection.login = None
        return SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=fault.message)
    if principal is not None:
        request.connection.login = None
    return SaslAuthenticateResponse(auth_bytes=answer, error_message=None)


class _Plain:
    """[authorization id] NUL user NUL password"""

    async def step(self, data: bytes, access: Access, host: str) -> tuple[bytes, Principal | None]:
        parts = data.split(b"\0")
        if len(parts) != 3:
            raise NotAuthorized("PLAIN: expected [authorization id] NUL user NUL password")
        return b"", await access.login(parts[1].decode(errors="replace"), parts[2], host)


class _Scram:
    """RFC 5802 without channel binding: client-first, server-first, client-final, server-final."""

    def __init__(self, mechanism: str, access: Access) -> None:
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._user = self._nonce = self._signed = ""
        self._verifier: Any = None

    async def step(self, data: bytes, access: Access, host: str) -> tuple[bytes, Principal | None]:
        text = data.decode(errors="replace")
        if self._verifier is None:
            return self._first(text, access, host), None
        return await self._final(text, access, host)

    def _first(self, text: str, access: Access, host: str) -> bytes:
        parts = text.split(",", 2)
        if len(parts) != 3 or parts[0] not in ("n", "y"):
            raise NotAuthorized("SCRAM: malformed first message")
        fields = _fields(parts[2])
        self._user = fields.get("n", "").replace("=2C", ",").replace("=3D", "=")
        self._nonce = fields.get("r", "") + base64.b64encode(os.urandom(18)).decode()
        self._verifier = access.scram(self._user, self._mechanism, host)
        salt = base64.b64encode(self._verifier.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._verifier.iterations}"
        self._signed = f"{parts[2]},{answer}"
        return answer.encode()

    async def _final(self, text: str, access: Access, host: str) -> tuple[bytes, Principal | None]:
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
        principal = await access.scram_done(self._user, right, host)
        answer = base64.b64encode(hmac.digest(self._verifier.server_key, signed, self._hash)).decode()
        return f"v={answer}".encode(), principal


def _fields(text: str) -> dict[str, str]:
    return {part[0]: part[2:] for part in text.split(",") if part[1:2] == "="}


HANDLERS = {17: handshake, 36: authenticate}
