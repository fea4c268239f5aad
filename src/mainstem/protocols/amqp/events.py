"""What the wire cannot settle by itself and hands up."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mainstem.codec.large_record import LargeRecord
    from mainstem.protocols.amqp._wire import Target


METHODS_FROM = 16


class MethodEvent(NamedTuple):
    """A method, its fields still encoded; below METHODS_FROM `number` is the type of a content frame on a channel that
    is not open."""

    channel: int
    number: int
    payload: bytes


class PublishEvent(NamedTuple):
    """A whole publish that needs a look: mandatory, in a transaction, or with properties that change where it goes."""

    channel: int
    target: Target
    mandatory: bool
    immediate: bool
    properties: bytes
    body: bytes
    persistent: bool
    time_ms: int


class LargePublishEvent(NamedTuple):
    """A publish whose record is written by a thread; whether it may be published is decided."""

    channel: int
    record: LargeRecord
    topic: bytes


Event = MethodEvent | PublishEvent | LargePublishEvent
