"""JSON Web Tokens (RFC 7519): what must be right about one, and what its claims say of who shows it.

- It is signed by one of the issuer's keys, with an algorithm of our list and a key of that algorithm's kind. So `none` and
  an HMAC keyed with a public key are refused before anything is verified.
- `exp` and `aud` are there and right, `iss` too where an issuer is set; `nbf` and `iat` where they are there.
- With several issuers, `iss` says whose keys count. One that is bound to a namespace speaks for that alone: it names no
  other, no admin and no user who belongs elsewhere.
- Claims name the user, its namespaces, roles and rules. A claim within another is named with dots: `realm_access.roles`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mainstem.broker.identity.issuer_keys import IssuerKey, IssuerKeys
from mainstem.broker.rights.rules import Rule
from mainstem.model.errors import ConfigError, InvalidArgument, NotAuthorized

TOKEN_BYTES_MAX = 16 * 1024
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
NAMES_MAX, RULES_MAX = 100, 100
_SHAPE = re.compile(rb"eyJ[\w-]*\.[\w-]+\.[\w-]*")


@dataclass(frozen=True, slots=True)
class TokenOptions:
    keys: str = ""  # file or address; "": no token is taken
    issuer: str = ""
    audiences: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    user_claim: str = "sub"
    namespace_claim: str = "namespace"
    roles_claim: str = "roles"
    rules_claim: str = "rules"
    admin_role: str = ""  # whoever has it in a token is an admin; "": nobody is by a token alone
    namespace: str = "/"  # of a token that names none
    known_only: bool = False  # whether its user must be one of the broker's
    leeway_s: float = 30
    keys_max_age_s: float = 300
    more_issuers: tuple[str, ...] = ()  # each `ISSUER KEYS` or `ISSUER KEYS NAMESPACE`


@dataclass(frozen=True, slots=True)
class Claims:
    user: str
    namespaces: tuple[str, ...]
    roles: tuple[str, ...]
    rules: tuple[Rule, ...]
    admin: bool
    expires_s: int
    nonce: str = ""
    bound: str = ""  # the one namespace that its issuer speaks for; "": any


@dataclass(frozen=True, slots=True)
class Issuer:
    name: str  # as `iss` says it; "": whoever the keys are of
    keys: IssuerKeys
    namespace: str = ""


def looks_like_token(password: bytes) -> bool:
    return password.startswith(b"eyJ") and _SHAPE.fullmatch(password) is not None


class Tokens:
    def __init__(self, options: TokenOptions) -> None:
        if not options.audiences:
            raise ConfigError(
                "[jwt] has keys and no audience: a token for somebody else would do", fix='audience = ["mainstem"]'
            )
        unknown = set(options.algorithms) - set(ALGORITHMS)
        if unknown or not options.algorithms:
            raise ConfigError(f"jwt.algorithms: {', '.join(unknown) or 'none'}", fix=f"some of {', '.join(ALGORITHMS)}")
        try:
            import jwt  # noqa: F401
        except ImportError:
            raise ConfigError("[jwt] needs the package PyJWT", fix="pip install 'mainstem[identity]'") from None
        self.options = options
        self._issuers = [Issuer(options.issuer, IssuerKeys(options.keys, options.keys_max_age_s))]
        self._issuers += [_issuer(one, options.keys_max_age_s) for one in options.more_issuers]
        names = [one.name for one in self._issuers]
        if len(names) > 1 and ("" in names or len(set(names)) < len(names)):
            raise ConfigError(
                "[jwt] has several issuers, and they cannot be told apart",
                fix='issuer = "https://..." for the first, too',
            )

    async def check(self, token: bytes) -> Claims:
        """NotAuthorized, with why; the reason is for the log, not for who shows it."""
        import jwt

        if len(token) > TOKEN_BYTES_MAX:
            raise NotAuthorized(f"a token of {len(token)} bytes")
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError as error:
            raise NotAuthorized(f"not a token: {error}") from None
        algorithm = header.get("alg")
        if algorithm not in self.options.algorithms:
            raise NotAuthorized(f"a token signed with {algorithm!r}, which jwt.algorithms does not have")
        issuer = self._issuer_of(token)
        keys = await issuer.keys.candidates(str(header.get("kid") or ""))
        claims = await asyncio.to_thread(self._verified, token, str(algorithm), issuer, keys)
        return claims_of(claims, self.options, issuer.namespace)

    def _issuer_of(self, token: bytes) -> Issuer:
        """By what it says of itself; `_verified` sees whether that is true."""
        import jwt

        if len(self._issuers) == 1:
            return self._issuers[0]
        try:
            said = jwt.decode(token, options={"verify_signature": False, "verify_exp": False, "verify_aud": False})
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise NotAuthorized(f"not a token: {error}") from None
        for one in self._issuers:
            if one.name == said.get("iss"):
                return one
        raise NotAuthorized(f"a token of {str(said.get('iss'))[:128]!r}, which is not an issuer of [jwt]")

    def _verified(self, token: bytes, algorithm: str, issuer: Issuer, keys: list[IssuerKey]) -> dict[str, Any]:
        import jwt

        last = f"no key of the issuer's is one for {algorithm}"
        for one in keys:
            if one.algorithm not in ("", algorithm) or not fits(algorithm, one.key):
                continue
            try:
                found: dict[str, Any] = jwt.decode(
                    token,
                    one.key,
                    algorithms=[algorithm],
                    audience=list(self.options.audiences),
                    issuer=issuer.name or None,
                    leeway=self.options.leeway_s,
                    options={"require": ["exp", "aud"]},
                )
                return found
            except jwt.InvalidSignatureError:
                last = "its signature is not the issuer's"
            except (jwt.PyJWTError, ValueError, TypeError) as error:
                last = str(error)
                break  # the signature was right; what it says is not
        raise NotAuthorized(f"a token that is refused: {last}")


def _issuer(text: str, keys_max_age_s: float) -> Issuer:
    name, keys, namespace = ([*text.split(), "", "", ""])[:3]
    if not keys or len(text.split()) > 3:
        raise ConfigError(
            f"jwt.more_issuers: {text!r}", fix='"https://issuer.example https://issuer.example/jwks NAMESPACE"'
        )
    return Issuer(name, IssuerKeys(keys, keys_max_age_s), namespace)


def fits(algorithm: str, key: Any) -> bool:
    """Whether a key is of the algorithm's kind: a token's header must never choose how its key is read."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa

    if algorithm == "EdDSA":
        return isinstance(key, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey)
    if algorithm.startswith("ES"):
        bits = {"ES256": 256, "ES384": 384, "ES512": 521}[algorithm]
        return isinstance(key, ec.EllipticCurvePublicKey) and key.curve.key_size == bits
    return isinstance(key, rsa.RSAPublicKey) and key.key_size >= 2048


def claims_of(claims: Mapping[str, Any], options: TokenOptions, bound: str = "") -> Claims:
    user = _claim(claims, options.user_claim)
    if not isinstance(user, str) or not user:
        raise NotAuthorized(f"a token without a user: claim {options.user_claim}")
    roles = _names(_claim(claims, options.roles_claim), options.roles_claim)
    given = _claim(claims, options.rules_claim) or []
    try:
        rules = tuple(_rule(one) for one in given)
    except (InvalidArgument, TypeError, AttributeError) as error:
        raise NotAuthorized(f"a token whose rules cannot be read: {error}") from None
    if len(rules) > RULES_MAX:
        raise NotAuthorized(f"a token with {len(rules)} rules; {RULES_MAX} at most")
    namespaces = _names(_claim(claims, options.namespace_claim), options.namespace_claim)
    if bound and set(namespaces) - {bound}:
        raise NotAuthorized(f"a token for namespace {namespaces[0]!r}, whose issuer speaks for {bound!r} alone")
    namespaces = (bound,) if bound else namespaces
    admin = not bound and bool(options.admin_role) and options.admin_role in roles
    nonce = claims.get("nonce")
    expires_s = int(claims["exp"] + options.leeway_s)
    return Claims(user, namespaces, roles, rules, admin, expires_s, nonce if isinstance(nonce, str) else "", bound)


def _claim(claims: Mapping[str, Any], path: str) -> Any:
    """A claim whose name has dots of its own (an address, as some issuers want it) comes first."""
    if not path or path in claims:
        return claims.get(path)
    found: Any = claims
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _names(value: Any, claim: str) -> tuple[str, ...]:
    names = value.split() if isinstance(value, str) else value or []
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names) or len(names) > NAMES_MAX:
        raise NotAuthorized(f"a token whose claim {claim} is not a list of at most {NAMES_MAX} names")
    return tuple(names)


def _rule(document: Mapping[str, Any]) -> Rule:
    return Rule.make(
        allow=document.get("allow", True) is not False,
        actions=[str(one) for one in document["actions"]] if "actions" in document else [],
        pattern=str(document.get("filter", "")),
        kind=str(document.get("kind", "topic")),
        match=str(document.get("match", "pattern")),
    )
