"""SaslHandshake and SaslAuthenticate: PLAIN, SCRAM and OAUTHBEARER. Until a user exists any login is accepted.

Who came with a token is told how long it lives, and shows the next one on the same connection (KIP-368)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainstem.model.errors import MainstemError
from mainstem.protocols.kafka.errors import ErrorCode
from mainstem.protocols.kafka.messages import SaslAuthenticateResponse, SaslHandshakeResponse
from mainstem.protocols.login import shown_by
from mainstem.protocols.sasl import HASHES, OAUTHBEARER, Bearer, Plain, Scram

if TYPE_CHECKING:
    from mainstem.protocols.kafka.adapter import Request

MECHANISMS = ("PLAIN", *HASHES)


def handshake(request: Request) -> Any:
    mechanism, offered = request.body.mechanism, [*MECHANISMS]
    if request.service.broker.identity.tokens is not None:
        offered.append(OAUTHBEARER)
    if mechanism not in offered:
        return SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=offered)
    simple = {"PLAIN": Plain, OAUTHBEARER: Bearer}
    request.connection.login = simple[mechanism]() if mechanism in simple else Scram(mechanism)
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


HANDLERS = {17: handshake, 36: authenticate}
