"""Which blocks of a part a query can mean, by the part's search index (mainstem/log/search_index.py).

What is concluded from a query must hold for every record that it means, or records would be hidden: `NOT` says nothing, OR
all its sides, a prefix nothing of its last word. Words of a query are looked for in bytes as they are stored. A field of
JSON is compared after its escapes are undone, so names and texts with a character that JSON must escape are not used, and
none at all in a block where letters stand as \\u escapes. Headers are used in blocks that only Kafka clients wrote: those of
other protocols are translated for who reads them, and names that begin with `ms-` are the broker's.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

from mainstem.log.search_index import SearchIndex, Zone, holds_all, token_hashes
from mainstem_ask.search.language import HEADER, Both, Compared, Either, Node, Not, Word

KEPT_MAX = 8  # indexes in memory, a few MiB each; the slices of a part follow each other
Holds = Callable[[list[int]], bool]
Span = tuple[int, int]


def may_hold(node: Node, holds: Holds, *, escapes: bool, crossed: bool = True) -> bool:
    """Whether a block may hold a record that the query means, given which words the block may hold."""
    if isinstance(node, Word):
        return holds(_words(node.folded, prefix=node.prefix, suffix=node.suffix))
    if isinstance(node, Compared):
        return _may_compare(node, holds, escapes=escapes, crossed=crossed)
    if isinstance(node, Both):
        return all(may_hold(part, holds, escapes=escapes, crossed=crossed) for part in node.parts)
    if isinstance(node, Either):
        return any(may_hold(part, holds, escapes=escapes, crossed=crossed) for part in node.parts)
    assert isinstance(node, Not)
    return True


def _may_compare(node: Compared, holds: Holds, *, escapes: bool, crossed: bool) -> bool:
    if node.field == "key":
        return node.op not in ("=", ":") or holds(_literal_words(node))
    if node.field.startswith(HEADER):
        name = node.field[len(HEADER) :]
        if crossed or name.startswith("ms-") or "\ufffd" in name + node.literal.text:
            return True
        return holds(_words(name.encode()) + (_literal_words(node) if node.op in ("=", ":") else []))
    if node.field:
        return True
    if escapes:
        return True
    names = [word for step in node.path if isinstance(step, str) and _plain(step) for word in _words(step.encode())]
    text = _literal_words(node) if node.op in ("=", ":") and _plain(node.literal.text) else []
    return holds(names + text)


def _literal_words(node: Compared) -> list[int]:
    """None of a number: 5 is also written 5.0. A key is text, whatever it looks like."""
    literal = node.literal
    if literal.number is not None and node.field != "key":
        return []
    prefix = node.op == ":" and not literal.quoted and literal.text.endswith("*")
    text = literal.text.rstrip("*") if prefix else literal.text
    return _words(text.encode("utf-8", "surrogateescape"), prefix=prefix)


def _plain(text: str) -> bool:
    """Whether JSON writes it as it is."""
    return not any(one < " " or one in '"\\' for one in text)


def _words(text: bytes, *, prefix: bool = False, suffix: bool = False) -> list[int]:
    """Those that are whole: of what is a prefix the last may go on."""
    found = token_hashes(text)
    first = 1 if suffix and token_hashes(text[:1]) else 0
    return found[first : len(found) - (1 if prefix and token_hashes(text[-1:]) else 0)]


class Indexes:
    """The search indexes of the parts that are being searched; for several threads."""

    def __init__(self, node: Node, since_ms: int, before_ms: int) -> None:
        self._node, self._since_ms, self._before_ms = node, since_ms, before_ms
        self._kept: OrderedDict[str, SearchIndex | None] = OrderedDict()
        self._lock = threading.Lock()

    def spans(self, path: str, at: int, end: int) -> list[Span]:
        """Of these bytes of a part those that must be read; all of them where there is no index."""
        index = self._of(path)
        return [(at, end)] if index is None else list(_joined(self._wanted(index, at, end)))

    def offsets(self, path: str, start: int, end: int) -> list[Span]:
        """The same by offsets, for who cannot read at a byte."""
        index = self._of(path)
        if index is None or any(zone.first_offset < 0 for zone in index.zones):
            return [(start, end)]
        firsts = [zone.first_offset for zone in index.zones]
        spans = zip(index.zones, [start, *firsts[1:]], [*firsts[1:], end], strict=True)
        meant = ((max(first, start), min(last, end)) for zone, first, last in spans if self._may_be_in(index, zone))
        return list(_joined(span for span in meant if span[0] < span[1]))

    def stamp_from(self, path: str, start: int, end: int) -> int | None:
        """Of a block that begins in these offsets: all before them was stamped before."""
        index = self._of(path)
        zones = index.zones if index is not None else ()
        return next((zone.first_stamp for zone in zones if start <= zone.first_offset < end), None)

    def _of(self, path: str) -> SearchIndex | None:
        with self._lock:
            if path in self._kept:
                self._kept.move_to_end(path)
                return self._kept[path]
        index = SearchIndex.load(Path(path))
        with self._lock:
            self._kept[path] = index
            while len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        return index

    def _wanted(self, index: SearchIndex, at: int, end: int) -> Iterator[Span]:
        for zone in index.zones:
            if zone.end > at and zone.at < end and self._may_be_in(index, zone):
                yield max(at, zone.at), min(end, zone.end)
        if end > index.size:
            yield max(at, index.size), end

    def _may_be_in(self, index: SearchIndex, zone: Zone) -> bool:
        if zone.unknown:
            return True
        if zone.time_max_ms < self._since_ms or zone.time_min_ms >= self._before_ms:
            return False
        lines = index.filter_of(zone)
        return may_hold(self._node, lambda hashes: holds_all(lines, hashes), escapes=zone.escapes, crossed=zone.crossed)


def _joined(spans: Iterator[Span]) -> Iterator[Span]:
    """Neighbours as one."""
    last: Span | None = None
    for at, end in spans:
        if last is not None and last[1] == at:
            last = last[0], end
            continue
        if last is not None:
            yield last
        last = at, end
    if last is not None:
        yield last
