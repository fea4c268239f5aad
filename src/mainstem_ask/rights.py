"""What a caller may read, in a process that the broker started for the caller: the caller's rules, as they were then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mainstem.broker.rules import Names, Rule
from mainstem.model.errors import InvalidName, NotAuthorized
from mainstem.model.topic import topic_of_kafka
from mainstem.model.topic_filter import filter_levels, is_pattern, literal_filter
from mainstem_ask.reading import Permit

KNOWN_MAX = 100_000


class Rights:
    """Deny wins, no rule is no: as `Access` decides, of rules about consuming topics only."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._rules = [Rule.of_document(one) for one in document["rules"]]
        self._names = Names(str(document["user"]), "", str(document["namespace"]))
        self._user = str(document["user"])
        self._known: dict[bytes, tuple[bool, bool]] = {}

    def _judged(self, topic: bytes) -> tuple[bool, bool]:
        """(allowed, denied)"""
        found = self._known.get(topic)
        if found is None:
            levels = filter_levels(literal_filter(topic))
            said = [rule.allow for rule in self._rules if rule.covers_topics(levels, self._names)]
            found = (bool(said) and all(said), not all(said))
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[topic] = found
        return found

    def allows(self, topic: bytes) -> bool:
        return self._judged(topic)[0]

    def of_name(self, name: str) -> Permit:
        """For the rows of a name. One that is no filter must itself be allowed, whether it exists or not."""
        if is_pattern(name.encode()):
            return self.allows
        try:
            canonical = name.encode() if "/" in name else topic_of_kafka(name)
        except InvalidName:
            canonical = name.encode()
        if not (self.allows(canonical) or self.allows(name.encode())):
            raise NotAuthorized(
                f"user {self._user} may not consume {name}", fix=f"mainstem user allow {self._user} consume '{name}'"
            )
        return self.allows

    def of_view(self, name: str) -> Permit:
        """Who may consume a view sees through it what is not denied."""
        if not self.allows(name.encode()):
            raise NotAuthorized(
                f"user {self._user} may not consume {name}", fix=f"mainstem user allow {self._user} consume '{name}'"
            )
        return lambda topic: not self._judged(topic)[1]
