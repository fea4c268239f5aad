"""What a caller may read, in a process that the broker started for the caller: the caller's rules, as they were then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mainstem.broker.rights.rules import Action, Names, Rule, TopicRules
from mainstem.model.errors import InvalidName, NotAuthorized
from mainstem.model.topic import topic_of_kafka
from mainstem.model.topic_filter import is_pattern
from mainstem_ask.reading import Permit


class Rights:
    """As `Access` decides, of rules about consuming topics only."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._user = str(document["user"])
        names = Names(self._user, "", str(document["namespace"]))
        self._rules = TopicRules(map(Rule.of_document, document["rules"]), Action.CONSUME, names)
        self.allows = self._rules.allows

    def of_name(self, name: str) -> Permit:
        """For the rows of a name. One that is not a filter must itself be allowed, whether it exists or not."""
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
        return lambda topic: not self._rules.denies(topic)
