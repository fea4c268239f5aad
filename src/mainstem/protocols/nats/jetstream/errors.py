"""What JetStream refuses, in nats-server's numbers and words."""

from __future__ import annotations

from typing import Any

from mainstem.model.errors import QuotaExceeded
from mainstem.model.times import duration_text


class JsError(Exception):
    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(description)
        self.code, self.err_code, self.description = code, err_code, description

    def to_document(self) -> dict[str, Any]:
        return {"code": self.code, "err_code": self.err_code, "description": self.description}


class NotAllowed(Exception):
    """The user has not the right: nats-server's -ERR, and no answer."""


def bad_request(description: str = "bad request") -> JsError:
    return JsError(400, 10003, description)


def invalid_json(why: str) -> JsError:
    return JsError(400, 10025, f"invalid JSON: {why}")


def stream_config(description: str) -> JsError:
    return JsError(500, 10052, description)


def consumer_config(description: str) -> JsError:
    return JsError(500, 10012, description)


def stream_not_found() -> JsError:
    return JsError(404, 10059, "stream not found")


def consumer_not_found() -> JsError:
    return JsError(404, 10014, "consumer not found")


def no_message() -> JsError:
    return JsError(404, 10037, "no message found")


def insufficient(description: str = "insufficient resources") -> JsError:
    return JsError(503, 10023, description)


def not_stored(error: Exception) -> JsError:
    """What keeps a message from being stored, as JetStream says it."""
    if isinstance(error, QuotaExceeded):
        return JsError(400, 10002, "resource limits exceeded for account")
    return insufficient(str(error))


def wrong_last_sequence(seq: int) -> JsError:
    return JsError(400, 10071, f"wrong last sequence: {seq}")


NAME_TAKEN = JsError(400, 10058, "stream name already in use with a different configuration")
NAME_MISMATCH = JsError(400, 10056, "stream name in subject does not match request")
NAME_PATH = JsError(400, 10128, "Stream name can not contain path separators")
OVERLAP = JsError(400, 10065, "subjects overlap with an existing stream")
NOT_EMPTY = JsError(400, 10038, "expected an empty request payload")
REPLICAS = JsError(500, 10074, "replicas > 1 not supported in non-clustered mode")
NEGATIVE_REPLICAS = JsError(400, 10133, "replicas count cannot be negative")
NO_STORAGE = JsError(500, 10047, "insufficient storage resources available")
NO_MEMORY = JsError(500, 10028, "insufficient memory resources available")
SEALED = JsError(400, 10109, "invalid operation on sealed stream")
PURGE_DENIED = JsError(500, 10110, "stream purge not permitted")
DELETE_DENIED = JsError(500, 10057, "message delete not permitted")
EXPECTED_STREAM = JsError(400, 10060, "expected stream does not match")
ROLLUP_DENIED = JsError(500, 10111, "rollup not permitted")
ROLLUP_INVALID = JsError(500, 10111, "rollup value invalid: {value}")
TTL_DISABLED = JsError(400, 10166, "per-message TTL is disabled")
TTL_INVALID = JsError(400, 10165, "invalid per-message TTL")
TOO_LARGE = JsError(400, 10054, "message size exceeds maximum allowed")
HEADER_TOO_LARGE = JsError(400, 10097, "header size exceeds maximum allowed of 64k")
MAX_MSGS = JsError(503, 10077, "maximum messages exceeded")
MAX_BYTES = JsError(503, 10077, "maximum bytes exceeded")
MAX_PER_SUBJECT = JsError(503, 10077, "maximum messages per subject exceeded")
MAX_CONSUMERS = JsError(400, 10026, "maximum consumers limit reached")
CONSUMER_NAME_TAKEN = JsError(400, 10013, "consumer name already in use")
CONSUMER_EXISTS = JsError(400, 10148, "consumer already exists")
CONSUMER_MISSING = JsError(400, 10149, "consumer does not exist")
DURABLE_MISMATCH = JsError(400, 10017, "consumer name in subject does not match durable name in request")
FILTERS_IN_SUBJECT = JsError(400, 10137, "consumer with multiple subject filters cannot use subject based API")
STREAM_MISMATCH = JsError(400, 10056, "stream name in subject does not match request")
FILTER_MISMATCH = JsError(400, 10131, "consumer create request did not match filtered subject from create subject")
DURABLE_MISSING = JsError(400, 10018, "consumer expected to be durable but a durable name was not set")
EPHEMERAL_WITH_DURABLE = JsError(
    400, 10019, "consumer expected to be ephemeral but detected a durable name set in subject"
)
DELIVER_WILDCARDS = JsError(400, 10079, "consumer deliver subject has wildcards")
DELIVER_INVALID = JsError(400, 10112, "invalid push consumer deliver subject")
DELIVER_CYCLE = JsError(400, 10081, "consumer deliver subject forms a cycle")
NEEDS_ACK = JsError(400, 10084, "consumer in pull mode requires explicit ack policy on workqueue stream")
SMALL_HEARTBEAT = JsError(400, 10083, "consumer idle heartbeat needs to be >= 100ms")
HEARTBEAT_PUSH = JsError(400, 10088, "consumer idle heartbeat requires a push based consumer")
FLOW_PUSH = JsError(400, 10089, "consumer flow control requires a push based consumer")
FLOW_HEARTBEAT = JsError(400, 10108, "consumer with flow control also needs heartbeats")
MAX_PENDING_ACKS = JsError(400, 10082, "consumer requires ack policy for max ack pending")
SMALL_EXPIRES = JsError(400, 10115, "consumer max request expires needs to be >= 1ms")
DIRECT_PUSH = JsError(400, 10090, "consumer direct requires a push based consumer")
DIRECT_EPHEMERAL = JsError(400, 10091, "consumer direct requires an ephemeral consumer")
CONSUMER_NAME_LONG = JsError(400, 10102, "consumer name is too long, maximum allowed is 255")
CONSUMER_DESCRIPTION = JsError(400, 10107, "consumer description is too long, maximum allowed is 4096")
CONSUMER_METADATA = JsError(400, 10135, "consumer metadata exceeds maximum size of 128KB")
ACK_WAIT_NEGATIVE = JsError(400, 10183, "consumer ack wait needs to be positive")
BACKOFF_NEGATIVE = JsError(400, 10184, "consumer backoff needs to be positive")
MAX_WAITING_PUSH = JsError(400, 10080, "consumer in push mode can not set max waiting")
WORKQUEUE_ACK = JsError(400, 10098, "workqueue stream requires explicit ack")
WORKQUEUE_FILTERED = JsError(400, 10099, "multiple non-filtered consumers not allowed on workqueue stream")
WORKQUEUE_UNIQUE = JsError(400, 10100, "filtered consumer not unique on workqueue stream")
WORKQUEUE_DELIVER_ALL = JsError(400, 10101, "consumer must be deliver all on workqueue stream")
BACKOFF_DELIVER = JsError(400, 10116, "max deliver is required to be > length of backoff values")
FILTERS_TWICE = JsError(400, 10136, "consumer cannot have both FilterSubject and FilterSubjects specified")
FILTERS_OVERLAP = JsError(400, 10138, "consumer subject filters cannot overlap")
FILTER_EMPTY = JsError(400, 10139, "consumer filter in FilterSubjects cannot be empty")
EXPECTED_SUBJECT = JsError(400, 10193, "missing sequence for expected last sequence per subject")
SOURCE_HEADER = JsError(400, 10227, "message stream source header is not allowed")
COUNTERS_DISABLED = JsError(400, 10168, "message counters is disabled")
INCREMENT_MISSING = JsError(400, 10169, "message counter increment is missing")
INCREMENT_PAYLOAD = JsError(400, 10170, "message counter has payload")
INCREMENT_INVALID = JsError(400, 10171, "message counter increment is invalid")
COUNTER_BROKEN = JsError(400, 10172, "message counter is broken")
BATCH_DISABLED = JsError(400, 10174, "atomic publish is disabled")
BATCH_SEQUENCE = JsError(400, 10175, "atomic publish sequence is missing")
BATCH_INCOMPLETE = JsError(400, 10176, "atomic publish batch is incomplete")
BATCH_ID = JsError(400, 10179, "atomic publish batch ID is invalid")
BATCH_COMMIT = JsError(400, 10200, "atomic publish batch commit is invalid")
BATCH_DUPLICATE = JsError(400, 10201, "atomic publish batch contains duplicate message id")
BATCHES_OPEN = JsError(429, 10210, "atomic publish too many inflight")
FAST_DISABLED = JsError(400, 10205, "batch publish is disabled")
FAST_PATTERN = JsError(400, 10206, "batch publish pattern is invalid")
FAST_ID = JsError(400, 10207, "batch publish ID is invalid")
FAST_UNKNOWN = JsError(400, 10208, "batch publish ID unknown")
FAST_OPEN = JsError(429, 10211, "batch publish too many inflight")
SCHEDULES_DISABLED = JsError(400, 10188, "message schedules is disabled")
SCHEDULE_PATTERN = JsError(400, 10189, "message schedules pattern is invalid")
SCHEDULE_TARGET = JsError(400, 10190, "message schedules target is invalid")
SCHEDULE_TTL = JsError(400, 10191, "message schedules invalid per-message TTL")
SCHEDULE_ROLLUP = JsError(400, 10192, "message schedules invalid rollup")
SCHEDULE_SOURCE = JsError(400, 10203, "message schedules source is invalid")
SCHEDULER = JsError(400, 10212, "message schedules invalid scheduler")
SCHEDULE_ZONE = JsError(400, 10223, "message schedules time zone is invalid")
MIRROR_FIRST_SEQ = JsError(400, 10143, "stream mirrors can not have first sequence configured")
MIRROR_SUBJECTS = JsError(400, 10034, "stream mirrors can not contain subjects")
MIRROR_SOURCES = JsError(400, 10031, "stream mirrors can not also contain other sources")
MIRROR_START = JsError(400, 10032, "stream mirrors can not have both start seq and start time configured")
MIRROR_COUNTERS = JsError(400, 10173, "stream mirrors can not also calculate counters")
MIRROR_ATOMIC = JsError(400, 10198, "stream mirrors can not also use atomic publishing")
MIRROR_BATCHED = JsError(400, 10209, "stream mirrors can not also use batch publishing")
MIRROR_SCHEDULES = JsError(400, 10186, "stream mirrors can not also schedule messages")
MIRROR_NAME = JsError(400, 10142, "mirrored stream name is invalid")
MIRROR_FILTERS = JsError(400, 10150, "mirror with multiple subject transforms cannot also have a single subject filter")
MIRROR_FIXED = JsError(400, 10055, "stream mirror configuration can not be updated")
SOURCE_SCHEDULES = JsError(400, 10187, "stream source can not also schedule messages")
SOURCE_NAME = JsError(400, 10141, "sourced stream name is invalid")
SOURCE_TWICE = JsError(400, 10140, "duplicate source configuration detected")
SOURCE_FILTERS = JsError(400, 10144, "source with multiple subject transforms cannot also have a single subject filter")
SOURCE_OVERLAP = JsError(400, 10147, "source filters can not overlap")
PULL_RATE_LIMIT = JsError(400, 10086, "consumer in pull mode can not have rate limit set")
POLICY_WITHOUT_GROUP = JsError(400, 10159, "Setting PriorityPolicy requires at least one PriorityGroup to be set")
GROUP_UNKNOWN = JsError(400, 10160, "Provided priority group does not exist for this consumer")
GROUP_EMPTY = JsError(400, 10161, "Group name cannot be an empty string")
GROUP_NAME = JsError(
    400, 10162, "Valid priority group name must match A-Z, a-z, 0-9, -_/=)+ and may not exceed 16 characters"
)
PUSH_PRIORITIES = JsError(400, 10178, "priority groups can not be used with push consumers")
GROUPS_WITHOUT_POLICY = JsError(400, 10196, "consumer can not have priority groups when policy is none")
PIN_WITHOUT_POLICY = JsError(400, 10197, "PinnedTTL cannot be set when PriorityPolicy is none")
CLUSTER_REQUIRED = JsError(503, 10010, "JetStream clustering support required")
NO_SNAPSHOTS = JsError(500, 10064, "snapshot failed: this broker keeps backups of its own (mainstem backup)")
NO_RESTORE = JsError(500, 10062, "restore failed: this broker keeps backups of its own (mainstem restore)")
API_LEVEL = JsError(412, 10185, "JetStream minimum api level required")


def invalid_record(description: str) -> JsError:
    """Ours: nats-server knows no schemas."""
    return JsError(400, 10077, description)


SET_ASIDE = invalid_record("the message does not match its topic's schema and is set aside in the dead-letter topic")


def start_policy(description: str) -> JsError:
    return JsError(400, 10094, description)


def ack_pending_excess(most: int) -> JsError:
    return JsError(400, 10121, f"consumer max ack pending exceeds system limit of {most}")


def inactive_excess(most_ns: int) -> JsError:
    return JsError(400, 10153, f"consumer inactive threshold exceeds system limit of {duration_text(most_ns)}")


def limits_violated(names: list[str]) -> JsError:
    return JsError(500, 10069, f"change to limits violates consumers: {', '.join(names)}")


def invalid_reset(why: str) -> JsError:
    return JsError(400, 10204, f"invalid reset: {why}")


def batch_too_large(most: int) -> JsError:
    return JsError(400, 10199, f"atomic publish batch is too large: {most}")


def batch_header(name: str) -> JsError:
    return JsError(400, 10177, f"atomic publish unsupported header used: {name}")
