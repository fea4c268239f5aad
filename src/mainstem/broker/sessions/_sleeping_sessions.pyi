from collections.abc import Callable

def split(packed: bytes) -> tuple[bytes, bytes]:
    """(value of its "session" entry, value of its "place" entry)."""

def entries_of(key: bytes, static: bytes, place: bytes) -> tuple[bytes, bytes]:
    """(what it is asleep, its entries of a snapshot)."""

def subscriptions_of(packed: bytes) -> int:
    """How many a session has that may sleep; -1 if this one may not."""

def held_by(packed: bytes) -> tuple[int, list[bytes]] | None:
    """(stamp of the oldest record it may still need, its filters of QoS 1 and 2); None if it holds nothing."""

def pack(keys: list[bytes], asleep: dict[bytes, bytes]) -> bytes:
    """These, which sleep, as entries of a snapshot."""

def load(
    asleep: list[dict[bytes, bytes]],
    expiries: dict[int, list[bytes]],
    data: bytes,
    begin: int,
    limit: int,
    wake: Callable[[bytes, bytes], None],
) -> tuple[int, int, int, int]:
    """Take sessions from a snapshot for as long as they come: (where it stopped, entries, sessions, subscriptions).

    `expiries` gets the keys of those that end some day, by second. `wake(key, packed)` gets those that may not sleep.
    """
