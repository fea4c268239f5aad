"""Large WebSocket frames as fragments, before the library sees them: it hands on a frame only once all of it is there.

    a frame of n bytes   FIN op | MASK n | key | payload
    becomes              0 op | MASK p | key | p bytes
                         0 CONT | MASK p | key | p bytes, as often as needed
                         FIN CONT | MASK r | key | the r bytes that are left

A masked byte depends on its place modulo 4 (RFC 6455, 5.3), so pieces of a multiple of 4 bytes keep the key. What is not a
data frame of more than PIECE_BYTES goes through as it came, and so does whatever is malformed: the library judges it. A
frame of more than `bytes_max` goes through as well: the library refuses it by its head.
"""

from __future__ import annotations

import struct

PIECE_BYTES = 64 * 1024  # a multiple of 4
HEAD_BYTES_MIN = 2
FIN, RESERVED, MASKED, OPCODE, LENGTH = 0x80, 0x70, 0x80, 0x0F, 0x7F
CONTINUED = 0
DATA_OPCODES = (0, 1, 2)
KEY_BYTES = 4
SHORT_MAX = 125
LENGTH_16, LENGTH_64 = 126, 127


class Pieces:
    """Bytes of whole and partial frames in, the same frames in pieces out. It keeps at most a frame's head."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._head = b""  # of a frame, not whole yet
        self._through = 0  # of the frame at hand, whose head was passed on
        self._left = 0  # of the payload that is cut, beyond the piece at hand
        self._key = b""
        self._last = 0  # FIN of the frame that is cut

    @property
    def inside(self) -> int:
        """So much of what comes next is payload."""
        return self._through + self._left

    def feed(self, data: bytes) -> bytes:
        data = self._head + data if self._head else data
        self._head, out, at = b"", list[bytes](), 0
        while at < len(data):
            if not self._through and self._left:
                out.append(self._next_piece(CONTINUED))
            if self._through:
                taken = data[at : at + self._through]
                out.append(taken)
                at += len(taken)
                self._through -= len(taken)
                continue
            size = self._begin(data, at, out)
            if not size:
                self._head = data[at:]
                break
            at += size
        return b"".join(out)

    def _begin(self, data: bytes, at: int, out: list[bytes]) -> int:
        """The head at that place; returns its size, 0 if it is not whole."""
        if len(data) - at < HEAD_BYTES_MIN:
            return 0
        first, second = data[at], data[at + 1]
        length, size = second & LENGTH, HEAD_BYTES_MIN
        extended = {LENGTH_16: ">H", LENGTH_64: ">Q"}.get(length, "")
        key = KEY_BYTES if second & MASKED else 0
        if len(data) - at < size + struct.calcsize(extended) + key:
            return 0
        if extended:
            (length,) = struct.unpack_from(extended, data, at + size)
            size += struct.calcsize(extended)
        is_cut = PIECE_BYTES < length <= self._bytes_max and key and first & OPCODE in DATA_OPCODES
        if not is_cut or first & RESERVED:
            out.append(data[at : at + size + key])
            self._through = length
            return size + key
        self._left, self._key, self._last = length, data[at + size : at + size + key], first & FIN
        out.append(self._next_piece(first & OPCODE))
        return size + key

    def _next_piece(self, opcode: int) -> bytes:
        self._through = min(self._left, PIECE_BYTES)
        self._left -= self._through
        first = opcode | (0 if self._left else self._last)
        if self._through <= SHORT_MAX:
            return bytes((first, MASKED | self._through)) + self._key
        form, mark = (">BBH", LENGTH_16) if self._through < 1 << 16 else (">BBQ", LENGTH_64)
        return struct.pack(form, first, MASKED | mark, self._through) + self._key
