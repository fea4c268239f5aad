"""One setting: what it may be, what it does, whether it takes effect at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mainstem.server.kinds import Kind

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000


@dataclass(frozen=True, slots=True)
class Setting:
    kind: Kind
    doc: str
    live: bool


def setting(default: Any, kind: Kind, doc: str, *, live: bool = False) -> Any:
    return field(default=default, metadata={"setting": Setting(kind, doc, live)})
