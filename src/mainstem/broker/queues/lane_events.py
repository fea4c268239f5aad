"""What the compiled and the plain lane tell of what they did."""

from __future__ import annotations

from array import array
from typing import NamedTuple


class Events(NamedTuple):
    """What a lane did. Entered: new to the queue. Leased, passed: handed to takers that ack, or that do not."""

    entered: int
    entered_bytes: int
    entered_last: int
    leased: array[int]
    passed: int
    handed_bytes: int
    handed_last: int
