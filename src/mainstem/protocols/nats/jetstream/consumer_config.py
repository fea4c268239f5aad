"""A consumer's configuration: read, checked against its stream and completed with nats-server's defaults."""

from __future__ import annotations

import re
from typing import Any

from mainstem.broker.streams.joined import QUEUE, queue_name
from mainstem.model.errors import InvalidName
from mainstem.model.topic import filter_of_nats
from mainstem.model.topic_filter import covers, filter_levels
from mainstem.protocols.nats.jetstream import errors, pedantic
from mainstem.protocols.nats.jetstream.errors import start_policy
from mainstem.protocols.nats.jetstream.waiting import PINNED_NS
from mainstem.protocols.nats.jetstream.words import (
    check_keys,
    flag,
    metadata,
    metadata_size,
    number,
    numbers,
    string,
    texts,
    time_ns,
    time_text,
    unsigned,
)

ACK_WAIT_NS = 30_000_000_000
INACTIVE_NS = 5_000_000_000
MAX_ACK_PENDING, MAX_WAITING = 1000, 512
HEARTBEAT_MIN_NS, EXPIRES_MIN_NS = 100_000_000, 1_000_000
DESCRIPTION_MAX, METADATA_MAX = 4096, 131_072
_GROUP = re.compile(r"[a-zA-Z0-9/_=-]{1,16}")
KNOWN = frozenset(
    [
        "durable_name",
        "name",
        "description",
        "deliver_policy",
        "opt_start_seq",
        "opt_start_time",
        "ack_policy",
        "ack_wait",
        "max_deliver",
        "backoff",
        "filter_subject",
        "filter_subjects",
        "replay_policy",
        "rate_limit_bps",
        "sample_freq",
        "max_waiting",
        "max_ack_pending",
        "flow_control",
        "headers_only",
        "max_batch",
        "max_expires",
        "max_bytes",
        "deliver_subject",
        "deliver_group",
        "idle_heartbeat",
        "inactive_threshold",
        "num_replicas",
        "mem_storage",
        "metadata",
        "pause_until",
        "priority_groups",
        "priority_policy",
        "priority_timeout",
        "direct",
        "sourcing",
    ]
)
_DELIVER = ("all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject")
_REQUIRED = {"by_start_sequence": "opt_start_seq", "by_start_time": "opt_start_time"}
_TEXT = {
    "by_start_sequence": "consumer delivery policy is deliver by start sequence, but optional start sequence is not set",
    "by_start_time": "consumer delivery policy is deliver by start time, but optional start time is not set",
}
_FIXED = (
    "deliver_policy",
    "mem_storage",
    "opt_start_seq",
    "opt_start_time",
    "ack_policy",
    "replay_policy",
    "idle_heartbeat",
    "flow_control",
)
_FIXED_TEXT = {
    "deliver_policy": "deliver policy can not be updated",
    "mem_storage": "storage type can not be updated",
    "opt_start_seq": "start sequence can not be updated",
    "opt_start_time": "start time can not be updated",
    "ack_policy": "ack policy can not be updated",
    "replay_policy": "replay policy can not be updated",
    "idle_heartbeat": "heart beats can not be updated",
    "flow_control": "flow control can not be updated",
}


def complete(given: dict[str, Any], stream: dict[str, Any], *, strict: bool = False) -> dict[str, Any]:
    """As it is kept and answered. `strict`: the request is pedantic."""
    check_keys(given, KNOWN)
    _check_sizes(given)
    limits = stream["consumer_limits"]
    if strict:
        pedantic.check_consumer(given, limits)
    config: dict[str, Any] = {}
    for key in ("durable_name", "name", "description"):
        if string(given, key):
            config[key] = given[key]
    push = bool(string(given, "deliver_subject"))
    _filters(given, config)
    _start(given, config)
    config["ack_policy"] = _one_of(given, "ack_policy", ("none", "all", "explicit"))
    _acks(given, config, limits)
    config["replay_policy"] = _one_of(given, "replay_policy", ("instant", "original"))
    if unsigned(given, "rate_limit_bps"):
        if not push:
            raise errors.PULL_RATE_LIMIT
        config["rate_limit_bps"] = given["rate_limit_bps"]
    if string(given, "sample_freq"):
        sample_share(given["sample_freq"])
        config["sample_freq"] = given["sample_freq"]
    if not push:
        config["max_waiting"] = max(0, number(given, "max_waiting")) or MAX_WAITING
    elif number(given, "max_waiting") > 0:
        raise errors.MAX_WAITING_PUSH
    _rest(given, config, limits)
    if push:
        _check_push(config, stream)
    else:
        _check_pull(config)
    _pause(given, config)
    _priorities(given, config, push=push)
    _check(config, stream)
    return config


def _check_sizes(given: dict[str, Any]) -> None:
    if len(string(given, "description").encode()) > DESCRIPTION_MAX:
        raise errors.CONSUMER_DESCRIPTION
    if metadata_size(given) > METADATA_MAX:
        raise errors.CONSUMER_METADATA
    if number(given, "num_replicas") < 0:
        raise errors.NEGATIVE_REPLICAS
    if number(given, "num_replicas") > 1:
        raise errors.REPLICAS


def _acks(given: dict[str, Any], config: dict[str, Any], limits: dict[str, Any]) -> None:
    """How long an ack may take, how often a message is tried, how many may wait."""
    explicit, backoff = config["ack_policy"] != "none", numbers(given, "backoff")
    if any(wait < 0 for wait in backoff):
        raise errors.BACKOFF_NEGATIVE
    wait = backoff[0] if backoff else number(given, "ack_wait")
    if wait < 0:
        raise errors.ACK_WAIT_NEGATIVE
    if wait or explicit:
        config["ack_wait"] = wait or ACK_WAIT_NS
    most = number(given, "max_deliver")
    config["max_deliver"] = most if most > 0 else -1
    if backoff:
        if 0 < most < len(backoff):
            raise errors.BACKOFF_DELIVER
        config["backoff"] = backoff
    pending = max(-1, number(given, "max_ack_pending")) or limits.get("max_ack_pending", 0)
    if pending or explicit:
        config["max_ack_pending"] = pending or MAX_ACK_PENDING
    if 0 < limits.get("max_ack_pending", 0) < pending:
        raise errors.ack_pending_excess(limits["max_ack_pending"])


def sample_share(text: str) -> float:
    """`30` or `30%`: of how many acks a metric tells."""
    if not text:
        return 0.0
    why = "<nil>"
    try:
        share = int(text.removesuffix("%"))
    except ValueError:
        share, why = -1, f'strconv.Atoi: parsing "{text.removesuffix("%")}": invalid syntax'
    if share < 0:
        raise errors.JsError(400, 10095, f"failed to parse consumer sampling configuration: {why}")
    return min(100, share) / 100


def _pause(given: dict[str, Any], config: dict[str, Any]) -> None:
    if given.get("pause_until") is None:
        return
    try:
        until = time_ns(string(given, "pause_until"))
    except ValueError as error:
        raise errors.invalid_json(f"parsing time: {error}") from None
    if until > 0:
        config["pause_until"] = time_text(until)


def _priorities(given: dict[str, Any], config: dict[str, Any], *, push: bool) -> None:
    policy = _one_of(given, "priority_policy", ("none", "overflow", "pinned_client", "prioritized"))
    groups, timeout = texts(given, "priority_groups"), max(0, number(given, "priority_timeout"))
    if policy == "none":
        if groups:
            raise errors.GROUPS_WITHOUT_POLICY
        if timeout > 0:
            raise errors.PIN_WITHOUT_POLICY
        return
    if push:
        raise errors.PUSH_PRIORITIES
    if not groups:
        raise errors.POLICY_WITHOUT_GROUP
    for group in groups:
        check_group(group)
    config["priority_groups"], config["priority_policy"] = groups, policy
    if policy == "pinned_client":
        config["priority_timeout"] = timeout or PINNED_NS
    elif timeout > 0:
        config["priority_timeout"] = timeout


def check_group(name: str) -> None:
    if not name:
        raise errors.GROUP_EMPTY
    if not _GROUP.fullmatch(name):
        raise errors.GROUP_NAME


def _start(given: dict[str, Any], config: dict[str, Any]) -> None:
    policy = config["deliver_policy"] = _one_of(given, "deliver_policy", _DELIVER)
    if policy in _REQUIRED and not given.get(_REQUIRED[policy]):
        raise start_policy(_TEXT[policy])
    words = f"consumer delivery policy is deliver {policy.replace('_', ' ')}, but optional"
    if unsigned(given, "opt_start_seq"):
        if policy != "by_start_sequence":
            twice = "start " if policy == "by_start_time" else ""  # nats-server's own words
            raise start_policy(f"{words} start {twice}sequence is also set")
        config["opt_start_seq"] = given["opt_start_seq"]
    if given.get("opt_start_time") is not None:
        if policy != "by_start_time":
            raise start_policy(f"{words} start time is also set")
        try:
            config["opt_start_time"] = time_text(time_ns(string(given, "opt_start_time")))
        except ValueError as error:
            raise errors.invalid_json(f"parsing time: {error}") from None
    if policy == "last_per_subject" and not (config.get("filter_subject") or config.get("filter_subjects")):
        raise start_policy(f"{words} filter subject is not set")


def _filters(given: dict[str, Any], config: dict[str, Any]) -> None:
    one, many = string(given, "filter_subject"), texts(given, "filter_subjects")
    if one and many:
        raise errors.FILTERS_TWICE
    if any(not subject for subject in many):
        raise errors.FILTER_EMPTY
    try:
        levels = [filter_levels(filter_of_nats(subject.encode())) for subject in many or ([one] if one else [])]
    except InvalidName:
        raise errors.stream_config("invalid subject") from None
    if any(covers(b, a) for at, a in enumerate(levels) for to, b in enumerate(levels) if at != to):
        raise errors.FILTERS_OVERLAP
    if one:
        config["filter_subject"] = one
    elif len(many) == 1:
        config["filter_subject"] = many[0]
    elif many:
        config["filter_subjects"] = many


def _rest(given: dict[str, Any], config: dict[str, Any], limits: dict[str, Any]) -> None:
    for key in ("flow_control", "headers_only", "mem_storage", "direct", "sourcing"):
        if flag(given, key):
            config[key] = True
    for key in ("max_batch", "max_expires", "max_bytes", "idle_heartbeat"):
        if number(given, key) > 0:
            config[key] = given[key]
    for key in ("deliver_subject", "deliver_group"):
        if string(given, key):
            config[key] = given[key]
    inactive, most = max(0, number(given, "inactive_threshold")), limits.get("inactive_threshold", 0)
    if 0 < most < inactive:
        raise errors.inactive_excess(most)
    inactive = inactive or most or (0 if config.get("durable_name") else INACTIVE_NS)
    if inactive:
        config["inactive_threshold"] = inactive
    config["num_replicas"] = number(given, "num_replicas")
    if own := metadata(given):
        config["metadata"] = own


def _check_push(config: dict[str, Any], stream: dict[str, Any]) -> None:
    subject = config["deliver_subject"]
    if any(token in ("*", ">") for token in subject.split(".")):
        raise errors.DELIVER_WILDCARDS
    try:
        to = filter_levels(filter_of_nats(subject.encode()))
    except InvalidName:
        raise errors.DELIVER_INVALID from None
    if any(covers(filter_levels(filter_of_nats(one.encode())), to) for one in stream.get("subjects") or ()):
        raise errors.DELIVER_CYCLE
    if config.get("max_ack_pending", 0) > 0 and config["ack_policy"] == "none":
        raise errors.MAX_PENDING_ACKS
    if 0 < config.get("idle_heartbeat", 0) < HEARTBEAT_MIN_NS:
        raise errors.SMALL_HEARTBEAT
    if config.get("direct") and config.get("durable_name"):
        raise errors.DIRECT_EPHEMERAL
    if config.get("flow_control") and not config.get("idle_heartbeat"):
        raise errors.FLOW_HEARTBEAT


def _check_pull(config: dict[str, Any]) -> None:
    if config.get("idle_heartbeat"):
        raise errors.HEARTBEAT_PUSH
    if config.get("flow_control"):
        raise errors.FLOW_PUSH
    if 0 < config.get("max_expires", 0) < EXPIRES_MIN_NS:
        raise errors.SMALL_EXPIRES
    if config.get("direct"):
        raise errors.DIRECT_PUSH


def _check(config: dict[str, Any], stream: dict[str, Any]) -> None:
    for key in ("direct", "sourcing"):
        if config.get(key):
            raise errors.consumer_config(f"{key}: mirrors and sources of other servers are not supported by this one")
    if stream["retention"] != "workqueue":
        return
    if config["ack_policy"] == "none" and not config.get("deliver_subject"):
        raise errors.NEEDS_ACK
    if config["ack_policy"] != "explicit":
        raise errors.WORKQUEUE_ACK
    if config["deliver_policy"] != "all":
        raise errors.WORKQUEUE_DELIVER_ALL


def _one_of(given: dict[str, Any], key: str, known: tuple[str, ...]) -> str:
    value = string(given, key) or known[0]
    if value not in known:
        raise errors.invalid_json(f'json: cannot unmarshal "{value}"')
    return value


def check_update(old: dict[str, Any], new: dict[str, Any]) -> None:
    if queue_name(old) != queue_name(new):
        raise errors.consumer_config(f"metadata {QUEUE} can not be updated")
    for key in _FIXED:
        if old.get(key) != new.get(key):
            raise errors.consumer_config(_FIXED_TEXT[key])
    if bool(old.get("deliver_subject")) != bool(new.get("deliver_subject")):
        push = bool(new.get("deliver_subject"))
        raise errors.consumer_config(
            "can not update pull consumer to push based" if push else "can not update push consumer to pull based"
        )
    if old.get("max_waiting") != new.get("max_waiting"):
        raise errors.consumer_config("max waiting can not be updated")
