"""A search's events for people and for programs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, TextIO

BAR_CHARACTERS = 50
BARS_MAX = 500  # empty ones between two full ones are shown up to so many in all


class Printer:
    def __init__(self, out: TextIO, notes: TextIO, *, as_json: bool) -> None:
        self._out, self._notes, self._as_json = out, notes, as_json

    def tell(self, event: dict[str, Any]) -> None:
        if self._as_json:
            if "progress" not in event:
                self._line(json.dumps(event.get("hit") or event, ensure_ascii=False))
        elif "hit" in event:
            hit = event["hit"]
            value = "null" if hit["value"] is None else hit["value"].replace("\n", "\\n")
            self._line(f"{_when(hit['time_ms'])}  {hit['topic']}  {value}")
        elif "notices" in event:
            for notice in event["notices"]:
                self._notes.write(f"note: {notice}\n")
        elif "buckets" in event:
            self._bars(event["buckets"], event["bucket_ms"])
        elif "top" in event:
            for value, count in event["top"]:
                self._line(f"{count:>10}  {value}")
            if not event["exact"]:
                self._line("(about: there are more distinct values than are counted)")

    def _bars(self, buckets: list[tuple[int, int]], width_ms: int) -> None:
        if not buckets:
            self._line("nothing found")
            return
        known = dict(buckets)
        first, last, most = min(known), max(known), max(known.values())
        every = range(first, last + 1, width_ms)
        for start in every if len(every) <= BARS_MAX else sorted(known):
            count = known.get(start, 0)
            bar = "#" * max(round(count * BAR_CHARACTERS / most), 1 if count else 0)
            self._line(f"{_when(start)}  {count:>10}  {bar}".rstrip())

    def _line(self, text: str) -> None:
        self._out.write(text + "\n")
        self._out.flush()


def _when(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
