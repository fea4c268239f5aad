"""What Kafka's clients change, for the audit (`broker/rights/audit.py`): requests by name, what they name, how it ended.

An answer names each object with an error code of its own; where it does not, the request does.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from mainstem.broker.rights.audit import DONE, FAILED, REFUSED
from mainstem.protocols.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from mainstem.protocols.kafka.adapter import Request

NAMED = {  # API key → the answer's list, and what names an object in it
    19: ("topics", "name"),
    20: ("responses", "name"),
    33: ("responses", "resource_name"),
    37: ("results", "name"),
    42: ("results", "group_id"),
    44: ("responses", "resource_name"),
    51: ("results", "user"),
}
LISTED: dict[
    int, tuple[str, str, Callable[[Any], str]]
] = {  # the answer's list, and the request's in the same order, with what tells an object of it
    30: ("results", "creations", lambda one: f"{one.principal} {one.resource_name}"),
    31: ("filter_results", "filters", lambda one: f"{one.principal_filter or '*'} {one.resource_name_filter or '*'}"),
    49: ("entries", "entries", lambda one: " ".join(str(part.entity_name) for part in one.entity)),
}
WHOLE = {21: "topics", 47: "group_id", 90: "group_id", 91: "group_id", 92: "group_id"}  # the request's field
REFUSALS = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
)
OBJECTS_MAX = 100  # of one request


def audited(key: int, handler: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """The same handler; what it answers is told."""
    if key not in NAMED and key not in LISTED and key not in WHOLE:
        return handler

    def call(request: Request) -> Any:
        answer = handler(request)
        if inspect.isawaitable(answer):
            return _later(request, key, answer)
        _tell(request, key, answer)
        return answer

    return call


async def _later(request: Request, key: int, answer: Awaitable[Any]) -> Any:
    found = await answer
    _tell(request, key, found)
    return found


def _tell(request: Request, key: int, answer: Any) -> None:
    audit = request.service.broker.audit
    for count, (name, code) in enumerate(_objects(request, key, answer)):
        if count >= OBJECTS_MAX:
            return
        outcome = DONE if not code else REFUSED if code in REFUSALS else FAILED
        audit.note(
            request.principal,
            request.slot.api.name,
            name,
            outcome=outcome,
            why=str(code) if code else "",
            address=request.connection.peer_host(),
            protocol="kafka",
        )


def _objects(request: Request, key: int, answer: Any) -> Iterator[tuple[str, int]]:
    if key in NAMED:
        rows, name = NAMED[key]
        for one in getattr(answer, rows, None) or ():
            yield str(getattr(one, name, "") or ""), one.error_code
    elif key in LISTED:
        rows, asked, shown = LISTED[key]
        for one, wanted in zip(getattr(answer, rows), getattr(request.body, asked), strict=False):
            yield shown(wanted), one.error_code
    else:
        what = getattr(request.body, WHOLE[key], "")
        names = what if isinstance(what, str) else " ".join(str(one.name) for one in what)
        yield names, getattr(answer, "error_code", 0)
