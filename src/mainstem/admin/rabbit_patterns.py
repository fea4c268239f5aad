"""Regular expressions of clients, matched in time that grows only with the text: no backtracking.

The management API lets a client choose names by a pattern. Python's own matcher may take for ever over a short one
(`(a+)+$`), and holds everything up meanwhile. This one knows all ways through the pattern at once, as a set of states,
and remembers where each set leads. It understands what such patterns are made of:

    literals   .   \\d \\w \\s (and \\D \\W \\S)   [a-z] [^a-z]   (…) (?:…)   a|b   * + ? (and lazy forms)   ^ $
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mainstem.model.errors import InvalidArgument

PATTERN_SIZE_MAX = 256
STEPS_MAX = 2_000_000  # of one pattern over all names
SETS_MAX = 1_000  # remembered ones

_Test = Callable[[str], bool]
_CLASSES: dict[str, _Test] = {
    "d": str.isdecimal,
    "w": lambda c: c.isalnum() or c == "_",
    "s": str.isspace,
}
_START, _END = "^", "$"


@dataclass(slots=True)
class _State:
    """One place in the pattern: a test and where it leads, or (test None) up to two places reached for free."""

    test: _Test | None = None
    anchor: str = ""
    out: int = -1
    other: int = -1


class Pattern:
    """`Pattern("^a.*b$").search(name)`"""

    def __init__(self, text: str) -> None:
        if len(text) > PATTERN_SIZE_MAX:
            raise InvalidArgument(f"a pattern of {len(text)} characters; {PATTERN_SIZE_MAX} are allowed")
        self._states, self._first = _Parser(text).parse()
        self._leads: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._steps = 0

    def search(self, text: str) -> bool:
        """Whether the pattern occurs anywhere in the text."""
        at_start = self._closure({self._first}, start=True, end=not text)
        if self._accepts(at_start):
            return True
        current = self._closure({self._first}, start=True, end=False)
        for number, character in enumerate(text):
            last = number == len(text) - 1
            current = self._lead(current, character, last)
            if self._accepts(current):
                return True
        return False

    def _accepts(self, states: frozenset[int]) -> bool:
        return 0 in states  # state 0 is the pattern's end

    def _lead(self, states: frozenset[int], character: str, last: bool) -> frozenset[int]:
        if not last and (known := self._leads.get((states, character))) is not None:
            return known
        self._count(len(states))
        passed = {self._first}
        for number in states:
            state = self._states[number]
            if state.test is not None and state.test(character):
                passed.add(state.out)
        found = self._closure(passed, start=False, end=last)
        if not last and len(self._leads) < SETS_MAX:
            self._leads[states, character] = found
        return found

    def _closure(self, waiting: set[int], *, start: bool, end: bool) -> frozenset[int]:
        """All states reached for free."""
        found: set[int] = set()
        left = list(waiting)
        while left:
            number = left.pop()
            if number < 0 or number in found:
                continue
            found.add(number)
            state = self._states[number]
            if state.test is None and not (
                (state.anchor == _START and not start) or (state.anchor == _END and not end)
            ):
                left += (state.out, state.other)
        self._count(len(found))
        return frozenset(found)

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > STEPS_MAX:
            raise InvalidArgument("the pattern takes too long over these names", fix="a simpler pattern")


class _Parser:
    """Thompson's construction. A piece is (first state, states whose `out` is open)."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._states = [_State()]

    def parse(self) -> tuple[list[_State], int]:
        first, open_ones = self._either()
        if self._at < len(self._text):
            raise self._wrong("unbalanced ')'")
        self._lead(open_ones, 0)
        return self._states, first

    def _either(self) -> tuple[int, list[int]]:
        first, open_ones = self._row()
        while self._next() == "|":
            self._at += 1
            other, more = self._row()
            first = self._add(_State(out=first, other=other))
            open_ones = open_ones + more
        return first, open_ones

    def _row(self) -> tuple[int, list[int]]:
        first = last = self._add(_State())
        open_ones = [last]
        while self._next() not in ("", "|", ")"):
            start, more = self._repeated()
            self._lead(open_ones, start)
            open_ones = more
        return first, open_ones

    def _repeated(self) -> tuple[int, list[int]]:
        first, open_ones = self._one()
        sign = self._next()
        while sign and sign in "*+?":
            self._at += 1
            if self._next() == "?":  # lazy: what is found is the same
                self._at += 1
            end = self._add(_State())
            if sign == "?":
                self._lead(open_ones, end)
                first = self._add(_State(out=first, other=end))
            else:
                again = self._add(_State(out=first, other=end))
                self._lead(open_ones, again)
                first = again if sign == "*" else first
            open_ones = [end]
            sign = self._next()
        return first, open_ones

    def _one(self) -> tuple[int, list[int]]:
        character = self._take()
        if character == "(":
            if self._text.startswith("?:", self._at):
                self._at += 2
            elif self._next() == "?":
                raise self._wrong("only plain groups are understood")
            piece = self._either()
            if self._next() != ")":
                raise self._wrong("missing ')'")
            self._at += 1
            return piece
        if character in "*+?{":
            raise self._wrong(f"nothing to repeat, or not understood: {character!r}")
        if character in (_START, _END):
            number = self._add(_State(anchor=character))
        else:
            number = self._add(_State(test=self._test(character)))
        if self._next() == "{":
            raise self._wrong("counted repetition is not understood")
        return number, [number]

    def _test(self, character: str) -> _Test:
        if character == ".":
            return lambda c: c != "\n"
        if character == "[":
            return self._class()
        if character == "\\":
            return self._escaped(self._take())
        return lambda c: c == character

    def _escaped(self, character: str) -> _Test:
        known = _CLASSES.get(character.lower())
        if known is not None:
            return known if character.islower() else lambda c: not known(c)
        if character.isalnum():
            raise self._wrong(f"\\{character} is not understood")
        return lambda c: c == character

    def _class(self) -> _Test:
        negated = self._next() == "^"
        self._at += negated
        tests: list[_Test] = []
        while self._next() != "]" or not tests:
            low = self._take()
            if low == "\\":
                tests.append(self._escaped(self._take()))
                continue
            high = low
            if self._next() == "-" and self._text[self._at + 1 : self._at + 2] not in ("", "]"):
                self._at += 1
                high = self._take()
                if high < low:
                    raise self._wrong(f"bad range {low}-{high}")
            tests.append(lambda c, low=low, high=high: low <= c <= high)  # type: ignore[misc]
        self._at += 1
        return lambda c: any(test(c) for test in tests) != negated

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        if self._at >= len(self._text):
            raise self._wrong("it ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _add(self, state: _State) -> int:
        self._states.append(state)
        return len(self._states) - 1

    def _lead(self, open_ones: list[int], target: int) -> None:
        for number in open_ones:
            self._states[number].out = target

    def _wrong(self, why: str) -> InvalidArgument:
        return InvalidArgument(f"{self._text!r} is no regular expression: {why}")
