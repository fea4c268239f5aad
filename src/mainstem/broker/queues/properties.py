"""What a queue must know of a record whoever wrote it: when it expires, and its priority."""

from __future__ import annotations

from mainstem.model.amqp_content import Content
from mainstem.model.crossing import canonical
from mainstem.model.origin import Origin
from mainstem.model.record import Record
from mainstem.model.whole_numbers import MS_DIGITS_MAX, whole_number

US_PER_MS = 1_000


def expires_at_ms(record: Record, entered_ms: int) -> int | None:
    """Wall time at which the record itself asks to expire; None: never."""
    if record.origin == Origin.AMQP:
        properties, asked = record.header(b"ms-amqp"), record.header(b"ms-expires-at")
        expiration = Content.parse(properties).text("expiration") if properties else None
        dues = [int(asked)] if asked is not None else []
        lasts_ms = whole_number(expiration or "", MS_DIGITS_MAX)
        if lasts_ms is not None:
            dues.append(entered_ms + lasts_ms)
        return min(dues, default=None)
    expires_at_us = canonical(record).expires_at_us
    return None if expires_at_us is None else expires_at_us // US_PER_MS


def priority_of(record: Record) -> int | None:
    if record.origin == Origin.AMQP:
        properties = record.header(b"ms-amqp")
        return Content.parse(properties).number("priority") if properties else None
    return canonical(record).priority
