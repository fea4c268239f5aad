"""The registry's calls. One writer a namespace: it is checked, written, durable and only then in force and answered."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from mainstem.broker.rights.decisions import SCHEMAS_TOPIC
from mainstem.broker.schemas import faults, records
from mainstem.broker.schemas.checker import Checker
from mainstem.broker.schemas.enforcement import Enforcement
from mainstem.broker.schemas.records import TYPES, Reference, Schema, Version
from mainstem.broker.schemas.state import LATEST, State, compared
from mainstem.broker.staging.staged_append import durable
from mainstem.broker.topics.reading import PartitionReader
from mainstem.model.origin import Origin

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker
    from mainstem.broker.namespaces.namespace import Namespace

TOPIC = SCHEMAS_TOPIC  # nobody else writes there: see Access
SCHEMA_BYTES_MAX = 1 << 20
SOURCES_MAX = 200  # schemas that one refers to, directly or not
SOURCES_BYTES_MAX = 4 << 20
SUBJECT_CHARACTERS_MAX = 512
VERSIONS_MAX = 10_000  # of a subject
SCHEMAS_MAX = 100_000  # of a namespace
READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Checked:
    """A schema that has been parsed."""

    schema: Schema
    sources: list[tuple[str, str]]

    def question(self) -> dict[str, Any]:
        return {"kind": self.schema.kind, "text": self.schema.text, "sources": self.sources}


class Registry:
    """Of one namespace."""

    def __init__(self, broker: Broker, namespace: Namespace, checker: Checker) -> None:
        self._broker = broker
        self._namespace = namespace
        self._checker = checker
        self._writing = asyncio.Lock()
        self.state = State()
        self.enforcement = Enforcement(self)

    def load(self) -> None:
        """At start: everything the topic holds. Only the broker's own records count."""
        topic = self._namespace.topics.get(TOPIC)
        if topic is None:
            return
        reader = PartitionReader(topic.partitions[0], self._namespace.topic_of)
        at = reader.start_offset
        while at < reader.stable_offset:
            found, after = reader.records(at, READ_BYTES)
            for record in found:
                if record.origin == Origin.BROKER and record.key is not None:
                    self.state.apply(record.key, record.value)
            at = max(after, at + 1)

    # -- asking

    async def checked(self, schema: Schema, *, normalize: bool = False) -> Checked:
        """Parsed, with everything it refers to; refused as the original refuses it."""
        if schema.kind not in TYPES:
            raise faults.invalid_schema(f"unknown type {schema.kind}; known are {', '.join(TYPES)}")
        if len(schema.text.encode(errors="replace")) > SCHEMA_BYTES_MAX:
            raise faults.invalid_schema(f"more than {SCHEMA_BYTES_MAX} bytes")
        if not schema.text.strip():
            raise faults.invalid_schema("it is empty")
        sources = self.sources(schema)
        question = {"kind": schema.kind, "text": schema.text, "sources": sources}
        answer = await self._checker.ask(do="parse", normalize=normalize, **question)
        named = "".join(f"\0{one.name}\0{one.subject}\0{one.version}" for one in schema.references)
        canonical = hashlib.sha256((answer["canonical"] + named).encode()).hexdigest()
        descriptors = answer.get("descriptors", "")
        return Checked(replace(schema, text=answer["text"], canonical=canonical, descriptors=descriptors), sources)

    def sources(self, schema: Schema) -> list[tuple[str, str]]:
        """What it refers to, each before those that refer to it."""
        found: dict[str, str] = {}
        self._collect(schema, found, ())
        if sum(map(len, found.values())) > SOURCES_BYTES_MAX:
            raise faults.invalid_schema(f"its references have more than {SOURCES_BYTES_MAX} bytes")
        return list(found.items())

    def _collect(self, schema: Schema, found: dict[str, str], above: tuple[tuple[str, int], ...]) -> None:
        for one in schema.references:
            at = (one.subject, one.version)
            if at in above:
                raise faults.invalid_schema(f"its references are a cycle: {one.subject} version {one.version}")
            version = self.state.subjects.get(one.subject, {}).get(one.version)
            if version is None or (not above and version.deleted):
                raise faults.invalid_schema(
                    f'No schema reference found for subject "{one.subject}" and version {one.version}'
                )
            if len(found) >= SOURCES_MAX or len(above) >= SOURCES_MAX:
                raise faults.invalid_schema(f"it refers to more than {SOURCES_MAX} schemas")
            if one.name not in found:
                self._collect(version.schema, found, (*above, at))
                found[one.name] = version.schema.text

    async def incompatibilities(self, checked: Checked, versions: Sequence[Version], level: str) -> list[str]:
        """Why it does not get along with these versions; none: it does."""
        if not versions or level == "NONE":
            return []
        old = [
            {
                "version": one.version,
                "kind": one.schema.kind,
                "text": one.schema.text,
                "sources": self.sources(one.schema),
            }
            for one in versions
        ]
        answer = await self._checker.ask(do="compare", level=level, old=old, **checked.question())
        return list(answer["messages"])

    async def compatibility(
        self, subject: str, number: int | str | None, schema: Schema, *, normalize: bool
    ) -> list[str]:
        """With one version, or (None) with those that the subject's level names."""
        level = self.state.level(subject)
        if number is None:
            versions = compared(self.state.versions(subject), level)
        else:
            versions = [self.state.version(subject, number)]
        return await self.incompatibilities(await self.checked(schema, normalize=normalize), versions, level)

    async def look_up(self, subject: str, schema: Schema, *, normalize: bool, deleted: bool) -> Version:
        self.state.require(subject, deleted=deleted)
        checked = await self.checked(schema, normalize=normalize)
        found = self.state.find(subject, checked.schema.canonical, schema.kind, deleted=deleted)
        if found is None:
            raise faults.schema_not_found()
        return found

    async def formatted(self, schema: Schema, wanted: str) -> Schema:
        """As the caller wants the text: Protobuf is text or (`serialized`) base 64, however it was registered."""
        if schema.kind != records.PROTOBUF or wanted not in ("", "default", "serialized"):
            return schema
        asked = {"kind": schema.kind, "text": schema.text, "sources": self.sources(schema)}
        return replace(schema, text=(await self._checker.ask(do="format", format=wanted, **asked))["text"])

    # -- changing

    async def register(
        self, subject: str, schema: Schema, *, normalize: bool = False, schema_id: int = 0, number: int = 0
    ) -> Version:
        """A new version of the subject, or the one that is this schema already. Ids may be given in mode IMPORT only."""
        _check_subject(subject)
        async with self._writing:
            checked = await self.checked(schema, normalize=normalize)
            found = self.state.find(subject, checked.schema.canonical, schema.kind)
            if found is not None and schema_id in (0, found.id):
                return found
            importing = self._check_mode(subject) == "IMPORT"
            if (schema_id > 0) != importing:
                raise faults.not_permitted(
                    f"Subject {subject} is in import mode" if importing else f"Subject {subject} is not in import mode"
                )
            if not importing:
                level = self.state.level(subject)
                against = compared(self.state.versions(subject), level)
                messages = await self.incompatibilities(checked, against, level)
                if messages:
                    raise faults.incompatible(subject, messages)
            version = self._planned(subject, checked.schema, schema_id, number)
            await self._write((version.key(), version.value()))
            return version

    def _planned(self, subject: str, schema: Schema, schema_id: int, number: int) -> Version:
        state = self.state
        if len(state.subjects.get(subject, ())) >= VERSIONS_MAX or len(state.ids) >= SCHEMAS_MAX:
            raise faults.not_permitted(
                f"at most {VERSIONS_MAX} versions of a subject and {SCHEMAS_MAX} schemas are kept"
            )
        known = state.ids.get(schema_id)
        if known is not None and known.canonical != schema.canonical:
            raise faults.not_permitted(f"Overwrite new schema with id {schema_id} is not permitted.")
        schema_id = schema_id or state.id_of.get((schema.kind, schema.canonical)) or state.id_highest + 1
        return Version(subject, number or state.next_number(subject), schema_id, schema)

    async def delete_version(self, subject: str, number: int | str, *, permanent: bool) -> int:
        async with self._writing:
            self._check_mode(subject)
            if permanent or number == LATEST:
                version = self.state.version(subject, number, deleted=permanent and number != LATEST)
            else:
                version = self.state.version(subject, number, deleted=True)
                if version.deleted:
                    raise faults.version_soft_deleted(subject, version.version)
            if permanent and not version.deleted:
                raise faults.version_not_soft_deleted(subject, version.version)
            self._check_unreferenced(version)
            await self._remove([version], permanent)
            return version.version

    async def delete_subject(self, subject: str, *, permanent: bool) -> list[int]:
        async with self._writing:
            self._check_mode(subject)
            every = self.state.require(subject, deleted=True)
            live = [one for one in every if not one.deleted]
            if not permanent and not live:
                raise faults.subject_soft_deleted(subject)
            if permanent and live:
                raise faults.subject_not_soft_deleted(subject)
            for one in every:
                self._check_unreferenced(one)
            gone = every if permanent else live
            await self._remove(gone, permanent)
            return [one.version for one in gone]

    async def _remove(self, versions: list[Version], permanent: bool) -> None:
        if not permanent:
            await self._write(*((one.key(), one.as_deleted().value()) for one in versions))
            return
        highest = records.highest_key(), records.highest_value(self.state.id_highest)
        subject = versions[0].subject
        left = len(self.state.subjects.get(subject, ())) - len(versions)
        settings = [(records.config_key(subject), None), (records.mode_key(subject), None)] if not left else []
        await self._write(highest, *((one.key(), None) for one in versions), *settings)

    def _check_unreferenced(self, version: Version) -> None:
        if self.state.live_referrers(version.subject, version.version):
            raise faults.referenced(version.subject, version.version)

    async def set_level(self, subject: str | None, level: str | None) -> None:
        """None: the level of all subjects holds again (or, for all, the default)."""
        if level is not None and level not in faults.LEVELS:
            raise faults.invalid_level()
        async with self._writing:
            self._check_mode(subject)
            await self._write((records.config_key(subject), None if level is None else records.config_value(level)))

    async def set_mode(self, subject: str | None, mode: str | None, *, force: bool = False) -> None:
        if mode is not None and mode not in faults.MODES:
            raise faults.invalid_mode()
        async with self._writing:
            if (
                mode == "IMPORT"
                and not force
                and self.state.names()
                and (subject is None or subject in self.state.names())
            ):
                raise faults.not_permitted("Cannot import since found existing subjects")
            await self._write((records.mode_key(subject), None if mode is None else records.mode_value(mode)))

    def _check_mode(self, subject: str | None) -> str:
        mode = self.state.mode(subject)
        if mode.startswith("READONLY"):
            whose = f"Subject {subject}" if subject is not None else "The registry"
            raise faults.not_permitted(f"{whose} is in read-only mode")
        return mode

    async def _write(self, *pairs: tuple[bytes, bytes | None]) -> None:
        """All of them in one batch; applied once it is durable."""
        namespace = self._namespace
        if TOPIC not in namespace.topics:
            changes = {"cleanup": "compact", "partitions": 1, "retention_ms": -1, "tier": "none", "durability": "sync"}
            policy = namespace.defaults.with_changes({**changes, "schema": ""})
            await self._broker.declare_topic(namespace, TOPIC, policy)
        tickets = [namespace.publish(TOPIC, value, key=key) for key, value in pairs]
        for ticket in set(tickets):
            await durable(ticket)
        for key, value in pairs:
            self.state.apply(key, value)


class Schemas:
    """The registries of all namespaces."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._checker = Checker()
        self._of: WeakKeyDictionary[Namespace, Registry] = WeakKeyDictionary()

    def of(self, namespace: Namespace) -> Registry:
        found = self._of.get(namespace)
        if found is None:
            found = self._of[namespace] = Registry(self._broker, namespace, self._checker)
        return found

    def recover(self) -> None:
        for namespace in self._broker.namespaces.values():
            if TOPIC in namespace.topics:
                self.of(namespace).load()

    async def close(self) -> None:
        await self._checker.close()


def _check_subject(subject: str) -> None:
    if not 0 < len(subject) <= SUBJECT_CHARACTERS_MAX or any(
        ord(letter) < 32 or letter == "\x7f" for letter in subject
    ):
        raise faults.invalid_subject(subject[:100])


def reference_of(document: Any) -> Reference:
    """As a request says it."""
    try:
        return Reference(str(document["name"]), str(document["subject"]), int(document["version"]))
    except (KeyError, TypeError, ValueError):
        raise faults.invalid_schema("a reference has a name, a subject and a version") from None
