"""Passwords at rest: scrypt for PLAIN, MQTT, AMQP and HTTP; SCRAM verifiers (RFC 5802, 7677) for Kafka. Never reversible."""

from __future__ import annotations

import hashlib
import hmac
import os
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any

SCRYPT_N, SCRYPT_R, SCRYPT_P = 1 << 14, 8, 1  # 16 MiB and some 50 ms; run it in a thread
SCRAM_ITERATIONS = 8192
SCRAM_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
PASSWORD_BYTES_MAX = 1024
_FAKE_SECRET = os.urandom(32)  # so that an unknown user's salt looks like a real one, and the same each time


@dataclass(frozen=True, slots=True)
class ScramVerifier:
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


def make_credentials(password: bytes) -> dict[str, Any]:
    """What a user's document keeps of the password. Slow on purpose."""
    salt = os.urandom(16)
    document: dict[str, Any] = {
        "scrypt": {"salt": _text(salt), "hash": _text(_scrypt(password, salt, SCRYPT_N)), "n": SCRYPT_N}
    }
    for mechanism, algorithm in SCRAM_HASHES.items():
        salt = os.urandom(16)
        salted = hashlib.pbkdf2_hmac(algorithm, password, salt, SCRAM_ITERATIONS)
        document[mechanism] = scram_document(mechanism, salt, SCRAM_ITERATIONS, salted)
    return document


def scram_document(mechanism: str, salt: bytes, iterations: int, salted: bytes) -> dict[str, Any]:
    """What is kept of a password that was salted elsewhere: Kafka's clients never tell the password itself."""
    algorithm = SCRAM_HASHES[mechanism]
    client_key = hmac.digest(salted, b"Client Key", algorithm)
    return {
        "salt": _text(salt),
        "iterations": iterations,
        "stored": _text(hashlib.new(algorithm, client_key).digest()),
        "server": _text(hmac.digest(salted, b"Server Key", algorithm)),
    }


def verify_password(credentials: dict[str, Any] | None, password: bytes) -> bool:
    """Takes as long for a user that does not exist (None) as for one that does."""
    kept = (credentials or {}).get("scrypt")
    if kept is None:
        _scrypt(password, b"0" * 16, SCRYPT_N)
        return False
    return hmac.compare_digest(_scrypt(password, b64decode(kept["salt"]), kept["n"]), b64decode(kept["hash"]))


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


def _scrypt(password: bytes, salt: bytes, n: int) -> bytes:
    return hashlib.scrypt(
        password[:PASSWORD_BYTES_MAX], salt=salt, n=n, r=SCRYPT_R, p=SCRYPT_P, maxmem=64 << 20, dklen=32
    )


def _text(data: bytes) -> str:
    return b64encode(data).decode()
