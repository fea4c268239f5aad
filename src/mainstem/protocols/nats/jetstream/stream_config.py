"""A stream's configuration: read, checked and completed with nats-server's defaults. Knows no broker."""

from __future__ import annotations

from typing import Any

from mainstem.model.errors import InvalidName
from mainstem.model.topic import filter_of_nats
from mainstem.model.topic_filter import filter_levels, overlap
from mainstem.protocols.nats.jetstream import errors
from mainstem.protocols.nats.jetstream.errors import stream_config as refused
from mainstem.protocols.nats.jetstream.words import check_keys, flag, number, string, texts

NAME_MAX = 255
DUPLICATE_WINDOW_NS = 120_000_000_000
TIME_MIN_NS = 100_000_000
_KNOWN = frozenset(
    [
        "name",
        "description",
        "subjects",
        "retention",
        "max_consumers",
        "max_msgs",
        "max_bytes",
        "max_age",
        "max_msgs_per_subject",
        "max_msg_size",
        "discard",
        "storage",
        "num_replicas",
        "no_ack",
        "duplicate_window",
        "placement",
        "mirror",
        "sources",
        "compression",
        "first_seq",
        "subject_transform",
        "republish",
        "allow_direct",
        "mirror_direct",
        "discard_new_per_subject",
        "sealed",
        "deny_delete",
        "deny_purge",
        "allow_rollup_hdrs",
        "consumer_limits",
        "allow_msg_ttl",
        "subject_delete_marker_ttl",
        "allow_msg_counter",
        "allow_atomic",
        "allow_batched",
        "allow_msg_schedules",
        "persist_mode",
        "metadata",
        "template_owner",
    ]
)
_ENUMS = {
    "retention": ("limits", "interest", "workqueue"),
    "discard": ("old", "new"),
    "storage": ("file", "memory"),
    "compression": ("none", "s2"),
}
# What stock clients may ask for and this broker does not have: refused, never ignored.
_NOT_HERE = (
    "mirror",
    "sources",
    "subject_transform",
    "republish",
    "subject_delete_marker_ttl",
    "allow_msg_counter",
    "allow_atomic",
    "allow_batched",
    "allow_msg_schedules",
)


def check_name(name: str) -> None:
    if not name or len(name) > NAME_MAX:
        raise refused(
            "stream name is required and can not contain '.', '*', '>'"
            if not name
            else "stream name is too long, maximum allowed is 255"
        )
    if any(one in name for one in ".*> \t\r\n\f"):
        raise refused("stream name is required and can not contain '.', '*', '>'")
    if "/" in name or "\\" in name:
        raise errors.NAME_PATH


def complete(given: dict[str, Any]) -> dict[str, Any]:
    """The configuration as it is kept and answered. JsError where it cannot be."""
    check_keys(given, _KNOWN)
    for key in _NOT_HERE:
        if given.get(key):
            raise refused(f"{key} is not supported by this server")
    if string(given, "persist_mode") not in ("", "default"):
        raise refused("persist_mode is not supported by this server")
    name = string(given, "name")
    check_name(name)
    if number(given, "num_replicas", 1) > 1:
        raise errors.REPLICAS
    config: dict[str, Any] = {"name": name}
    if string(given, "description"):
        config["description"] = given["description"]
    config["subjects"] = _subjects(given, name)
    config["retention"] = _one_of(given, "retention")
    for key in ("max_consumers", "max_msgs", "max_bytes"):
        config[key] = number(given, key) or -1
    config["max_age"] = max(0, number(given, "max_age"))
    for key in ("max_msgs_per_subject", "max_msg_size"):
        config[key] = number(given, key) or -1
    config["discard"] = _one_of(given, "discard")
    config["storage"] = _one_of(given, "storage")
    config["num_replicas"] = 1
    if flag(given, "no_ack"):
        config["no_ack"] = True
    config["duplicate_window"] = _window(given, config["max_age"])
    config["compression"] = _one_of(given, "compression")
    if number(given, "first_seq") > 1:
        config["first_seq"] = given["first_seq"]
    for key in ("allow_direct", "mirror_direct"):
        config[key] = flag(given, key)
    if flag(given, "discard_new_per_subject"):
        config["discard_new_per_subject"] = True
    for key in ("sealed", "deny_delete", "deny_purge", "allow_rollup_hdrs"):
        config[key] = flag(given, key)
    config["consumer_limits"] = given.get("consumer_limits") or {}
    config["allow_msg_ttl"] = flag(given, "allow_msg_ttl")
    metadata = {k: v for k, v in (given.get("metadata") or {}).items() if not k.startswith("_nats.")}
    if metadata:
        config["metadata"] = metadata
    _check(config)
    return config


def _subjects(given: dict[str, Any], name: str) -> list[str]:
    subjects = texts(given, "subjects") or [name]
    filters: list[list[bytes]] = []
    for subject in subjects:
        try:
            levels = filter_levels(filter_of_nats(subject.encode()))
        except InvalidName:
            raise refused("invalid subject") from None
        api = subject.startswith(("$JS.", "$SYS")) and not subject.startswith("$JS.EVENT.")
        if (subject == ">" or api) and not flag(given, "no_ack"):
            raise refused("subjects that overlap with jetstream api require no-ack to be true")
        if subject == ">":
            raise refused("a stream of every subject would hold everything of the namespace; name the subjects")
        if any(overlap(levels, other) for other in filters):
            same = subjects.count(subject) > 1
            raise refused(
                "duplicate subjects detected" if same else f"subject {subject!r} overlaps with another of the stream"
            )
        filters.append(levels)
    return subjects


def _one_of(given: dict[str, Any], key: str) -> str:
    value = string(given, key) or _ENUMS[key][0]
    if value not in _ENUMS[key]:
        raise errors.invalid_json(f'can not unmarshal "{value}"')
    return value


def _window(given: dict[str, Any], max_age: int) -> int:
    window = number(given, "duplicate_window")
    if not window:
        return min(DUPLICATE_WINDOW_NS, max_age) if max_age else DUPLICATE_WINDOW_NS
    if max_age and window > max_age:
        raise refused("duplicates window can not be larger then max age")
    if 0 < window < TIME_MIN_NS:
        raise refused("duplicates window needs to be >= 100ms")
    if window < 0:
        raise refused("duplicates window can not be negative")
    return window


def _check(config: dict[str, Any]) -> None:
    if config["mirror_direct"]:
        raise refused("stream has no mirror but does have mirror direct")
    if 0 < config["max_age"] < TIME_MIN_NS:
        raise refused("max age needs to be >= 100ms")
    if config["deny_purge"] and config["allow_rollup_hdrs"]:
        raise refused("roll-ups require the purge permission")
    if config.get("discard_new_per_subject"):
        if config["discard"] != "new":
            raise refused("discard new per subject requires discard new policy to be set")
        if config["max_msgs_per_subject"] <= 0:
            raise refused("discard new per subject requires max msgs per subject > 0")


def check_update(old: dict[str, Any], new: dict[str, Any]) -> None:
    if old["sealed"]:
        raise errors.SEALED
    if old["storage"] != new["storage"]:
        raise refused("stream configuration update can not change storage type")
    if old["retention"] != new["retention"] and "workqueue" in (old["retention"], new["retention"]):
        raise refused("stream configuration update can not change retention policy to/from workqueue")
    if old["max_consumers"] != new["max_consumers"]:
        raise refused("stream configuration update can not change MaxConsumers")
    for key, text in (("deny_delete", "deny message deletes"), ("deny_purge", "deny purge")):
        if old[key] and not new[key]:
            raise refused(f"stream configuration update can not cancel {text}")
    if old.get("allow_msg_ttl") and not new.get("allow_msg_ttl"):
        raise refused("message TTL status can not be disabled")


def same(old: dict[str, Any], new: dict[str, Any]) -> bool:
    return old == new
