"""Names that are too long for a protocol: their beginning and a hash of the topic, and what such names stand for.

    cut name = the first 200 bytes of the topic's name in that protocol, not within a character (so 197 to 200)
             + "_h"
             + 26 characters: the BLAKE2b-128 of the canonical topic in lower-case base32

That a hash stands for a topic is a fact, true for every namespace and for ever, so it is remembered once for all, like
the result of a function. Whoever cuts a name remembers it; so does whoever makes a topic. What was stored before the
process began is told by `sources`, asked once, when a name comes that nobody knows.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable

from mainstem.model.errors import InvalidName

START_BYTES = 200
DIGEST_CHARACTERS = 26
NEVER_CUT_BYTES = 62  # a topic this short fits everywhere: in Kafka's 249 too, where a byte becomes four at most
CUT_NAMES_MAX = 1_000_000  # then the oldest are forgotten, and known again when their topics are next used

_FORM = re.compile(rb".{197,200}_h[a-z2-7]{26}", re.DOTALL)
_LENGTHS = range(START_BYTES - 3 + 2 + DIGEST_CHARACTERS, START_BYTES + 2 + DIGEST_CHARACTERS + 1)

Source = Callable[[], Iterable[bytes]]


def is_cut(name: bytes) -> bool:
    return len(name) in _LENGTHS and _FORM.fullmatch(name) is not None


def digest_of(topic: bytes) -> bytes:
    return base64.b32encode(hashlib.blake2b(topic, digest_size=16).digest())[:DIGEST_CHARACTERS].lower()


class CutNames:
    """What hashes stand for. `sources` yield topics that exist already; each is asked once at most."""

    def __init__(self) -> None:
        self._topics: dict[bytes, bytes] = {}  # hash → topic, oldest first
        self.sources: list[Source] = []

    def __len__(self) -> int:
        return len(self._topics)

    def cut(self, name: bytes, topic: bytes) -> bytes:
        """The topic's cut name, remembered."""
        start = name[:START_BYTES]
        while start and name[len(start)] & 0xC0 == 0x80:
            start = start[:-1]
        return start + b"_h" + self.remember(topic)

    def remember(self, topic: bytes) -> bytes:
        """For any topic whose name may be cut somewhere; the hash it is known by."""
        digest = digest_of(topic)
        if digest not in self._topics:
            if len(self._topics) >= CUT_NAMES_MAX:
                del self._topics[next(iter(self._topics))]
            self._topics[digest] = topic
        return digest

    def topic_of(self, name: bytes, spell: Callable[[bytes], bytes]) -> bytes:
        """What a cut name stands for; `spell` is how its protocol spells topics."""
        digest = name[-DIGEST_CHARACTERS:]
        if digest not in self._topics and self.sources:
            self._ask_sources()
        found = self._topics.get(digest)
        if found is None or spell(found) != name:
            raise InvalidName(
                f"{name[:40].decode(errors='replace')}... is the short form of a longer name that is not known here",
                fix="publish to the topic under its full name first, by MQTT",
            )
        return found

    def _ask_sources(self) -> None:
        sources, self.sources = self.sources, []
        for source in sources:
            for topic in source():
                if len(topic) > NEVER_CUT_BYTES:
                    self.remember(topic)


CUT_NAMES = CutNames()


def note_name(topic: bytes) -> None:
    """A topic came into use; if other protocols may have to cut its name, they will know what that stands for."""
    if len(topic) > NEVER_CUT_BYTES:
        CUT_NAMES.remember(topic)
