"""/v1/users: who may log in, and what they may do."""

from __future__ import annotations

from typing import Any

from mainstem.admin.calls import ADMIN, AFTER, LIMIT, Call, Field, Operation, page
from mainstem.broker.access import User, is_loopback
from mainstem.model.errors import InvalidArgument


def user_row(user: User) -> dict[str, Any]:
    return {
        "name": user.name,
        "namespace": user.namespace,
        "admin": user.admin,
        "rules": [rule.to_document() for rule in user.rules],
    }


async def list_users(call: Call) -> Any:
    users, after = call.running.broker.access.users, call.query.get("after", "")
    names = [name for name in sorted(users) if name > after]
    rows = [user_row(users[name]) for name in names[: call.limit]]
    return page(rows, names[call.limit - 1] if len(names) > call.limit else None)


async def add_user(call: Call) -> Any:
    access, body = call.running.broker.access, call.body
    hashed = await access.hashed(body["password"])
    await access.add_user(body["name"], hashed, admin=bool(body.get("admin")), namespace=body.get("namespace") or "/")
    return user_row(access.user(body["name"]))


async def describe_user(call: Call) -> Any:
    return user_row(call.running.broker.access.user(call.path["name"]))


async def set_password(call: Call) -> Any:
    access = call.running.broker.access
    access.user(call.path["name"])  # told before the password is hashed
    await access.set_password(call.path["name"], await access.hashed(call.body["password"]))
    return user_row(access.user(call.path["name"]))


async def remove_user(call: Call) -> Any:
    access, listeners = call.running.broker.access, call.running.config.listeners
    last = list(access.users) == [call.path["name"]]
    if last and not listeners.allow_anonymous and not is_loopback(listeners.host):
        raise InvalidArgument(
            "without its last user this broker would be open to the network", fix="listen on loopback"
        )
    await access.remove_user(call.path["name"])
    return {"deleted": call.path["name"]}


async def add_rule(call: Call) -> Any:
    access, body = call.running.broker.access, call.body
    await access.add_rule(
        call.path["name"], allow=body.get("allow", True), actions=body["actions"], topic_filter=body["filter"]
    )
    return user_row(access.user(call.path["name"]))


async def remove_rules(call: Call) -> Any:
    access = call.running.broker.access
    await access.remove_rules(call.path["name"], call.query.get("filter", ""))
    return user_row(access.user(call.path["name"]))


PASSWORD = Field("password", "string", "The password; only a hash of it is kept.", required=True)
OPERATIONS = (
    Operation("GET", "/v1/users", list_users, "Users by name.", ADMIN, query=(LIMIT, AFTER)),
    Operation(
        "POST",
        "/v1/users",
        add_user,
        "Add a user. From the first one on nobody gets in without a login.",
        ADMIN,
        body=(
            Field("name", "string", "The user's name.", required=True),
            PASSWORD,
            Field("admin", "boolean", "May do everything; the first user must be one."),
            Field("namespace", "string", "The namespace of the user's MQTT and Kafka topics."),
        ),
    ),
    Operation("GET", "/v1/users/{name}", describe_user, "One user with its rules.", ADMIN),
    Operation("PATCH", "/v1/users/{name}", set_password, "Set a user's password.", ADMIN, body=(PASSWORD,)),
    Operation("DELETE", "/v1/users/{name}", remove_user, "Remove a user.", ADMIN),
    Operation(
        "POST",
        "/v1/users/{name}/rules",
        add_rule,
        "Allow or deny actions on what a topic filter means; deny wins.",
        ADMIN,
        body=(
            Field("allow", "boolean", "true to allow (the default), false to deny."),
            Field("actions", "array", "publish, consume, create, configure, delete, describe.", required=True),
            Field("filter", "string", "A topic filter; %u is the user's name.", required=True),
        ),
    ),
    Operation(
        "DELETE",
        "/v1/users/{name}/rules",
        remove_rules,
        "Remove a user's rules for a filter.",
        ADMIN,
        query=(Field("filter", "string", "The filter of the rules.", required=True),),
    ),
)
