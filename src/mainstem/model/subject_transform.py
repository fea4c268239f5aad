"""NATS's subject transforms: a subject that a pattern means becomes another one.

    src  orders.*.>      dest  shard.{{partition(8,1)}}.{{wildcard(1)}}.>

    $n, {{wildcard(n)}}             the token of the n-th `*`                 {{random(m)}}           a number below m
    {{partition(m,n,…)}}            a number below m, by hash of these tokens (of the whole subject without n)
    {{split(n,text)}}               it, cut at every occurrence of a text     {{left(n,k)}}, {{right(n,k)}}   k bytes of it
    {{splitFromLeft(n,k)}}, …Right  it, cut once, k bytes from that end
    {{sliceFromLeft(n,k)}}, …Right  it, cut into pieces of k bytes from that end

A `>` at the end of the pattern needs one at the end of the destination. The hash is FNV-1a, as in nats-server, so that both
put a subject into the same partition.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from mainstem.model.errors import InvalidArgument

INVALID_SUBJECT = "invalid subject"
_INVALID = "invalid mapping destination"
_FUNCTION = re.compile(r"\{\{\s*([a-zA-Z]+)\s*\((.*)\)\s*\}\}")
Part = Callable[[list[str]], str]


class SubjectTransform:
    """Raises InvalidArgument, in nats-server's words, for what it refuses."""

    def __init__(self, source: str, destination: str) -> None:
        self.source, self.destination = source or ">", destination or ">"
        self._from, self._to = self.source.split("."), self.destination.split(".")
        rest, rest_to = self._from[-1] == ">", self._to[-1] == ">"
        if not _valid(self._from) or not _valid(self._to) or "*" in self._to or rest != rest_to:
            raise InvalidArgument(INVALID_SUBJECT)
        self._rest = len(self._from) - 1 if rest else None
        self._stars = [place for place, token in enumerate(self._from) if token == "*"]
        self._parts: list[Part] = [self._part(token) for token in self._to if token != ">"]

    def match(self, subject: str) -> str | None:
        """What it becomes; None where the pattern does not mean it."""
        tokens = subject.split(".")
        if self._rest is None and len(tokens) != len(self._from):
            return None
        if self._rest is not None and len(tokens) <= self._rest:
            return None
        for wanted, token in zip(self._from, tokens, strict=False):
            if wanted == ">":
                break
            if wanted not in ("*", token):
                return None
        found = [part(tokens) for part in self._parts]
        return ".".join(found + (tokens[self._rest :] if self._rest is not None else []))

    def _part(self, token: str) -> Part:
        if token[:1] == "$" and token[1:].isascii() and token[1:].isdigit():
            return self._function("wildcard", [token[1:]], token)
        if not (token.startswith("{{") and token.endswith("}}")):
            return lambda tokens: token
        found = _FUNCTION.fullmatch(token)
        if found is None:
            raise _fault("unknown function", token)
        arguments = [one.strip() for one in found[2].split(",")] if found[2].strip() else []
        return self._function(found[1].lower(), arguments, token)

    def _function(self, name: str, arguments: list[str], token: str) -> Part:
        least, most = _ARGUMENTS.get(name, (0, -1))
        if most < 0:
            raise _fault("unknown function", token)
        if len(arguments) < least:
            raise _fault("not enough arguments passed to the function", token)
        if len(arguments) > most:
            raise _fault("too many arguments passed to the function", token)
        if name == "random":
            many = _number(arguments[0], token)
            return lambda tokens: str(random.randrange(many) if many else 0)
        if name == "partition":
            many, places = _number(arguments[0], token), [self._place(one, token) for one in arguments[1:]]
            return lambda tokens: _partition([tokens[place] for place in places] or [".".join(tokens)], many)
        place = self._place(arguments[0], token)
        if name == "wildcard":
            return lambda tokens: tokens[place]
        if name == "split":
            text = arguments[1]
            if not text or " " in text or "." in text:
                raise _fault("function argument is invalid or in the wrong format", token)
            return lambda tokens: ".".join(one for one in tokens[place].split(text) if one)
        count = _number(arguments[1], token)
        cut = _CUTS[name]
        return lambda tokens: cut(tokens[place], count) if 0 < count < len(tokens[place]) else tokens[place]

    def _place(self, text: str, token: str) -> int:
        number = _number(text, token)
        if not 0 < number <= len(self._stars):
            raise _fault("wildcard index out of range", f"{token}: [{number}]")
        return self._stars[number - 1]


_ARGUMENTS = {
    "wildcard": (1, 1),
    "partition": (1, 64),
    "random": (1, 1),
    "split": (2, 2),
    "left": (2, 2),
    "right": (2, 2),
    "splitfromleft": (2, 2),
    "splitfromright": (2, 2),
    "slicefromleft": (2, 2),
    "slicefromright": (2, 2),
}
_CUTS: dict[str, Callable[[str, int], str]] = {
    "left": lambda text, count: text[:count],
    "right": lambda text, count: text[-count:],
    "splitfromleft": lambda text, count: f"{text[:count]}.{text[count:]}",
    "splitfromright": lambda text, count: f"{text[:-count]}.{text[-count:]}",
    "slicefromleft": lambda text, count: _slices(text, count, 0),
    "slicefromright": lambda text, count: _slices(text, count, len(text) % count),
}


def _slices(text: str, count: int, first: int) -> str:
    pieces = [text[:first]] if first else []
    return ".".join([*pieces, *(text[at : at + count] for at in range(first, len(text), count))])


def _partition(tokens: list[str], many: int) -> str:
    value = 0x811C9DC5
    for byte in "".join(tokens).encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return str(value % many if many else 0)


def _number(text: str, token: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise _fault("function argument is invalid or in the wrong format", token) from None


def _fault(why: str, token: str) -> InvalidArgument:
    return InvalidArgument(f"{_INVALID}: {why} in {token}")


def _valid(tokens: list[str]) -> bool:
    return all(tokens) and ">" not in tokens[:-1] and not any(" " in one for one in tokens if "{{" not in one)
