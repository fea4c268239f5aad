"""MQTT's reason codes, and the one table from our errors to them."""

from __future__ import annotations

from enum import IntEnum

from mainstem.model.errors import (
    AlreadyExists,
    ClientFault,
    InvalidArgument,
    InvalidName,
    InvalidRecord,
    MainstemError,
    MessageTooLarge,
    NotAuthorized,
    NotFound,
    NotStored,
    Overloaded,
    PeerViolation,
)


class Reason(IntEnum):
    SUCCESS = 0x00
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC = 0x83
    UNSUPPORTED_VERSION = 0x84
    CLIENT_ID_INVALID = 0x85
    BAD_CREDENTIALS = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_ID_IN_USE = 0x91
    PACKET_ID_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    SHARED_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    SUBSCRIPTION_ID_NOT_SUPPORTED = 0xA1
    WILDCARD_NOT_SUPPORTED = 0xA2


# MQTT 3.1 and 3.1.1 know six CONNACK return codes.
RETURN_CODES = {
    Reason.SUCCESS: 0,
    Reason.UNSUPPORTED_VERSION: 1,
    Reason.CLIENT_ID_INVALID: 2,
    Reason.SERVER_UNAVAILABLE: 3,
    Reason.SERVER_BUSY: 3,
    Reason.BAD_CREDENTIALS: 4,
    Reason.BAD_AUTHENTICATION_METHOD: 4,
    Reason.NOT_AUTHORIZED: 5,
    Reason.TOPIC_NAME_INVALID: 5,  # its will's: trying again does not help, which 3 would say
}


class Violation(PeerViolation):
    """The bytes or their order break MQTT: DISCONNECT with the reason (5.0), then close."""

    told_in = 0  # of a CONNECT: the version in whose words CONNACK tells the reason

    def __init__(self, reason: int, message: str) -> None:
        super().__init__(message)
        self.reason = Reason(reason)


class UnsupportedVersion(Violation):
    """Answered in the words of the version nearest to the one asked for."""

    def __init__(self, name: bytes, level: int) -> None:
        super().__init__(Reason.UNSUPPORTED_VERSION, f"{name[:16]!r} level {level} is not MQTT 3.1, 3.1.1 or 5.0")
        self.told_in = 5 if level >= 5 else 4


class BadConnect(Violation):
    """A CONNECT whose version is known: 5.0 is told the reason in CONNACK."""

    def __init__(self, version: int, violation: Violation) -> None:
        super().__init__(violation.reason, violation.message)
        self.told_in = 5 if version == 5 else 0


_REASONS: tuple[tuple[type[MainstemError], Reason], ...] = (
    (NotAuthorized, Reason.NOT_AUTHORIZED),
    (InvalidName, Reason.TOPIC_NAME_INVALID),
    (MessageTooLarge, Reason.PACKET_TOO_LARGE),
    (InvalidRecord, Reason.PAYLOAD_FORMAT_INVALID),
    (InvalidArgument, Reason.IMPLEMENTATION_SPECIFIC),
    (NotStored, Reason.IMPLEMENTATION_SPECIFIC),
    (AlreadyExists, Reason.IMPLEMENTATION_SPECIFIC),
    (NotFound, Reason.IMPLEMENTATION_SPECIFIC),
    (ClientFault, Reason.UNSPECIFIED),
    (Overloaded, Reason.QUOTA_EXCEEDED),
)


def reason_of(error: MainstemError) -> Reason:
    if isinstance(error, Violation):
        return error.reason
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return reason
    return Reason.UNSPECIFIED


REFUSALS = {
    Reason.NOT_AUTHORIZED: "this user may not publish to this topic",
    Reason.TOPIC_NAME_INVALID: "nobody publishes to such a name: too long, too many levels, or its first is reserved",
    Reason.QUOTA_EXCEEDED: "a limit is reached: the topic's message size, user properties, a quota or the disk",
    Reason.PAYLOAD_FORMAT_INVALID: "the payload is not the UTF-8 that it claims to be, or does not match the topic's schema",
    Reason.IMPLEMENTATION_SPECIFIC: "a user property of the broker's own (ms-...) has a value that it does not take, or"
    " the topic is live only (store = false): it takes QoS 0 without retain",
}


def refusal_words(reason: int) -> str:
    """Why a publish was refused; the hot path knows no more than the reason."""
    return REFUSALS.get(Reason(reason), f"refused: {Reason(reason).name.lower().replace('_', ' ')}")
