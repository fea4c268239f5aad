"""Who stages and commits the batches of a Spark job, and where it may write.

Who may not publish everything may publish to the topics that its rules allow: that is looked at when tasks ask for topics,
and again in what they stage. A job's sink belongs to who began it: none of the others commits, drops or fences its batches.
"""

from __future__ import annotations

from dataclasses import dataclass

from mainstem.broker.rights.access import Access, Action, Principal
from mainstem.broker.rights.decisions import BROKERS_OWN
from mainstem.broker.rights.rules import TopicRules
from mainstem.codec.batch import decode_batch
from mainstem.codec.staged import StagedBatch
from mainstem.model.errors import NotAuthorized
from mainstem.model.origin import RecordFlag


@dataclass(frozen=True, slots=True)
class Writer:
    user: str = ""
    rules: TopicRules | None = None  # None: it may publish to everything
    creates: TopicRules | None = None

    @classmethod
    def of(cls, access: Access, principal: Principal) -> Writer:
        if access.allows_all(principal, Action.PUBLISH, b"#"):
            return cls(principal.name)
        rules = [rule for _, rule in access.rules_of(principal)]
        publish, create = (TopicRules(rules, one, principal.names) for one in (Action.PUBLISH, Action.CREATE))
        return cls(principal.name, publish, create)

    def require(self, topic: bytes) -> None:
        if topic in BROKERS_OWN:
            raise NotAuthorized(f"{topic.decode()!r} is the broker's own: no job writes to it")
        self._require(self.rules, Action.PUBLISH, topic)

    def require_create(self, topic: bytes) -> None:
        self._require(self.creates, Action.CREATE, topic)

    def _require(self, rules: TopicRules | None, action: Action, topic: bytes) -> None:
        if rules is not None and not rules.allows(topic):
            shown = topic.decode(errors="backslashreplace")
            raise NotAuthorized(
                f"user {self.user} may not {action} {shown}", fix=f"mainstem user allow {self.user} {action} '{shown}'"
            )

    def check(self, item: StagedBatch, bytes_max: int) -> None:
        """A staged batch: the topic that it is for, and those that its records name themselves. Runs in a thread."""
        self.require(item.topic)
        if self.rules is not None and item.names_topic:
            for record in decode_batch(item.batch, inflated_bytes_max=bytes_max, verify=False):
                by_key = record.flags & RecordFlag.KEY_IS_TOPIC
                self.require((record.key if by_key else record.header(b"ms-topic")) or b"")

    def require_own(self, owner: str, query: str, sink: str) -> None:
        if self.rules is not None and owner != self.user:
            raise NotAuthorized(
                f"query {query}, sink {sink}: another user writes it",
                fix=f"give the query another name or checkpoint, or: mainstem user allow {self.user} publish '#'",
            )
