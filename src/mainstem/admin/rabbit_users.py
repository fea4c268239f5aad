"""RabbitMQ's users and permissions by its management API, as rabbitmqadmin and Terraform's provider use them.

A user's vhosts are its namespaces. A permission is `.*` (everything of its kind) or nothing (`` or `^$`); other patterns are
regular expressions over names of queues and exchanges, which have no counterpart here: rules do that. Rules count in
all namespaces of their user, so its permissions are the same in each. A user without permissions may do nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainstem.admin import rabbit_objects as objects
from mainstem.broker.identity.foreign_users import (
    EVERYTHING,
    NOTHING,
    RABBIT_RIGHTS,
    rabbit_credentials,
    rules_on_everything,
)
from mainstem.broker.rights.people import User
from mainstem.broker.rights.rules import Rule
from mainstem.model.errors import InvalidArgument, NotFound

if TYPE_CHECKING:
    from mainstem.admin.rabbit_api import Call

CREATED, NO_CONTENT = 201, 204


def listed(call: Call) -> list[Any]:
    return [_row(user) for user in call.broker.access.users.values()]


def described(call: Call, name: str) -> Any:
    return _row(call.broker.access.user(name))


def _row(user: User) -> dict[str, Any]:
    """Never anything of its password."""
    return {"name": user.name, "tags": objects.tags(user.admin), "limits": {}}


async def put(call: Call, name: str) -> tuple[int, Any]:
    body, access = _body(call), call.broker.access
    credentials = await _credentials(call, name, body)
    is_admin = "administrator" in _tags(body)
    known = access.users.get(name)
    if known is None:
        await access.add_user(name, credentials, admin=is_admin)
        return CREATED, None
    if known.admin != is_admin:
        raise InvalidArgument(
            f"user {name} is {'an' if known.admin else 'no'} administrator, which cannot be changed",
            fix=f"mainstem user rm {name}, then put it again",
        )
    if credentials:
        await access.set_password(name, credentials)
    return NO_CONTENT, None


async def _credentials(call: Call, name: str, body: dict[str, Any]) -> dict[str, Any]:
    password, kept = body.get("password"), body.get("password_hash")
    if isinstance(password, str) and password:
        return await call.broker.access.hashed(password)
    if not isinstance(kept, str) or not kept:
        raise InvalidArgument(f"user {name} needs a password or a password_hash")
    try:
        return rabbit_credentials(kept, str(body.get("hashing_algorithm") or ""))
    except ValueError:
        raise InvalidArgument(f"the password_hash of user {name} is not one of RabbitMQ's") from None


def _tags(body: dict[str, Any]) -> list[str]:
    tags = body.get("tags") or []
    if not isinstance(tags, str | list):
        raise InvalidArgument(f"tags are a list, or text with commas, not {tags!r}")
    return [one.strip() for one in tags.split(",")] if isinstance(tags, str) else [str(one) for one in tags]


async def remove(call: Call, name: str) -> tuple[int, Any]:
    await call.broker.access.remove_user(name)
    return NO_CONTENT, None


# -- permissions


def permissions(call: Call, name: str | None = None) -> list[Any]:
    access = call.broker.access
    wanted = list(access.users.values()) if name is None else [access.user(name)]
    return [_permission(user, vhost) for user in wanted for vhost in user.namespaces if _granted(user)]


def permission(call: Call, vhost: str, name: str) -> Any:
    user = call.broker.access.user(name)
    if vhost not in user.namespaces or not _granted(user):
        raise NotFound(f"user {name!r} has no permissions in vhost {vhost!r}")
    return _permission(user, vhost)


def _granted(user: User) -> set[str]:
    """Which of the three rights it has on everything."""
    if user.admin:
        return set(RABBIT_RIGHTS)
    return {right for right, actions in RABBIT_RIGHTS.items() if _has_all(user.rules, rules_on_everything(actions))}


def _has_all(rules: list[Rule], wanted: list[Rule]) -> bool:
    return all(
        any(
            own.allow and own.kind is one.kind and own.filter == one.filter and own.actions >= one.actions
            for own in rules
        )
        for one in wanted
    )


def _permission(user: User, vhost: str) -> dict[str, Any]:
    has = _granted(user)
    rights = {right: EVERYTHING if right in has else NOTHING for right in RABBIT_RIGHTS}
    return {"user": user.name, "vhost": vhost, **rights}


async def permit(call: Call, vhost: str, name: str) -> tuple[int, Any]:
    body, access, user = _body(call), call.broker.access, call.broker.access.user(name)
    call.vhost(vhost)
    wanted = {right for right in RABBIT_RIGHTS if _asks(body, right)}
    had = _granted(user)
    known = vhost in user.namespaces and bool(had)
    if had and had != wanted and not user.admin and user.namespaces != (vhost,):
        raise InvalidArgument(
            f"user {name} has other permissions in {', '.join(user.namespaces)}; a user has the same in every vhost",
            fix=f"mainstem user describe {name}",
        )
    # A user that was never permitted anything is in `/` only because it must be somewhere.
    await access.set_namespaces(name, [*(user.namespaces if had else ()), vhost])
    others = _others(access.user(name))  # also what was kept for its name in that namespace
    await access.set_rules(name, [*others, *(rule for right in sorted(wanted) for rule in _rules(right))])
    return (NO_CONTENT if known else CREATED), None


def _asks(body: dict[str, Any], right: str) -> bool:
    pattern = body.get(right)
    if pattern not in (EVERYTHING, f"^{EVERYTHING}$", "", NOTHING):
        raise InvalidArgument(
            f"{right} is {pattern!r}: a permission here is '.*' or nothing ('^$')",
            fix="mainstem user allow NAME publish,consume 'orders/#', or '--on queue' and '--on exchange' for names",
        )
    return pattern not in ("", NOTHING)


def _rules(right: str) -> list[Rule]:
    return rules_on_everything(RABBIT_RIGHTS[right])


def _others(user: User) -> list[Rule]:
    """Its rules without those that permissions are."""
    ours = {str(rule) for right in RABBIT_RIGHTS for rule in _rules(right)}
    return [rule for rule in user.rules if str(rule) not in ours]


async def forbid(call: Call, vhost: str, name: str) -> tuple[int, Any]:
    access, user = call.broker.access, call.broker.access.user(name)
    permission(call, vhost, name)
    rest = [one for one in user.namespaces if one != vhost]
    if rest:
        await access.set_namespaces(name, rest)
    else:
        await access.set_rules(name, _others(user))
    return NO_CONTENT, None


def _body(call: Call) -> dict[str, Any]:
    if not isinstance(call.body, dict):
        raise InvalidArgument("the body must be a JSON object")
    return call.body
