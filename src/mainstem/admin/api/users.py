"""/v1/users: who may log in, and what they may do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from mainstem.admin.answers import Deleted, Page
from mainstem.admin.answers.tenants import (
    Explanation,
    ImportedUsers,
    KeptRules,
    RoleFacts,
    RuleDocument,
    UserFacts,
    UserRow,
)
from mainstem.admin.calls import AFTER, LIMIT, Call, Field, Operation, page
from mainstem.broker.identity.foreign_users import read_users
from mainstem.broker.namespaces.quotas import USER
from mainstem.broker.rights.access import Action, Principal, Rule, is_loopback
from mainstem.broker.rights.people import User
from mainstem.model.errors import InvalidArgument, MainstemError
from mainstem.model.topic_filter import check_filter


def rule_documents(rules: Iterable[Rule]) -> list[RuleDocument]:
    return [cast("RuleDocument", rule.to_document()) for rule in rules]


def user_row(user: User) -> UserRow:
    return {
        "name": user.name,
        "namespace": user.namespace,
        "also": user.also,
        "admin": user.admin,
        "rules": rule_documents(user.rules),
        "roles": user.roles,
        "nkey": user.nkey,
        "quota": user.quota.to_document(),
    }


async def list_users(call: Call) -> Page[UserRow]:
    users, after = call.running.broker.access.users, call.query.get("after", "")
    names = [name for name in sorted(users) if name > after]
    rows = [user_row(users[name]) for name in names[: call.limit]]
    return page(rows, names[call.limit - 1] if len(names) > call.limit else None)


async def add_user(call: Call) -> UserRow:
    access, body = call.running.broker.access, call.body
    password, nkey = body.get("password") or "", body.get("nkey") or ""
    hashed = await access.hashed(password) if password or not nkey else ""
    namespace = body.get("namespace") or "/"
    await access.add_user(body["name"], hashed, admin=bool(body.get("admin")), namespace=namespace, nkey=nkey)
    return user_row(access.user(body["name"]))


async def import_users(call: Call) -> ImportedUsers:
    """One by one: whoever cannot be added is told with why, and the others are."""
    access, body = call.running.broker.access, call.body
    wanted = body.get("namespace")
    added, skipped, left_out = [], {}, {}
    for one in read_users(body["text"]):
        first, *also = [wanted] if wanted else one.namespaces or ["/"]
        try:
            await access.add_user(
                one.name, one.credentials, admin=one.admin, namespace=first, also=also, rules=one.rules
            )
        except MainstemError as error:
            skipped[one.name] = str(error)
            continue
        added.append(one.name)
        if one.left_out:
            left_out[one.name] = one.left_out
    return {"added": added, "skipped": skipped, "left_out": left_out}


async def describe_user(call: Call) -> UserFacts:
    broker, name = call.running.broker, call.path["name"]
    return {**user_row(broker.access.user(name)), "use": broker.quotas.shown(USER, name)}


async def alter_user(call: Call) -> UserRow:
    access, name, body = call.running.broker.access, call.path["name"], call.body
    access.user(name)  # told before a password is hashed
    if not body:
        raise InvalidArgument("nothing to change", fix="password, namespace, also, nkey, quota")
    if body.get("quota") is not None:
        await access.set_quota(name, access.user(name).quota.changed(body["quota"], USER))
    if body.get("namespace") is not None or body.get("also") is not None:
        user = access.user(name)
        also = [str(one) for one in body["also"]] if body.get("also") is not None else user.also
        await access.set_namespaces(name, [body.get("namespace") or user.namespace, *also])
    if body.get("nkey") is not None:
        await access.set_nkey(name, body["nkey"])
    if body.get("password") is not None:
        await access.set_password(name, await access.hashed(body["password"]))
    return user_row(access.user(name))


async def remove_user(call: Call) -> Deleted:
    access, listeners = call.running.broker.access, call.running.config.listeners
    last = list(access.users) == [call.path["name"]]
    if last and not listeners.allow_anonymous and not is_loopback(listeners.host):
        raise InvalidArgument(
            "without its last user this broker would be open to the network", fix="listen on loopback"
        )
    await access.remove_user(call.path["name"])
    return {"deleted": call.path["name"]}


async def add_rule(call: Call) -> UserRow:
    access, body = call.running.broker.access, call.body
    await access.add_rule(
        call.path["name"],
        allow=body.get("allow", True),
        actions=body["actions"],
        topic_filter=body["filter"],
        kind=body.get("kind") or "topic",
        match=body.get("match") or "pattern",
    )
    return user_row(access.user(call.path["name"]))


async def remove_rules(call: Call) -> UserRow:
    access = call.running.broker.access
    await access.remove_rules(call.path["name"], call.query.get("filter", ""), call.query.get("kind") or "topic")
    return user_row(access.user(call.path["name"]))


async def list_kept(call: Call) -> Page[KeptRules]:
    kept, after = call.running.broker.access.kept, call.query.get("after", "")
    found = {f"{name}:{namespace}": (namespace, name) for namespace, name in kept}  # no user's name has a colon
    keys = [key for key in sorted(found) if key > after]
    rows: list[KeptRules] = [
        {"user": found[key][1], "namespace": found[key][0], "rules": rule_documents(kept[found[key]])}
        for key in keys[: call.limit]
    ]
    return page(rows, keys[call.limit - 1] if len(keys) > call.limit else None)


async def set_roles(call: Call) -> UserRow:
    access = call.running.broker.access
    await access.set_roles(call.path["name"], [str(one) for one in call.body["roles"]])
    return user_row(access.user(call.path["name"]))


async def explain_rules(call: Call) -> Explanation:
    access, wanted = call.running.broker.access, call.query.get("filter", "").encode()
    check_filter(wanted)
    try:
        action = Action(call.query.get("action", ""))
    except ValueError:
        raise InvalidArgument(f"action is one of {', '.join(Action)}") from None
    user = access.user(call.path["name"])
    principal = Principal(user.name, user.namespace, user.admin, client=call.query.get("client", ""))
    allowed, why = access.explain(principal, action, wanted)
    return {"user": user.name, "action": str(action), "filter": wanted.decode(), "allowed": allowed, "why": why}


def role_row(call: Call, name: str) -> RoleFacts:
    access = call.running.broker.access
    users = sorted(user.name for user in access.users.values() if name in user.roles)
    return {"name": name, "rules": rule_documents(access.role(name)), "users": users}


async def list_roles(call: Call) -> Page[RoleFacts]:
    return page([role_row(call, name) for name in sorted(call.running.broker.access.roles)])


async def put_role(call: Call) -> RoleFacts:
    """All of its rules at once, so that the same call may be made again."""
    access, rules = call.running.broker.access, []
    for one in call.body.get("rules") or []:
        if not isinstance(one, dict) or not isinstance(one.get("actions"), list):
            raise InvalidArgument('a rule is {"allow": true, "actions": ["consume"], "filter": "a/#", "kind": "topic"}')
        kind, match = str(one.get("kind") or "topic"), str(one.get("match") or "pattern")
        pattern = str(one.get("filter") or "")
        allow = bool(one.get("allow", True))
        rules.append(Rule.make(allow=allow, actions=one["actions"], pattern=pattern, kind=kind, match=match))
    await access.put_role(call.body["name"], rules)
    return role_row(call, call.body["name"])


async def remove_role(call: Call) -> Deleted:
    await call.running.broker.access.remove_role(call.path["name"])
    return {"deleted": call.path["name"]}


PASSWORD = Field("password", "string", "The password; only a hash of it is kept. With an nkey there may be none.")
NKEY = Field("nkey", "string", "The public key, U..., by which NATS clients log in; empty: none.")
OPERATIONS = (
    Operation("GET", "/v1/users", list_users, "Users by name.", "user.list", query=(LIMIT, AFTER)),
    Operation(
        "POST",
        "/v1/users",
        add_user,
        "Add a user. From the first one on nobody gets in without a login.",
        "user.add",
        body=(
            Field("name", "string", "The user's name.", required=True),
            PASSWORD,
            NKEY,
            Field("admin", "boolean", "May do everything; the first user must be one."),
            Field("namespace", "string", "The namespace of the user's MQTT and Kafka topics."),
        ),
    ),
    Operation(
        "POST",
        "/v1/users/import",
        import_users,
        "Add the users of a mosquitto password file or of RabbitMQ's definitions, with their passwords.",
        "user.add",
        body=(
            Field("text", "string", "The file.", required=True),
            Field("namespace", "string", "Where they all belong; without: RabbitMQ's vhosts, or /."),
        ),
    ),
    Operation(
        "GET",
        "/v1/users/{name}/may",
        explain_rules,
        "Whether a user may do this with all that a filter means, and which rules say so.",
        "rule.explain",
        query=(
            Field("action", "string", "publish, consume, create, configure, delete or describe.", required=True),
            Field("filter", "string", "A topic or a topic filter.", required=True),
            Field("client", "string", "The client's id, where a rule has %c."),
        ),
    ),
    Operation(
        "PATCH",
        "/v1/users/{name}/roles",
        set_roles,
        "Set the roles of a user: their rules are the user's too.",
        "user.alter",
        body=(Field("roles", "array", "Names of roles.", required=True),),
    ),
    Operation(
        "GET",
        "/v1/kept-rules",
        list_kept,
        "Rules that Kafka's tools made for names that no user has: they are a user's once it is added.",
        "rule.list",
        query=(LIMIT, AFTER),
    ),
    Operation("GET", "/v1/roles", list_roles, "Roles: rules that several users have.", "role.list"),
    Operation(
        "POST",
        "/v1/roles",
        put_role,
        "Make a role, or give it other rules. The role * is everybody's.",
        "role.put",
        body=(
            Field("name", "string", "Its name.", required=True),
            Field("rules", "array", "Its rules, as a user's are shown: allow, actions, filter, kind, match."),
        ),
    ),
    Operation("DELETE", "/v1/roles/{name}", remove_role, "Remove a role that no user has.", "role.remove"),
    Operation("GET", "/v1/users/{name}", describe_user, "One user with its rules.", "user.describe"),
    Operation(
        "PATCH",
        "/v1/users/{name}",
        alter_user,
        "Set a user's password, its nkey, the namespace it belongs to, its quotas.",
        "user.alter",
        body=(
            PASSWORD,
            NKEY,
            Field("namespace", "string", "The namespace it belongs to; its connections end."),
            Field("also", "array", "Namespaces that it may choose instead when it logs in."),
            Field("quota", "object", "Limits by name: publish_bytes_per_s, consume_bytes_per_s, connections_max, ..."),
        ),
    ),
    Operation("DELETE", "/v1/users/{name}", remove_user, "Remove a user, and all rules of its name.", "user.remove"),
    Operation(
        "POST",
        "/v1/users/{name}/rules",
        add_rule,
        "Allow or deny actions on what a topic filter means; deny wins.",
        "rule.add",
        body=(
            Field("allow", "boolean", "true to allow (the default), false to deny."),
            Field("actions", "array", "publish, consume, create, configure, delete, describe, manage.", required=True),
            Field(
                "filter",
                "string",
                "A topic filter; of other kinds a name, or its beginning and a *. %u is the user, %c the client's id, "
                "%n the namespace.",
                required=True,
            ),
            Field("kind", "string", "topic (the default), queue, exchange, group, transaction, namespace or cluster."),
            Field("match", "string", "pattern (the default), or literal or prefix: the filter is a name as it stands."),
        ),
    ),
    Operation(
        "DELETE",
        "/v1/users/{name}/rules",
        remove_rules,
        "Remove a user's rules for a filter.",
        "rule.remove",
        query=(
            Field("filter", "string", "The filter of the rules.", required=True),
            Field("kind", "string", "Of which kind of object; topic is the default."),
        ),
    ),
)
