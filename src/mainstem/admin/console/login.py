"""The login page: user and password, or the way to a provider. Its script sends the form as JSON, like every change.

    GET  /login?next=PAGE   the page; whoever is logged in, or needs no login, is led on at once
    POST /login             {"user", "password", "next"} → {"next"}, and the cookie of a session (`admin/sessions.py`)

A user of several namespaces writes `namespace:user`, as in MQTT. Guesses are throttled and failures audited as in every
protocol: the password is checked by `broker.identity.login`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from urllib.parse import quote, urlsplit

import jinja2
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from mainstem import __version__
from mainstem.admin.bodies import json_of
from mainstem.admin.calls import json_response
from mainstem.admin.problems import problem_of
from mainstem.admin.running import Running
from mainstem.admin.sessions import BEGIN, Sessions, own_page
from mainstem.broker.identity.login import Shown
from mainstem.model.errors import InvalidArgument, MainstemError

logger = logging.getLogger("mainstem.audit")

FORM_BYTES_MAX = 16 * 1024
Templates = Callable[[], Awaitable[jinja2.Environment]]


class _Form(msgspec.Struct, forbid_unknown_fields=True):
    user: str
    password: str
    next: str = "/"


class LoginPage:
    def __init__(self, running: Running, sessions: Sessions, templates: Templates) -> None:
        self._running = running
        self._sessions = sessions
        self._templates = templates

    def routes(self) -> list[Route]:
        return [
            Route(BEGIN, self.show, methods=["GET"], name="console.login"),
            Route(BEGIN, self.enter, methods=["POST"], name="console.login"),
        ]

    async def show(self, request: Request) -> Response:
        wanted = own_page(request.query_params.get("next", ""))
        known = self._sessions.principal(request.headers.get("cookie", ""))
        if known is not None or self._running.broker.access.open:
            return RedirectResponse(wanted, 302)
        template = (await self._templates()).get_template("login.html")
        issuer = self._running.config.oidc.issuer
        facts = {
            "version": __version__,
            "next": wanted,
            "by_password": not issuer or self._has_passwords(),
            "provider": urlsplit(issuer).hostname or "" if issuer else "",
            "provider_url": f"{BEGIN}/provider?next={quote(wanted, safe='')}",
        }
        return HTMLResponse(template.render(facts))

    async def enter(self, request: Request) -> Response:
        broker = self._running.broker
        try:
            form = await _form_of(request)
            answer = json_response({"next": own_page(form.next)})
            if broker.access.open:  # nobody needs a session
                return answer
            address = request.client.host if request.client else ""
            shown = Shown(name=form.user, password=form.password.encode(), address=address, protocol="http")
            try:
                principal = await broker.identity.login(shown)
            except MainstemError:
                logger.warning("a login as %r from %s failed", form.user[:128], address)
                raise
        except MainstemError as error:
            return problem_of(error)
        self._sessions.open(answer, request, principal, self._running.config.http.session_ms)
        return answer

    def _has_passwords(self) -> bool:
        """Whether somebody could use the form: also a token is shown in place of a password."""
        broker = self._running.broker
        return broker.identity.tokens is not None or any(
            set(user.credentials) - {"nkey"} for user in broker.access.users.values()
        )


async def _form_of(request: Request) -> _Form:
    data = bytearray()
    try:
        async for piece in request.stream():
            data += piece
            if len(data) > FORM_BYTES_MAX:  # nobody is known yet: no more of it is kept
                raise InvalidArgument(f"a login has at most {FORM_BYTES_MAX} bytes")
    except ClientDisconnect:
        raise InvalidArgument("the user name and the password are longer than any that are accepted") from None
    form: _Form = json_of(bytes(data), _Form)
    if not form.user or not form.password:
        raise InvalidArgument("a login needs a user and a password")
    return form
