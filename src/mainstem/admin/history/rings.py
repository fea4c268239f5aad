"""Points of many series at two resolutions, in memory that does not grow.

A point belongs to a slot, its time divided by the step; a slot has its place in a ring. Ten-second points are kept for six
hours, and as they pass their five-minute means (of what is a worst case, the worst) are kept for eight days:

    fine    10 s    2,160 slots     6 hours
    coarse  300 s   2,304 slots     8 days

A series is two arrays of floats, 18 KB; there are at most SERIES_MAX, and the one that has been silent longest leaves.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping

from mainstem.admin.answers.system import HistorySeries

FINE_S, FINE_SLOTS = 10, 2_160
COARSE_S, COARSE_SLOTS = 300, 2_304
SERIES_MAX = 600
WORST = ("_p99", "_max")  # names that end so are worst cases
_NOTHING = math.nan


class Ring:
    """One resolution: which slot each place holds, and the values of each series there."""

    def __init__(self, step_s: int, slots: int) -> None:
        self.step_s, self.slots = step_s, slots
        self._held = array("q", [-1]) * slots
        self.series: dict[str, array[float]] = {}

    def put(self, time_s: float, values: Mapping[str, float]) -> None:
        """Once for a slot; what is older than the ring is left out."""
        slot = int(time_s // self.step_s)
        place = slot % self.slots
        if self._held[place] > slot:
            return
        if self._held[place] < slot:
            self._held[place] = slot
            for one in self.series.values():
                one[place] = _NOTHING
        for name, value in values.items():
            found = self.series.get(name)
            if found is None:
                found = self.series[name] = array("f", [_NOTHING]) * self.slots
            found[place] = value

    def times(self, since_s: float, until_s: float) -> list[int]:
        """The slots that are held, oldest first."""
        first, last = int(since_s // self.step_s), int(until_s // self.step_s)
        first = max(first, last - self.slots + 1)
        return [slot for slot in range(first, last + 1) if self._held[slot % self.slots] == slot]

    def values(self, name: str, slots: list[int]) -> list[float | None]:
        held = self.series.get(name)
        if held is None:
            return [None] * len(slots)
        found = (held[slot % self.slots] for slot in slots)
        return [None if math.isnan(value) else round(value, 3) for value in found]


class Rings:
    def __init__(self) -> None:
        self.fine = Ring(FINE_S, FINE_SLOTS)
        self.coarse = Ring(COARSE_S, COARSE_SLOTS)
        self._last: dict[str, float] = {}  # when each series got a value, the most silent first
        self._sums: dict[str, tuple[float, int]] = {}  # of the five minutes that run: sum or worst, and how many
        self._summed_slot = 0

    def put(self, time_s: float, values: Mapping[str, float]) -> tuple[float, dict[str, float]] | None:
        """A point of ten seconds. Where it begins new five minutes: the point of those before."""
        self._note(time_s, values)
        self.fine.put(time_s, values)
        ended = self._end_coarse(time_s)
        for name, value in values.items():
            total, count = self._sums.get(name, (0.0, 0))
            worst = name.endswith(WORST)
            self._sums[name] = (max(total, value) if worst else total + value, 1 if worst else count + 1)
        return ended

    def restore(self, time_s: float, values: Mapping[str, float], *, coarse: bool) -> None:
        self._note(time_s, values)
        (self.coarse if coarse else self.fine).put(time_s, values)

    def select(
        self, wanted: Callable[[str], str | None], since_s: float, until_s: float, points_max: int
    ) -> HistorySeries:
        """Series whose name `wanted` gives a title, as a chart draws them; the finer resolution where it reaches so far."""
        recent = until_s - since_s <= FINE_S * FINE_SLOTS
        ring = self.fine if recent else self.coarse
        slots = ring.times(since_s, until_s)
        slots = slots[:: max(1, -(-len(slots) // points_max))]
        titles = {name: title for name in list(ring.series) if (title := wanted(name)) is not None}
        found = {titles[name]: ring.values(name, slots) for name in sorted(titles)}
        shown = {name: values for name, values in found.items() if any(value is not None for value in values)}
        return {"step_s": ring.step_s, "time": [slot * ring.step_s for slot in slots], "series": shown}

    def drop(self, unwanted: Callable[[str], bool]) -> None:
        """Series whose names nobody shall find any more."""
        for series in (self._last, self._sums, self.fine.series, self.coarse.series):
            for name in [name for name in series if unwanted(name)]:
                del series[name]

    def _end_coarse(self, time_s: float) -> tuple[float, dict[str, float]] | None:
        slot = int(time_s // COARSE_S)
        if slot == self._summed_slot:
            return None
        point = {name: total / count for name, (total, count) in self._sums.items()}
        began_s, self._summed_slot, self._sums = self._summed_slot * float(COARSE_S), slot, {}
        if not point:
            return None
        self.coarse.put(began_s, point)
        return began_s, point

    def _note(self, time_s: float, values: Mapping[str, float]) -> None:
        for name in values:
            self._last.pop(name, None)
            self._last[name] = time_s
        while len(self._last) > SERIES_MAX:
            silent = next(iter(self._last))
            del self._last[silent]
            for ring in (self.fine, self.coarse):
                ring.series.pop(silent, None)
            self._sums.pop(silent, None)
