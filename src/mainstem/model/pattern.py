"""Regular expressions that clients choose. RE2 takes time in proportion to the name it looks at, whatever the pattern:
Python's own matcher takes for ever over `(?:a|aa)*b`, and all protocols would wait meanwhile.

What RE2 does not know (look-around, back-references) is refused. Limits: LENGTH_MAX characters, COMPILED_BYTES_MAX of
memory, and a name is looked at once for as long as it exists (`chosen`).
"""

from __future__ import annotations

from collections.abc import Iterable

import re2

from mainstem.model.errors import InvalidArgument

LENGTH_MAX = 1_000
COMPILED_BYTES_MAX = 1 << 20


class Pattern:
    """A compiled pattern; InvalidArgument where it is none."""

    __slots__ = ("_known", "_set", "text")

    def __init__(self, text: str, *, anywhere: bool = False) -> None:
        """`anywhere`: a part of the name is enough."""
        if len(text) > LENGTH_MAX:
            raise InvalidArgument(f"a pattern of {len(text)} characters; the limit is {LENGTH_MAX}")
        self.text = text
        self._known: dict[str, bool] = {}
        options = re2.Options()
        options.log_errors, options.max_mem = False, COMPILED_BYTES_MAX
        try:
            re2.compile(text, options)  # for the reason, which a set does not tell
            self._set = re2.Set.SearchSet(options) if anywhere else re2.Set.FullMatchSet(options)
            self._set.Add(text)
            self._set.Compile()
        except (re2.error, UnicodeEncodeError) as error:
            reason = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
            raise InvalidArgument(f"the pattern {text[:100]!r} is not understood: {reason}") from None

    def matches(self, name: str) -> bool:
        return bool(self._set.Match(name.encode("utf-8", "surrogateescape")))

    def chosen(self, names: Iterable[str]) -> set[str]:
        """Those that match. Asked again, only new names are looked at; names that are gone are forgotten."""
        before, known = self._known, dict[str, bool]()
        for name in names:
            verdict = before.get(name)
            known[name] = self.matches(name) if verdict is None else verdict
        self._known = known
        return {name for name, verdict in known.items() if verdict}
