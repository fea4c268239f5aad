from collections.abc import Sequence
from typing import Any

from mainstem.broker.namespaces.namespace import Namespace
from mainstem.log._gather import TopicRef
from mainstem.log.appended import Appended
from mainstem.log.log import Log
from mainstem.model.record import Header, Record

FULL: int
OFFERED: int
CUT: int

class RecordRef:
    topic: bytes
    flags: int
    origin: int
    offset: int
    stamp: int
    time_ms: int
    serial: int
    log: Log | None
    def __init__(self) -> None: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> list[Header]: ...
    @property
    def value_size(self) -> int: ...
    def header(self, name: bytes) -> bytes | None: ...
    def outline(self) -> Record:
        """A copy without its value, of which only whether it is null is kept: what its headers say does not need it."""

    def copy(self) -> Record: ...

class Sink:
    namespace: Namespace
    live: bool
    takes_unstored: bool  # it is offered records of topics that are live only, by `push_unstored`
    position: int
    blocked: bool  # its socket takes nothing just now
    dropped: int  # records that were for it and went past, which QoS 0 allows
    undecided_from: int  # records of transactions written from here on come as they are written,
    undecided_to: int  # up to here; others where their transaction is committed
    def __init__(self, namespace: Namespace, position: int = 0) -> None: ...
    def push(self, record: RecordRef, options: Any) -> bool:
        """Take a record; False when there is no room for it."""
    def push_unstored(self, record: RecordRef, options: Any) -> bool:
        """Take a record that lies in no log, whether the sink is live or not; False: it went past, and nobody reads it
        again."""
    def choose(self, record: RecordRef) -> Any:
        """While catching up: the options under which a stored record is wanted, None if it is not."""
    def may_drop(self, options: Any) -> bool:
        """Whether what comes under these options may go past while the sink is blocked, without it being asked."""
    def merge(self, options: list[Any]) -> Any:
        """Several of the sink's own filters match one topic: their options as one."""
    def filters(self) -> Sequence[bytes]:
        """What to read while catching up."""

class Delivery:
    sink: Sink
    options: Any
    since: int  # older records, written and still to be delivered when it subscribed, are not for it
    def __init__(self, sink: Sink, options: Any, since: int = 0) -> None: ...

class Route(TopicRef):
    namespace: Namespace
    deliveries: list[Delivery]
    epoch: int
    def __init__(self, topic: bytes, number: int, log: Log, namespace: Namespace) -> None: ...
    def move(self, log: Log, number: int) -> None:
        """The topic's layout or engine changed: what is published from now on goes there."""
    def renumber(self) -> None: ...

class Dispatcher:
    """Walks what was written, in stamp order, and pushes it to those who stand at the head."""

    epoch: int
    delivered: int
    undecodable: int
    failures: int
    waiting_bytes: int
    def __init__(self) -> None: ...
    def keep(self, appended: list[Appended]) -> int:
        """What was written waits behind what waits already."""

    def deliver(self, appended: list[Appended], until_ns: int = 0) -> int:
        """Offer what was written, behind what still waits, to those who listen, until it is later than `until_ns`
        (monotonic; 0: all of it). Returns the stamp below which everything was offered."""

    def bytes_within(self, time_ns: int, bytes_max: int) -> int:
        """How much can be delivered in that time, at present's price."""

    def replay(
        self,
        sink: Sink,
        log: Log,
        data: memoryview,
        offsets: Sequence[int],
        from_stamp: int,
        to_stamp: int,
        topic_of: dict[int, bytes],
        topic: bytes = b"",
        until_ns: int = 0,
    ) -> int:
        """Offer stored frames to a sink that catches up, in order. `offsets` (sorted) chooses records; empty = all.
        `topic` names it where all of the log is of one.

        OFFERED: all of [from_stamp, to_stamp) in `data` was. FULL: the sink had no room, its `position` is the record it
        could not take. CUT: it is later than `until_ns` (monotonic), the rest begins at its `position`. CorruptFrame where
        the stored bytes are damaged.
        """
