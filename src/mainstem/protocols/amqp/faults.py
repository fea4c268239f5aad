"""What goes wrong in AMQP's words: a code, a text, and whether it ends the channel or the whole connection.

    ContentTooLarge 311 · NoRoute 312 · AccessRefused 403 · NotFound 404 · ResourceLocked 405 · PreconditionFailed 406
    ConnectionForced 320 · FrameError 501 · SyntaxError 502 · CommandInvalid 503 · ChannelError 504 · UnexpectedFrame 505
    ResourceError 506 · NotAllowed 530 · NotImplemented 540 · InternalError 541

Texts are RabbitMQ's, which clients and their users read: `NOT_FOUND - no queue 'x' in vhost '/'`.
"""

from __future__ import annotations

from mainstem.model import errors

NAMES = {
    311: "CONTENT_TOO_LARGE",
    312: "NO_ROUTE",
    313: "NO_CONSUMERS",
    320: "CONNECTION_FORCED",
    402: "INVALID_PATH",
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED",
    501: "FRAME_ERROR",
    502: "SYNTAX_ERROR",
    503: "COMMAND_INVALID",
    504: "CHANNEL_ERROR",
    505: "UNEXPECTED_FRAME",
    506: "RESOURCE_ERROR",
    530: "NOT_ALLOWED",
    540: "NOT_IMPLEMENTED",
    541: "INTERNAL_ERROR",
}
_SOFT = frozenset((311, 312, 313, 403, 404, 405, 406))
TEXT_BYTES_MAX = 255
OCTETS_SHOWN = 16
EXPECTED = (  # what a channel's next frame is to be: a method, then what a publish brings
    "expected method frame, got non method frame instead",
    "expected content header for class 60, got non content header frame instead",
    "expected content body, got non content body frame instead",
)


class Fault(Exception):
    """Ends a channel (soft) or the connection (hard)."""

    def __init__(self, code: int, text: str, *, hard: bool | None = None) -> None:
        super().__init__(f"{NAMES[code]} - {text}")
        self.code = code
        self.hard = code not in _SOFT if hard is None else hard

    @property
    def text(self) -> str:
        """As it fits into a short string."""
        return str(self).encode("utf-8", "surrogateescape")[:TEXT_BYTES_MAX].decode("utf-8", "ignore")


class AccessRefused(Fault):
    """For want of a right, which the audit tells."""

    def __init__(self, text: str, action: str = "", what: str = "") -> None:
        super().__init__(403, text)
        self.action = action  # in the words of rules; "": whatever the method is
        self.what = what


def bad_frame(kind: int, payload: bytes, why: str = "") -> Fault:
    """A frame that is none; without `why` one that comes where none of its kind may."""
    which = "all" if len(payload) <= OCTETS_SHOWN else f"first {OCTETS_SHOWN}"
    shown = f"type {kind}, {which} octets = {_binary(payload[:OCTETS_SHOWN])}"
    return Fault(501, f"{shown}: {why}") if why else Fault(505, shown)


def undecodable(arguments: bytes) -> Fault:
    """A method that is none, or does not end where its fields do."""
    return Fault(501, f"cannot decode <<{','.join(map(str, arguments[:TEXT_BYTES_MAX]))}>>")


def _binary(octets: bytes) -> str:
    """As Erlang prints it."""
    if octets and octets.isascii() and octets.decode().isprintable():
        text = octets.decode().replace("\\", "\\\\").replace('"', '\\"')
        return f'<<"{text}">>'
    return f"<<{','.join(map(str, octets))}>>"


def fault_of(error: errors.MainstemError) -> Fault:
    """The broker's own errors in AMQP's words."""
    codes: tuple[tuple[type[errors.MainstemError], int], ...] = (
        (errors.NotFound, 404),
        (errors.NotAuthorized, 403),
        (errors.MessageTooLarge, 311),
        (errors.ClientFault, 406),
        (errors.PeerViolation, 502),
        (errors.QuotaExceeded, 406),
        (errors.Overloaded, 506),
    )
    code = next((code for kind, code in codes if isinstance(error, kind)), 541)
    return AccessRefused(error.message) if code == 403 else Fault(code, error.message)
