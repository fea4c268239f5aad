"""`schema` of a topic's policy: what does not fit is refused, or goes to the dead-letter topic, for every protocol.

A value fits that a live version of the subject accepts: in the wire format the version that its id names, otherwise the
latest. An empty or null value (a tombstone, a cleared retained message) always fits. Values of more than VALUE_BYTES_MAX are
refused unread: they are checked on the loop, where nothing may take long. What is compiled is kept.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from mainstem.broker.schemas.formats.quick import Quick
from mainstem.broker.schemas.records import Version
from mainstem.broker.schemas.values import HEAD_SIZE, MAGIC, Codec, Decode, Misfit, Unchecked, compiled, schema_id_of
from mainstem.model.errors import InvalidRecord

if TYPE_CHECKING:
    from mainstem.broker.namespaces.namespace import Namespace
    from mainstem.broker.schemas.registry import Registry
    from mainstem.broker.topics.policy import Policy

OFF, REFUSE, DEAD_LETTER = "off", "refuse", "dead-letter"
DEAD = b"dead/"  # and the topic
REASON = b"ms-schema-misfit"  # header of a dead letter
VALUE_BYTES_MAX = 256 << 10
SCHEMA_BYTES_MAX = 128 << 10  # with its references: it is compiled on the loop
CODECS_MAX = 1_000


class Shown(NamedTuple):
    """A value as its schema reads it."""

    id: int
    kind: str
    versions: list[tuple[str, int]]  # that have this schema
    json: str

    def facts(self) -> dict[str, Any]:
        subject, version = self.versions[0] if self.versions else ("", 0)
        return {"id": self.id, "type": self.kind, "subject": subject, "version": version}


class Check(NamedTuple):
    """What is asked of values that begin with the same five bytes, or without them."""

    decode: Decode
    quick: Quick | None


class Enforcement:
    """Of one namespace."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._changes = -1
        self._codecs: dict[int, Codec | Unchecked] = {}
        self._latest: dict[str, Version | None] = {}
        self._checks: dict[str, dict[bytes, Check]] = {}  # subject → the first five bytes, or none → what to call

    def refusal(self, subject: str, value: bytes | None) -> str:
        """Why the value does not fit; empty: it does."""
        if not value:
            return ""
        if len(value) > VALUE_BYTES_MAX:
            return f"{len(value)} bytes; values of a topic with a schema have at most {VALUE_BYTES_MAX}"
        if self._changes != self._registry.state.changes:
            self._renew()
        head = head_of(value)
        try:
            check = self._check(subject, value, head)
            if check.quick is None or check.quick.unfit([value], head, VALUE_BYTES_MAX):
                check.decode(value[HEAD_SIZE:] if head else value)
        except Misfit as misfit:
            return str(misfit)
        except Unchecked as unchecked:
            return f"schema {subject} cannot be used to check values: {unchecked}"
        return ""

    def refusals(self, subject: str, values: list[bytes | None]) -> list[tuple[int, str]]:
        """The places of those that do not fit, each with the reason. Quick where they are all written in one way."""
        first = next((value for value in values if value), None)
        if first is None:
            return []
        if self._changes != self._registry.state.changes:
            self._renew()
        head, quick = head_of(first), None
        with contextlib.suppress(Misfit, Unchecked):
            quick = self._check(subject, first, head).quick
        places = range(len(values)) if quick is None else quick.unfit(values, head, VALUE_BYTES_MAX)
        return [(place, why) for place in places if (why := self.refusal(subject, values[place]))]

    def _renew(self) -> None:
        self._changes = self._registry.state.changes
        self._latest, self._checks = {}, {}
        if len(self._codecs) > CODECS_MAX:
            self._codecs.clear()

    def _check(self, subject: str, value: bytes, head: bytes) -> Check:
        """Kept by the first five bytes: only those of versions that exist get so far."""
        kept = self._checks.setdefault(subject, {})
        check = kept.get(head)
        if check is None:
            codec = self.codec(self._version(subject, value).id)
            check = kept[head] = Check(codec.framed, codec.quick) if head else Check(codec.bare, codec.quick_bare)
        return check

    def _version(self, subject: str, value: bytes) -> Version:
        """Which version it is to fit."""
        if subject not in self._latest:
            self._latest[subject] = next(iter(self._registry.state.versions(subject)[::-1]), None)
        latest = self._latest[subject]
        if latest is None:
            raise Misfit(f"schema {subject} has no version: mainstem schema add {subject} FILE")
        found = schema_id_of(value)
        if found is None and value[0] == MAGIC:
            raise Misfit("it begins like a serialised value, and ends before the schema's id")
        if found is None or found == latest.id:
            return latest
        for one in self._registry.state.users(found):
            if one.subject == subject:
                return one
        raise Misfit(f"schema id {found} is not a version of {subject}")

    def shown(self, value: bytes) -> Shown | None:
        """A value in the wire format as JSON, with its schema; None where it is none: a leading zero proves nothing."""
        found = schema_id_of(value)
        if found is None or found not in self._registry.state.ids or len(value) > VALUE_BYTES_MAX:
            return None
        try:
            text = msgspec.json.encode(self.codec(found).framed(value[HEAD_SIZE:])).decode()
        except (Misfit, Unchecked, TypeError, ValueError):
            return None
        users = self._registry.state.users(found, deleted=True)
        return Shown(found, self._registry.state.ids[found].kind, [(one.subject, one.version) for one in users], text)

    def codec(self, schema_id: int) -> Codec:
        """Also for readers that show decoded values."""
        known = self._codecs.get(schema_id)
        if known is None:
            known = self._codecs[schema_id] = self._compiled(schema_id)
        if isinstance(known, Unchecked):
            raise known
        return known

    def _compiled(self, schema_id: int) -> Codec | Unchecked:
        schema = self._registry.state.schema(schema_id)
        sources = self._registry.sources(schema)
        if len(schema.text) + sum(len(text) for _, text in sources) > SCHEMA_BYTES_MAX:
            return Unchecked(f"it has more than {SCHEMA_BYTES_MAX} bytes")
        try:
            return compiled(schema, sources)
        except Unchecked as why:
            return why


def head_of(value: bytes) -> bytes:
    return value[:HEAD_SIZE] if value[0] == MAGIC else b""


def misfit_of(namespace: Namespace, policy: Policy, value: bytes | None) -> str:
    """What a topic of this policy has against a value; empty: nothing."""
    if not policy.schema or policy.schema_mode == OFF:
        return ""
    return namespace.broker.schemas.of(namespace).enforcement.refusal(policy.schema, value)


def misfits_of(namespace: Namespace, policy: Policy, values: list[bytes | None]) -> list[tuple[int, str]]:
    """The same of many: the places of those that it refuses, each with the reason."""
    if not policy.schema or policy.schema_mode == OFF:
        return []
    return namespace.broker.schemas.of(namespace).enforcement.refusals(policy.schema, values)


def invalid_record(topic: bytes, policy: Policy, why: str) -> InvalidRecord:
    name = topic.decode(errors="replace")
    return InvalidRecord(
        f"the value does not match schema {policy.schema} of {name}: {why}",
        fix=f"mainstem schema describe {policy.schema}",
    )


def dead_letter_topic(topic: bytes) -> bytes:
    return DEAD + topic
