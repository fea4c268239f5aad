"""The compiled part of a search: bytes looked for in stored frames and in decoded columns, without the GIL.

- `keep_frames(buffer, size, needles)` moves the whole frames that may hold one of the needles to the buffer's front, and
  returns (their bytes, bytes looked at, whether something stands there that is not a frame). Compressed frames are kept.
- `mark_rows(data, offsets, rows, needle, whole_start, whole_end, marks)` marks the rows of an Arrow binary column in which
  the needle stands; whole at an end means that no byte of a word may touch it there.

ASCII letters fit in either case; needles are in lower case. 10 GB/s and more where a needle is rare.
"""

from mainstem_ask.search._matcher import keep_frames, mark_rows

__all__ = ["keep_frames", "mark_rows"]
