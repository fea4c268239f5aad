"""The checker of every fault test: what was sent, what was acknowledged, what came out, and what must hold.

Each payload names its run, producer and number and carries a checksum, so that it can be judged wherever it turns up.
The ledger lives outside what is being broken. A send that got neither a yes nor a no is unknown, and may come or not.

    lost        acknowledged, but not there                     (never allowed)
    strange     there, but never sent, or damaged               (never allowed)
    refused     there, although it was refused                  (never allowed)
    disordered  a producer's records overtook each other        (never allowed)
    repeated    there twice                                     (allowed where delivery is at least once)
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Verdict:
    """What was wrong, by kind; empty means that every promise was kept."""

    lost: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    disordered: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)

    def problems(self, *, repeats_allowed: bool = False) -> dict[str, list[str]]:
        kinds = {name: getattr(self, name)[:5] for name in self.__slots__ if getattr(self, name)}
        if repeats_allowed:
            kinds.pop("repeated", None)
        return kinds


class Ledger:
    """One run's. `payload` makes what is sent; `ok` and `failed` note the answer; `judge` compares."""

    def __init__(self, run: str) -> None:
        assert "." not in run
        self.run = run
        self._sent: set[tuple[str, int]] = set()
        self._ok: set[tuple[str, int]] = set()
        self._failed: set[tuple[str, int]] = set()

    def payload(self, producer: str, number: int, size: int = 0) -> bytes:
        """Notes it as sent. At least `size` bytes long."""
        self._sent.add((producer, number))
        return seal(f"{self.run}.{producer}.{number}", size)

    def ok(self, producer: str, number: int) -> None:
        assert (producer, number) in self._sent
        self._ok.add((producer, number))

    def failed(self, producer: str, number: int) -> None:
        self._failed.add((producer, number))

    @property
    def counts(self) -> dict[str, int]:
        unknown = len(self._sent) - len(self._ok) - len(self._failed)
        return {"sent": len(self._sent), "ok": len(self._ok), "failed": len(self._failed), "unknown": unknown}

    def judge(self, observed: Iterable[bytes], *, ordered: bool = True) -> Verdict:
        """`observed` in the order one reader met them, from the beginning to the end."""
        verdict = Verdict()
        seen: set[tuple[str, int]] = set()
        highest: dict[str, int] = {}
        for payload in observed:
            name = unseal(payload)
            key = self._key(name)
            if key is None or key not in self._sent:
                verdict.strange.append(name or repr(payload[:60]))
                continue
            if key in seen:
                verdict.repeated.append(f"{key[0]}.{key[1]}")
                continue
            seen.add(key)
            if key in self._failed:
                verdict.refused.append(f"{key[0]}.{key[1]}")
            if ordered and key[1] < highest.get(key[0], -1):
                verdict.disordered.append(f"{key[0]}.{key[1]}")
            highest[key[0]] = max(key[1], highest.get(key[0], -1))
        verdict.lost = [f"{producer}.{number}" for producer, number in sorted(self._ok - seen)]
        return verdict

    def _key(self, name: str | None) -> tuple[str, int] | None:
        run, _, rest = (name or "").partition(".")
        producer, _, number = rest.rpartition(".")
        return (producer, int(number)) if run == self.run and number.isdigit() else None


class OffsetMemory:
    """What each position was ever seen to hold: it may vanish in a crash, but never come to hold something else."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], bytes] = {}
        self.changed: list[str] = []

    def see(self, stream: str, values: Mapping[int, bytes]) -> None:
        for offset, value in values.items():
            before = self._seen.setdefault((stream, offset), value)
            if before != value:
                self.changed.append(f"{stream}@{offset}: {before[:40]!r} became {value[:40]!r}")


def seal(name: str, size: int = 0) -> bytes:
    """A payload that can be recognised and checked."""
    body = name.encode() + b"|"
    body += b"." * max(size - len(body) - 8, 0)
    return body + b"%08x" % zlib.crc32(body)


def unseal(payload: bytes) -> str | None:
    """The name in a payload, None if a bit of it is wrong."""
    body, checksum = payload[:-8], payload[-8:]
    if checksum != b"%08x" % zlib.crc32(body):
        return None
    return body.partition(b"|")[0].decode()
