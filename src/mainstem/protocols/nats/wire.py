"""NATS's wire: the compiled parser of what clients send, and the lines that they are sent.

MSG subject sid [reply] size CR LF payload CR LF
HMSG subject sid [reply] header-size size CR LF headers payload CR LF
"""

from __future__ import annotations

from mainstem.protocols.nats._wire import Parser

__all__ = ["Parser", "error_line", "message"]


def message(subject: bytes, sid: bytes, reply: bytes, headers: bytes, payload: bytes) -> bytes:
    to = b"%b %b %b" % (subject, sid, reply) if reply else b"%b %b" % (subject, sid)
    if headers:
        size = len(headers) + len(payload)
        return b"HMSG %b %d %d\r\n%b%b\r\n" % (to, len(headers), size, headers, payload)
    return b"MSG %b %d\r\n%b\r\n" % (to, len(payload), payload)


def error_line(text: str) -> bytes:
    return b"-ERR '%b'\r\n" % text.encode()
