"""Rules that tell a user by the client certificate of a TLS connection, which TLS has verified.

    cn:{user}                            the common name of the subject is the user
    subject:CN={user},OU=devices,*       the subject as RFC 4514 writes it
    san.uri:spiffe://acme/{namespace}/{user}
    san.dns:{user}.devices.acme.net      also san.email and san.ip

`{user}` and `{namespace}` stand for at least one character that is not one of `/ , : =` or a space; `*` for anything. The
first rule that fits a field of the certificate decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mainstem.model.errors import ConfigError

SANS = {"san.dns": "DNS", "san.email": "email", "san.uri": "URI", "san.ip": "IP Address"}
FIELDS = ("cn", "subject", *SANS)
SHORT = {  # RFC 4514, and what certificates of devices use besides
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_PART = re.compile(r"(\{user\}|\{namespace\}|\*)")
_MEANING = {"{user}": r"(?P<user>[^/,:=\s]+)", "{namespace}": r"(?P<namespace>[^/,:=\s]+)", "*": ".*"}


@dataclass(frozen=True, slots=True)
class CertificateRule:
    field: str
    pattern: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> CertificateRule:
        field, colon, pattern = text.partition(":")
        if field not in FIELDS or not colon or pattern.count("{user}") != 1 or pattern.count("{namespace}") > 1:
            raise ConfigError(
                f"tls.client_users: {text!r} is not a rule",
                fix=f"FIELD:PATTERN with one {{user}} in it; FIELD is one of {', '.join(FIELDS)}; e.g. cn:{{user}}",
            )
        parts = _PART.split(pattern)
        return cls(field, re.compile("".join(_MEANING.get(part) or re.escape(part) for part in parts), re.DOTALL))


@dataclass(frozen=True, slots=True)
class CertificateRules:
    rules: tuple[CertificateRule, ...] = ()

    @classmethod
    def parse(cls, texts: Iterable[str]) -> CertificateRules:
        return cls(tuple(CertificateRule.parse(text) for text in texts))

    def user_of(self, certificate: Mapping[str, Any] | None) -> tuple[str, str] | None:
        """User and namespace ("": the user's own) of a certificate as `ssl` tells it; None if no rule fits."""
        if not certificate:
            return None
        for rule in self.rules:
            for value in _values(certificate, rule.field):
                found = rule.pattern.fullmatch(value)
                if found is not None:
                    return found["user"], found.groupdict().get("namespace", "")
        return None


def _values(certificate: Mapping[str, Any], field: str) -> Iterator[str]:
    if field in SANS:
        yield from (value for kind, value in certificate.get("subjectAltName", ()) if kind == SANS[field])
        return
    parts = [(SHORT.get(name, name), value) for names in certificate.get("subject", ()) for name, value in names]
    if field == "cn":
        yield from (value for name, value in parts if name == "CN")
    else:
        yield ",".join(f"{name}={_escaped(value)}" for name, value in reversed(parts))


def _escaped(value: str) -> str:
    return re.sub(r'([,+"\\<>;=])', r"\\\1", value)
