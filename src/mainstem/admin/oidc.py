"""Logging in to the console where people have their accounts: OpenID Connect, authorisation code with PKCE.

    /login/provider   a state, a nonce and a verifier are made and kept; the browser goes to the provider
    /login/callback   the provider sent it back with a code: that is changed for an ID token, here, not in the browser

- What is kept of a login under way belongs to the browser that began it (a cookie) and is good for one try of LOGIN_S_MAX.
- The ID token is checked as any token (`broker/identity/tokens.py`): signature, issuer, audience (our client id); and its
  nonce.
- Whoever the token names has a session (`sessions.py`) of `oidc.session_ms`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import secrets
import time
from base64 import urlsafe_b64encode
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from mainstem.admin.problems import problem_of
from mainstem.admin.running import Running
from mainstem.admin.sessions import BEGIN, Sessions, address_of, cookie_in, hashed, own_page, set_cookie
from mainstem.broker.identity.issuer_keys import check_source, fetch
from mainstem.broker.identity.login import Shown
from mainstem.broker.identity.tokens import TokenOptions, Tokens
from mainstem.broker.rights.access import Principal
from mainstem.model.errors import ConfigError, MainstemError, NotAuthorized, Overloaded

logger = logging.getLogger("mainstem.identity")

PROVIDER, CALLBACK = f"{BEGIN}/provider", f"{BEGIN}/callback"
LOGIN = "ms-login"  # the cookie's name begins so
LOGIN_S_MAX = 600
LOGINS_MAX = 1_000  # under way; the oldest is removed
DISCOVERY_S = 3_600


@dataclass(frozen=True, slots=True)
class _UnderWay:
    browser: bytes  # hash of its cookie
    verifier: str
    nonce: str
    redirect: str
    next: str  # the page that was wanted first
    until: float


class Oidc:
    def __init__(self, running: Running, tokens: TokenOptions, sessions: Sessions) -> None:
        self._running = running
        self._sessions = sessions
        self._given = running.config.oidc
        self._options = replace(
            tokens,
            issuer=self._given.issuer,
            audiences=(self._given.client_id,),
            keys=self._given.issuer,
            more_issuers=(),
        )
        if not self._given.client_id:
            raise ConfigError("[oidc] has an issuer and no client_id", fix='client_id = "mainstem"')
        check_source(self._given.issuer)
        Tokens(self._options)  # what is wrong with it is told at the start
        self._provider: dict[str, Any] = {}
        self._tokens: Tokens | None = None
        self._asked = float("-inf")
        self._under_way: dict[str, _UnderWay] = {}

    def routes(self) -> list[Route]:
        return [
            Route(PROVIDER, self.begin, name="console.login"),
            Route(CALLBACK, self.finish, name="console.login"),
        ]

    # -- the two pages

    async def begin(self, request: Request) -> Response:
        try:
            provider, _ = await self._discovered()
        except MainstemError as error:
            return problem_of(error)
        browser, state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(4))
        redirect = f"{address_of(self._running, request)}{CALLBACK}"
        wanted = own_page(request.query_params.get("next", ""))
        if len(self._under_way) >= LOGINS_MAX:
            del self._under_way[next(iter(self._under_way))]
        until = time.monotonic() + LOGIN_S_MAX
        self._under_way[state] = _UnderWay(hashed(browser), verifier, nonce, redirect, wanted, until)
        asked = {
            "response_type": "code",
            "client_id": self._given.client_id,
            "redirect_uri": redirect,
            "scope": " ".join(dict.fromkeys(("openid", *self._given.scopes))),
            "state": state,
            "nonce": nonce,
            "code_challenge": urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        answer = RedirectResponse(f"{provider['authorization_endpoint']}?{urlencode(asked)}", 302)
        set_cookie(
            self._running, answer, request, self._sessions.named(LOGIN), browser, lasts_s=LOGIN_S_MAX, path=BEGIN
        )
        return answer

    async def finish(self, request: Request) -> Response:
        shown = Shown(address=request.client.host if request.client else "", protocol="http")
        try:
            begun = self._begun(request)
            principal = await self._principal(request, begun, shown)
        except MainstemError as error:
            self._running.broker.identity.on_login(shown, None, error.message)
            return problem_of(error)
        answer = RedirectResponse(begun.next, 302)
        lasting = replace(principal, expires_s=0)  # not the ID token's few minutes: `session_ms`
        self._sessions.open(answer, request, lasting, self._given.session_ms)
        answer.delete_cookie(LOGIN, path=BEGIN)
        return answer

    def _begun(self, request: Request) -> _UnderWay:
        """Of this browser, and good for one try."""
        begun = self._under_way.pop(request.query_params.get("state", ""), None)
        if begun is None or begun.until <= time.monotonic():
            raise NotAuthorized("no login was begun with this state, or long ago", fix="open /login again")
        shown = cookie_in(request.headers.get("cookie", ""), self._sessions.named(LOGIN))
        if not secrets.compare_digest(begun.browser, hashed(shown)):
            raise NotAuthorized("this login was begun by another browser", fix="open /login again")
        return begun

    # -- asking the provider

    async def _principal(self, request: Request, begun: _UnderWay, shown: Shown) -> Principal:
        query = request.query_params
        if "code" not in query:
            raise NotAuthorized(f"the provider refused: {query.get('error', 'it sent no code')[:100]}")
        provider, tokens = await self._discovered()
        claims = await tokens.check(await self._id_token(provider, query["code"], begun))
        if not secrets.compare_digest(claims.nonce.encode(), begun.nonce.encode()):
            raise NotAuthorized("an ID token that was made for another login")
        return self._running.broker.identity.principal_of(claims, shown, self._options)

    async def _id_token(self, provider: dict[str, Any], code: str, begun: _UnderWay) -> bytes:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": begun.redirect,
            "client_id": self._given.client_id,
            "code_verifier": begun.verifier,
        }
        try:
            if self._given.client_secret_file:
                text = await asyncio.to_thread(Path(self._given.client_secret_file).read_text)
                form["client_secret"] = text.strip()
            kind = {"Content-Type": "application/x-www-form-urlencoded"}
            data = await asyncio.to_thread(fetch, provider["token_endpoint"], urlencode(form).encode(), kind)
            return str(json.loads(data)["id_token"]).encode()
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("%s gave no ID token: %s", provider["token_endpoint"], error)
            raise NotAuthorized("the provider gave no ID token for the code") from None

    async def _discovered(self) -> tuple[dict[str, Any], Tokens]:
        """What the provider says of itself, at most an hour ago."""
        if self._tokens is None or time.monotonic() - self._asked > DISCOVERY_S:
            address = f"{self._given.issuer.rstrip('/')}/.well-known/openid-configuration"
            try:
                found = json.loads(await asyncio.to_thread(fetch, address))
                needed = ("issuer", "authorization_endpoint", "token_endpoint", "jwks_uri")
                provider = {name: str(found[name]) for name in needed}
                if provider["issuer"] != self._given.issuer:
                    raise ValueError(f"its discovery document names the issuer {provider['issuer']!r}")
                for name in needed:
                    check_source(provider[name])
            except (OSError, ValueError, KeyError, TypeError, ConfigError) as error:
                if self._tokens is None:
                    logger.warning("%s cannot be used: %s", address, error)
                    raise Overloaded(f"the provider {self._given.issuer} does not answer as it should") from None
            else:
                self._provider = provider
                self._tokens = Tokens(replace(self._options, keys=provider["jwks_uri"]))
                self._asked = time.monotonic()
        return self._provider, self._tokens
