"""What a start finds out about a stream: how many messages it holds and how large they are, and what they ask of the future.

The topic index counts them. Of an object that is damaged or missing the records cannot be read: the stream keeps and counts
its messages, and the log names the offsets and what is not known of them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mainstem.broker.streams.tap import OVERHEAD_BYTES
from mainstem.log.damaged import readable_offset
from mainstem.model.errors import CorruptFrame
from mainstem.model.record import Record

if TYPE_CHECKING:
    from mainstem.broker.streams.stream import Stream

logger = logging.getLogger("mainstem.broker")


def recover(stream: Stream) -> None:
    """After the journal is recovered: count what it does not know."""
    log = stream.log
    stored = log.engine.stat()
    if stored.end_offset > stored.start_offset:
        stream.last_seq = max(stream.last_seq, stored.end_offset)
    stream.first = max(stream.first, log.start_offset)
    log.move_start(stream.first)
    log.low_mark = max(log.low_mark, min(stream.first, log.stable))
    stream.messages = stream.count((), stream.first, stream.written)
    stream.stored_bytes, counted = stream.counted
    last = None
    for record in stream.walk_readable(max(counted, stream.first), stream.written, "and their bytes are not counted"):
        block = record.header(b"ms-nats")
        size = (
            OVERHEAD_BYTES
            + len(stream.plain(record.topic))
            + len(record.value or b"")
            + (4 + len(block) if block else 0)
        )
        stream.stored_bytes += size
        stream.sizes.set(record.offset, size)
        last = record
    if not stream.messages:
        stream.stored_bytes = 0
    stream.first = stream.next_visible(stream.first) if stream.messages else stream.last_seq
    stream.last_stamp = _last_stamp(stream, last, stored.last_stamp)
    _recover_ids(stream)
    if stream.waits.wanted:
        stream.waits.bring_back()
        unknown = "and nobody knows when their messages end or are due"
        for record in stream.walk_readable(max(stream.first, stream.waits.told_end), stream.written, unknown):
            if block := record.header(b"ms-nats"):
                stream.note_headers(record.offset, record.topic, record.stamp, block)
        stream.service.arm(stream)
        stream.expire_single()
    stream.sourcing.recover()
    stream.enforce()


def _last_stamp(stream: Stream, last: Record | None, stored: int) -> int:
    """Of its last message; of one that cannot be read, what the log says of its last frame."""
    if last is None or last.offset + 1 < stream.last_seq:
        try:
            last = stream.read_one(stream.last_seq - 1) or last
        except CorruptFrame as error:
            logger.error("stream %r: its last message cannot be read: %s", stream.name, error)
            return stored
    return last.stamp if last is not None else 0


def _recover_ids(stream: Stream) -> None:
    """Message ids within the duplicate window, as the records have them."""
    window = stream.settings.duplicate_window_ns
    since = stream.service.now_ns() - window
    if window <= 0 or stream.last_stamp < since:
        return
    at = max(stream.first, readable_offset(stream.log, since))
    unknown = "and duplicates of their messages are not recognised"
    for record in stream.walk_readable(at, stream.written, unknown):
        block = record.header(b"ms-nats")
        if block and b"Nats-Msg-Id:" in block:
            message_id = block.partition(b"Nats-Msg-Id:")[2].partition(b"\r\n")[0].strip()
            stream.duplicates[message_id] = (record.stamp, None, record.offset + 1)
            stream.last_id = message_id if record.offset + 1 == stream.last_seq else b""
