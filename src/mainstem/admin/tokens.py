"""Bearer tokens for clients that cannot do HTTP Basic (Iceberg's): a name, an end, and a proof only this process can make.

    base64url(name) . seconds since 1970 . base64url(HMAC-SHA256 over both and the user's credentials)

The secret is made at start, so tokens end with the process; with the credentials in it, also when the password changes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import time

from mainstem.broker.rights.access import Access, Principal

TOKEN_S = 3_600
TOKENS_PATH = "/iceberg/v1/oauth/tokens"
TOKEN_CHARACTERS_MAX = 1_024


class Tokens:
    def __init__(self, access: Access) -> None:
        self._access = access
        self._secret = os.urandom(32)

    def issue(self, name: str) -> str:
        until = int(time.time()) + TOKEN_S
        return f"{_encoded(name.encode())}.{until}.{_encoded(self._proof(name, until))}"

    def known(self, token: str) -> Principal | None:
        """Whose it is, if it is one of ours that has not ended."""
        try:
            head, until, proof = token[:TOKEN_CHARACTERS_MAX].split(".")
            name = base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)).decode()
            given = base64.urlsafe_b64decode(proof + "=" * (-len(proof) % 4))
            valid = hmac.compare_digest(given, self._proof(name, int(until))) and int(until) > time.time()
        except (ValueError, binascii.Error, UnicodeDecodeError):
            valid = False
        user = self._access.users.get(name) if valid else None
        return self._access.principal(user) if user is not None else None

    def _proof(self, name: str, until: int) -> bytes:
        user = self._access.users.get(name)
        credentials = json.dumps(user.credentials, sort_keys=True, default=str) if user is not None else ""
        return hmac.digest(self._secret, f"{name}\0{until}\0{credentials}".encode(), hashlib.sha256)


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
