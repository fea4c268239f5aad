# cython: language_level=3, boundscheck=False
"""NATS's wire, read: bytes to commands. See `wire.py`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memchr

from mainstem.protocols.nats.commands import (
    CONNECT, CONTROL_LINE_MAX, ERR, HPUB, INFO, OK, PING, PONG, PUB, SUB, UNSUB, WireError,
    CONTROL_LINE_EXCEEDED, MAXIMUM_PAYLOAD, UNKNOWN_OPERATION,
)

cdef dict VERBS = {
    b"PUB": PUB, b"HPUB": HPUB, b"SUB": SUB, b"UNSUB": UNSUB, b"CONNECT": CONNECT, b"PING": PING, b"PONG": PONG,
    b"INFO": INFO, b"+OK": OK, b"-ERR": ERR,
}
cdef int VERB_MAX = 8


cdef Py_ssize_t _number(bytes text) except -2:
    """-1 where it is none."""
    if not text.isdigit() or len(text) > 12:
        return -1
    return int(text)


cdef class Parser:
    """Feed it what the socket brings; it answers the commands that are whole. The rest waits, within limits."""

    cdef list _kept  # pieces of what is not whole
    cdef Py_ssize_t _kept_size
    cdef object _waiting  # (kind, subject, reply, header size, total) of a publish whose payload is not whole
    cdef public Py_ssize_t payload_max
    cdef public Py_ssize_t line_max

    def __init__(self, payload_max, line_max=CONTROL_LINE_MAX):
        self._kept = []
        self._kept_size = 0
        self.payload_max = payload_max
        self.line_max = line_max

    def kept_bytes(self):
        return self._kept_size

    def feed(self, bytes data):
        """Commands as tuples: (kind, arguments...). Raises WireError where the peer must be closed; what came before
        it in `data` is in the error's `commands`."""
        cdef bytes buffer
        cdef const char* start
        cdef Py_ssize_t size = self._kept_size + len(data), at = 0, end
        cdef const char* found
        cdef list commands = []
        if self._waiting is not None and size < <Py_ssize_t>self._waiting[4] + 2:
            self._kept.append(data)  # joined once, however many reads a large payload takes
            self._kept_size = size
            return commands
        buffer = b"".join([*self._kept, data]) if self._kept else data
        start = PyBytes_AS_STRING(buffer)
        self._kept = []
        self._kept_size = 0
        try:
            while at < size or self._waiting is not None:
                if self._waiting is not None:
                    end = at + <Py_ssize_t>self._waiting[4] + 2
                    if end > size:
                        break
                    if start[end - 2] != 13 or start[end - 1] != 10:
                        raise WireError(UNKNOWN_OPERATION)
                    commands.append(self._publish(buffer, at))
                    self._waiting = None
                    at = end
                    continue
                found = <const char*>memchr(start + at, 10, size - at)
                if found == NULL:
                    if size - at > self.line_max + VERB_MAX:
                        raise WireError(CONTROL_LINE_EXCEEDED)
                    break
                end = found - start
                if end - at > self.line_max + VERB_MAX:
                    raise WireError(CONTROL_LINE_EXCEEDED)
                command = self._line(PyBytes_FromStringAndSize(start + at, end - at))
                at = end + 1
                if command is not None:
                    commands.append(command)
        except WireError as error:
            error.commands = commands
            raise
        if at < size:
            self._kept = [buffer[at:]]
            self._kept_size = size - at
        return commands

    cdef object _publish(self, bytes buffer, Py_ssize_t at):
        kind, subject, reply, head, total = self._waiting
        return kind, subject, reply, buffer[at : at + head], buffer[at + head : at + total]

    cdef object _line(self, bytes line):
        cdef list words
        cdef bytes verb
        if line.endswith(b"\r"):
            line = line[:-1]
        words = line.split(None, 1)
        if not words:
            raise WireError(UNKNOWN_OPERATION)
        verb = (<bytes>words[0]).upper()
        kind = VERBS.get(verb)
        if kind is None:
            raise WireError(UNKNOWN_OPERATION)
        rest = words[1] if len(words) > 1 else b""
        if kind == CONNECT or kind == INFO or kind == ERR:
            return kind, rest
        words = rest.split()
        if kind == PUB or kind == HPUB:
            return self._begin_publish(kind, words)
        if kind == SUB:
            if len(words) not in (2, 3):
                raise WireError("")
            return SUB, words[0], words[1] if len(words) == 3 else b"", words[-1]
        if kind == UNSUB:
            limit = _number(words[1]) if len(words) == 2 else 0
            if len(words) not in (1, 2) or limit < 0:
                raise WireError("")
            return UNSUB, words[0], limit
        return (kind,)

    cdef object _begin_publish(self, kind, list words):
        cdef Py_ssize_t sizes = 2 if kind == HPUB else 1
        cdef Py_ssize_t head = 0, total
        if len(words) not in (1 + sizes, 2 + sizes):
            raise WireError("")
        total = _number(words[len(words) - 1])
        if kind == HPUB:
            head = _number(words[len(words) - 2])
        if total < 0 or head < 0 or head > total:
            raise WireError("")
        if total > self.payload_max:
            raise WireError(MAXIMUM_PAYLOAD)
        self._waiting = (kind, words[0], words[1] if len(words) == 2 + sizes else b"", head, total)
        return None
