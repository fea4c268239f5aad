"""Answers that leave once what they speak of is durable."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mainstem.protocols.kafka.errors import ErrorCode, code_of

if TYPE_CHECKING:
    from mainstem.log.gather import Ticket
    from mainstem.protocols.kafka.adapter import Request


class _Reply:
    __slots__ = ("_answer", "_fail", "_request")

    def __init__(self, request: Request, answer: Any, fail: Callable[[Any, ErrorCode], None]) -> None:
        self._request, self._answer, self._fail = request, answer, fail

    def released(self, ticket: Ticket) -> None:
        if ticket.error is not None:
            self._fail(self._answer, code_of(ticket.error))
        self._request.reply(self._answer)


def fail_whole(answer: Any, code: ErrorCode) -> None:
    """For answers with one error code for all."""
    answer.error_code = code


def when_durable(
    request: Request, answer: Any, ticket: Ticket | None, fail: Callable[[Any, ErrorCode], None] = fail_whole
) -> Any:
    """What a handler returns: the answer now if there is nothing to wait for, else None."""
    if ticket is None:
        return answer
    ticket.wait(_Reply(request, answer, fail))
    return None
