"""Rules: what somebody is allowed and denied, on which objects. Pure; `access.py` says whose rules they are.

A rule names actions, a kind of object and a pattern of names:

    topic                  a topic filter (`sensors/+/temp`, `#`)
    queue, exchange,       the name itself, or the beginning of it and a `*` (`orders-*`, `*`)
    group, transaction,
    namespace
    cluster                what Kafka asks of its cluster as a whole, and nothing else does. Its name is `kafka-cluster`:
                           `create` makes any topic by Kafka's calls, unless it is denied; `publish` is Kafka's idempotent
                           write, which everybody has who may publish somewhere, so that it may be allowed and not denied

With `match` literal or prefix (Kafka's ACLs) the pattern is a name as it stands, or the beginning of one. In a pattern `%u`
is the user, `%c` the client id, `%n` the namespace. One of these whose value could read as a pattern itself (`/ + # * > %`)
lets a topic rule allow nothing, and deny whatever it could mean.

Deny wins; no rule is no.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from mainstem.model.errors import InvalidArgument
from mainstem.model.topic_filter import MANY, ONE, check_filter, covers, filter_levels, literal_filter, overlap

PATTERN, LITERAL, PREFIX = MATCHES = ("pattern", "literal", "prefix")
NAME_CHARACTERS_MAX = 1024
JUDGED_MAX = 100_000  # topics of which `TopicRules` remembers what the rules say
AUDIT_TOPIC = b"$audit"  # of every namespace: its admins read it, nobody publishes to it (`audit.py`)
CLUSTER_NAME = "kafka-cluster"
_UNSAFE = frozenset("/+#*>%")


class Action(StrEnum):
    PUBLISH = "publish"
    CONSUME = "consume"
    CREATE = "create"
    CONFIGURE = "configure"
    DELETE = "delete"
    DESCRIBE = "describe"
    MANAGE = "manage"

    @classmethod
    def _missing_(cls, value: object) -> Action | None:
        return cls.CONFIGURE if value == "alter" else None


class Kind(StrEnum):
    TOPIC = "topic"
    QUEUE = "queue"
    EXCHANGE = "exchange"
    GROUP = "group"
    TRANSACTION = "transaction"
    NAMESPACE = "namespace"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Names:
    """What a pattern's `%u`, `%c` and `%n` stand for."""

    user: str
    client: str = ""
    namespace: str = "/"

    def fill(self, text: str) -> str:
        for mark, value in self._marks():
            text = text.replace(mark, value)
        return text

    def unsafe_in(self, text: str) -> bool:
        """Whether a mark of the text stands for something that reads as a pattern, or for nothing."""
        return any(mark in text and (not value or not _UNSAFE.isdisjoint(value)) for mark, value in self._marks())

    def _marks(self) -> tuple[tuple[str, str], ...]:
        return ("%u", self.user), ("%c", self.client), ("%n", self.namespace)


@dataclass(frozen=True, slots=True)
class Rule:
    allow: bool
    actions: frozenset[Action]
    filter: str
    kind: Kind = Kind.TOPIC
    match: str = PATTERN

    @classmethod
    def make(
        cls, *, allow: bool, actions: Iterable[str], pattern: str, kind: str = "topic", match: str = PATTERN
    ) -> Self:
        """Checked: whatever is wrong with it is told to whoever gives it."""
        try:
            wanted, of = frozenset(Action(one) for one in actions), Kind(kind)
        except ValueError as error:
            raise InvalidArgument(
                f"{error}; actions are {', '.join(Action)}, kinds of object {', '.join(Kind)}"
            ) from None
        if not wanted:
            raise InvalidArgument(f"a rule needs an action: {', '.join(Action)}")
        if match not in MATCHES:
            raise InvalidArgument(f"match is one of {', '.join(MATCHES)}, not {match!r}")
        if not 0 < len(pattern) <= NAME_CHARACTERS_MAX:
            raise InvalidArgument(f"a rule's pattern has 1 to {NAME_CHARACTERS_MAX} characters")
        if of is Kind.TOPIC and match == PATTERN:
            check_filter(Names("u", "c", "n").fill(pattern).encode())
        if of is Kind.CLUSTER:
            _check_cluster(wanted, pattern, allow=allow)
        return cls(allow, wanted, pattern, of, match)

    @classmethod
    def of_document(cls, document: dict[str, Any]) -> Self:
        actions = frozenset(Action(action) for action in document["actions"])
        kind, match = Kind(document.get("kind", "topic")), document.get("match", PATTERN)
        return cls(document["allow"], actions, document["filter"], kind, match)

    def to_document(self) -> dict[str, Any]:
        document: dict[str, Any] = {"allow": self.allow, "actions": sorted(self.actions), "filter": self.filter}
        if self.kind is not Kind.TOPIC:
            document["kind"] = self.kind.value
        if self.match != PATTERN:
            document["match"] = self.match
        return document

    def __str__(self) -> str:
        what = "" if self.kind is Kind.TOPIC else f"{self.kind} "
        how = "" if self.match == PATTERN else f" ({self.match})"
        return f"{'allow' if self.allow else 'deny'} {', '.join(sorted(self.actions))} {what}{self.filter}{how}"

    def covers_topics(self, levels: list[bytes], names: Names) -> bool:
        """Whether everything these levels (of a topic, or of a filter) mean is meant by this rule of topics."""
        if self.match == PREFIX:
            return _head(levels).startswith(names.fill(self.filter).encode())
        own = self._levels(names)
        return own is not None and covers(own, levels)

    def overlaps_topics(self, levels: list[bytes], names: Names) -> bool:
        """Whether something these levels mean may be meant by this rule of topics."""
        if self.match == PREFIX:
            head, prefix = _head(levels), names.fill(self.filter).encode()
            return head.startswith(prefix) or (head != _whole(levels) and prefix.startswith(head))
        own = self._levels(names)
        return own is not None and overlap(own, levels)

    def topic_filter(self, names: Names) -> bytes | None:
        """As one filter; for a prefix, that of the whole levels it lies in: wider, never narrower."""
        if self.match == PREFIX:
            above, slash, _ = names.fill(self.filter).encode().rpartition(b"/")
            return literal_filter(above) + b"/#" if slash else b"#"
        if self.match == LITERAL:
            return literal_filter(names.fill(self.filter).encode())
        text = self._spelled(names)
        return text.encode() if text is not None else None

    def _levels(self, names: Names) -> list[bytes] | None:
        """None: for these names it means nothing."""
        if self.match == LITERAL:
            return filter_levels(literal_filter(names.fill(self.filter).encode()))
        text = self._spelled(names)
        return filter_levels(text.encode()) if text is not None else None

    def _spelled(self, names: Names) -> str | None:
        text = self.filter
        if names.unsafe_in(text):
            if self.allow:
                return None
            kept = []
            for level in text.split("/"):
                if names.unsafe_in(level):
                    kept.append("#")
                    break
                kept.append(level)
            text = "/".join(kept)
        return names.fill(text)

    def covers_name(self, name: str, names: Names) -> bool:
        """Whether the name is meant by this rule of anything but topics."""
        if self.match == LITERAL:
            return name == names.fill(self.filter)
        if self.match == PREFIX:
            return name.startswith(names.fill(self.filter))
        if self.filter.endswith("*"):
            return name.startswith(names.fill(self.filter[:-1]))
        return name == names.fill(self.filter)


class TopicRules:
    """What somebody's rules say of one action on topics, as they are now: for threads and processes of their own."""

    def __init__(self, rules: Iterable[Rule], action: Action, names: Names) -> None:
        self._rules = [rule for rule in rules if rule.kind is Kind.TOPIC and action in rule.actions]
        self._names = names
        self._known: dict[bytes, tuple[bool, bool]] = {}

    def _judged(self, topic: bytes) -> tuple[bool, bool]:
        """(allowed, denied)"""
        found = self._known.get(topic)
        if found is None:
            levels = filter_levels(literal_filter(topic))
            said = [rule.allow for rule in self._rules if rule.covers_topics(levels, self._names)]
            found = (False, True) if levels[0] == AUDIT_TOPIC else (bool(said) and all(said), not all(said))
            if len(self._known) >= JUDGED_MAX:
                self._known.clear()
            self._known[topic] = found
        return found

    def allows(self, topic: bytes) -> bool:
        return self._judged(topic)[0]

    def denies(self, topic: bytes) -> bool:
        """By a rule, not for want of one."""
        return self._judged(topic)[1]

    def allows_some(self, topic_filter: bytes) -> bool:
        """Whether something the filter may mean may be allowed."""
        levels = filter_levels(topic_filter)
        return any(rule.allow and rule.overlaps_topics(levels, self._names) for rule in self._rules)

    def filters(self, *, allow: bool) -> list[bytes]:
        """What they allow, or deny, as filters that are never too narrow; rules that deny a prefix are left out."""
        rules = [rule for rule in self._rules if rule.allow is allow and (allow or rule.match != PREFIX)]
        found = {one for rule in rules if (one := rule.topic_filter(self._names)) is not None}
        return sorted(found if allow else found | {AUDIT_TOPIC})


def _check_cluster(actions: frozenset[Action], pattern: str, *, allow: bool) -> None:
    """What would not be obeyed is no rule."""
    if pattern != CLUSTER_NAME:
        raise InvalidArgument(f"the cluster's only name is {CLUSTER_NAME}, not {pattern!r}")
    if not actions <= {Action.CREATE, Action.PUBLISH}:
        raise InvalidArgument(
            "on the cluster there are rules for create and publish (idempotent writes); what else concerns it is for admins",
            fix="mainstem user add NAME --admin",
        )
    if not allow and Action.PUBLISH in actions:
        raise InvalidArgument(
            "an idempotent write is no right of its own: it is whoever may publish to the topic that writes",
            fix="mainstem user deny NAME publish FILTER",
        )


def _head(levels: list[bytes]) -> bytes:
    """The text that everything the levels mean begins with."""
    for at, level in enumerate(levels):
        if level in (ONE, MANY):
            return b"".join(one + b"/" for one in levels[:at]) if level == ONE else b"/".join(levels[:at])
    return b"/".join(levels)


def _whole(levels: list[bytes]) -> bytes | None:
    """The one topic that the levels mean; None if they have wildcards."""
    return None if ONE in levels or MANY in levels else b"/".join(levels)
