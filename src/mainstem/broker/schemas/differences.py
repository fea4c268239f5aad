"""Two schemas, line by line, as people compare them."""

from __future__ import annotations

import difflib
import json

LINES_MAX = 2_000


def differences(old: str, new: str) -> list[dict[str, str]]:
    """Lines with a mark: `+`, `-` or a blank."""
    before, after = shown(old), shown(new)
    if len(before) + len(after) > LINES_MAX:
        return [{"mark": " ", "text": f"more than {LINES_MAX} lines: compare them with a tool of your own"}]
    found = difflib.ndiff(before, after)
    return [{"mark": line[0], "text": line[2:]} for line in found if line[0] != "?"]


def shown(text: str) -> list[str]:
    """JSON is laid out; Protobuf is text already."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False).splitlines()
    except (ValueError, RecursionError):
        return text.splitlines()
