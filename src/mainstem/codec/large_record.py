"""One large record as a frame of its own, in three pieces, of which the value stays where it was received:

    front   frame head · batch head · record up to its value      the heads are filled last
    value   tens of megabytes, not copied
    back    number of headers · headers

The bytes are those that a gathered batch of this one record would have (FORMAT.md).
"""

from __future__ import annotations

from mainstem.codec._large_record import Bulk, LargeRecord

LARGE_BYTES = 4 << 20  # from here on a record is written by a thread (`log/large.py`) and sent without a copy

__all__ = ["LARGE_BYTES", "Bulk", "LargeRecord"]
