"""Sessions of browsers: who logged in by a form or at a provider's stays logged in, by a cookie.

- A session is a random number in a cookie that no script can read; here only its hash is kept.
- Its cookie is named after the broker: cookies know no port, and two brokers on one host would end each other's.
- It ends after its time, by `POST /logout`, when its user would no longer be let in (`Access.holds`), when the password
  that it was opened with is another, and with the broker: nothing is stored.
- SESSIONS_MAX are kept, of one user SESSIONS_OF_USER_MAX: the oldest is ended, and nobody ends those of others.
- A cookie comes with every request the browser makes. The guard refuses changes that pages of other sites ask for, and
  a login or a logout is such a change.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from dataclasses import dataclass, replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mainstem.admin.running import Running
from mainstem.broker.rights.access import Principal
from mainstem.broker.rights.people import Hashed

BEGIN, END = "/login", "/logout"
COOKIE = "ms-session"  # its name begins so
SESSIONS_MAX, SESSIONS_OF_USER_MAX = 10_000, 100
NEXT_CHARACTERS_MAX = 2_000
_NO_PAGES = (BEGIN, END, "/api/")  # RabbitMQ's API is for programs, and one GET of it changes something
_OWN_PAGE = re.compile(r"/(?!/)[!-\[\]-~]*")  # no space, no control character, no backslash, nothing beyond ASCII


@dataclass(frozen=True, slots=True)
class _Session:
    principal: Principal
    credentials: Hashed | None  # that its user had when it logged in by a password
    until: float


class Sessions:
    def __init__(self, running: Running) -> None:
        self._running = running
        self._sessions: dict[bytes, _Session] = {}  # by the hash of their number, the oldest first
        self._of_user: dict[str, dict[bytes, None]] = {}
        self._mark = ""

    def routes(self) -> list[Route]:
        return [Route(END, self.end, methods=["POST"], name="console.login")]

    @property
    def cookie(self) -> str:
        return self.named(COOKIE)

    def named(self, cookie: str) -> str:
        """A cookie's name at this broker; the same after a restart, so that no browser collects them."""
        if not self._mark:
            place = f"{self._running.broker.coordinator.cluster_id}:{self._running.ports.get('http', 0)}"
            self._mark = hashlib.sha256(place.encode()).hexdigest()[:8]
        return f"{cookie}-{self._mark}"

    def _key(self, cookies: str) -> bytes:
        return hashed(cookie_in(cookies, self.cookie))

    def principal(self, cookies: str) -> Principal | None:
        """Who this browser is logged in as."""
        key = self._key(cookies)
        found = self._sessions.get(key)
        if found is None:
            return None
        if found.until <= time.monotonic() or not self._holds(found):
            self._drop(key)
            return None
        return found.principal

    def open(self, answer: Response, request: Request, principal: Principal, lasts_ms: int) -> None:
        """The answer takes the cookie to the browser. A session that this browser had before ends."""
        self._drop(self._key(request.headers.get("cookie", "")))
        lasts_s = -(-lasts_ms // 1000)
        ends_s = int(time.time()) + lasts_s
        if principal.expires_s:  # a token came in place of the password
            ends_s = min(ends_s, principal.expires_s)
        user = self._running.broker.access.users.get(principal.name)
        credentials = user.credentials if user is not None and not principal.by_token else None
        number, known = secrets.token_urlsafe(32), replace(principal, expires_s=ends_s)
        self._keep(hashed(number), _Session(known, credentials, time.monotonic() + lasts_s))
        set_cookie(self._running, answer, request, self.cookie, number, lasts_s=lasts_s, path="/")

    async def end(self, request: Request) -> Response:
        self._drop(self._key(request.headers.get("cookie", "")))
        answer = Response(status_code=204)
        answer.delete_cookie(self.cookie, path="/", httponly=True, samesite="lax")
        return answer

    def _holds(self, session: _Session) -> bool:
        access = self._running.broker.access
        if session.credentials is not None:
            user = access.users.get(session.principal.name)
            if user is None or user.credentials is not session.credentials:
                return False
        return access.holds(session.principal)

    def _keep(self, key: bytes, session: _Session) -> None:
        own = self._of_user.setdefault(session.principal.name, {})
        if len(own) >= SESSIONS_OF_USER_MAX:
            self._drop(next(iter(own)))
        elif len(self._sessions) >= SESSIONS_MAX:
            self._drop(next(iter(self._sessions)))
        self._sessions[key] = session
        self._of_user.setdefault(session.principal.name, {})[key] = None

    def _drop(self, key: bytes) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            own = self._of_user[session.principal.name]
            del own[key]
            if not own:
                del self._of_user[session.principal.name]
            self._running.live.look()


def own_page(path: str) -> str:
    """Where a login leads to: a page of ours, whatever a link to the login says."""
    whole = len(path) <= NEXT_CHARACTERS_MAX and _OWN_PAGE.fullmatch(path) is not None
    return path if whole and not path.startswith(_NO_PAGES) else "/"


def address_of(running: Running, request: Request) -> str:
    """How the browser calls us; the guard let no foreign name through."""
    given: str = running.config.oidc.console_url.rstrip("/")
    return given or f"{request.url.scheme}://{request.headers['host']}"


def set_cookie(
    running: Running, answer: Response, request: Request, name: str, value: str, *, lasts_s: int, path: str
) -> None:
    """No script reads it. By TLS it is sent by TLS only."""
    secure = address_of(running, request).startswith("https://")
    answer.set_cookie(name, value, lasts_s, path=path, httponly=True, secure=secure, samesite="lax")


def cookie_in(header: str, name: str) -> str:
    """Cookies of other programs on this host come along, and the standard library reads none of them if one is odd."""
    pairs = (pair.strip().partition("=") for pair in header.split(";"))
    return next((value for key, _, value in pairs if key == name), "")


def hashed(number: str) -> bytes:
    return hashlib.sha256(number.encode()).digest()
