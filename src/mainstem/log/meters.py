"""What the logs of a broker count: once per write, never per record. The metrics page reads it."""

from __future__ import annotations

from mainstem.model.histogram import times_histogram


class Meters:
    """One for all logs, so that a removed log takes no count with it."""

    __slots__ = ("append_ns", "overflowed", "records", "refused")

    def __init__(self) -> None:
        self.append_ns = times_histogram()  # sealing a tick's batches of one log and writing them to its engine
        self.records = 0  # written
        self.refused = 0  # not written: no space
        self.overflowed = 0  # gone to make room in a memory log
