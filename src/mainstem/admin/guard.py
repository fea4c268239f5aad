"""What every request must pass first. A port on loopback is open to every web page the user visits, so:

- the Host must be a loopback name, an IP address, the listener's own or a configured name (no DNS rebinding);
- a request that changes something (one GET of RabbitMQ's does) must not come from a foreign Origin, and must say
  application/json if it has a body, which no form of another page can do without asking first;
- nobody may frame us, and our own pages may load nothing but our own files;
- once users exist, or tokens or certificates tell who somebody is, everything but the health checks, the login page (and,
  if so configured, the metrics) needs a login: by `Authorization`, a certificate or a session. A browser that opens a page
  without one is led to the login page; whatever else asks is answered 401.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Container
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mainstem.admin.elsewhere import cell_elsewhere, send_on
from mainstem.admin.oidc import CALLBACK, PROVIDER
from mainstem.admin.problems import problem, problem_of, status_of
from mainstem.admin.running import Running
from mainstem.admin.sessions import BEGIN, END, own_page
from mainstem.admin.tokens import TOKENS_PATH
from mainstem.broker.identity.login import Shown
from mainstem.broker.rights.access import Principal
from mainstem.model.errors import MainstemError, NotAuthorized

logger = logging.getLogger("mainstem.audit")

READS = frozenset({"GET", "HEAD", "OPTIONS"})
HEALTH = frozenset({"/livez", "/readyz", "/healthz"})
METRICS = "/metrics"  # what is below it names objects, and is for admins
WRITING_GETS = "/api/aliveness-test/"
STATIC = "/static/"
LOGIN_PAGE = frozenset({BEGIN, *(f"{STATIC}{name}" for name in ("console.css", "icon.svg", "login.js"))})
AT_PROVIDER = frozenset({PROVIDER, CALLBACK})
ALWAYS = frozenset({*HEALTH, TOKENS_PATH, END})  # these need no login
BASIC = 'Basic realm="Mainstem", charset="UTF-8"'
BY_PAGE = f'Cookie realm="Mainstem", form-action="{BEGIN}"'  # no browser asks for a password on its own account
BYTES, BYTES_PATHS = "application/octet-stream", frozenset({"/v1/stage/data"})  # no form can send this type either
JSON_KINDS = frozenset(
    {"application/json", "application/vnd.schemaregistry.v1+json", "application/vnd.schemaregistry+json"}
)
FORM = "application/x-www-form-urlencoded"
ASKED_FIRST = ("PUT", "DELETE")  # no page of another site sends these without asking, and we never consent
SECURITY_HEADERS = [
    (b"content-security-policy", b"default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
REFUSED = "MS-1005"
LET_IN = "let_in"  # of a request that another cell sent on: whom that one let in


class Guard:
    def __init__(self, app: ASGIApp, running: Running, live: Container[str] = ()) -> None:
        """`live`: paths whose answers have no end (`live_answers.py`)."""
        self._app = app
        self._running = running
        self._live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # WebSockets of browsers are MQTT's, on a port of their own
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal is None:
            try:
                scope.setdefault("state", {})["principal"] = await self._principal(scope, headers)
            except MainstemError as error:
                refusal = self._login_wanted(error, headers, scope)
                if "authorization" in headers:  # a browser's first try has none; that is no failure
                    name = _login_in(headers["authorization"])[0]
                    logger.warning("a login as %r from %s failed", name[:128], _address(scope))
        guarded = _with_headers(send, static=scope["path"].startswith(STATIC))
        if refusal is not None:
            await refusal(scope, receive, guarded)
            return
        if scope["path"] in self._live:
            serving = partial(self._serve, scope)
            await self._running.live.serve(serving, self._holds(scope, headers), receive, guarded)
        else:
            await self._serve(scope, receive, guarded)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._running.forward is not None and LET_IN not in scope["state"]:
            principal = scope["state"].get("principal")
            cell = cell_elsewhere(self._running.forward.placement, scope, principal)
            if cell is not None:
                await send_on(self._running.forward, cell, principal, scope, receive, send)
                return
        if scope["path"] not in BYTES_PATHS:
            receive = _bounded(receive, self._running.config.http.body_bytes_max)
        await self._app(scope, receive, send)

    def _holds(self, scope: Scope, headers: dict[str, str]) -> Callable[[], bool]:
        """Asks whether who asked would still be let in: by the same session, or the same password."""
        access, sessions = self._running.broker.access, self._running.sessions
        principal: Principal | None = scope["state"].get("principal")
        if principal is None or LET_IN in scope["state"]:  # the cell that let it in looks after it
            return lambda: True
        cookies = headers.get("cookie", "")
        if "authorization" not in headers and sessions.principal(cookies) is not None:
            return lambda: sessions.principal(cookies) is not None
        user = access.users.get(principal.name)
        if user is None or "authorization" not in headers or principal.by_token:
            return lambda: access.holds(principal)
        credentials = user.credentials

        def holds() -> bool:
            now = access.users.get(principal.name)
            return now is not None and now.credentials is credentials and access.holds(principal)

        return holds

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> Response | None:
        host = headers.get("host", "")
        config = self._running.config
        if not host_allowed(host, (*config.http.hosts, config.listeners.host)):
            return problem(
                421,
                REFUSED,
                f"this server is not called {host!r}",
                fix="name it in [http] hosts, or use its IP address",
            )
        if scope["method"] in READS and not scope["path"].startswith(WRITING_GETS):
            return None
        origin = headers.get("origin")
        if origin is not None and not _same_origin(origin, host):
            return problem(403, REFUSED, f"a page of {origin} may not change anything here")
        if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            return problem(403, REFUSED, "a page of another site may not change anything here")
        if scope["method"] in READS:
            return None
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        if has_body or scope["method"] not in ASKED_FIRST:
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind == FORM and scope["path"] == TOKENS_PATH:
                return None  # it changes nothing, and says who asks in the form itself
            if kind not in JSON_KINDS and not (kind == BYTES and scope["path"] in BYTES_PATHS):
                return problem(415, REFUSED, "what changes something must be sent as application/json")
        length = headers.get("content-length", "0")
        limited = scope["path"] not in BYTES_PATHS  # there the handler counts
        if limited and length.isdigit() and int(length) > config.http.body_bytes_max:
            return problem(413, "MS-1007", f"a body of {length} bytes; the limit is {config.http.body_bytes_max}")
        return None

    async def _principal(self, scope: Scope, headers: dict[str, str]) -> Principal | None:
        access = self._running.broker.access
        if self._is_public(scope["path"]):
            return None
        if LET_IN in scope["state"]:
            known: Principal | None = scope["state"][LET_IN]
            return known
        shown = Shown(address=_address(scope), protocol="http", certificate=scope["state"].get("certificate"))
        if "authorization" not in headers:
            known = self._running.broker.identity.login_now(shown)
            if known is None:
                known = self._running.sessions.principal(headers.get("cookie", ""))
            if known is not None:
                return known
        if not access.open and "authorization" not in headers:  # a browser's first try, or a probe: not a guess
            raise NotAuthorized("a login is needed", fix="http://USER:PASSWORD@HOST:PORT")
        name, password, bearer = _login_in(headers.get("authorization", ""))
        if bearer and access.open:
            name, password, bearer = "", b"", False
        elif bearer and (ours := self._running.tokens.known(password.decode(errors="replace"))) is not None:
            return ours
        return await self._running.broker.identity.login(
            replace(shown, name=name, password=password, token_only=bearer)
        )

    def _is_public(self, path: str) -> bool:
        config = self._running.config
        return (
            path in ALWAYS
            or (path == METRICS and config.http.metrics_public)
            or (path in LOGIN_PAGE and config.http.console)
            or (path in AT_PROVIDER and bool(config.oidc.issuer))
        )

    def _login_wanted(self, error: MainstemError, headers: dict[str, str], scope: Scope) -> Response:
        if status_of(error) != 403:
            return problem_of(error)
        challenge = BASIC
        if self._running.config.http.console and "authorization" not in headers:
            if _opens_a_page(scope, headers):
                return RedirectResponse(_login_page(scope), 302)
            if headers.get("sec-fetch-site") == "same-origin":
                challenge = BY_PAGE  # a script of our page, whose session ended: it leads to the login page itself
        return problem(401, error.code, str(error), fix=error.fix, headers={"WWW-Authenticate": challenge})


def host_allowed(header: str, names: tuple[str, ...]) -> bool:
    """Whether a Host header may be ours: an IP address cannot be rebound, a name must be known."""
    host = header.rsplit(":", 1)[0] if not header.endswith("]") else header
    host = host.strip("[]").rstrip(".").lower()
    if not host:
        return False
    if host == "localhost" or host.endswith(".localhost") or host in {name.lower() for name in names}:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _opens_a_page(scope: Scope, headers: dict[str, str]) -> bool:
    """A person at a browser, not one of its scripts (older browsers do not say which)."""
    navigates = headers.get("sec-fetch-mode", "navigate") == "navigate" and "hx-request" not in headers
    return scope["method"] == "GET" and "text/html" in headers.get("accept", "") and navigates


def _login_page(scope: Scope) -> str:
    """It leads back to what was wanted."""
    wanted = scope.get("raw_path", b"/").partition(b"?")[0].decode("latin-1")
    if scope["query_string"]:
        wanted = f"{wanted}?{scope['query_string'].decode('latin-1')}"
    wanted = own_page(wanted)
    return BEGIN if wanted == "/" else f"{BEGIN}?next={quote(wanted, safe='/')}"


def _same_origin(origin: str, host: str) -> bool:
    scheme, mark, place = origin.partition("://")
    return bool(mark) and scheme in ("http", "https") and place.lower() == host.lower()


def _address(scope: Scope) -> str:
    return scope["client"][0] if scope.get("client") else ""


def _login_in(header: str) -> tuple[str, bytes, bool]:
    """Name, password, and whether that is a bearer's token."""
    scheme, _, token = header.partition(" ")
    if scheme.lower() == "bearer":
        return "", token.strip().encode(errors="replace"), True
    if scheme.lower() != "basic":
        return "", b"", False
    try:
        name, _, password = base64.b64decode(token, validate=True).partition(b":")
        return name.decode(), password, False
    except (binascii.Error, UnicodeDecodeError):
        return "", b"", False


def _bounded(receive: Receive, bytes_max: int) -> Receive:
    """A body that says no length may still not be endless."""
    seen = 0

    async def limited() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > bytes_max:
            return {"type": "http.disconnect"}
        return message

    return limited


def _with_headers(send: Send, *, static: bool) -> Callable[[Message], Awaitable[None]]:
    caching = (b"cache-control", b"public, max-age=86400" if static else b"no-store")

    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            present = {name for name, _ in message["headers"]}
            extra = [pair for pair in (*SECURITY_HEADERS, caching) if pair[0] not in present]
            message["headers"] = [*message["headers"], *extra]
        await send(message)

    return sending
