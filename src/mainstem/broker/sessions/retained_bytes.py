"""How many bytes a namespace's retained messages have: kept only where a quota asks for it (`retained_bytes_max`).

A size is the payload's and the topic's. It is known from the publish on; of messages that were there before (the quota is
new, or the broker has just started) it is read from the log, beside the loop. Eight bytes for each topic's number.
"""

from __future__ import annotations

from array import array


class RetainedBytes:
    def __init__(self) -> None:
        self._sizes = array("Q")  # by the topic's number; 0: not known, or nothing is retained
        self.total = 0

    def put(self, number: int, size: int) -> None:
        """0: not known, or gone."""
        if number >= len(self._sizes):
            self._sizes.extend([0] * (number + 1 - len(self._sizes) + len(self._sizes) // 4))
        self.total += size - self._sizes[number]
        self._sizes[number] = size

    def knows(self, number: int) -> bool:
        return number < len(self._sizes) and self._sizes[number] > 0
