"""The message classes by name: `from mainstem.protocols.kafka.messages import FetchResponse`.

They are made from the schema when first asked for, so type checkers see them as Any.
"""

from __future__ import annotations

from typing import Any

from mainstem.protocols.kafka.wire import message


def __getattr__(name: str) -> Any:
    if not name.endswith(("Request", "Response")):
        raise AttributeError(name)
    try:
        return message(name)
    except KeyError:
        raise AttributeError(name) from None
