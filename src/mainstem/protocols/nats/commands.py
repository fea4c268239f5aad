"""The words of NATS's wire, as the reader of the wire answers them, and nats-server's own texts of errors.

(CONNECT, json)  (PING,)  (PONG,)  (SUB, subject, queue, sid)  (UNSUB, sid, max)
(PUB, subject, reply, b"", payload)  (HPUB, subject, reply, header block, payload)
"""

from __future__ import annotations

CONNECT, PUB, HPUB, SUB, UNSUB, PING, PONG, INFO, OK, ERR = range(10)

CONTROL_LINE_MAX = 4_096  # of a command's arguments
UNKNOWN_OPERATION = "Unknown Protocol Operation"
CONTROL_LINE_EXCEEDED = "maximum control line exceeded"
MAXIMUM_PAYLOAD = "Maximum Payload Violation"
AUTHORIZATION = "Authorization Violation"
AUTHENTICATION_TIMEOUT = "Authentication Timeout"
TLS_REQUIRED = "Secure Connection - TLS Required"
STALE = "Stale Connection"
SUBSCRIPTIONS = "maximum subscriptions exceeded"
CONNECTIONS = "maximum account active connections exceeded"
QUOTA = "Account Quota Exceeded"
INVALID_SUBJECT = "Invalid Subject"
INVALID_PROTOCOL = "invalid client protocol"
NO_RESPONDERS = "no responders requires headers support"


class WireError(Exception):
    """The peer must be closed: with this text, or silently where it is empty, as nats-server does."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
