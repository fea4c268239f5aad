"""What a topic's bytes are owed: where they rest, in which layout, how durable, how long.

A policy is found by the topic's name: the most specific of the namespace's rules (a topic filter each), over the
broker's defaults. Topics of equal policy share one stem, so that retention can always drop whole segments; what needs a
log of its own (partitions, compaction, retention by bytes) makes the topic dedicated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

from mainstem.log.durability import parse_durability
from mainstem.model.errors import InvalidArgument
from mainstem.model.topic_filter import matches
from mainstem.storage.engines import ENGINES

LAYOUTS = ("shared", "dedicated")
TIERS = ("none", "s3", "iceberg")
SEARCH_INDEXES = ("auto", "off")
OVERFLOWS = ("ring", "refuse")
SCHEMA_MODES = ("refuse", "dead-letter", "off")
CLEANUPS = ("delete", "compact", "compact,delete")
PARTITIONS_MAX = 1_000
MESSAGE_BYTES_MAX = 16 << 20
STEMS_MAX = 16  # per namespace
NUMBER_MAX = (1 << 63) - 1
UNKNOWN_BEFORE = {"store": True}  # settings that the version before refuses, and the value that means what it does
_SHARE = re.compile(r"(\d{1,3}(\.\d{1,6})?%)?")


@dataclass(frozen=True, slots=True)
class Policy:
    """Zero or negative limits mean: none."""

    store: bool = True  # False: live only, delivered to who listens and kept nowhere
    engine: str = "segment"
    layout: str = "shared"
    partitions: int = 1
    durability: str = "sync"
    retention_ms: int = 7 * 24 * 3_600_000
    retention_bytes: int = -1
    cleanup: str = "delete"
    message_bytes_max: int = MESSAGE_BYTES_MAX
    segment_bytes: int = 64 << 20
    segment_ms: int = 7 * 24 * 3_600_000
    delete_retention_ms: int = 24 * 3_600_000
    compaction_lag_min_ms: int = 0
    compaction_lag_max_ms: int = 0
    timestamp_type: str = "create"  # create | append
    keep_until_archived: bool = False
    tier: str = "none"  # none | s3: sealed segments move to the object store | iceberg: as files of a table there
    local_retention_ms: int = 24 * 3_600_000
    local_retention_bytes: int = -1
    search_index: str = "auto"  # auto | off: sealed segments get an index of their words
    schema: str = ""  # a subject of the registry: values must fit it
    schema_mode: str = "refuse"  # refuse | dead-letter | off
    overflow: str = "ring"  # of a full memory log: ring: its oldest records go | refuse: publishers are
    trace: str = ""  # "1%" of its messages are followed on their way; empty: none

    def __post_init__(self) -> None:
        _one_of("engine", self.engine, tuple(ENGINES))
        _one_of("layout", self.layout, LAYOUTS)
        _one_of("cleanup", self.cleanup, CLEANUPS)
        _one_of("tier", self.tier, TIERS)
        _one_of("search_index", self.search_index, SEARCH_INDEXES)
        _one_of("overflow", self.overflow, OVERFLOWS)
        _one_of("schema_mode", self.schema_mode, SCHEMA_MODES)
        if self.tier != "none" and not ENGINES[self.engine].has_segments:
            raise InvalidArgument(
                f"tier {self.tier!r} moves segment files, and engine {self.engine!r} has none",
                fix="--set engine=segment, or --set tier=none",
            )
        if self.tier == "iceberg" and not self.dedicated:
            raise InvalidArgument(
                "tier 'iceberg' keeps a topic's parts in a table of its own, so it needs a log of its own",
                fix="--set layout=dedicated, or --set tier=s3",
            )
        parse_durability(self.durability)
        if not _SHARE.fullmatch(self.trace) or float(self.trace.rstrip("%") or 0) > 100:
            raise InvalidArgument(f"trace {self.trace!r} is not a share like 1% or 0.5%", fix="--set trace=1%")
        if not 1 <= self.partitions <= PARTITIONS_MAX:
            raise InvalidArgument(f"partitions must be 1 to {PARTITIONS_MAX}, not {self.partitions}")
        if self.message_bytes_max < 1:
            raise InvalidArgument(f"message_bytes_max must be positive, not {self.message_bytes_max}")

    @property
    def dedicated(self) -> bool:
        """Whether the topic needs a log of its own."""
        return (
            self.layout == "dedicated"
            or self.partitions > 1
            or self.retention_bytes >= 0
            or "compact" in self.cleanup
            or self.timestamp_type == "append"
        )

    def stem_key(self) -> tuple[object, ...]:
        """Topics that agree in this share a log."""
        tiered = (self.tier, self.local_retention_ms, self.local_retention_bytes) if self.tier != "none" else ()
        unsearched = ("unsearched",) if self.search_index == "off" else ()
        kept = (self.engine, self.durability, self.retention_ms, self.segment_bytes, self.keep_until_archived)
        refusing = ("refuse",) if not ENGINES[self.engine].on_disk and self.overflow == "refuse" else ()
        return (*kept, *tiered, *unsearched, *refusing)

    def with_changes(self, changes: Mapping[str, Any]) -> Policy:
        if not changes:
            return self
        known = {field.name for field in fields(self)}
        for name in changes:
            if name not in known:
                close = get_close_matches(name, known, 1)
                hint = f"; did you mean {close[0]}?" if close else f"; known are {', '.join(sorted(known))}"
                raise InvalidArgument(f"unknown topic setting {name!r}{hint}")
        return replace(self, **dict(changes))

    def to_document(self) -> dict[str, Any]:
        """To be stored. A broker of the version before may read it, where two versions serve one cluster."""
        document = asdict(self)
        for name, usual in UNKNOWN_BEFORE.items():
            if document[name] == usual:
                del document[name]
        return document

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Policy:
        """As it was stored. What only a newer version knows is left out: that one stores a setting of its own only where it
        was asked for, and this one serves the topic without it."""
        return cls().with_changes(known_of(document))


def known_of(document: Mapping[str, Any]) -> dict[str, Any]:
    known = {field.name for field in fields(Policy)}
    return {name: value for name, value in document.items() if name in known}


def check_values(given: Mapping[str, Any]) -> None:
    """Of the types and signs they are kept in: what cannot be compared later would stop retention for every topic."""
    kinds = {one.name: one.type for one in fields(Policy)}
    for name, value in given.items():
        kind = kinds.get(name)  # unknown ones are told by the policy itself
        if kind == "int":
            least = -1 if name.startswith("retention_") else 0
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= NUMBER_MAX:
                raise InvalidArgument(f"{name} must be a whole number from {least} to {NUMBER_MAX}, not {value!r}")
        elif (kind == "bool" and not isinstance(value, bool)) or (kind == "str" and not isinstance(value, str)):
            raise InvalidArgument(f"{name} must be {'true or false' if kind == 'bool' else 'a string'}, not {value!r}")
    if given.get("timestamp_type", "create") not in ("create", "append"):
        raise InvalidArgument(f"timestamp_type {given['timestamp_type']!r} is not one of create, append")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidArgument(f"{name} {value!r} is not one of {', '.join(allowed)}")


def policy_of(topic: bytes, defaults: Policy, rules: Mapping[bytes, Mapping[str, Any]]) -> Policy:
    """The defaults changed by every rule whose filter matches, the most specific last."""
    policy = defaults
    for topic_filter in sorted((f for f in rules if matches(f, topic)), key=_specificity):
        policy = policy.with_changes(rules[topic_filter])
    return policy


def _specificity(topic_filter: bytes) -> tuple[int, int]:
    levels = topic_filter.split(b"/")
    return (sum(level not in (b"#", b">", b"+", b"*") for level in levels), len(levels))
