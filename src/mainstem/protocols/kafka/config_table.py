"""Kafka's settings by Kafka's names: type, default, the server setting behind it, and what acts on it here.

A topic keeps what was set explicitly, as text (`Topic.config`); what the broker acts on is its policy, derived from
that. Settings marked inert are checked, kept and shown, and change nothing: one node has no replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum
from typing import Any

from mainstem.broker.topics.policy import LAYOUTS, Policy
from mainstem.model.errors import InvalidArgument
from mainstem.storage.engines import ENGINES

LONG_MAX = (1 << 63) - 1
INT_MAX = (1 << 31) - 1


class Kind(IntEnum):
    """As DescribeConfigs numbers them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Origin(IntEnum):
    """Where a value comes from, as DescribeConfigs numbers it."""

    TOPIC = 1
    CLUSTER = 3  # set while it runs, for all brokers
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    kind: Kind
    default: str
    synonym: str = ""  # the server's setting of which this is the topic's own
    low: float = -(1 << 63)
    high: float = LONG_MAX
    choices: tuple[str, ...] = ()
    field: str = ""  # of Policy; empty: inert, or read from the topic's config by name
    doc: str = ""

    def check(self, value: str) -> str:
        """The value in its plain form; InvalidArgument says what is wrong with it."""
        text = value.strip()
        if self.kind is Kind.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise self._wrong(value, "true or false")
            return text.lower()
        if self.kind in (Kind.INT, Kind.LONG, Kind.DOUBLE):
            return self._check_number(text)
        parts = [part.strip() for part in text.split(",") if part.strip()] if self.kind is Kind.LIST else [text]
        if self.choices and any(part not in self.choices for part in parts):
            raise self._wrong(value, f"one of {', '.join(self.choices)}")
        return ",".join(parts)

    def _check_number(self, text: str) -> str:
        try:
            number = float(text) if self.kind is Kind.DOUBLE else int(text)
        except ValueError:
            raise self._wrong(text, "a number") from None
        top = min(self.high, INT_MAX) if self.kind is Kind.INT else self.high
        if not self.low <= number <= top:
            raise self._wrong(text, f"at least {self.low:.0f} and at most {top:.0f}")
        return text

    def _wrong(self, value: str, wanted: str) -> InvalidArgument:
        return InvalidArgument(f"Invalid value {value} for configuration {self.name}: must be {wanted}")


def _number(
    name: str, default: int, synonym: str = "", low: int = 0, *, kind: Kind = Kind.LONG, field: str = ""
) -> Setting:
    return Setting(name, kind, str(default), synonym, low, field=field)


DAY_MS = 86_400_000
COMPRESSIONS = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")

TOPIC_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting(
            "cleanup.policy", Kind.LIST, "delete", "log.cleanup.policy", choices=("compact", "delete"), field="cleanup"
        ),
        Setting("compression.type", Kind.STRING, "producer", "compression.type", choices=COMPRESSIONS),
        Setting("compression.gzip.level", Kind.INT, "-1", "compression.gzip.level", -1, 9),
        Setting("compression.lz4.level", Kind.INT, "9", "compression.lz4.level", 1, 17),
        Setting("compression.zstd.level", Kind.INT, "3", "compression.zstd.level", -131072, 22),
        _number("delete.retention.ms", DAY_MS, "log.cleaner.delete.retention.ms", field="delete_retention_ms"),
        _number("file.delete.delay.ms", 60_000, "log.segment.delete.delay.ms"),
        _number("flush.messages", LONG_MAX, "log.flush.interval.messages", 1),
        _number("flush.ms", LONG_MAX, "log.flush.interval.ms"),
        Setting("follower.replication.throttled.replicas", Kind.LIST, ""),
        _number("index.interval.bytes", 4_096, "log.index.interval.bytes", kind=Kind.INT),
        Setting("leader.replication.throttled.replicas", Kind.LIST, ""),
        _number("local.retention.bytes", -2, "log.local.retention.bytes", -2, field="local_retention_bytes"),
        _number("local.retention.ms", -2, "log.local.retention.ms", -2, field="local_retention_ms"),
        _number(
            "max.compaction.lag.ms", LONG_MAX, "log.cleaner.max.compaction.lag.ms", 1, field="compaction_lag_max_ms"
        ),
        _number("max.message.bytes", 16 << 20, "message.max.bytes", 1, kind=Kind.INT, field="message_bytes_max"),
        _number("message.timestamp.after.max.ms", 3_600_000, "log.message.timestamp.after.max.ms"),
        _number("message.timestamp.before.max.ms", LONG_MAX, "log.message.timestamp.before.max.ms"),
        Setting(
            "message.timestamp.type",
            Kind.STRING,
            "CreateTime",
            "log.message.timestamp.type",
            choices=("CreateTime", "LogAppendTime"),
            field="timestamp_type",
        ),
        Setting("min.cleanable.dirty.ratio", Kind.DOUBLE, "0.5", "log.cleaner.min.cleanable.ratio", 0, 1),
        _number("min.compaction.lag.ms", 0, "log.cleaner.min.compaction.lag.ms", field="compaction_lag_min_ms"),
        _number("min.insync.replicas", 1, "min.insync.replicas", 1, kind=Kind.INT),
        Setting("preallocate", Kind.BOOLEAN, "false", "log.preallocate"),
        Setting("remote.log.copy.disable", Kind.BOOLEAN, "false"),
        Setting("remote.log.delete.on.disable", Kind.BOOLEAN, "false"),
        Setting("remote.storage.enable", Kind.BOOLEAN, "false", field="tier"),
        _number("retention.bytes", -1, "log.retention.bytes", -1, field="retention_bytes"),
        _number("retention.ms", 7 * DAY_MS, "log.retention.ms", -1, field="retention_ms"),
        _number("segment.bytes", 64 << 20, "log.segment.bytes", 1_048_576, kind=Kind.INT, field="segment_bytes"),
        _number("segment.index.bytes", 10_485_760, "log.index.size.max.bytes", 4, kind=Kind.INT),
        _number("segment.jitter.ms", 0, "log.roll.jitter.ms"),
        _number("segment.ms", 7 * DAY_MS, "log.roll.ms", 1, field="segment_ms"),
        Setting("unclean.leader.election.enable", Kind.BOOLEAN, "false", "unclean.leader.election.enable"),
        Setting("mainstem.engine", Kind.STRING, "segment", choices=tuple(ENGINES), field="engine"),
        Setting("mainstem.durability", Kind.STRING, "sync", field="durability"),
        Setting("mainstem.layout", Kind.STRING, "dedicated", choices=LAYOUTS, field="layout"),
        Setting("mainstem.keep.until.archived", Kind.BOOLEAN, "false", field="keep_until_archived"),
    )
}

# Kafka 4.1 and later write it for the whole cluster when they begin (KIP-966): tools that leave out defaults show it.
CLUSTER_WIDE = ("min.insync.replicas",)
READ_UNCOMMITTED = "read_uncommitted"
GROUP_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        _number("consumer.heartbeat.interval.ms", 3_000, "group.consumer.heartbeat.interval.ms", 1, kind=Kind.INT),
        _number("consumer.session.timeout.ms", 45_000, "group.consumer.session.timeout.ms", 1, kind=Kind.INT),
        Setting("share.auto.offset.reset", Kind.STRING, "latest"),
        _number("share.delivery.count.limit", 5, "group.share.delivery.count.limit", 2, kind=Kind.INT),
        _number("share.heartbeat.interval.ms", 3_000, "group.share.heartbeat.interval.ms", 1, kind=Kind.INT),
        Setting("share.isolation.level", Kind.STRING, READ_UNCOMMITTED, choices=("read_committed", READ_UNCOMMITTED)),
        _number("share.partition.max.record.locks", 2_000, "group.share.partition.max.record.locks", 1, kind=Kind.INT),
        _number("share.record.lock.duration.ms", 30_000, "group.share.record.lock.duration.ms", 1, kind=Kind.INT),
        Setting("share.renew.acknowledge.enable", Kind.BOOLEAN, "true"),
        _number("share.session.timeout.ms", 45_000, "group.share.session.timeout.ms", 1, kind=Kind.INT),
    )
}

_TO_POLICY: dict[str, Callable[[str], Any]] = {
    "cleanup": lambda text: ",".join(sorted(set(text.split(",")))),
    "timestamp_type": lambda text: "append" if text == "LogAppendTime" else "create",
    "compaction_lag_max_ms": lambda text: 0 if int(text) == LONG_MAX else int(text),
    "engine": str,
    "layout": str,
    "durability": str,
    "keep_until_archived": lambda text: text == "true",
    "local_retention_bytes": lambda text: max(int(text), -1),  # -2: as retention says, so no limit of its own
    "local_retention_ms": lambda text: max(int(text), -1),
    "tier": lambda text: "s3" if text == "true" else "none",
}
_FROM_POLICY: dict[str, Callable[[Any], str]] = {
    "cleanup": str,
    "timestamp_type": lambda value: "LogAppendTime" if value == "append" else "CreateTime",
    "compaction_lag_max_ms": lambda value: str(value or LONG_MAX),
    "keep_until_archived": lambda value: str(value).lower(),
    "tier": lambda value: str(value != "none").lower(),
}


def topic_origin(setting: Setting, config: Mapping[str, str]) -> Origin:
    """Where a topic's value comes from."""
    if setting.name in config:
        return Origin.TOPIC
    return Origin.CLUSTER if setting.name in CLUSTER_WIDE else Origin.DEFAULT


def find_setting(settings: Mapping[str, Setting], name: str) -> Setting:
    found = settings.get(name)
    if found is None:
        close = get_close_matches(name, settings, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise InvalidArgument(f"Unknown configuration {name}{hint}")
    return found


def checked(settings: Mapping[str, Setting], values: Mapping[str, str]) -> dict[str, str]:
    return {name: find_setting(settings, name).check(value) for name, value in values.items()}


def policy_for(base: Policy, config: Mapping[str, str]) -> Policy:
    """What the broker acts on: the base policy, changed by what was set explicitly."""
    changes: dict[str, Any] = {}
    for name, value in config.items():
        field = TOPIC_SETTINGS[name].field
        if field:
            changes[field] = _TO_POLICY.get(field, int)(value)
    if config.get("cleanup.policy") == "":  # nothing is deleted and nothing compacted
        changes |= {"cleanup": "delete", "retention_ms": -1, "retention_bytes": -1}
    if "durability" not in changes:
        flush_ms = int(config.get("flush.ms", LONG_MAX))
        if config.get("flush.messages") == "1":
            changes["durability"] = "sync"
        elif 0 < flush_ms <= 3_600_000:
            changes["durability"] = f"interval:{flush_ms}"
    return base.with_changes(changes)


def shown_value(setting: Setting, policy: Policy, config: Mapping[str, str]) -> str:
    """The value in force, in Kafka's words."""
    if setting.name in config:
        return config[setting.name]
    if setting.field:
        return _FROM_POLICY.get(setting.field, str)(getattr(policy, setting.field))
    return setting.default
