"""What a page offers its reader: only what the broker would not refuse, decided by what calls are checked with.

A form names the operation of the API that it sends, a link the page that it leads to; both name their line in the table of
operations, and `rights.refusal` decides it. Where a person would look for something that is left out, the page says why.
"""

from __future__ import annotations

import re

from mainstem.admin.api import OPERATIONS
from mainstem.admin.api.messages import require_consume
from mainstem.admin.calls import Call
from mainstem.admin.console.pages import PAGES
from mainstem.admin.rights import EVERYTHING, refusal
from mainstem.broker.rights.access import Action
from mainstem.broker.rights.operations import NEEDS, Need
from mainstem.model.errors import MainstemError, NotAuthorized

_NEED_OF_CALL = {(one.method, re.sub(r":path}", "}", one.path)): one.need for one in OPERATIONS}
_NEED_OF_PAGE = {one.path: NEEDS[one.needs] for one in PAGES}


class Offers:
    """To whom a call's page is shown; its methods are what templates call."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def refused(self, method: str, path: str, name: str = "") -> NotAuthorized | None:
        """Why this operation would be refused on the object of this name; without one, on each there can be."""
        return self._refusal(_NEED_OF_CALL[method, path], name)

    def opens(self, path: str, name: str = "") -> bool:
        """Whether this page, about the object of this name, would be shown."""
        return self._refusal(_NEED_OF_PAGE[path], name) is None

    def reads(self, topic: str = "", view: str = "", topic_filter: str = "") -> bool:
        """Whether the page of messages would show these."""
        try:
            require_consume(self._call, topic, view, topic_filter)
        except MainstemError:
            return False
        return True

    def follows(self, topic_filter: str) -> bool:
        """Whether a live tail of it would be shown."""
        access = self._call.running.broker.access
        return access.allows_filter(self._call.principal, Action.CONSUME, topic_filter.encode())

    @property
    def sees_all(self) -> bool:
        """Whether nothing of the namespace is hidden from its reader."""
        call = self._call
        return call.running.broker.access.allows_all(call.principal, Action.DESCRIBE, EVERYTHING)

    def _refusal(self, need: Need, name: str) -> NotAuthorized | None:
        call = self._call
        return refusal(call.running, call.principal, need, call.query.get("namespace", ""), name)
