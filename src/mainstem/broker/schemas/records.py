"""The records of the topic `_schemas`, in the form of Confluent's: both key and value are JSON.

    key                                                                    value, or none where it is deleted for good
    {"keytype":"SCHEMA","subject":"s","version":1,"magic":1}               {"subject","version","id","schemaType"?,
                                                                            "references"?,"schema","deleted","canonical",
                                                                            "descriptors"?}
    {"keytype":"CONFIG","subject":"s" or null,"magic":0}                   {"compatibilityLevel":"FULL"}
    {"keytype":"MODE","subject":"s" or null,"magic":0}                     {"mode":"READONLY"}
    {"keytype":"NOOP","magic":0}                                           {"id": the highest id given so far}

Compaction goes by the key's bytes, so its members always come in this order. `canonical` (a hash of the canonical form, by
which an equal schema is found again) and `descriptors` (what Protobuf compiles to) are ours.
A soft-deleted version has `deleted` true.
"""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass, replace
from typing import Any

import msgspec

AVRO, JSON, PROTOBUF = TYPES = ("AVRO", "JSON", "PROTOBUF")


class Reference(msgspec.Struct, frozen=True):
    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """`canonical`: the hash of its canonical form and references; equal ones are the same schema, and have one id."""

    kind: str
    text: str
    references: tuple[Reference, ...] = ()
    canonical: str = ""
    metadata: Any = None  # kept for whoever gave it; the broker reads neither
    rule_set: Any = None
    descriptors: str = ""  # of Protobuf: its FileDescriptorSet, itself last, in base 64

    @property
    def guid(self) -> str:
        return str(uuid.UUID(bytes=hashlib.md5(self.canonical.encode(), usedforsecurity=False).digest()))

    def to_document(self) -> dict[str, Any]:
        """As all answers tell it: Avro is what is meant where no type is said."""
        found: dict[str, Any] = {} if self.kind == AVRO else {"schemaType": self.kind}
        if self.references:
            found["references"] = [msgspec.to_builtins(one) for one in self.references]
        if self.metadata is not None:
            found["metadata"] = self.metadata
        if self.rule_set is not None:
            found["ruleSet"] = self.rule_set
        return {**found, "schema": self.text}


@dataclass(frozen=True, slots=True)
class Version:
    subject: str
    version: int
    id: int
    schema: Schema
    deleted: bool = False

    def to_document(self) -> dict[str, Any]:
        return {
            "subject": self.subject,
            "version": self.version,
            "id": self.id,
            "guid": self.schema.guid,
            **self.schema.to_document(),
        }

    def as_deleted(self) -> Version:
        return replace(self, deleted=True)

    def key(self) -> bytes:
        return _key("SCHEMA", subject=self.subject, version=self.version, magic=1)

    def value(self) -> bytes:
        document = {**self.to_document(), "deleted": self.deleted, "canonical": self.schema.canonical}
        if self.schema.descriptors:
            document["descriptors"] = self.schema.descriptors
        return msgspec.json.encode(document)


def config_key(subject: str | None) -> bytes:
    return _key("CONFIG", subject=subject, magic=0)


def mode_key(subject: str | None) -> bytes:
    return _key("MODE", subject=subject, magic=0)


def highest_key() -> bytes:
    return _key("NOOP", magic=0)


def highest_value(schema_id: int) -> bytes:
    """Kept where versions are deleted for good: an id never comes to mean another schema."""
    return msgspec.json.encode({"id": schema_id})


def config_value(level: str) -> bytes:
    return msgspec.json.encode({"compatibilityLevel": level})


def mode_value(mode: str) -> bytes:
    return msgspec.json.encode({"mode": mode})


def _key(keytype: str, **members: Any) -> bytes:
    return msgspec.json.encode({"keytype": keytype, **members})


def version_of(document: dict[str, Any]) -> Version:
    references = tuple(
        Reference(str(one["name"]), str(one["subject"]), int(one["version"]))
        for one in document.get("references") or ()
    )
    text = str(document["schema"])
    canonical = document.get("canonical") or hashlib.sha256(text.encode()).hexdigest()
    schema = Schema(
        document.get("schemaType") or AVRO,
        text,
        references,
        canonical,
        document.get("metadata"),
        document.get("ruleSet"),
        document.get("descriptors") or "",
    )
    return Version(
        str(document["subject"]), int(document["version"]), int(document["id"]), schema, bool(document.get("deleted"))
    )
