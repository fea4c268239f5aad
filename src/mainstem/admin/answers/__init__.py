"""What the API answers, as types: handlers say which one they return, and mypy holds them to it.

The OpenAPI document, its page and docs/http-api.md are made from them. A test compares each with what a broker answers.
"""

from __future__ import annotations

from typing import Annotated, Generic, NotRequired, TypedDict, TypeVar

from msgspec import Meta
from starlette.responses import StreamingResponse

T = TypeVar("T")


def says(description: str) -> Meta:
    """Of a field whose name does not say it all."""
    return Meta(description=description)


class Page(TypedDict, Generic[T]):
    """So many rows, and where the next ones begin."""

    items: list[T]
    next: Annotated[str | None, says("Ask again with `after` (or `from`) to go on; null at the end.")]


class CountedPage(Page[T]):
    total: Annotated[int | None, says("How many there are in all; null for a caller who may not describe all of them.")]


class Events(StreamingResponse, Generic[T]):
    """Server-sent events; the data of each is one T."""

    media_type = "text/event-stream"


class Lines(StreamingResponse, Generic[T]):
    """A T in each line."""

    media_type = "application/x-ndjson"


class Deleted(TypedDict):
    deleted: Annotated[str, says("Its name.")]


class Problem(TypedDict):
    """What went wrong (RFC 9457), as `application/problem+json`."""

    type: str
    status: int
    code: Annotated[str, says("Stable; `mainstem explain CODE` says more.")]
    detail: Annotated[str, says("What, where and why.")]
    fix: NotRequired[Annotated[str, says("The command that mends it, where there is one.")]]
