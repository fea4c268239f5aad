"""NATS's nkeys: a user shows that it has a private key by signing what the server made up, and never tells a secret.

nkey := base32(0xA0 · ed25519 public key, 32 bytes · CRC-16/XMODEM of both, little-endian), without padding: `U...`

A credentials file holds such a key and a JWT that names it as its subject. The signature proves who the client is. What it
may do is written in the broker's own rules, so of the JWT only the subject and the end of its time count.
"""

from __future__ import annotations

import binascii
import json
from base64 import b32decode, urlsafe_b64decode

from mainstem.model.errors import InvalidArgument

JWT_ALGORITHM = "ed25519-nkey"  # of NATS's own JWTs
JWT_BYTES_MAX = 16 << 10
USER_PREFIX = 20 << 3  # makes the first letter a U
SIZE = 56  # letters
SIGNATURE_BYTES = 64


def check_nkey(nkey: str) -> str:
    """InvalidArgument where it is not a public key of a user, or nothing here could verify it."""
    try:
        public_key(nkey)
    except ValueError:
        raise InvalidArgument(
            f"{nkey[:SIZE]!r} is not a user's nkey: {SIZE} letters that begin with U", fix="nk -gen user -pubout"
        ) from None
    try:
        import cryptography.hazmat.primitives.asymmetric.ed25519  # noqa: F401
    except ImportError:
        raise InvalidArgument("nothing here can verify an nkey", fix="pip install 'mainstem[identity]'") from None
    return nkey


def public_key(nkey: str) -> bytes:
    """ValueError where it is no user's."""
    if len(nkey) != SIZE:
        raise ValueError(nkey)
    data = b32decode(nkey)
    body, checksum = data[:-2], int.from_bytes(data[-2:], "little")
    if body[0] != USER_PREFIX or binascii.crc_hqx(body, 0) != checksum:
        raise ValueError(nkey)
    return body[1:]


def is_credentials(jwt: str) -> bool:
    """Whether it is a JWT of NATS's own, and not one that an OpenID issuer signed."""
    return _part(jwt, 0).get("alg") == JWT_ALGORITHM


def user_of_credentials(jwt: str, now_s: float) -> str:
    """The nkey that must have signed; empty where the JWT names none, or its time is over."""
    claims = _part(jwt, 1)
    ends_s = claims.get("exp") or 0
    if not isinstance(ends_s, int | float) or 0 < ends_s <= now_s:
        return ""
    return str(claims.get("sub") or "")


def _part(jwt: str, place: int) -> dict[str, object]:
    """Head (0) or claims (1); empty where it is no JWT."""
    parts = jwt.split(".")
    if len(parts) != 3 or len(jwt) > JWT_BYTES_MAX:
        return {}
    try:
        found = json.loads(urlsafe_b64decode(parts[place] + "=" * (-len(parts[place]) % 4)))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def is_signed(nkey: str, message: bytes, signature: str) -> bool:
    """Whether the owner of the nkey signed the message; the signature is in base 64, of either alphabet, padded or not."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        text = signature.rstrip("=").replace("+", "-").replace("/", "_")
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        if len(data) != SIGNATURE_BYTES:
            return False
        Ed25519PublicKey.from_public_bytes(public_key(nkey)).verify(data, message)
    except (ValueError, InvalidSignature):
        return False
    return True
