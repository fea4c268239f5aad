"""Logging in to the console where people have their accounts: OpenID Connect, authorisation code with PKCE.

    /login            a state, a nonce and a verifier are made and kept; the browser goes to the provider
    /login/callback   the provider sent it back with a code: that is changed for an ID token, here, not in the browser
    /logout           the session ends (POST)

- What is kept of a login under way belongs to the browser that began it (a cookie) and is good for one try of LOGIN_S_MAX.
- The ID token is checked as any token (`broker/identity/tokens.py`): signature, issuer, audience (our client id); and its
  nonce.
- A session is a random number in a cookie no script can read; here only its hash is kept. It ends after `oidc.session_ms`,
  when its user no longer holds, and with the broker: nothing is stored.
- A cookie comes with every request the browser makes. The guard refuses changes that pages of other sites ask for.
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
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from mainstem.admin.problems import problem_of
from mainstem.admin.running import Running
from mainstem.broker.identity.issuer_keys import check_source, fetch
from mainstem.broker.identity.login import Shown
from mainstem.broker.identity.tokens import TokenOptions, Tokens
from mainstem.broker.rights.access import Principal
from mainstem.model.errors import ConfigError, MainstemError, NotAuthorized, Overloaded

logger = logging.getLogger("mainstem.identity")

BEGIN, CALLBACK, END = "/login", "/login/callback", "/logout"
SESSION, LOGIN = "ms-session", "ms-login"  # cookies
LOGIN_S_MAX = 600
LOGINS_MAX, SESSIONS_MAX = 1_000, 10_000  # the oldest is forgotten
DISCOVERY_S = 3_600


@dataclass(frozen=True, slots=True)
class _UnderWay:
    browser: bytes  # hash of its cookie
    verifier: str
    nonce: str
    redirect: str
    until: float


class Oidc:
    def __init__(self, running: Running, tokens: TokenOptions) -> None:
        self._running = running
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
        self._sessions: dict[bytes, tuple[Principal, float]] = {}

    def routes(self) -> list[Route]:
        return [
            Route(BEGIN, self.begin, name="console.login"),
            Route(CALLBACK, self.finish, name="console.login"),
            Route(END, self.end, methods=["POST"], name="console.login"),
        ]

    def session(self, cookies: str) -> Principal | None:
        """Who this browser is logged in as."""
        key = _hash(_cookie(cookies, SESSION))
        principal, until = self._sessions.get(key, (None, 0.0))
        if principal is None:
            return None
        if until <= time.monotonic() or not self._running.broker.access.holds(principal):
            del self._sessions[key]
            return None
        return principal

    # -- the three pages

    async def begin(self, request: Request) -> Response:
        try:
            provider, _ = await self._discovered()
        except MainstemError as error:
            return problem_of(error)
        browser, state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(4))
        redirect = f"{self._base(request)}{CALLBACK}"
        _keep(
            self._under_way,
            LOGINS_MAX,
            state,
            _UnderWay(_hash(browser), verifier, nonce, redirect, time.monotonic() + LOGIN_S_MAX),
        )
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
        self._set_cookie(answer, request, LOGIN, browser, LOGIN_S_MAX, BEGIN)
        return answer

    async def finish(self, request: Request) -> Response:
        shown = Shown(address=request.client.host if request.client else "", protocol="http")
        try:
            principal = await self._principal(request, shown)
        except MainstemError as error:
            self._running.broker.identity.on_login(shown, None, error.message)
            return problem_of(error)
        number, lasts_s = secrets.token_urlsafe(32), self._given.session_ms // 1000
        principal = replace(principal, expires_s=int(time.time()) + lasts_s)
        _keep(self._sessions, SESSIONS_MAX, _hash(number), (principal, time.monotonic() + lasts_s))
        answer = RedirectResponse("/", 302)
        self._set_cookie(answer, request, SESSION, number, lasts_s, "/")
        answer.delete_cookie(LOGIN, path=BEGIN)
        return answer

    async def end(self, request: Request) -> Response:
        self._sessions.pop(_hash(_cookie(request.headers.get("cookie", ""), SESSION)), None)
        answer = Response(status_code=204)
        answer.delete_cookie(SESSION, path="/")
        return answer

    # -- asking the provider

    async def _principal(self, request: Request, shown: Shown) -> Principal:
        query = request.query_params
        begun = self._under_way.pop(query.get("state", ""), None)
        if begun is None or begun.until <= time.monotonic():
            raise NotAuthorized("no login was begun with this state, or long ago", fix="open /login again")
        if not secrets.compare_digest(begun.browser, _hash(_cookie(request.headers.get("cookie", ""), LOGIN))):
            raise NotAuthorized("this login was begun by another browser", fix="open /login again")
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
                    raise ValueError(f"it calls itself {provider['issuer']!r}")
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

    # --

    def _base(self, request: Request) -> str:
        """How the browser calls us; the guard let no foreign name through."""
        given: str = self._given.console_url.rstrip("/")
        return given or f"{request.url.scheme}://{request.headers['host']}"

    def _set_cookie(self, answer: Response, request: Request, name: str, value: str, lasts_s: int, path: str) -> None:
        secure = self._base(request).startswith("https://")
        answer.set_cookie(name, value, lasts_s, path=path, httponly=True, secure=secure, samesite="lax")


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _cookie(header: str, name: str) -> str:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def _keep(entries: dict[Any, Any], entries_max: int, key: Any, value: Any) -> None:
    if len(entries) >= entries_max:
        del entries[next(iter(entries))]
    entries[key] = value
