"""A topic's name as each protocol spells it."""

from __future__ import annotations


def spellings(name: bytes) -> dict[str, str]:
    text = name.decode(errors="replace")
    return {"mqtt": text, "kafka": text.replace("/", "."), "amqp": text.replace("/", ".")}
