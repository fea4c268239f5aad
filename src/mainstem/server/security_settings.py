"""Settings of who gets in and what is kept of it: certificates, tokens, the console's logins, the audit."""

from __future__ import annotations

from dataclasses import dataclass

from mainstem.server.kinds import DURATION, DURATION_OR_UNLIMITED, FLAG, NAMES, TEXT, choice
from mainstem.server.setting import DAY, HOUR, MINUTE, SECOND, setting


@dataclass(slots=True)
class Tls:
    """A certificate for listeners with TLS. SIGHUP reads the files again, whether or not their names changed."""

    certificate: str = setting("", TEXT, "PEM file: the certificate, then those that vouch for it.", live=True)
    key: str = setting("", TEXT, "PEM file: its private key, without a password; empty: in the same file.", live=True)
    client_ca: str = setting(
        "", TEXT, "PEM file: who signs the certificates of clients. If set, no client connects without one."
    )
    client_certificates: str = setting(
        "required",
        choice("required", "optional"),
        "With `client_ca`: whether a client may also connect without a certificate, and log in by other means.",
    )
    client_crl: str = setting(
        "", TEXT, "PEM file: the certificates of clients that `client_ca` revoked; empty: nobody looks.", live=True
    )
    client_users: tuple[str, ...] = setting(
        (),
        NAMES,
        "Rules that name the user of a client's certificate, first match: `cn:{user}`, `san.uri:spiffe://acme/{user}` "
        "(docs/security.md). Empty: a certificate lets nobody in by itself.",
    )


@dataclass(slots=True)
class Jwt:
    """Tokens of another issuer as logins (docs/security.md). Needs `pip install 'mainstem[identity]'`."""

    keys: str = setting(
        "",
        TEXT,
        "The issuer's public keys: a file (PEM, JWK, JWKS) or the https address of a JWKS. Empty: no token is taken.",
    )
    issuer: str = setting("", TEXT, "What `iss` of a token must be; empty takes any that the keys have signed.")
    more_issuers: tuple[str, ...] = setting(
        (),
        NAMES,
        "Further issuers, each `ISSUER KEYS` or `ISSUER KEYS NAMESPACE`: one with a namespace speaks for that alone "
        "(docs/security.md).",
    )
    audience: tuple[str, ...] = setting((), NAMES, "What `aud` of a token must be, or have. Needed.")
    algorithms: tuple[str, ...] = setting(
        ("RS256", "ES256", "EdDSA"), NAMES, "Signatures taken; also RS384, RS512, PS256, PS384, PS512, ES384, ES512."
    )
    user_claim: str = setting("sub", TEXT, "The claim that is the user's name; dots lead into claims.")
    namespace_claim: str = setting("namespace", TEXT, "The claim with the namespace, or a list of them.")
    roles_claim: str = setting("roles", TEXT, "The claim with a list of roles, such as `realm_access.roles`.")
    rules_claim: str = setting("rules", TEXT, "The claim with rules, as `mainstem user describe --json` shows them.")
    admin_role: str = setting("", TEXT, "Who has this role in a token is an admin; empty: nobody by a token alone.")
    namespace: str = setting("/", TEXT, "The namespace of a token that names none, of a user the broker does not know.")
    users: str = setting(
        "any", choice("any", "known"), "`known`: only users that the broker has too get in by a token."
    )
    leeway_ms: int = setting(30 * SECOND, DURATION, "How far the issuer's clock may be off.")
    keys_max_age_ms: int = setting(
        5 * MINUTE, DURATION, "When the keys are read again; also when a token names a new one."
    )


@dataclass(slots=True)
class Oidc:
    """Logins to the console at an OpenID Connect provider (docs/security.md). Claims are read as `[jwt]` says."""

    issuer: str = setting("", TEXT, "The provider's https address, as it calls itself. Empty: passwords only.")
    client_id: str = setting("", TEXT, "What the provider calls this broker.")
    client_secret_file: str = setting("", TEXT, "File with the client's secret, where the provider wants one.")
    scopes: tuple[str, ...] = setting(("profile",), NAMES, "Asked for beside `openid`.")
    console_url: str = setting(
        "", TEXT, "How browsers reach the console, such as `https://broker.acme.net`; empty: as each asks."
    )
    session_ms: int = setting(8 * HOUR, DURATION, "How long a login at the provider lasts.")


@dataclass(slots=True)
class Audit:
    """Who did what, allowed or not: records in the topic `$audit` of each namespace (docs/security.md)."""

    enabled: bool = setting(True, FLAG, "Keep them, once there are users.")
    file: str = setting("", TEXT, "Append them to this file, too: a JSON object in each line.")
    retention_ms: int = setting(90 * DAY, DURATION_OR_UNLIMITED, "How long `$audit` keeps them.")
