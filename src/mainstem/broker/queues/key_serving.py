"""Handing out records in the order of their keys: while a consumer holds some of a key, no other gets any of it.

What may not be handed out now is set aside in the cursor (cursor/key_order.py), a limited number of positions, and the
next records are looked at: a consumer that is busy with one key does not hold up the others.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING

from mainstem.broker.delivery.live import RecordRef
from mainstem.broker.queues.queue_sink import Backlog, QueueSink, Taker
from mainstem.storage.engine import NotLocal

if TYPE_CHECKING:
    from mainstem.broker.queues.levels import Level
    from mainstem.broker.queues.queue import Queue

RELEASED_AT_ONCE = 64


def serve_by_key(queue: Queue, level: Level) -> int:
    """Hand out or set aside some records; 0 when nothing moved."""
    cursor = level.cursor
    assert cursor.order is not None
    waiting = cursor.waiting
    for taker in _willing(queue.sink):
        cursor.wake_for(_holder(taker), min(taker.credit, RELEASED_AT_ONCE))
    if not cursor.released:
        cursor.wake_free()
    moved = _serve_released(queue, level) if cursor.released else 0
    if not moved and not cursor.released and not cursor.order.full and (len(level.backlog) or level.read_on()):
        moved = _serve_unread(queue, level)
    return moved + max(0, cursor.waiting - waiting)


def _serve_released(queue: Queue, level: Level) -> int:
    """How many left the queue or were handed out."""
    cursor, moved = level.cursor, 0
    positions = cursor.lease_released(RELEASED_AT_ONCE)
    left = set(positions)
    records = Backlog(queue.sink)
    try:
        level.plan_positions(records, positions)
    except NotLocal as missing:
        cursor.release(set(positions), 0, counted=False)
        level.bring(missing)
        return 0
    while queue.sink.wanted and cursor.room > 0 and (record := records.first()) is not None:
        position, attempts = record.stamp, cursor.attempts(record.stamp)
        if queue.limits.expiring and queue.limits.expired(record):
            queue.limits.left_again(position, record.value_size)
            queue.dead_letter(level, [position], "expired")
            moved += 1
        elif (taker := _give(queue, level, record, attempts)) is not None:
            moved += 1
            if taker.no_ack:
                cursor.ack_many([position])
            else:
                _hold(level, record, taker)
        elif (key := _blocked_key(level, record)) is not None:
            cursor.set_aside_released(position, key)
        else:
            break
        left.discard(position)
        records.skip()
    if len(records):  # nobody has credit or room any more
        cursor.release(left, 0, counted=False)
    elif left:
        cursor.ack_many(left)  # retention or erasing took them
        moved += len(left)
    return moved


def _serve_unread(queue: Queue, level: Level) -> int:
    cursor, moved = level.cursor, 0
    assert cursor.order is not None
    while queue.sink.wanted and cursor.room > 0 and not cursor.order.full:
        record = level.backlog.first()
        if record is None:
            break
        position = record.stamp
        if queue.limits.expiring and queue.limits.expired(record):
            queue.limits.drop_first(level, record, "expired")
            moved += 1
            continue
        if (taker := _give(queue, level, record, 0)) is not None:
            moved += 1
            if taker.no_ack:
                cursor.pass_over(position + 1, 1)
            else:
                cursor.lease_many([position])
                _hold(level, record, taker)
        elif (key := _blocked_key(level, record)) is not None:
            cursor.set_aside_unread(position, key)
        else:
            break
        level.backlog.skip()
    queue.queues.service.note_read_ahead(level)
    return moved


def _blocked_key(level: Level, record: RecordRef) -> int | None:
    """The key that keeps the record back; None if it is only that nobody has room."""
    order, key = level.cursor.order, _key(record)
    if order is None or key is None:
        return None
    return key if order.holder(key) is not None or order.must_wait(key, record.stamp) else None


def _give(queue: Queue, level: Level, record: RecordRef, attempts: int) -> Taker | None:
    """Give the record to whoever may have it; None: nobody now."""
    order, key = level.cursor.order, _key(record)
    assert order is not None
    holder = None
    if key is not None:
        if order.must_wait(key, record.stamp):
            return None
        holder = order.holder(key)
    for taker in _willing(queue.sink, turning=True):
        if (holder is None or _holder(taker) is holder) and queue.sink.give(taker, record, attempts > 0, attempts):
            queue.sink.forget_events()
            queue.limits.left_again(record.stamp, record.value_size)
            queue.totals.redelivered += attempts > 0
            if taker.no_ack:
                queue.totals.delivered_no_ack += 1
            else:
                queue.totals.delivered += 1
            return taker
    return None


def _willing(sink: QueueSink, *, turning: bool = False) -> Iterator[Taker]:
    """Those with credit, whose turn it is first; higher priorities before."""
    for number, group in enumerate(list(sink.groups)):
        turn = sink.turns[number]
        if turning:
            sink.turns[number] = (turn + 1) % len(group)
        for step in range(len(group)):
            taker = group[(turn + step) % len(group)]
            if taker.credit > 0:
                yield taker


def _hold(level: Level, record: RecordRef, taker: Taker) -> None:
    key = _key(record)
    if key is not None:
        level.cursor.hold_key(record.stamp, key, _holder(taker))


def _holder(taker: Taker) -> Hashable:
    holder: Hashable = getattr(taker, "holder", taker)
    return holder


def _key(record: RecordRef) -> int | None:
    """None: a record without a key, which goes to anybody."""
    return None if record.key is None else hash(record.key)
