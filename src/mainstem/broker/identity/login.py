"""Logging in: what a client shows, whichever protocol it speaks, becomes a principal or a refusal.

- A token (see `tokens.py`) comes in place of a password, or as what it is. The name beside it is empty or the token's own.
- A certificate (see `certificates.py`) counts where no password is shown. The name beside it is empty or the certificate's.
- An nkey (see `nkeys.py`) is NATS's: its owner signed what the server made up for this connection.
- Else it is a password. One that is kept in an older form is renewed.

Who belongs to several namespaces says which: `namespace:user`, `user@namespace` or `namespace/user` as the name, or by means
of the protocol (an AMQP vhost, MQTT's user property `ms-namespace`, HTTP's `?namespace=`). A user called like the whole of
it comes first. Without a choice it is the user's first; an admin may choose any.

Nobody guesses here: a wrong name and a wrong password are answered alike, late and later (`throttle.py`). Who guesses
tokens is only counted: names are the issuer's, and a throttle by address would lock out its neighbours.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from mainstem.broker.identity.certificates import CertificateRules
from mainstem.broker.identity.nkeys import is_signed
from mainstem.broker.identity.passwords import ScramVerifier, renewed, scram_verifier, verify_password
from mainstem.broker.identity.throttle import Throttle
from mainstem.broker.identity.tokens import Claims, TokenOptions, Tokens, looks_like_token
from mainstem.broker.rights.access import USER_NAME, Access, Principal
from mainstem.broker.rights.people import User
from mainstem.model.clock import Clock, SystemClock
from mainstem.model.errors import MainstemError, NotAuthorized
from mainstem.model.plain_text import hidden_character

VERIFIED_MAX = 10_000  # logins verified lately, so that a storm of reconnects does not hash
VERIFIED_MS = 300_000
HASHING_MAX = 2  # logins hashed at once; the rest wait
ANONYMOUS = "anonymous"
WRONG = "wrong user name or password"


@dataclass(frozen=True, slots=True)
class Shown:
    """What a client shows of who it is."""

    name: str = ""
    password: bytes = b""
    namespace: str = ""  # the one it chose; "": as its name says, or its first
    address: str = ""
    protocol: str = ""
    certificate: Mapping[str, Any] | None = None  # as `ssl` tells it: TLS has verified it
    token_only: bool = False  # the password is a token, whatever it looks like
    signed: tuple[str, bytes, str] | None = None  # an nkey, what its owner was to sign, and the signature


@dataclass(frozen=True, slots=True)
class IdentityOptions:
    tokens: TokenOptions = field(default_factory=TokenOptions)
    certificates: tuple[str, ...] = ()
    failures_max: int = 10
    console_elsewhere: bool = False  # whether people log in to the console at a provider's


@dataclass(frozen=True, slots=True)
class _Verified:
    until_ms: int
    principal: Principal
    credentials: dict[str, Any] | None  # that it was verified with; None: a token


class Identity:
    def __init__(self, access: Access, options: IdentityOptions | None = None, *, clock: Clock | None = None) -> None:
        options = options or IdentityOptions()
        self._access = access
        self._clock = clock or SystemClock()
        self.tokens = Tokens(options.tokens) if options.tokens.keys else None
        self._certificates = CertificateRules.parse(options.certificates)
        access.known_elsewhere = bool(self.tokens or self._certificates.rules or options.console_elsewhere)
        self.throttle = Throttle(options.failures_max)
        self.failures_total = 0
        self.on_login: Callable[[Shown, Principal | None, str], None] = lambda shown, principal, why: None
        self._verified: dict[bytes, _Verified] = {}
        self._lent: dict[bytes, Principal] = {}  # passwords of the broker's own clients, see `lent`
        self._secret = os.urandom(32)
        self._hashing = asyncio.Semaphore(HASHING_MAX)

    # -- by whatever is shown

    def login_now(self, shown: Shown) -> Principal | None:
        """The answer if it costs nothing (no users yet, a certificate, verified lately), else None: await `login`."""
        try:
            if self._access.open:
                return self._anonymous(shown) if not hidden_character(shown.name) else None
            if shown.signed is not None:
                return None
            if not shown.password:
                return self._by_certificate(shown)
        except NotAuthorized:
            return None  # `login` says why
        digest = self._digest(shown)
        if (lent := self._lent.get(digest)) is not None:
            return lent if self._access.holds(lent) else None
        known = self._verified.get(digest)
        if known is None or known.until_ms <= self._now_ms() or not self._access.holds(known.principal):
            return None
        if known.credentials is not None:
            user = self._access.users.get(known.principal.name)
            if user is None or user.credentials is not known.credentials:
                return None
        return known.principal

    async def login(self, shown: Shown) -> Principal:
        """NotAuthorized for a wrong name or password alike; Overloaded after too many of them."""
        known = self.login_now(shown)
        if known is not None:
            return known
        try:
            if shown.signed is not None:
                return await self._by_nkey(shown, *shown.signed)
            if hidden_character(shown.name):
                raise NotAuthorized(f"a user name with the character {hidden_character(shown.name)}")
            if not shown.password and (self._access.open or (shown.certificate and self._certificates.rules)):
                raise NotAuthorized(self._why_not(shown))
            if shown.token_only or (self.tokens is not None and looks_like_token(shown.password)):
                principal = await self._by_token(shown)
            else:
                principal = await self._by_password(shown)
        except MainstemError as error:
            self.on_login(shown, None, error.message)
            raise
        return principal

    @contextmanager
    def lent(self, principal: Principal) -> Iterator[tuple[str, str]]:
        """Name and password by which clients of the broker's own log in as this principal, as long as this lasts.

        A session has no password, and nobody keeps those that were shown.
        """
        if principal.anonymous:
            yield "", ""
            return
        password = secrets.token_urlsafe(32)
        digest = self._digest(Shown(principal.name, password.encode()))
        self._lent[digest] = principal
        try:
            yield principal.name, password
        finally:
            del self._lent[digest]

    def _anonymous(self, shown: Shown) -> Principal:
        for name, namespace in _readings(shown):
            if namespace and self._access.has_namespace(namespace):
                return Principal(name or ANONYMOUS, namespace, admin=True, anonymous=True)
        if shown.namespace:
            raise NotAuthorized(f"there is no namespace {shown.namespace!r}")
        return Principal(shown.name or ANONYMOUS, admin=True, anonymous=True)

    def _by_certificate(self, shown: Shown) -> Principal | None:
        found = self._certificates.user_of(shown.certificate)
        if found is None:
            return None
        for name, chosen in _readings(shown):
            if name in ("", found[0]):
                user = self._access.users.get(found[0])
                return self._access.principal(user, chosen or found[1]) if user is not None else None
        return None

    def _why_not(self, shown: Shown) -> str:
        if self._access.open:
            return f"there is no namespace {shown.namespace!r}"
        found = self._certificates.user_of(shown.certificate)
        if found is None:
            return "a certificate of which no rule in tls.client_users tells a user"
        return f"a certificate of {found[0][:128]!r}, who is not a user or belongs elsewhere"

    async def _by_password(self, shown: Shown) -> Principal:
        name, namespace = self._chosen(shown)
        self.throttle.check(shown.address, name, self._now_ms())
        user = self._access.users.get(name)
        credentials = user.credentials if user is not None else None
        async with self._hashing:
            right = await asyncio.to_thread(verify_password, credentials, shown.password)
        if not right or user is None or not self._is_still(user):
            await asyncio.sleep(self._count_failure(shown.address, name))
            raise NotAuthorized(WRONG)
        self.throttle.succeeded(shown.address, name)
        principal = self._access.principal(user, namespace)
        await self._renew(user, shown.password)
        kept = self._access.users.get(name)
        if kept is not None:
            self._remember(shown, principal, kept.credentials, VERIFIED_MS)
        return principal

    async def _by_nkey(self, shown: Shown, nkey: str, nonce: bytes, signature: str) -> Principal:
        self.throttle.check(shown.address, nkey, self._now_ms())
        user = self._access.by_nkey().get(nkey)
        if user is None or not nonce or not is_signed(nkey, nonce, signature):
            await asyncio.sleep(self._count_failure(shown.address, nkey))
            raise NotAuthorized("an unknown nkey, or a signature that is not its")
        self.throttle.succeeded(shown.address, nkey)
        return self._access.principal(user, shown.namespace)

    async def _renew(self, user: User, password: bytes) -> None:
        async with self._hashing:
            better = await asyncio.to_thread(renewed, user.credentials, password)
        if better is not None and self._is_still(user):
            self._access.renew_credentials(user.name, better)

    def _is_still(self, user: User) -> bool:
        """Other rules leave a password as it was; another password does not."""
        now = self._access.users.get(user.name)
        return now is not None and now.credentials is user.credentials

    async def _by_token(self, shown: Shown) -> Principal:
        try:
            if self.tokens is None:
                raise NotAuthorized("this broker accepts no tokens: [jwt] has no keys")
            claims = await self.tokens.check(shown.password)
            principal = self.principal_of(claims, shown, self.tokens.options)
        except NotAuthorized:
            self.failures_total += 1
            raise
        left_ms = claims.expires_s * 1000 - self._clock.now_ns() // 1_000_000
        self._remember(shown, principal, None, min(VERIFIED_MS, left_ms))
        return principal

    def principal_of(self, claims: Claims, shown: Shown, options: TokenOptions) -> Principal:
        """Who a token says it is. Of a user that the broker knows too it adds to what that user may do."""
        names = dict(_readings(shown))
        if claims.user not in names and "" not in names:
            raise NotAuthorized(f"a token of {claims.user[:128]!r} shown by {shown.name[:128]!r}")
        chosen = names.get(claims.user) or names.get("") or ""
        if not USER_NAME.fullmatch(claims.user) or hidden_character(claims.user):
            raise NotAuthorized(f"a token of {claims.user[:128]!r}, which is not a user name")
        user = self._access.users.get(claims.user)
        if user is not None:
            namespace = chosen or next(iter(claims.namespaces), "")
            own = self._access.principal(user, namespace)
            if claims.bound and (own.admin or own.namespace != claims.bound):
                raise NotAuthorized(f"a token of {claims.user!r}, whose issuer speaks for {claims.bound!r} alone")
            return replace(
                own,
                admin=own.admin or claims.admin,
                roles=claims.roles,
                rules=claims.rules,
                expires_s=claims.expires_s,
                by_token=True,
            )
        if options.known_only:
            raise NotAuthorized(f"a token of {claims.user!r}, whom the broker does not know (jwt.users)")
        named = claims.namespaces or (options.namespace,)
        namespace = chosen or named[0]
        if not self._access.has_namespace(namespace) or (namespace not in named and not claims.admin):
            raise NotAuthorized(
                f"a token of {claims.user!r} for namespace {namespace!r}, which this user does not belong to"
            )
        return Principal(
            claims.user,
            namespace,
            claims.admin,
            roles=claims.roles,
            rules=claims.rules,
            expires_s=claims.expires_s,
            by_token=True,
            stranger=True,
            namespaces=named,
        )

    # -- SCRAM, which never tells a password

    def scram(self, shown: Shown, mechanism: str) -> ScramVerifier:
        """For Kafka; an unknown user has one that nothing fits. Overloaded after too many failures."""
        name, _ = self._chosen(shown)
        self.throttle.check(shown.address, name, self._now_ms())
        user = self._access.users.get(name)
        return scram_verifier(user.credentials if user is not None else None, mechanism, name)

    async def scram_done(self, shown: Shown, right: bool) -> Principal:
        name, namespace = self._chosen(shown)
        try:
            self.throttle.check(shown.address, name, self._now_ms())
            user = self._access.users.get(name)
            if not right or user is None:
                await asyncio.sleep(self._count_failure(shown.address, name))
                raise NotAuthorized(WRONG)
            self.throttle.succeeded(shown.address, name)
            return self._access.principal(user, namespace)
        except MainstemError as error:
            self.on_login(shown, None, error.message)
            raise

    # --

    def _chosen(self, shown: Shown) -> tuple[str, str]:
        """User and namespace that the name means: the first reading whose user exists, else the name itself."""
        for name, namespace in _readings(shown):
            if name in self._access.users:
                return name, namespace
        return shown.name, shown.namespace

    def _remember(self, shown: Shown, principal: Principal, credentials: dict[str, Any] | None, for_ms: int) -> None:
        if len(self._verified) >= VERIFIED_MAX:
            self._verified.clear()
        self._verified[self._digest(shown)] = _Verified(self._now_ms() + for_ms, principal, credentials)

    def _digest(self, shown: Shown) -> bytes:
        parts = (shown.name.encode(errors="surrogateescape"), shown.namespace.encode(), shown.password)
        text = b"".join(len(one).to_bytes(4, "big") + one for one in parts)
        return hmac.digest(self._secret, bytes([shown.token_only]) + text, hashlib.sha256)

    def _count_failure(self, address: str, name: str) -> float:
        """Returns how many seconds late the answer should be."""
        self.failures_total += 1
        return self.throttle.failed(address, name, self._now_ms())

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000


def _readings(shown: Shown) -> Iterator[tuple[str, str]]:
    """What a name may mean, as (user, namespace). User names have no colon and no slash; both may have an @."""
    yield shown.name, shown.namespace
    if shown.namespace:
        return
    for mark in ":/":
        namespace, found, user = shown.name.rpartition(mark)
        if found and (namespace or mark == "/"):
            yield user, namespace or "/"
    parts = shown.name.split("@")
    for cut in range(len(parts) - 1, 0, -1):
        user, namespace = "@".join(parts[:cut]), "@".join(parts[cut:])
        if user and namespace:
            yield user, namespace
