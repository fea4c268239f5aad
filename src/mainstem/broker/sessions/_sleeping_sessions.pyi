from mainstem.broker.sessions.sessions import Session

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
    undecided: set[bytes],
    data: bytes,
    begin: int,
    limit: int,
) -> tuple[int, int, int, int]:
    """Take sessions from a snapshot for as long as they come: (where it stopped, entries, sessions, subscriptions).

    `expiries` gets the keys of those that end some day, by second; `undecided` those that may not sleep as they are.
    """

def replay(
    awake: list[dict[bytes, Session]],
    asleep: list[dict[bytes, bytes]],
    expiries: dict[int, list[bytes]],
    undecided: set[bytes],
    data: bytes,
    begin: int,
    limit: int,
    offset: int,
    taken: dict[bytes, int],
) -> tuple[int, int, int, int]:
    """Apply entries of the journal to sessions that are not awake, for as long as they are simple:
    (where it stopped, entries, how many sessions more there are, and how many subscriptions more).

    A session's static part comes as a whole, so does its end. A place is simple where nothing is and was in flight.
    `offset` is that of the first entry; `taken` says of some keys up to which offset the snapshot has their changes.
    """

def settle(
    asleep: list[dict[bytes, bytes]], expiries: dict[int, list[bytes]], undecided: set[bytes], now_ns: int
) -> list[bytes]:
    """Everything is replayed, and nobody is here: those whose client was here left just now. The keys of those that have
    to wake, because they concern others."""
