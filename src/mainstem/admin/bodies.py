"""A request's body: JSON, or a mistake of the caller's, whatever its bytes are."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request

from mainstem.model.errors import InvalidArgument, MessageTooLarge


def body_ended() -> MessageTooLarge:
    """A client that hung up, or sent more than it may, looks the same from here (`guard.py`)."""
    return MessageTooLarge("the body is longer than [http] body_bytes_max allows")


async def body_of(request: Request) -> bytes:
    try:
        return await request.body()
    except ClientDisconnect:
        raise body_ended() from None


def json_of(data: bytes, kind: Any = Any) -> Any:
    """Text that is not UTF-8 is found in strings only, by an error of its own; so are halves of surrogate pairs."""
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise InvalidArgument("the body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the body is not JSON: {error}") from None
