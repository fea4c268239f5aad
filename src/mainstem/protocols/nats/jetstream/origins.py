"""`mirror` and `sources` of a stream's configuration: other streams of the same namespace."""

from __future__ import annotations

from typing import Any

from mainstem.model.errors import InvalidArgument, InvalidName
from mainstem.model.subject_transform import SubjectTransform
from mainstem.model.topic import filter_of_nats
from mainstem.model.topic_filter import covers, filter_levels
from mainstem.protocols.nats.jetstream import errors
from mainstem.protocols.nats.jetstream.errors import stream_config as refused
from mainstem.protocols.nats.jetstream.words import check_keys, number, string, time_ns, time_text

_KNOWN = frozenset(
    (
        "name",
        "opt_start_seq",
        "opt_start_time",
        "filter_subject",
        "subject_transforms",
        "external",
        "domain",
        "consumer",
    )
)
_VIEW_LIMITS = ("max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size")


def mirror(given: dict[str, Any]) -> dict[str, Any]:
    for key, error in (
        ("first_seq", errors.MIRROR_FIRST_SEQ),
        ("subjects", errors.MIRROR_SUBJECTS),
        ("sources", errors.MIRROR_SOURCES),
        ("allow_msg_counter", errors.MIRROR_COUNTERS),
        ("allow_atomic", errors.MIRROR_ATOMIC),
        ("allow_batched", errors.MIRROR_BATCHED),
        ("allow_msg_schedules", errors.MIRROR_SCHEDULES),
    ):
        if given.get(key):
            raise error
    asked = given["mirror"]
    if isinstance(asked, dict) and asked.get("filter_subject") and asked.get("subject_transforms"):
        raise errors.MIRROR_FILTERS
    if given.get("subject_delete_marker_ttl"):
        raise refused("subject delete markers forbidden on mirrors")
    found = _origin(asked, errors.MIRROR_NAME, "mirror")
    if "opt_start_seq" in found and "opt_start_time" in found:
        raise errors.MIRROR_START
    if found.get("subject_transforms"):
        raise refused("a mirror here is a view of its origin and has its subjects; use sources to transform them")
    return found


def check_view(config: dict[str, Any]) -> None:
    """A mirror has no messages of its own that it could limit."""
    for key in _VIEW_LIMITS:
        if config[key] > 0:
            raise refused(f"a mirror here is a view of its origin; {key} is the origin's")
    if config["max_age"] or config["retention"] != "limits":
        raise refused("a mirror here is a view of its origin; its retention is the origin's")
    for key in ("republish", "subject_transform"):
        if config.get(key):
            raise refused(f"a mirror here is a view of its origin and can not {key.replace('_', ' ')}; use sources")


def sources(given: dict[str, Any]) -> list[dict[str, Any]]:
    asked = given["sources"]
    if given.get("allow_msg_schedules"):
        raise errors.SOURCE_SCHEDULES
    if not isinstance(asked, list):
        raise errors.invalid_json("json: cannot unmarshal value into Go struct field sources")
    found = [_origin(one, errors.SOURCE_NAME, "source") for one in asked]
    keys = [_key(one) for one in found]
    if len(set(keys)) < len(keys):
        raise errors.SOURCE_TWICE
    return found


def _key(one: dict[str, Any]) -> tuple[object, ...]:
    transforms = tuple((each["src"], each["dest"]) for each in one.get("subject_transforms") or ())
    return one["name"], one.get("filter_subject", ""), transforms


def _origin(asked: Any, bad_name: errors.JsError, word: str) -> dict[str, Any]:
    if not isinstance(asked, dict):
        raise bad_name
    check_keys(asked, _KNOWN)
    name = string(asked, "name")
    if not name or any(one in name for one in ".*> \t\r\n\f/\\"):
        raise bad_name
    if asked.get("external") or asked.get("domain"):
        raise refused(f"a {word} of another domain or account is not supported by this server")
    if asked.get("consumer"):
        raise refused(f"a {word} with a consumer of its own is not supported by this server")
    found: dict[str, Any] = {"name": name}
    if number(asked, "opt_start_seq"):
        found["opt_start_seq"] = asked["opt_start_seq"]
    if asked.get("opt_start_time") is not None:
        try:
            found["opt_start_time"] = time_text(time_ns(string(asked, "opt_start_time")))
        except ValueError as error:
            raise errors.invalid_json(f"parsing time: {error}") from None
    if subject := string(asked, "filter_subject"):
        _levels(subject)
        found["filter_subject"] = subject
    if asked.get("subject_transforms"):
        if subject:
            raise errors.SOURCE_FILTERS
        found["subject_transforms"] = _transforms(asked["subject_transforms"], word)
    return found


def _transforms(asked: Any, word: str) -> list[dict[str, str]]:
    codes = (10145, 10146) if word == "source" else (10151, 10154)
    found = []
    if not isinstance(asked, list) or not all(isinstance(one, dict) for one in asked):
        raise errors.invalid_json("json: cannot unmarshal value into Go struct field subject_transforms")
    for one in asked:
        each = {"src": string(one, "src"), "dest": string(one, "dest")}
        transformed(each, codes[0], f"{word} transform source", codes[1], f"{word} transform")
        found.append(each)
    levels = [_levels(one["src"] or ">") for one in found]
    if any(covers(b, a) for at, a in enumerate(levels) for to, b in enumerate(levels) if at != to):
        raise errors.SOURCE_OVERLAP
    return found


def _levels(subject: str) -> list[bytes]:
    try:
        return filter_levels(filter_of_nats(subject.encode()))
    except InvalidName:
        raise refused("invalid subject") from None


def transformed(given: dict[str, Any], source_code: int, source_text: str, code: int, text: str) -> SubjectTransform:
    """A transform of a configuration, or nats-server's refusal of it."""
    source = string(given, "src")
    try:
        if source:
            filter_of_nats(source.encode())
    except InvalidName:
        raise errors.JsError(400, source_code, f"{source_text}: invalid subject {source}") from None
    try:
        return SubjectTransform(source, string(given, "dest"))
    except InvalidArgument as error:
        raise errors.JsError(400, code, f"{text}: {error.message}") from None
