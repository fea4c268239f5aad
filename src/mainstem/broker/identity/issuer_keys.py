"""The public keys that an issuer signs tokens with: a PEM file, a JWK or a set of them, in a file or at an address.

They are read beside the loop, kept for `max_age_s` and read again then, or when a token names a key that is not among them
(at most once in AGAIN_S: a stranger's tokens must not make us ask the issuer all day). While the issuer cannot be reached
the keys we have go on for STALE_S_MAX. Only keys to verify with are taken: a symmetric one would let whoever reads the
file sign.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from mainstem.model.errors import ConfigError, MainstemError, NotAuthorized

logger = logging.getLogger("mainstem.identity")

AGAIN_S = 2.0
STALE_S_MAX = 86_400.0
FETCH_S_MAX = 5.0
BYTES_MAX = 256 * 1024
KEYS_MAX = 50
LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class IssuerKey:
    key_id: str  # "": it names none
    algorithm: str  # "": any that fits its kind
    key: Any  # of `cryptography`


class IssuerKeys:
    def __init__(self, source: str, max_age_s: float) -> None:
        self._source = check_source(source)
        self._max_age_s = max_age_s
        self._keys: list[IssuerKey] = []
        self._read_at = self._tried_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def candidates(self, key_id: str) -> list[IssuerKey]:
        """The keys that a token which names this one may be signed with; NotAuthorized if there are none."""
        now = time.monotonic()
        known = self._named(key_id)
        if known and now - self._read_at < self._max_age_s:
            return known
        if now - self._tried_at >= AGAIN_S or self._reading is not None:
            reading = self._read_again(now)
            if not known or now - self._read_at > STALE_S_MAX:
                await asyncio.shield(reading)
        found = self._named(key_id)
        if not found or time.monotonic() - self._read_at > STALE_S_MAX:
            raise NotAuthorized("a token that is signed with a key its issuer does not have")
        return found

    def _named(self, key_id: str) -> list[IssuerKey]:
        return [one for one in self._keys if not key_id or one.key_id in ("", key_id)]

    def _read_again(self, now: float) -> asyncio.Task[None]:
        """All who wait share one reading."""
        if self._reading is None:
            self._tried_at = now
            self._reading = asyncio.get_running_loop().create_task(self._read())
        return self._reading

    async def _read(self) -> None:
        try:
            self._keys = await asyncio.to_thread(lambda: parse_keys(_fetched(self._source)))
            self._read_at = time.monotonic()
        except (OSError, MainstemError) as error:
            logger.warning("the keys of %s cannot be read: %s", self._source, error)
        finally:
            self._reading = None


def check_source(source: str) -> str:
    """ConfigError where somebody on the way could give us keys of his own."""
    parts = urlsplit(source)
    if parts.scheme in ("http", "https"):
        if parts.scheme == "http" and parts.hostname not in LOCAL:
            raise ConfigError(
                f"{source}: without TLS, anyone on the network path could answer with keys of their own",
                fix="an address with https://",
            )
        return source
    return str(Path(source.removeprefix("file://")).expanduser())


class _Stay(HTTPRedirectHandler):
    def redirect_request(self, *given: Any) -> None:
        """Nowhere else: the address is checked, where it leads is not."""


def fetch(address: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
    """What an address of the issuer's answers, whole and bounded. OSError if it does not."""
    request = Request(check_source(address), body, {"Accept": "application/json", **(headers or {})})
    with build_opener(_Stay).open(request, timeout=FETCH_S_MAX) as answer:
        data: bytes = answer.read(BYTES_MAX + 1)
    if len(data) > BYTES_MAX:
        raise OSError(f"{address} answers more than {BYTES_MAX} bytes")
    return data


def _fetched(source: str) -> bytes:
    if source.startswith(("http://", "https://")):
        return fetch(source)
    with Path(source).open("rb") as file:
        return file.read(BYTES_MAX)


def parse_keys(data: bytes) -> list[IssuerKey]:
    """ConfigError where it holds no key to verify with."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        if b"-----BEGIN CERTIFICATE" in data:
            from cryptography.x509 import load_pem_x509_certificates

            found = [IssuerKey("", "", one.public_key()) for one in load_pem_x509_certificates(data)]
        elif b"-----BEGIN" in data:
            found = [IssuerKey("", "", load_pem_public_key(data))]
        else:
            found = _of_jwks(json.loads(data))
    except (ValueError, UnsupportedAlgorithm, RecursionError) as error:
        raise ConfigError(f"no public key ({error})", fix="a public key in PEM, a JWK or a JWKS") from None
    if not found:
        raise ConfigError("no public key to verify signatures with", fix="a public key in PEM, a JWK or a JWKS")
    return found[:KEYS_MAX]


def _of_jwks(document: Any) -> list[IssuerKey]:
    import jwt

    if not isinstance(document, dict):
        raise ValueError("not a JWK")
    found = []
    for one in document.get("keys", [document]):
        if not isinstance(one, dict) or one.get("kty") == "oct" or "d" in one or one.get("use", "sig") != "sig":
            continue
        try:
            key = jwt.PyJWK(one).key
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            continue  # of a kind that we do not know; the set may have others
        found.append(IssuerKey(str(one.get("kid", "")), str(one.get("alg", "")), key))
    return found
