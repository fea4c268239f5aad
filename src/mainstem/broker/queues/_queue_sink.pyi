import builtins
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from mainstem.broker.delivery._live import RecordRef, Sink
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.cursor.queue import QueueCursor

class Entry:
    """Why the records of one topic enter a queue."""

    anything: bool
    default: bool
    plain: bool
    exchanges: frozenset[bytes]
    def __init__(
        self,
        *,
        anything: bool = False,
        default: bool = False,
        plain: bool = False,
        exchanges: frozenset[bytes] = frozenset(),
    ) -> None: ...

class Taker:
    """A consumer of a queue. Subclasses define `take`; whoever raises `credit` wakes the queue."""

    priority: int
    credit: int
    no_ack: bool
    queue: Any
    def __init__(self, *, priority: int = 0, credit: int = 0, no_ack: bool = False) -> None: ...
    def take(self, record: RecordRef, redelivered: bool, attempts: int) -> bool:
        """Take the record, or say False for want of room (then the queue offers it to another, or keeps it)."""
    def on_queue_deleted(self) -> None:
        """The queue is gone; nothing more comes."""
    @property
    def unacked(self) -> int:
        """Deliveries of its queue that it holds; counted when asked, so that a delivery costs nothing more."""

class QueueSink(Sink):
    queue_id: bytes
    owner: Any
    direct: bool
    expiring: bool
    inspect: bool
    room: int
    newest: int
    doubtful: int  # records below it may have been delivered before: they are said to be redelivered
    dirty: bool
    turns: list[int]
    groups: list[list[Taker]]
    def __init__(self, namespace: Namespace, queue_id: int, owner: Any) -> None: ...
    def set_takers(self, takers: list[Taker]) -> None:
        """Who may be handed records: turns are taken among those of equal priority, higher priorities first."""
    @property
    def busy(self) -> bool:
        """Whether anything happened since the cursor was told."""
    @property
    def entered_count(self) -> int:
        """What entered since then."""
    @property
    def wanted(self) -> bool:
        """Whether some taker has credit."""
    def merge(self, entries: list[Entry]) -> Entry:
        """One topic matched by several of the queue's filters."""
    @property
    def credit(self) -> int:
        """What all takers together would take."""
    def accepts(self, record: RecordRef, entry: Entry) -> bool: ...
    def push(self, record: RecordRef, options: Any) -> bool: ...
    def hand(self, record: RecordRef, redelivered: bool, attempts: int) -> bool:
        """Give the record to the next taker with credit and room; False if there is none."""
    def give(self, taker: Taker, record: RecordRef, redelivered: bool, attempts: int) -> bool:
        """Give the record to this taker, if it takes it."""
    def tell(self, cursor: QueueCursor) -> int:
        """Tell the cursor what happened since the last call; how many records were handed out."""
    def forget_events(self) -> int:
        """The cursor knows already; how many records were handed to takers that do not ack."""
    def ack(self, position: int) -> bool:
        """Note an ack; True if it is the first since `take_acked`."""
    def take_acked(self) -> array[int]: ...
    def settle_acked(self, cursor: QueueCursor) -> int:
        """Settle what was acked since the last call; how many of them were leased."""
    def stand(self, cursor: QueueCursor) -> bool:
        """Whether the next record may go straight to a taker, and how many; True if the cursor waits for a time."""

class Backlog:
    """Records read from the log that wait for takers: `plan` chooses them out of stored frames, `hand_all` gives them out.

    Holds what one or a few reads brought, never more; a consumer that takes one record at a time costs no second read.
    """

    sink: QueueSink
    constant_from: int
    bytes: int
    def __init__(self, sink: QueueSink) -> None: ...
    def __len__(self) -> int: ...
    def clear(self) -> None: ...
    def forget_entries(self) -> None:
        """The bindings changed."""
    def plan(
        self,
        log: Any,
        data: memoryview,
        offsets: Sequence[int],
        from_stamp: int,
        to_stamp: int,
        topic_of: dict[int, builtins.bytes],
        wants: Callable[[RecordRef], bool] | None = None,
        cold_before: int = 1 << 63,
        topic: builtins.bytes = b"",
        exact: bool = False,
    ) -> int:
        """Add the frames' records in [from_stamp, to_stamp) that the queue takes; `offsets` (sorted) chooses among them,
        empty = all. `wants` asks instead of the bindings; frames younger than `cold_before` are in the page cache as they
        were written, their checksums not worth a look; `topic` names it where all of the log is of one. A transaction's
        records lie where its marker says, or where they were written if the sink reads undecided ones; `exact`: `wants`
        knows the stamps, so both places are looked at. How many were added."""
    def sort(self) -> None:
        """After planning from several logs."""
    def first(self) -> RecordRef | None:
        """The next record to be handed out."""
    def skip(self) -> None:
        """Done with the first."""
    def hand_all(self) -> int:
        """Hand out as much as the takers take; how many."""

def may_expire(record: RecordRef) -> bool:
    """Whether the record may carry an expiry; the exact answer is model/crossing.py's."""
