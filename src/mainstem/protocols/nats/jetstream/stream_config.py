"""A stream's configuration: read, checked and completed with nats-server's defaults. Knows no broker."""

from __future__ import annotations

from typing import Any

from mainstem.model.errors import InvalidArgument, InvalidName
from mainstem.model.subject_transform import SubjectTransform
from mainstem.model.topic import filter_of_nats
from mainstem.model.topic_filter import filter_levels, overlap
from mainstem.protocols.nats.jetstream import errors, origins, pedantic
from mainstem.protocols.nats.jetstream.errors import stream_config as refused
from mainstem.protocols.nats.jetstream.words import (
    check_keys,
    flag,
    metadata,
    metadata_size,
    number,
    objects,
    string,
    texts,
    unsigned,
)

NAME_MAX = 255
DUPLICATE_WINDOW_NS = 120_000_000_000
TIME_MIN_NS = 100_000_000
KNOWN = frozenset(
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
        "pedantic",  # of the request, not of the stream
    ]
)
_PLACEMENT = frozenset(("cluster", "tags", "preferred"))
_TRANSFORM, _REPUBLISH = frozenset(("src", "dest")), frozenset(("src", "dest", "headers_only"))
_CONSUMER_LIMITS = ("inactive_threshold", "max_ack_pending")
FIRST_SEQ_MAX = 1 << 62  # there must be room behind it
DESCRIPTION_MAX, METADATA_MAX, REPLICAS_MAX = 4096, 131_072, 5
_ENUMS = {
    "retention": ("limits", "interest", "workqueue"),
    "discard": ("old", "new"),
    "storage": ("file", "memory"),
    "compression": ("none", "s2"),
}


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
    check_keys(given, KNOWN)
    name = string(given, "name")
    check_name(name)
    _check_sizes(given)
    if flag(given, "pedantic"):
        pedantic.check_stream(given)
    config: dict[str, Any] = {"name": name}
    if string(given, "description"):
        config["description"] = given["description"]
    copied = bool(given.get("mirror") or given.get("sources"))
    if given.get("mirror"):
        config["mirror"] = origins.mirror(given)
    if texts(given, "subjects") or not copied:
        config["subjects"] = _subjects(given, name)
    config["retention"] = _one_of(given, "retention")
    for key in ("max_consumers", "max_msgs", "max_bytes"):
        config[key] = _most(given, key)
    config["max_age"] = _age(given)
    for key in ("max_msgs_per_subject", "max_msg_size"):
        config[key] = _most(given, key)
    config["discard"] = _one_of(given, "discard")
    config["storage"] = _one_of(given, "storage")
    config["num_replicas"] = 1
    if flag(given, "no_ack"):
        config["no_ack"] = True
    if window := _window(given, config["max_age"], default=not copied):
        config["duplicate_window"] = window
    if placement := _placement(given):
        config["placement"] = placement
    if given.get("sources"):
        config["sources"] = origins.sources(given)
    config["compression"] = _one_of(given, "compression")
    if unsigned(given, "first_seq"):
        if given["first_seq"] > FIRST_SEQ_MAX:
            raise refused(f"first sequence is too large, maximum allowed is {FIRST_SEQ_MAX}")
        config["first_seq"] = given["first_seq"]
    _subject_changes(given, config)
    for key in ("allow_direct", "mirror_direct"):
        config[key] = flag(given, key)
    if flag(given, "discard_new_per_subject"):
        config["discard_new_per_subject"] = True
    for key in ("sealed", "deny_delete", "deny_purge", "allow_rollup_hdrs"):
        config[key] = flag(given, key)
    limits = objects(given, "consumer_limits", frozenset(_CONSUMER_LIMITS))
    config["consumer_limits"] = {key: limits[key] for key in _CONSUMER_LIMITS if number(limits, key)}
    config["allow_msg_ttl"] = flag(given, "allow_msg_ttl")
    _extras(given, config)
    if own := metadata(given):
        config["metadata"] = own
    _check(config)
    if "mirror" in config:
        origins.check_view(config)
    return config


def _check_sizes(given: dict[str, Any]) -> None:
    if len(string(given, "description").encode()) > DESCRIPTION_MAX:
        raise refused(f"stream description is too long, maximum allowed is {DESCRIPTION_MAX}")
    if metadata_size(given) > METADATA_MAX:
        raise refused(f"stream metadata exceeds maximum size of {METADATA_MAX} bytes")
    replicas = number(given, "num_replicas")
    if replicas < 0:
        raise errors.NEGATIVE_REPLICAS
    if replicas > REPLICAS_MAX:
        raise refused(f"maximum replicas is {REPLICAS_MAX}")
    if replicas > 1:
        raise errors.REPLICAS


def _most(given: dict[str, Any], key: str) -> int:
    """A limit; -1: none."""
    value = number(given, key)
    return value if value > 0 else -1


def _placement(given: dict[str, Any]) -> dict[str, Any]:
    """Kept and shown, as by a nats-server without a cluster: there is one place."""
    asked = objects(given, "placement", _PLACEMENT)
    if string(asked, "preferred"):
        raise refused("preferred server not permitted in placement")
    kept: dict[str, Any] = {}
    if string(asked, "cluster"):
        kept["cluster"] = asked["cluster"]
    if texts(asked, "tags"):
        kept["tags"] = asked["tags"]
    return kept


def _age(given: dict[str, Any]) -> int:
    age = number(given, "max_age")
    if age < 0:
        raise refused("max age can not be negative")
    return age


def _subject_changes(given: dict[str, Any], config: dict[str, Any]) -> None:
    """`subject_transform` and `republish`."""
    transform = objects(given, "subject_transform", _TRANSFORM)
    if transform:
        config["subject_transform"] = {"src": string(transform, "src"), "dest": string(transform, "dest")}
        origins.transformed(config["subject_transform"], 10155, "stream transform source", 10156, "stream transform")
    again = objects(given, "republish", _REPUBLISH)
    if not again:
        return
    source, destination = string(again, "src") or ">", string(again, "dest")
    if source == destination == ">" and transform and config.get("subjects") == [string(transform, "src")]:
        if flag(given, "pedantic"):
            raise pedantic.fault("implicit republish based on subject transform")
        source = destination = string(transform, "dest")  # all of it, under its new subjects
    config["republish"] = {"src": source, "dest": destination}
    if flag(again, "headers_only"):
        config["republish"]["headers_only"] = True
    try:
        SubjectTransform(source, destination)
        to = filter_levels(filter_of_nats(pattern_of(destination).encode()))
    except (InvalidArgument, InvalidName):
        raise refused(
            f"stream configuration for republish with transform from '{source}' to '{destination}' not valid"
        ) from None
    if any(overlap(to, filter_levels(filter_of_nats(one.encode()))) for one in config.get("subjects") or ()):
        raise refused("stream configuration for republish destination forms a cycle")


def pattern_of(destination: str) -> str:
    """What a transform's destination may become: functions are any token."""
    return ".".join("*" if one.startswith(("{{", "$")) else one for one in destination.split("."))


def _extras(given: dict[str, Any], config: dict[str, Any]) -> None:
    """Markers, counters, batches, schedules, how it is kept."""
    ttl = number(given, "subject_delete_marker_ttl")
    if ttl < 0:
        raise refused("subject delete marker TTL must not be negative")
    if ttl:
        if ttl < 1_000_000_000:
            raise refused("subject delete marker TTL must be at least 1 second")
        config["subject_delete_marker_ttl"] = ttl
        config["allow_msg_ttl"] = config["allow_rollup_hdrs"] = True
        config["deny_purge"] = False
    for key in ("allow_msg_counter", "allow_atomic", "allow_batched", "allow_msg_schedules"):
        if flag(given, key):
            config[key] = True
    if config.get("allow_msg_schedules"):
        if config["discard"] == "new":
            raise refused("message scheduling cannot use discard new")
        config["allow_rollup_hdrs"], config["deny_purge"] = True, False
    mode = string(given, "persist_mode") or "default"
    if mode not in ("default", "async"):
        raise errors.invalid_json(f'can not unmarshal "{mode}"')
    if mode == "async":
        if config["storage"] != "file":
            raise refused("async persist mode is only supported on file storage")
        if config.get("allow_atomic"):
            raise refused("async persist mode is not supported with atomic batch publish")
        config["persist_mode"] = mode


def _subjects(given: dict[str, Any], name: str) -> list[str]:
    subjects = texts(given, "subjects") or [name]
    filters: list[list[bytes]] = []
    for subject in subjects:
        try:
            levels = filter_levels(filter_of_nats(subject.encode()))
        except InvalidName:
            raise refused("invalid subject") from None
        if any(one in subject for one in " \t\r\n\f"):
            raise refused("invalid subject")
        _check_subject(subject, levels, no_ack=flag(given, "no_ack"))
        for other, known in zip(subjects, filters, strict=False):
            if overlap(levels, known):
                raise refused(f'subject "{other}" overlaps with "{subject}"')
        filters.append(levels)
    return subjects


def _check_subject(subject: str, levels: list[bytes], *, no_ack: bool) -> None:
    if subject == ">":
        if not no_ack:
            raise refused("capturing all subjects requires no-ack to be true")
        raise refused("a stream of every subject would hold everything of the namespace; name the subjects")
    if no_ack:
        return
    for api in ("$JS.>", "$JSC.>", "$NRG.>"):
        if overlap(levels, filter_levels(filter_of_nats(api.encode()))) and not subject.startswith("$JS.EVENT."):
            raise refused("subjects that overlap with jetstream api require no-ack to be true")
    if overlap(levels, filter_levels(b"$SYS/>")) and not subject.startswith("$SYS.ACCOUNT."):
        raise refused("subjects that overlap with system api require no-ack to be true")


def _one_of(given: dict[str, Any], key: str) -> str:
    value = string(given, key) or _ENUMS[key][0]
    if value not in _ENUMS[key]:
        raise errors.invalid_json(f'can not unmarshal "{value}"')
    return value


def _window(given: dict[str, Any], max_age: int, *, default: bool) -> int:
    window = number(given, "duplicate_window")
    if not window and not default:
        return 0
    if not window:
        return min(DUPLICATE_WINDOW_NS, max_age) if max_age else DUPLICATE_WINDOW_NS
    if max_age and window > max_age:
        raise refused("duplicates window can not be larger then max age")
    if 0 < window < TIME_MIN_NS:
        raise refused("duplicates window needs to be >= 100ms")
    if window < 0:
        raise refused("duplicates window can not be negative")
    return window


def check_create(config: dict[str, Any]) -> None:
    """What only an update may say."""
    if config["sealed"]:
        raise refused("stream configuration for create can not be sealed")
    if config["mirror_direct"] and "mirror" not in config:
        raise refused("stream has no mirror but does have mirror direct")


def _check(config: dict[str, Any]) -> None:
    if 0 < config["max_age"] < TIME_MIN_NS:
        raise refused("max age needs to be >= 100ms")
    if config["deny_purge"] and config["allow_rollup_hdrs"]:
        raise refused("roll-ups require the purge permission")
    if config.get("allow_msg_counter"):
        for wrong, text in (
            (config["discard"] == "new", "counter stream cannot use discard new"),
            (config["allow_msg_ttl"], "counter stream cannot use message TTLs"),
            (config.get("allow_msg_schedules"), "counter stream cannot use message schedules"),
            (config["retention"] != "limits", "counter stream can only use limits retention"),
        ):
            if wrong:
                raise refused(text)
    if config.get("discard_new_per_subject"):
        if config["discard"] != "new":
            raise refused("discard new per subject requires discard new policy to be set")
        if config["max_msgs_per_subject"] <= 0:
            raise refused("discard new per subject requires max msgs per subject > 0")


def check_update(old: dict[str, Any], new: dict[str, Any]) -> None:
    if old["storage"] != new["storage"]:
        raise refused("stream configuration update can not change storage type")
    if old["retention"] != new["retention"] and "workqueue" in (old["retention"], new["retention"]):
        raise refused("stream configuration update can not change retention policy to/from workqueue")
    if old["sealed"] and not new["sealed"]:
        raise refused("stream configuration update can not unseal a sealed stream")
    for key, text in (("deny_delete", "deny message deletes"), ("deny_purge", "deny purge")):
        if old[key] and not new[key]:
            raise refused(f"stream configuration update can not cancel {text}")
    if old.get("allow_msg_ttl") and not new.get("allow_msg_ttl"):
        raise refused("message TTL status can not be disabled")
    if bool(old.get("allow_msg_counter")) != bool(new.get("allow_msg_counter")):
        raise refused("stream configuration update can not change message counter setting")
    if old.get("allow_msg_schedules") and not new.get("allow_msg_schedules"):
        raise refused("message schedules can not be disabled")
    if old.get("persist_mode") != new.get("persist_mode"):
        raise refused("stream configuration update can not change persist mode")
    if old.get("mirror") != new.get("mirror"):
        raise errors.MIRROR_FIXED


def seal(config: dict[str, Any]) -> None:
    """What being sealed means for the rest."""
    if config["sealed"]:
        config.update(max_age=0, discard="new", deny_delete=True, deny_purge=True, allow_rollup_hdrs=False)


def limited_consumers(old: dict[str, Any], new: dict[str, Any], consumers: dict[str, dict[str, Any]]) -> list[str]:
    """Names of consumers that ask for more than the changed `consumer_limits` allow."""
    was, now = old["consumer_limits"], new["consumer_limits"]
    changed = [key for key in _CONSUMER_LIMITS if now.get(key, 0) > 0 and now.get(key) != was.get(key)]
    if not changed:
        return []
    limits = [(key, now[key]) for key in _CONSUMER_LIMITS if now.get(key, 0) > 0]
    return [name for name, config in consumers.items() if any(config.get(key, 0) > most for key, most in limits)]


def same(old: dict[str, Any], new: dict[str, Any]) -> bool:
    return old == new
