"""What a caller may do, by the table of operations. Endpoints name their line; what names no object is checked at once."""

from __future__ import annotations

from mainstem.admin.cursors import group_exists
from mainstem.admin.running import Running
from mainstem.broker.broker import Broker
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.queues.exchange_names import DEFAULT, topic_of
from mainstem.broker.rights.access import Principal
from mainstem.broker.rights.operations import Need, Scope
from mainstem.broker.rights.rules import Action, Kind
from mainstem.model.errors import NotAuthorized

EVERYTHING = b"#"


def admit(broker: Broker, principal: Principal, need: Need, asked: str = "") -> Namespace:
    """The namespace that is asked for, or the caller's own, once it is certain that the caller may do this in it."""
    name = asked or principal.namespace
    if principal.admin:
        return broker.namespace(name)
    if name != principal.namespace:  # whether it exists is not told
        raise NotAuthorized(f"user {principal.name} belongs to namespace {principal.namespace}")
    if need.scope is Scope.BROKER:
        raise NotAuthorized(f"only an admin may do this; {principal.name} is none")
    if need.scope is Scope.NAMESPACE and not may_manage(broker, principal, name):
        raise NotAuthorized(
            f"user {principal.name} may not manage namespace {name}",
            fix=f"mainstem user allow {principal.name} manage '{name}' --on namespace",
        )
    if need.scope is Scope.WHOLE:
        assert need.action is not None
        if not broker.access.allows_all(principal, need.action, EVERYTHING):
            raise NotAuthorized(
                f"user {principal.name} may not {need.action} everything in namespace {name}, which this needs",
                fix=f"mainstem user allow {principal.name} {need.action} '#'",
            )
    return broker.namespace(name)


def may_manage(broker: Broker, principal: Principal, namespace: str) -> bool:
    return broker.access.judges(principal, Action.MANAGE, Kind.NAMESPACE, namespace) is True


def may(running: Running, principal: Principal, need: Need, namespace: Namespace, name: str) -> bool:
    """Whether the caller has the right that the operation needs on this object of the namespace."""
    assert need.action is not None and need.kind is not None
    access = running.broker.access
    match need.kind:
        case Kind.TOPIC:
            return access.allows(principal, need.action, name.encode())
        case Kind.QUEUE:
            topic = topic_of(DEFAULT, name)
            return access.allows_named(principal, need.action, need.kind, name, topic)
        case Kind.EXCHANGE:
            return access.allows_named(principal, need.action, need.kind, name, topic_of(name, ""))
        case _:
            exists = group_exists(running, namespace, name)
            owners = running.broker.owners
            return owners.may(principal, need.action, need.kind, namespace.name, name, exists=exists)


def may_some(running: Running, principal: Principal, need: Need) -> bool:
    """Whether there can be an object, of whatever name, on which the caller has the right."""
    assert need.action is not None and need.kind is not None
    if principal.admin or need.kind in (Kind.GROUP, Kind.TRANSACTION):  # one with a new name is anybody's to make
        return True
    kinds = (need.kind, Kind.TOPIC)  # of queues and exchanges rules of topics speak, too
    rules = running.broker.access.rules_of(principal)
    return any(rule.allow and need.action in rule.actions and rule.kind in kinds for _, rule in rules)


def refusal(
    running: Running, principal: Principal, need: Need, asked: str = "", name: str = ""
) -> NotAuthorized | None:
    """Why the caller would be refused, by the checks that a call meets; None where it would not be.

    Without a name: whether it would be refused whatever the name is.
    """
    try:
        namespace = admit(running.broker, principal, need, asked)
        if need.scope is Scope.OBJECT and name:
            require(running, principal, need, namespace, name)
        elif need.scope is Scope.OBJECT and not may_some(running, principal, need):
            raise NotAuthorized(f"no rule allows user {principal.name} to {need.action} any {need.kind}")
    except NotAuthorized as error:
        return error
    return None


def require(running: Running, principal: Principal, need: Need, namespace: Namespace, name: str) -> None:
    if not may(running, principal, need, namespace, name):
        what = name if need.kind is Kind.TOPIC else f"{need.kind} {name}"
        on = "" if need.kind is Kind.TOPIC else f" --on {need.kind}"
        raise NotAuthorized(
            f"user {principal.name} may not {need.action} {what}",
            fix=f"mainstem user allow {principal.name} {need.action} '{name}'{on}",
        )
