"""A block of NATS headers: `NATS/1.0`, a line each, an empty line. Looked up as nats-server does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

VERSION_LINE = b"NATS/1.0"


def header_value(block: bytes, name: bytes) -> bytes | None:
    """Of the first line with exactly this name, as nats-server looks it up."""
    at = block.find(b"\r\n" + name + b":")
    if at < 0:
        return None
    return block[at + 3 + len(name) : block.find(b"\r\n", at + 2)].strip(b" \t")


def with_lines(block: bytes, lines: Iterable[tuple[str, object]]) -> bytes:
    """The block with lines appended."""
    more = b"".join(f"{name}: {value}\r\n".encode() for name, value in lines)
    return (block[:-2] if block else VERSION_LINE + b"\r\n") + more + b"\r\n"


def without(block: bytes, beginnings: tuple[bytes, ...], names: Sequence[bytes] = ()) -> bytes:
    """The block without lines whose name is, or begins with, one of these."""
    if not block:
        return block
    first, *lines = block.removesuffix(b"\r\n\r\n").split(b"\r\n")
    kept = [one for one in lines if not one.startswith(beginnings) and one.partition(b":")[0] not in names]
    return b"\r\n".join([first, *kept]) + b"\r\n\r\n" if kept or first != VERSION_LINE else b""
