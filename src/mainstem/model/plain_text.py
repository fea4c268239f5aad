"""Names that people read in logs, tables and consoles: no control characters, nothing that turns the direction of text.

A client id of `evil\x1b[2Jadmin`, or one with a right-to-left override, shows something else than it is.
"""

from __future__ import annotations

import re

_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def hidden_character(text: str) -> str | None:
    """The first one that must not be there, as it is written in logs: `U+202E`."""
    found = _HIDDEN.search(text)
    return f"U+{ord(found.group()):04X}" if found is not None else None
