"""A record: what one publish is, whoever wrote it and whoever reads it."""

from __future__ import annotations

from dataclasses import dataclass, field

from mainstem.model.origin import Origin

Header = tuple[bytes, bytes | None]


@dataclass(slots=True)
class Record:
    """One record as stored. Headers keep order and duplicates; key and value may be null.

    `stamp` is its position in everything the broker ever wrote (see ARCHITECTURE.md), `offset` its position in its log.
    `topic` is the canonical spelling, derived from the frame's topic id, the key or `ms-topic`; it is not stored twice.
    """

    value: bytes | None
    key: bytes | None = None
    headers: list[Header] = field(default_factory=list)
    time_ms: int = 0
    flags: int = 0
    offset: int = -1
    stamp: int = -1
    origin: Origin = Origin.BROKER
    topic: bytes = b""

    def header(self, name: bytes) -> bytes | None:
        """The value of the first header of that name, or None."""
        for key, value in self.headers:
            if key == name:
                return value
        return None
