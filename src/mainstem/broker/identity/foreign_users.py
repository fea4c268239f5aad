"""Users that another broker knows, with what it kept of their passwords: read from its files.

mosquitto's password file has a line for each user:

    name:$7$<iterations>$<salt, base64>$<hash, base64>     PBKDF2 with SHA-512
    name:$6$<salt, base64>$<hash, base64>                  SHA-512 of password and salt

RabbitMQ's definitions (`rabbitmqctl export_definitions`, GET /api/definitions) are JSON with `users` and `permissions`:

    password_hash       base64 of a salt of 4 bytes and the hash of salt and password
    hashing_algorithm   rabbit_password_hashing_sha256, _sha512 or _md5
    tags                "administrator" is an admin here
    permissions         user, vhost: the vhosts are its namespaces; a right with `.*` in each becomes a rule
"""

from __future__ import annotations

import json
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mainstem.broker.identity.passwords import PBKDF2_ITERATIONS_MAX, SALTED_ALGORITHMS, encoded
from mainstem.broker.rights.rules import Rule
from mainstem.model.errors import InvalidArgument

USERS_MAX = 10_000
RABBIT_SALT_BYTES = 4
RABBIT_ALGORITHM = "rabbit_password_hashing_"
EVERYTHING, NOTHING = ".*", "^$"
RABBIT_RIGHTS = {  # RabbitMQ's → ours
    "configure": ("create", "configure", "delete"),
    "write": ("publish",),
    "read": ("consume", "describe"),
}


@dataclass(slots=True)
class ForeignUser:
    name: str
    credentials: dict[str, Any]
    admin: bool = False
    namespaces: list[str] = field(default_factory=list)  # none: whoever imports says where it belongs
    rules: list[Rule] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # what it had and has no counterpart here


def read_users(text: str) -> list[ForeignUser]:
    """Of whichever of the two kinds the file is."""
    users = _of_rabbitmq(text) if text.lstrip().startswith("{") else _of_mosquitto(text)
    if len(users) > USERS_MAX:
        raise InvalidArgument(f"the file has {len(users)} users; at most {USERS_MAX} are imported at once")
    return users


def _of_mosquitto(text: str) -> list[ForeignUser]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, kept = line.strip().partition(":")
        parts = kept.split("$")
        try:
            if not colon or parts[0]:
                raise ValueError
            if parts[1] == "7" and len(parts) == 5:
                credentials = _pbkdf2(int(parts[2]), parts[3], parts[4])
            elif parts[1] == "6" and len(parts) == 4:
                credentials = salted("sha512", _decoded(parts[2]), _decoded(parts[3]), first="password")
            else:
                raise ValueError
        except (ValueError, IndexError):
            raise InvalidArgument(
                f"line {number} is not one of a mosquitto password file: name:$7$iterations$salt$hash",
                fix="a file with plain passwords is hashed first: mosquitto_passwd -U FILE",
            ) from None
        found.append(ForeignUser(name, credentials))
    return found


def _pbkdf2(iterations: int, salt: str, kept: str) -> dict[str, Any]:
    if not 0 < iterations <= PBKDF2_ITERATIONS_MAX or len(_decoded(kept)) != 64:
        raise ValueError
    return {"pbkdf2": {"iterations": iterations, "salt": encoded(_decoded(salt)), "hash": encoded(_decoded(kept))}}


def salted(algorithm: str, salt: bytes, kept: bytes, *, first: str) -> dict[str, Any]:
    return {"salted": {"algorithm": algorithm, "salt": encoded(salt), "hash": encoded(kept), "first": first}}


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except NotBase64:
        raise ValueError from None


def _of_rabbitmq(text: str) -> list[ForeignUser]:
    try:
        document = json.loads(text)
        users, permissions = document["users"], document.get("permissions") or []
        found = {one["name"]: _rabbit_user(one) for one in users}
        for user in found.values():
            _permit(user, [one for one in permissions if one["user"] == user.name])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidArgument(
            f"not the definitions of a RabbitMQ with users and permissions ({type(error).__name__}: {error})",
            fix="rabbitmqctl export_definitions FILE",
        ) from None
    return list(found.values())


def rabbit_credentials(password_hash: str, algorithm: str) -> dict[str, Any]:
    """ValueError where it is not one of RabbitMQ's."""
    name = (algorithm or f"{RABBIT_ALGORITHM}sha256").removeprefix(RABBIT_ALGORITHM)
    kept = _decoded(password_hash)
    if name not in SALTED_ALGORITHMS or len(kept) <= RABBIT_SALT_BYTES:
        raise ValueError(f"a password hash of {algorithm}")
    return salted(name, kept[:RABBIT_SALT_BYTES], kept[RABBIT_SALT_BYTES:], first="salt")


def _rabbit_user(one: dict[str, Any]) -> ForeignUser:
    tags = one.get("tags") or []
    tags = [tag.strip() for tag in tags.split(",")] if isinstance(tags, str) else tags
    kept = one.get("password_hash")  # none: it comes by a certificate, or not at all
    credentials = rabbit_credentials(kept, one.get("hashing_algorithm", "")) if kept else {}
    return ForeignUser(one["name"], credentials, admin="administrator" in tags)


def rules_on_everything(actions: Iterable[str]) -> list[Rule]:
    """That allow it on what a vhost of RabbitMQ's has."""
    kinds = {"topic": "#", "queue": "*", "exchange": "*"}
    return [Rule.make(allow=True, actions=actions, pattern=pattern, kind=kind) for kind, pattern in kinds.items()]


def _permit(user: ForeignUser, permissions: list[dict[str, Any]]) -> None:
    """A rule counts in all namespaces of its user: what it may do in one vhost only is left out, and told."""
    user.namespaces = list(dict.fromkeys(str(one["vhost"]) for one in permissions))
    for right, actions in RABBIT_RIGHTS.items():
        patterns = {str(one.get(right, "")) for one in permissions}
        if patterns == {EVERYTHING}:
            user.rules += rules_on_everything(actions)
        elif patterns - {"", NOTHING}:
            user.left_out.append(f"{right}: {', '.join(sorted(patterns))}")
