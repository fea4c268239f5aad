"""The bytes of a queue cursor's journal: what changed, small enough to write once per loop turn.

change   = version u8 (1), op …
op       = code u8, body
varint   = 7 bits per byte, low first, high bit = more follow; signed ones zigzag
position = signed varint, the distance to the position named before it in this change (the first: to 0)
run list = varint number of tokens, token …
token    = position, varint count - 1, and if that is not 0: varint gap
           an arithmetic run of ascending positions (the records of a batch are neighbours: gap 1)

code  op                body
1     RESET             position next, position head, varint unread   (a snapshot begins)
2     HEAD              position head, varint unread
3     PASS              position next, varint unread
4     LEASE             run list, unread ones                     5     LEASE_AGAIN  run list, released ones
6     SETTLE            run list                                  7     WAKE         run list
8     REDRIVE           run list                                  9     RESTORE_LEASED    run list
10    RESTORE_RELEASED  run list
11    DELAY             position, varint attempts, varint due ms  (0: released at once)
12    BURY              position, varint attempts, varint time ms, varint length, reason in UTF-8
13    ATTEMPTS          position, varint attempts
14    DOUBT             position                                  (what lies below may have been delivered)
15    ESTIMATED         varint 1: the count of unread ones is too high, 0: it is right
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum

from mainstem.cursor._position_runs import ascending, run_list
from mainstem.model.errors import CorruptFrame

VERSION = 1


class Op(IntEnum):
    RESET = 1
    HEAD = 2
    PASS = 3
    LEASE = 4
    LEASE_AGAIN = 5
    SETTLE = 6
    WAKE = 7
    REDRIVE = 8
    RESTORE_LEASED = 9
    RESTORE_RELEASED = 10
    DELAY = 11
    BURY = 12
    ATTEMPTS = 13
    DOUBT = 14
    ESTIMATED = 15


Arguments = Sequence[int] | tuple[int, int, int, str]
Change = tuple[Op, Arguments]

_RUN_LISTS = frozenset(
    (Op.LEASE, Op.LEASE_AGAIN, Op.SETTLE, Op.WAKE, Op.REDRIVE, Op.RESTORE_LEASED, Op.RESTORE_RELEASED)
)
# The body of the others: p = position, v = varint, s = text.
_BODIES = {
    Op.RESET: "ppv",
    Op.HEAD: "pv",
    Op.PASS: "pv",
    Op.DELAY: "pvv",
    Op.BURY: "pvvs",
    Op.ATTEMPTS: "pv",
    Op.DOUBT: "p",
    Op.ESTIMATED: "v",
}


def encode_change(ops: Sequence[Change]) -> bytes:
    out = bytearray((VERSION,))
    last = 0
    for op, arguments in ops:
        out.append(op)
        if op in _RUN_LISTS:
            positions = ascending(arguments)  # type: ignore[arg-type]  # which makes long runs
            out += run_list(positions, last)
            last = positions[-1]
            continue
        for kind, argument in zip(_BODIES[op], arguments, strict=True):
            if kind == "p":
                _put_signed(out, argument - last)  # type: ignore[operator]
                last = argument  # type: ignore[assignment]
            elif kind == "v":
                _put(out, argument)  # type: ignore[arg-type]
            else:
                text = str(argument).encode()
                _put(out, len(text))
                out += text
    return bytes(out)


def decode_change(data: bytes) -> Iterator[Change]:
    if not data or data[0] != VERSION:
        raise CorruptFrame(f"queue journal entry of version {data[:1].hex() or 'none'}, expected {VERSION}")
    reader = _Reader(data)
    while reader.at < len(data):
        op = Op(data[reader.at])
        reader.at += 1
        if op in _RUN_LISTS:
            yield op, reader.runs()
        else:
            yield op, tuple(reader.argument(kind) for kind in _BODIES[op])  # type: ignore[misc]


def _put(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _put_signed(out: bytearray, value: int) -> None:
    _put(out, value << 1 if value >= 0 else (-value << 1) - 1)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 1
        self._last = 0

    def varint(self) -> int:
        data, at = self._data, self.at
        value = shift = 0
        while True:
            if at >= len(data) or shift > 63:
                raise CorruptFrame(f"queue journal entry ends inside a number at byte {at}")
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.at = at
                return value
            shift += 7

    def signed(self) -> int:
        value = self.varint()
        return value >> 1 if not value & 1 else -((value + 1) >> 1)

    def position(self) -> int:
        self._last += self.signed()
        return self._last

    def argument(self, kind: str) -> int | str:
        if kind == "p":
            return self.position()
        if kind == "v":
            return self.varint()
        length = self.varint()
        text = self._data[self.at : self.at + length]
        self.at += length
        return text.decode()

    def runs(self) -> list[int]:
        positions: list[int] = []
        for _ in range(self.varint()):
            first = self.position()
            count = self.varint() + 1
            if count > 1:
                gap = max(1, self.varint())
                positions.extend(range(first, first + count * gap, gap))
                self._last = first + (count - 1) * gap
            else:
                positions.append(first)
        return positions
