"""Why a group said no. Protocols translate these words to their own codes."""

from __future__ import annotations

from enum import Enum, auto


class GroupFault(Enum):
    NONE = auto()
    COORDINATOR_NOT_AVAILABLE = auto()
    FENCED_INSTANCE_ID = auto()
    FENCED_MEMBER_EPOCH = auto()
    GROUP_ID_NOT_FOUND = auto()
    GROUP_MAX_SIZE_REACHED = auto()
    GROUP_SUBSCRIBED_TO_TOPIC = auto()
    ILLEGAL_GENERATION = auto()
    INCONSISTENT_GROUP_PROTOCOL = auto()
    INVALID_GROUP_ID = auto()
    INVALID_REGULAR_EXPRESSION = auto()
    INVALID_REQUEST = auto()
    INVALID_SESSION_TIMEOUT = auto()
    MEMBER_ID_REQUIRED = auto()
    NON_EMPTY_GROUP = auto()
    REBALANCE_IN_PROGRESS = auto()
    STALE_MEMBER_EPOCH = auto()
    UNKNOWN_MEMBER_ID = auto()
    UNRELEASED_INSTANCE_ID = auto()
    UNSTABLE_OFFSET_COMMIT = auto()
    UNSUPPORTED_ASSIGNOR = auto()
    TRANSACTION_FENCED = auto()
