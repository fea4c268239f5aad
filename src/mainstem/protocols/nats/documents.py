"""JSON that a client sent: whatever it is, it is a value or a ValueError."""

from __future__ import annotations

import json
from typing import Any


def parse(text: bytes) -> Any:
    """Halves of surrogate pairs, which no UTF-8 has, become U+FFFD, as in Go."""
    try:
        found = json.loads(text)
        return _whole(found) if b"\\ud" in text.lower() else found
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_whole(one) for one in value]
    if isinstance(value, dict):
        return {_whole(key): _whole(one) for key, one in value.items()}
    return value
