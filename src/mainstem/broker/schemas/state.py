"""What the records of `_schemas` come to: subjects with their versions, ids, levels and modes. Pure: no loop, no clock."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from mainstem.broker.schemas import faults
from mainstem.broker.schemas.records import Schema, Version, version_of
from mainstem.model.whole_numbers import whole_number

logger = logging.getLogger("mainstem.broker")

LATEST = "latest"
VERSION_MAX = (1 << 31) - 1
LEVEL_DEFAULT, MODE_DEFAULT = "BACKWARD", "READWRITE"


class State:
    def __init__(self) -> None:
        self.subjects: dict[str, dict[int, Version]] = {}
        self.levels: dict[str | None, str] = {}  # None: of all subjects that have none of their own
        self.modes: dict[str | None, str] = {}
        self.ids: dict[int, Schema] = {}
        self.id_of: dict[tuple[str, str], int] = {}  # kind and canonical hash
        self.users_of: dict[int, dict[tuple[str, int], Version]] = {}  # id → the versions that have it
        self.referrers: dict[tuple[str, int], set[tuple[str, int]]] = {}
        self.id_highest = 0
        self.changes = 0  # grows with each record: whoever compiled something looks again

    # -- taking records in

    def apply(self, key: bytes, value: bytes | None) -> None:
        """One record; what cannot be read is passed over, so that one bad record does not hide the rest."""
        try:
            names: dict[str, Any] = msgspec.json.decode(key)
            document: dict[str, Any] | None = msgspec.json.decode(value) if value else None
            kind, subject = names.get("keytype"), names.get("subject")
            if kind == "SCHEMA":
                self._apply_version(str(subject), int(names["version"]), document)
            elif kind == "CONFIG":
                _apply_setting(self.levels, subject, document, "compatibilityLevel")
            elif kind == "MODE":
                _apply_setting(self.modes, subject, document, "mode")
            elif kind == "NOOP" and document is not None:
                self.id_highest = max(self.id_highest, int(document.get("id", 0)))
        except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
            logger.warning("a record of _schemas cannot be read: key %r, %s", key[:200], error)
            return
        self.changes += 1

    def _apply_version(self, subject: str, number: int, document: dict[str, Any] | None) -> None:
        old = self.subjects.get(subject, {}).pop(number, None)
        if old is not None:
            self.users_of.get(old.id, {}).pop((subject, number), None)
            for one in old.schema.references:
                self.referrers.get((one.subject, one.version), set()).discard((subject, number))
        if document is None:
            if not self.subjects.get(subject, True):
                del self.subjects[subject]
            if old is not None and not self.users_of.get(old.id):
                self._forget_id(old.id)
            return
        version = version_of(document)
        self.subjects.setdefault(subject, {})[number] = version
        known = self.ids.setdefault(version.id, version.schema)
        self.id_of.setdefault((known.kind, known.canonical), version.id)
        self.users_of.setdefault(version.id, {})[subject, number] = version
        for one in version.schema.references:
            self.referrers.setdefault((one.subject, one.version), set()).add((subject, number))
        self.id_highest = max(self.id_highest, version.id)

    def _forget_id(self, schema_id: int) -> None:
        schema = self.ids.pop(schema_id, None)
        if schema is not None and self.id_of.get((schema.kind, schema.canonical)) == schema_id:
            del self.id_of[schema.kind, schema.canonical]
        self.users_of.pop(schema_id, None)

    # -- reading

    def versions(self, subject: str, *, deleted: bool = False) -> list[Version]:
        """In order; soft-deleted ones only if asked for."""
        found = self.subjects.get(subject, {})
        return [found[n] for n in sorted(found) if deleted or not found[n].deleted]

    def names(self, *, deleted: bool = False) -> list[str]:
        return sorted(name for name in self.subjects if self.versions(name, deleted=deleted))

    def require(self, subject: str, *, deleted: bool = False) -> list[Version]:
        found = self.versions(subject, deleted=deleted)
        if not found:
            raise faults.subject_not_found(subject)
        return found

    def version(self, subject: str, number: int | str, *, deleted: bool = False) -> Version:
        """By its number, or the latest."""
        found = self.require(subject, deleted=deleted)
        if number == LATEST:
            return found[-1]
        for one in found:
            if one.version == number:
                return one
        raise faults.version_not_found(number)

    def schema(self, schema_id: int) -> Schema:
        """By its id: also of versions that are deleted, for records that were written with it."""
        found = self.ids.get(schema_id)
        if found is None:
            raise faults.schema_not_found(schema_id)
        return found

    def users(self, schema_id: int, *, deleted: bool = False) -> list[Version]:
        found = self.users_of.get(schema_id, {})
        return [found[name] for name in sorted(found) if deleted or not found[name].deleted]

    def find(self, subject: str, canonical: str, kind: str, *, deleted: bool = False) -> Version | None:
        """The newest version of a subject that is this schema."""
        for one in reversed(self.versions(subject, deleted=deleted)):
            if one.schema.canonical == canonical and one.schema.kind == kind:
                return one
        return None

    def level(self, subject: str) -> str:
        return self.levels.get(subject) or self.levels.get(None, LEVEL_DEFAULT)

    def mode(self, subject: str | None) -> str:
        return self.modes.get(subject) or self.modes.get(None, MODE_DEFAULT)

    def next_number(self, subject: str) -> int:
        return max(self.subjects.get(subject, {}), default=0) + 1

    def live_referrers(self, subject: str, number: int) -> list[Version]:
        found = (self.subjects.get(s, {}).get(n) for s, n in sorted(self.referrers.get((subject, number), ())))
        return [one for one in found if one is not None and not one.deleted]

    def all_versions(self, prefix: str = "", *, deleted: bool = False) -> Iterator[Version]:
        for name in self.names(deleted=deleted):
            if name.startswith(prefix):
                yield from self.versions(name, deleted=deleted)


def _apply_setting(
    settings: dict[str | None, str], subject: str | None, document: dict[str, Any] | None, member: str
) -> None:
    if document is None:
        settings.pop(subject, None)
    else:
        settings[subject] = str(document[member])


def number_of(text: str) -> int | str:
    """A version as a path says it."""
    if text in (LATEST, "-1"):
        return LATEST
    number = whole_number(text, 10)
    if number is None or not 1 <= number <= VERSION_MAX:
        raise faults.invalid_version(text)
    return number


def compared(versions: Iterable[Version], level: str) -> list[Version]:
    """The versions a new one must get along with under a level, newest first."""
    found = list(versions)[::-1]
    if level == "NONE":
        return []
    return found if level.endswith("_TRANSITIVE") else found[:1]
