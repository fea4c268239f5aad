"""DescribeAcls, CreateAcls, DeleteAcls: Kafka's words for the broker's rules, which hold for every protocol.

    Topic literal NAME          topic rule, literal (in canonical spelling); `*` is the filter `#`
    Topic prefixed P            topic rule, prefix
    Group, TransactionalId      rules of groups and transactions: literal, prefix, `*`
    Read Write Create Delete    consume publish create delete
    Describe(Configs)           describe
    Alter(Configs)              configure
    Cluster kafka-cluster       the cluster: Create, and allowing IdempotentWrite (`rights/rules.py`)
    User:NAME, User:*           the user; the role that everybody has

NAME may be nobody's: then the rule is kept for that name in the namespace of who makes it (`rights/access.py`).
A rule that Kafka has no words for (`sensors/+/temp`) is shown under its own filter, which no Kafka topic can be called.
Hosts are no part of a rule: only `*` is taken. What else concerns the cluster is for admins, and needs no rule. A rule that
would not be obeyed is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from mainstem.broker.rights.access import Access, Action, Kind, Rule
from mainstem.broker.rights.decisions import EVERYBODY
from mainstem.broker.rights.rules import LITERAL, PATTERN, PREFIX
from mainstem.model.errors import InvalidArgument, InvalidName, MainstemError, NotFound
from mainstem.model.topic import kafka_name, topic_of_kafka
from mainstem.protocols.kafka.errors import ErrorCode, code_of
from mainstem.protocols.kafka.handlers.permission import is_admin
from mainstem.protocols.kafka.messages import CreateAclsResponse, DeleteAclsResponse, DescribeAclsResponse

if TYPE_CHECKING:
    from mainstem.protocols.kafka.adapter import Request

ANY, MATCH, ALL_OPERATIONS = 1, 2, 2
PATTERN_LITERAL, PATTERN_PREFIXED = 3, 4
DENY, ALLOW = 2, 3
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, DELEGATION_TOKEN, USER = range(2, 8)
KINDS = {TOPIC: Kind.TOPIC, GROUP: Kind.GROUP, TRANSACTIONAL_ID: Kind.TRANSACTION, CLUSTER: Kind.CLUSTER}
TYPES = {kind: number for number, kind in KINDS.items()}
ACTIONS = {
    3: Action.CONSUME,
    4: Action.PUBLISH,
    5: Action.CREATE,
    6: Action.DELETE,
    7: Action.CONFIGURE,
    8: Action.DESCRIBE,
    10: Action.DESCRIBE,
    11: Action.CONFIGURE,
}
OF_THE_CLUSTER = {5: Action.CREATE, 12: Action.PUBLISH}  # Create, IdempotentWrite
FOR_ADMINS = "on the cluster there are rules for Create and IdempotentWrite; what else concerns it is for admins"
REFUSED = {
    DELEGATION_TOKEN: "there are no delegation tokens here, so there are no rules on them",
    USER: "there are no delegation tokens here, so there are no rules on whose they are",
}
EVERY_ACTION = frozenset(ACTIONS.values())
NO_USERS = "there are no users, so there are no rules: mainstem user add NAME --admin"
PREFIX_OF_USER = "User:"


class Acl(NamedTuple):
    """One line of Kafka's, and the rule it comes from."""

    kind: int
    name: str
    pattern: int
    user: str
    operation: int
    permission: int
    rule: Rule
    namespace: str = ""  # where it is kept for a name that no user has

    @property
    def line(self) -> tuple[int, str, int, str, int, int]:
        """As Kafka tells it apart from others."""
        return self[:6]


class Whose(NamedTuple):
    """Whose rules: a user's, everybody's, or those kept for a name in a namespace."""

    user: str
    namespace: str = ""

    @classmethod
    def of(cls, access: Access, user: str, namespace: str) -> Whose:
        return cls(user) if user == EVERYBODY or user in access.users else cls(user, namespace)

    def rules(self, access: Access) -> list[Rule]:
        if self.namespace:
            return access.kept.get((self.namespace, self.user), [])
        return access.roles.get(EVERYBODY, []) if self.user == EVERYBODY else access.user(self.user).rules

    def set_rules(self, access: Access, rules: list[Rule]) -> None:
        if self.namespace:
            access.keep_rules(self.user, self.namespace, rules)
        elif self.user == EVERYBODY:
            access.put_role(EVERYBODY, rules)
        else:
            access.set_rules(self.user, rules)


def _refusal(request: Request) -> tuple[ErrorCode, str] | None:
    if request.service.access.open:
        return ErrorCode.SECURITY_DISABLED, NO_USERS
    if not is_admin(request):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{request.principal.name} is not an admin"
    return None


def _all(access: Access) -> Iterator[Acl]:
    for name, user in sorted(access.users.items()):
        yield from (acl for rule in user.rules for acl in _spelled(name, rule))
    yield from (acl for rule in access.roles.get(EVERYBODY, ()) for acl in _spelled(EVERYBODY, rule))
    for (namespace, name), rules in sorted(access.kept.items()):
        yield from (acl for rule in rules for acl in _spelled(name, rule, namespace))


def _spelled(user: str, rule: Rule, namespace: str = "") -> Iterator[Acl]:
    kind = TYPES.get(rule.kind)
    if kind is None:
        return
    name, pattern = _resource(rule)
    permission = ALLOW if rule.allow else DENY
    numbers = [number for number, action in _actions(rule.kind).items() if action in rule.actions]
    for number in [ALL_OPERATIONS] if rule.actions >= EVERY_ACTION else numbers:
        yield Acl(kind, name, pattern, user, number, permission, rule, namespace)


def _actions(kind: Kind) -> dict[int, Action]:
    return OF_THE_CLUSTER if kind is Kind.CLUSTER else ACTIONS


def _resource(rule: Rule) -> tuple[str, int]:
    if rule.match == PREFIX:
        name = rule.filter if rule.kind is not Kind.TOPIC else kafka_name(rule.filter.encode())
        return name, PATTERN_PREFIXED
    if rule.kind is not Kind.TOPIC:
        starred = rule.match == PATTERN and rule.filter.endswith("*") and rule.filter != "*"
        return (rule.filter[:-1], PATTERN_PREFIXED) if starred else (rule.filter, PATTERN_LITERAL)
    if rule.filter == "#":
        return "*", PATTERN_LITERAL
    plain = rule.match == LITERAL or not any(one in rule.filter for one in "+#*>%")
    return kafka_name(rule.filter.encode()) if plain else rule.filter, PATTERN_LITERAL


def _matches(asked: Any, acl: Acl) -> bool:
    if asked.resource_type_filter not in (ANY, acl.kind) or asked.operation not in (ANY, acl.operation):
        return False
    if asked.permission_type not in (ANY, acl.permission) or asked.host_filter not in (None, "*"):
        return False
    if asked.principal_filter not in (None, PREFIX_OF_USER + acl.user):
        return False
    wanted = asked.resource_name_filter
    if asked.pattern_type_filter == MATCH and wanted is not None:
        if acl.pattern == PATTERN_PREFIXED:
            return bool(wanted.startswith(acl.name))
        return acl.name in ("*", wanted)
    return asked.pattern_type_filter in (ANY, MATCH, acl.pattern) and wanted in (None, acl.name)


async def describe_acls(request: Request) -> Any:
    refusal = _refusal(request)
    if refusal is not None:
        return DescribeAclsResponse(error_code=refusal[0], error_message=refusal[1])
    resources: dict[tuple[int, str, int], Any] = {}
    told, work = set(), request.service.broker.turns.slices(request.namespace.name)
    for acl in _all(request.service.access):
        if work.over:
            await work.next()
        if acl.line in told or not _matches(request.body, acl):
            continue
        told.add(acl.line)
        key = acl.kind, acl.name, acl.pattern
        if key not in resources:
            resources[key] = DescribeAclsResponse.DescribeAclsResource(
                resource_type=acl.kind, resource_name=acl.name, pattern_type=acl.pattern
            )
        line = DescribeAclsResponse.AclDescription(
            principal=PREFIX_OF_USER + acl.user, host="*", operation=acl.operation, permission_type=acl.permission
        )
        resources[key].acls.append(line)
    return DescribeAclsResponse(error_message=None, resources=list(resources.values()))


async def create_acls(request: Request) -> Any:
    refusal = _refusal(request)
    access, answer = request.service.access, CreateAclsResponse()
    work = request.service.broker.turns.slices(request.namespace.name)
    for asked in request.body.creations:
        if work.over:
            await work.next()
        result = CreateAclsResponse.AclCreationResult(error_message=None)
        answer.results.append(result)
        if refusal is not None:
            result.error_code, result.error_message = refusal
            continue
        try:
            user, rule = _rule_of(asked)
            whose = Whose.of(access, user, request.namespace.name)
            whose.set_rules(access, _joined(whose.rules(access), rule))
        except MainstemError as fault:
            result.error_code, result.error_message = _code_of(fault), str(fault)
    await request.service.broker.store.flush()
    return answer


def _code_of(fault: MainstemError) -> ErrorCode:
    """The general codes are of topics and their settings: a tool would say that the topic is missing."""
    if isinstance(fault, NotFound):
        return ErrorCode.RESOURCE_NOT_FOUND
    return ErrorCode.INVALID_REQUEST if isinstance(fault, InvalidArgument | InvalidName) else code_of(fault)


def _rule_of(asked: Any) -> tuple[str, Rule]:
    kind = KINDS.get(asked.resource_type)
    if kind is None:
        raise InvalidArgument(_why_not(asked.resource_type))
    if asked.resource_pattern_type not in (PATTERN_LITERAL, PATTERN_PREFIXED):
        raise InvalidArgument(f"pattern type {asked.resource_pattern_type}: a rule is literal or prefixed")
    if asked.host != "*":
        raise InvalidArgument(f"host {asked.host!r}: rules hold wherever a user comes from; only * is taken")
    if not asked.principal.startswith(PREFIX_OF_USER) or asked.permission_type not in (DENY, ALLOW):
        raise InvalidArgument(f"{asked.principal!r}: principals are User:NAME, permissions allow or deny")
    if kind is Kind.CLUSTER and asked.operation not in OF_THE_CLUSTER:
        raise InvalidArgument(FOR_ADMINS, fix="mainstem user add NAME --admin")
    actions = EVERY_ACTION if asked.operation == ALL_OPERATIONS else {_actions(kind).get(asked.operation)}
    if None in actions:
        raise InvalidArgument(f"operation {asked.operation} is of the cluster, not of a {kind}")
    name, match = asked.resource_name, LITERAL if asked.resource_pattern_type == PATTERN_LITERAL else PREFIX
    if name == "*" and match == LITERAL:
        name, match = "#" if kind is Kind.TOPIC else "*", PATTERN
    elif kind is Kind.TOPIC:
        name = topic_of_kafka(name).decode()
    allow = asked.permission_type == ALLOW
    rule = Rule.make(allow=allow, actions=[str(one) for one in actions], pattern=name, kind=kind, match=match)
    return asked.principal.removeprefix(PREFIX_OF_USER), rule


def _why_not(resource_type: int) -> str:
    """A rule that is kept and not obeyed would be worse than none."""
    return REFUSED.get(resource_type, f"there are no rules on resources of type {resource_type}")


def _joined(rules: list[Rule], rule: Rule) -> list[Rule]:
    """One rule for all actions on the same thing."""
    same = [one for one in rules if replace(one, actions=rule.actions) == rule]
    actions = rule.actions.union(*(one.actions for one in same))
    return [*(one for one in rules if one not in same), replace(rule, actions=actions)]


async def delete_acls(request: Request) -> Any:
    refusal = _refusal(request)
    access, answer = request.service.access, DeleteAclsResponse()
    work = request.service.broker.turns.slices(request.namespace.name)
    for asked in request.body.filters:
        result = DeleteAclsResponse.DeleteAclsFilterResult(error_message=None)
        answer.filter_results.append(result)
        if refusal is not None:
            result.error_code, result.error_message = refusal
            continue
        for acl in [one for one in _all(access) if _matches(asked, one)]:
            if work.over:
                await work.next()
            try:
                _take_away(access, acl)
            except NotFound:  # the user was removed just now, and its rules with it
                continue
            except MainstemError as fault:
                result.error_code, result.error_message = _code_of(fault), str(fault)
                break
            result.matching_acls.append(
                DeleteAclsResponse.DeleteAclsMatchingAcl(
                    error_message=None,
                    resource_type=acl.kind,
                    resource_name=acl.name,
                    pattern_type=acl.pattern,
                    principal=PREFIX_OF_USER + acl.user,
                    host="*",
                    operation=acl.operation,
                    permission_type=acl.permission,
                )
            )
    await request.service.broker.store.flush()
    return answer


def _take_away(access: Access, acl: Acl) -> None:
    gone = EVERY_ACTION if acl.operation == ALL_OPERATIONS else {_actions(acl.rule.kind)[acl.operation]}
    kept, whose = [], Whose(acl.user, acl.namespace)
    for rule in whose.rules(access):
        if replace(rule, actions=acl.rule.actions) == acl.rule:
            rule = replace(rule, actions=rule.actions - gone)
        if rule.actions:
            kept.append(rule)
    whose.set_rules(access, kept)


HANDLERS = {29: describe_acls, 30: create_acls, 31: delete_acls}
