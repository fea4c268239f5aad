"""Who reads a scan, and what of the logs it is shown.

Who may consume everything reads whole logs, also from their files and objects. Anybody else reads through the broker only,
which leaves out of each frame the records that this reader may not consume: a shared log holds those of many topics. A
named topic that it may not consume is refused, patterns and filters mean what it may consume of them. Who may consume a
view sees through it what fulfils its condition and is not denied; the broker looks, for the task's word is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mainstem.broker.rights.access import Access, Principal
from mainstem.broker.rights.rules import AUDIT_TOPIC, Action, TopicRules
from mainstem.broker.topics.time_search import fulfils
from mainstem.codec.batch import KIND_DATA, FrameHead, frame_heads
from mainstem.log.log import Log
from mainstem.log.rewriting import frame_at, keep_records
from mainstem.model.errors import NotAuthorized
from mainstem.model.topic_filter import matches

if TYPE_CHECKING:
    from mainstem.broker.topics.views import View

READERS_MAX = 16  # whose rules, and what they say of topics, are remembered


@dataclass(frozen=True, slots=True)
class Reader:
    user: str = ""
    rules: TopicRules | None = None  # None: it may consume everything
    admin: bool = True
    view: View | None = None  # that it reads through

    @property
    def whole(self) -> bool:
        """Whether it is shown logs as they are stored."""
        return self.rules is None

    def may(self, topic: bytes) -> bool:
        if self.rules is None:
            return self.admin or topic != AUDIT_TOPIC
        if self.view is not None:
            return matches(self.view.filter, topic) and (self.view.grants or not self.rules.denies(topic))
        return self.rules.allows(topic)

    def require(self, topic: bytes) -> None:
        if not self.may(topic):
            raise self._refused(topic)

    def require_some(self, topic_filter: bytes) -> None:
        """That a filter means something which this reader may consume, if there is such a topic."""
        if self.rules is not None and self.view is None and not self.rules.allows_some(topic_filter):
            raise self._refused(topic_filter)

    def _refused(self, topic: bytes) -> NotAuthorized:
        if topic == AUDIT_TOPIC:
            return NotAuthorized("$audit is for admins")
        shown = topic.decode(errors="backslashreplace")
        return NotAuthorized(
            f"user {self.user} may not consume {shown}", fix=f"mainstem user allow {self.user} consume '{shown}'"
        )

    def through(self, view: View) -> Reader:
        """Where a view shows the newest of each key, a scan shows the older ones too: there its own rights count."""
        self.require(view.name)
        return self if self.whole or view.table is not None else replace(self, view=view)

    def bits(self, log: Log, topic_filter: bytes) -> bytes | bytearray:
        """The topics of a shared log that the filter means and this reader may consume: to count, never too few."""
        assert log.bitmaps is not None
        meant = log.bitmaps.of(topic_filter)
        if self.rules is None:
            return meant
        shown = int.from_bytes(meant, "little")
        if self.view is None:
            shown &= int.from_bytes(log.bitmaps.of_any(self.rules.filters(allow=True)), "little")
        if self.view is None or not self.view.grants:
            shown &= ~int.from_bytes(log.bitmaps.of_any(self.rules.filters(allow=False)), "little")
        return shown.to_bytes(len(meant), "little")

    def shown(self, data: bytes | memoryview, log: Log, topic: bytes | None, topic_of: Mapping[int, bytes]) -> bytes:
        """Whole frames, without the records that this reader may not consume. Runs in a thread.

        `topic`: of a log that holds no other.
        """
        parts, view = [], memoryview(data)
        for head in frame_heads(view, log.id):
            if head.kind == KIND_DATA:
                parts.append(self._shown_of(view, head, log, topic or topic_of.get(head.topic_id)))
        return b"".join(parts)

    def _shown_of(self, data: memoryview, head: FrameHead, log: Log, topic: bytes | None) -> bytes | memoryview:
        stored = data[head.pos : head.pos + head.size]
        condition = self.view.condition if self.view is not None else None
        if topic is not None and not self.may(topic):
            return b""
        if topic is not None and condition is None:
            return stored
        if topic is None and head.topic_id:  # of a topic that is gone
            return b""
        frame = frame_at(log, data, head.pos)
        kept = [one for one in frame.records if self.may(topic or one.topic) and fulfils(condition, one)]
        if not kept:
            return b""
        return stored if len(kept) == len(frame.records) else keep_records(frame, log.id, kept)


@dataclass(slots=True)
class Readers:
    access: Access
    _known: dict[Principal, tuple[int, Reader]] = field(default_factory=dict)

    def of(self, principal: Principal) -> Reader:
        if principal.admin:
            return Reader(principal.name)
        if self.access.allows_all(principal, Action.CONSUME, b"#"):
            return Reader(principal.name, admin=False)
        version, reader = self._known.get(principal, (-1, Reader()))
        if version != self.access.version:
            rules = TopicRules((rule for _, rule in self.access.rules_of(principal)), Action.CONSUME, principal.names)
            reader = Reader(principal.name, rules, admin=False)
            if len(self._known) >= READERS_MAX:
                self._known.clear()
            self._known[principal] = self.access.version, reader
        reader.require_some(b"#")
        return reader
