"""Passwords at rest. Never reversible, and slow on purpose: whoever calls this does so beside the loop.

A user's document keeps what it has of:

    argon2          argon2id, as its own text says (RFC 9106): for PLAIN, MQTT, AMQP, NATS and HTTP
    SCRAM-SHA-…     verifiers (RFC 5802, 7677) for Kafka
    scrypt          of earlier versions             {salt, hash, n}
    pbkdf2          mosquitto's `$7$`               {salt, hash, iterations}
    salted          mosquitto's `$6$`, RabbitMQ's   {salt, hash, algorithm, first: "salt" or "password"}

What is not argon2id, or was made with less work than today's, is renewed when its user logs in.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from base64 import b64decode, b64encode
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argon2 import PasswordHasher

ARGON2_KIB, ARGON2_PASSES, ARGON2_LANES = 19_456, 2, 1  # some 20 ms
SCRYPT_R, SCRYPT_P, SCRYPT_DKLEN = 8, 1, 32
SCRAM_ITERATIONS = 8192
SCRAM_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
PASSWORD_BYTES_MAX = 1024
SALTED_ALGORITHMS = ("sha256", "sha512", "md5")
PBKDF2_ITERATIONS_MAX = 2_000_000  # a file of somebody else's says how long a login takes
_FAKE_SECRET = os.urandom(32)  # so that an unknown user's salt looks like a real one, and the same each time


@dataclass(frozen=True, slots=True)
class ScramVerifier:
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


def make_credentials(password: bytes) -> dict[str, Any]:
    """What a user's document keeps of the password."""
    return {"argon2": _argon2().hash(password[:PASSWORD_BYTES_MAX]), **_scram_documents(password)}


def renewed(credentials: dict[str, Any], password: bytes) -> dict[str, Any] | None:
    """What to keep instead, of a password that was right just now; None if what is kept is as good as a new one."""
    kept = credentials.get("argon2")
    if kept is not None and not _argon2().check_needs_rehash(kept):
        return None
    scram = {name: one for name, one in credentials.items() if name in SCRAM_HASHES}
    return {**_scram_documents(password), **scram, "argon2": _argon2().hash(password[:PASSWORD_BYTES_MAX])}


def verify_password(credentials: dict[str, Any] | None, password: bytes) -> bool:
    """Takes as long for a user that does not exist (None) as for one that does."""
    kept, password = credentials or {}, password[:PASSWORD_BYTES_MAX]
    if "argon2" in kept:
        return _argon2_fits(kept["argon2"], password)
    for form, hash_again in _FORMS.items():
        if form in kept:
            one = kept[form]
            return hmac.compare_digest(hash_again(one, password, b64decode(one["salt"])), b64decode(one["hash"]))
    _argon2_fits(_nobodys(), password)
    return False


def scram_document(mechanism: str, salt: bytes, iterations: int, salted: bytes) -> dict[str, Any]:
    """What is kept of a password that was salted elsewhere: Kafka's clients never tell the password itself."""
    algorithm = SCRAM_HASHES[mechanism]
    client_key = hmac.digest(salted, b"Client Key", algorithm)
    return {
        "salt": encoded(salt),
        "iterations": iterations,
        "stored": encoded(hashlib.new(algorithm, client_key).digest()),
        "server": encoded(hmac.digest(salted, b"Server Key", algorithm)),
    }


def scram_verifier(credentials: dict[str, Any] | None, mechanism: str, user: str) -> ScramVerifier:
    """The verifier of a user, or one that no password fits where there is no such user."""
    kept = (credentials or {}).get(mechanism)
    if kept is None:
        fake = hmac.digest(_FAKE_SECRET, user.encode(), "sha512")
        size = hashlib.new(SCRAM_HASHES[mechanism]).digest_size
        return ScramVerifier(fake[:16], SCRAM_ITERATIONS, os.urandom(size), os.urandom(size))
    return ScramVerifier(
        b64decode(kept["salt"]), kept["iterations"], b64decode(kept["stored"]), b64decode(kept["server"])
    )


def encoded(data: bytes) -> str:
    return b64encode(data).decode()


def _scram_documents(password: bytes) -> dict[str, Any]:
    found = {}
    for mechanism, algorithm in SCRAM_HASHES.items():
        salt = os.urandom(16)
        salted = hashlib.pbkdf2_hmac(algorithm, password, salt, SCRAM_ITERATIONS)
        found[mechanism] = scram_document(mechanism, salt, SCRAM_ITERATIONS, salted)
    return found


@cache
def _argon2() -> PasswordHasher:
    from argon2 import PasswordHasher

    return PasswordHasher(time_cost=ARGON2_PASSES, memory_cost=ARGON2_KIB, parallelism=ARGON2_LANES)


def _argon2_fits(kept: str, password: bytes) -> bool:
    from argon2.exceptions import InvalidHashError, VerificationError

    try:
        return _argon2().verify(kept, password)
    except (VerificationError, InvalidHashError):
        return False


@cache
def _nobodys() -> str:
    return _argon2().hash(os.urandom(16))


def _scrypt(kept: dict[str, Any], password: bytes, salt: bytes) -> bytes:
    return hashlib.scrypt(password, salt=salt, n=kept["n"], r=SCRYPT_R, p=SCRYPT_P, maxmem=64 << 20, dklen=SCRYPT_DKLEN)


def _pbkdf2(kept: dict[str, Any], password: bytes, salt: bytes) -> bytes:
    return hashlib.pbkdf2_hmac("sha512", password, salt, kept["iterations"])


def _salted(kept: dict[str, Any], password: bytes, salt: bytes) -> bytes:
    parts = salt + password if kept["first"] == "salt" else password + salt
    return hashlib.new(kept["algorithm"], parts).digest()


_FORMS = {"scrypt": _scrypt, "pbkdf2": _pbkdf2, "salted": _salted}
