"""NATS's wire in plain words: what the compiled halves must read and write."""

from __future__ import annotations

from typing import Any

from mainstem.protocols.nats import commands
from mainstem.protocols.nats.commands import WireError

VERBS = {
    b"PUB": commands.PUB,
    b"HPUB": commands.HPUB,
    b"SUB": commands.SUB,
    b"UNSUB": commands.UNSUB,
    b"CONNECT": commands.CONNECT,
    b"PING": commands.PING,
    b"PONG": commands.PONG,
    b"INFO": commands.INFO,
    b"+OK": commands.OK,
    b"-ERR": commands.ERR,
}


def parse(data: bytes, payload_max: int) -> tuple[list[tuple[Any, ...]], bytes | str]:
    """Commands, then what is left unread; or the text with which the peer is closed, as a str."""
    found: list[tuple[Any, ...]] = []
    try:
        while True:
            line, end, rest = data.partition(b"\n")
            if len(line) > commands.CONTROL_LINE_MAX + 8:
                raise WireError(commands.CONTROL_LINE_EXCEEDED)
            if not end:
                return found, data
            command, needed = _command(line.removesuffix(b"\r"), payload_max)
            if needed is None:
                found.append(command)
                data = rest
                continue
            head, total = needed
            if len(rest) < total + 2:
                return found, data
            if rest[total : total + 2] != b"\r\n":
                raise WireError(commands.UNKNOWN_OPERATION)
            found.append((*command, rest[:head], rest[head:total]))
            data = rest[total + 2 :]
    except WireError as error:
        return found, error.text


def _command(line: bytes, payload_max: int) -> tuple[tuple[Any, ...], tuple[int, int] | None]:
    verb, _, _ = (line.split(None, 1) or [b""])[0].partition(b" ")
    kind = VERBS.get(verb.upper())
    if kind is None:
        raise WireError(commands.UNKNOWN_OPERATION)
    rest = [*line.split(None, 1), b""][1]
    words = rest.split()
    if kind in (commands.CONNECT, commands.INFO, commands.ERR):
        return (kind, rest), None
    if kind in (commands.PUB, commands.HPUB):
        return _publish(kind, words, payload_max)
    if kind == commands.SUB:
        if len(words) not in (2, 3):
            raise WireError("")
        return (kind, words[0], words[1] if len(words) == 3 else b"", words[-1]), None
    if kind == commands.UNSUB:
        if len(words) not in (1, 2) or not all(map(_is_number, words[1:])):
            raise WireError("")
        return (kind, words[0], int(words[1]) if len(words) == 2 else 0), None
    return (kind,), None


def _publish(kind: int, words: list[bytes], payload_max: int) -> tuple[tuple[Any, ...], tuple[int, int]]:
    sizes = 2 if kind == commands.HPUB else 1
    numbers = words[-sizes:]
    if len(words) not in (1 + sizes, 2 + sizes) or not all(map(_is_number, numbers)):
        raise WireError("")
    total, head = int(numbers[-1]), int(numbers[0]) if sizes == 2 else 0
    if head > total:
        raise WireError("")
    if total > payload_max:
        raise WireError(commands.MAXIMUM_PAYLOAD)
    return (kind, words[0], words[1] if len(words) == 2 + sizes else b""), (head, total)


def _is_number(word: bytes) -> bool:
    return word.isdigit() and len(word) <= 12


def message(subject: bytes, sid: bytes, reply: bytes, headers: bytes, payload: bytes) -> bytes:
    """What a subscriber is sent."""
    to = b"%b %b %b" % (subject, sid, reply) if reply else b"%b %b" % (subject, sid)
    if headers:
        size = len(headers) + len(payload)
        return b"HMSG %b %d %d\r\n%b%b\r\n" % (to, len(headers), size, headers, payload)
    return b"MSG %b %d\r\n%b\r\n" % (to, len(payload), payload)
