"""Parts of a log that lie in an object store and are lost there: a start passes over them and names them.

Everything else of the log is served. Damage on the local disk is another matter: there the start stops (MS-5002), as the
records that follow it may be lost as well.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mainstem.model.errors import CorruptFrame
from mainstem.storage.engine import Slice
from mainstem.storage.tier.remote import RemoteReads

if TYPE_CHECKING:
    from mainstem.log.log import Log

logger = logging.getLogger("mainstem.log")


def remote_end(log: Log, offset: int) -> int | None:
    """Where the stretch of the object ends that a read from an offset on meets first; None where that is local."""
    engine = log.engine
    return engine.remote_end(offset) if isinstance(engine, RemoteReads) else None


def pass_over(log: Log, offset: int, error: CorruptFrame, unknown: str) -> int:
    """The end of the part that could not be read, which the log names with what is `unknown` now; raises what is not of an
    object."""
    end = remote_end(log, offset)
    if end is None:
        raise error
    logger.error("log %d: offsets %d to %d are passed over, %s: %s", log.id, offset, end, unknown, error)
    return end


def readable_pieces(log: Log, offset: int, bytes_max: int, unknown: str) -> Iterator[Slice | None]:
    """What a start reads of a log, from an offset on; None for a part that is passed over."""
    while True:
        try:
            piece = log.read_in_thread(offset, bytes_max)
        except CorruptFrame as error:
            offset = pass_over(log, offset, error, unknown)
            yield None
            continue
        if piece is None:
            return
        yield piece
        offset = piece.end_offset


def readable_offset(log: Log, stamp: int) -> int:
    """As `Log.offset_of_stamp`; where the part that holds the stamp cannot be read, its beginning."""
    try:
        return log.offset_of_stamp(stamp)
    except CorruptFrame:
        parts = [part for part in log.engine.stat().parts if part.first_stamp <= stamp]
        if not parts or remote_end(log, parts[-1].base_offset) is None:
            raise
        return parts[-1].base_offset
