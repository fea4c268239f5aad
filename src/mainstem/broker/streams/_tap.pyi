from array import array

from mainstem.broker.delivery._live import Sink
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.log.log import Log

OVERHEAD_BYTES: int

class Sizes:
    """Of a stream's newest records, by offset: an array that wraps around."""

    start: int
    end: int
    def __init__(self, count_max: int) -> None:
        """`count_max`: a power of two."""
    def set(self, offset: int, size: int) -> None: ...
    def get(self, offset: int) -> int:
        """0 where it is not known."""
    def pop(self, offset: int) -> int:
        """The same, and forget it."""
    def pop_below(self, offset: int) -> tuple[int, int]:
        """How many sizes below an offset are known, and their sum; they are forgotten."""
    def sum_from(self, offset: int) -> int:
        """Of those that are known from an offset on."""

class StreamCounts:
    """What a stream knows of its messages without looking at them."""

    messages: int
    stored_bytes: int
    first: int  # the offset of the first record there is, or where the next will be
    last_seq: int  # of the last record that was ever written
    last_stamp: int
    gathered: int  # published and not yet written
    gathered_topics: set[bytes]  # of them
    last_id: bytes  # of the last message that was published by NATS
    counts_only: bool  # a message need only be counted: nothing else in the configuration looks at each
    takes_plain: (
        bool  # a publish without headers for JetStream is just appended: nothing in the configuration is against it
    )
    sizes: Sizes
    def __init__(self, begin: int, sizes_max: int) -> None: ...
    def note_written(self, offset: int, stamp: int, size: int) -> None: ...

class Tap(Sink):
    """Hears of every record that is written to the stream, whoever published it."""

    def __init__(self, stream: StreamCounts, log: Log, namespace: Namespace) -> None: ...

class Handed(Sink):
    """Takes a consumer's unread messages from the log, and makes deliveries of them."""

    count: int  # of messages that were taken
    def __init__(self, namespace: Namespace) -> None: ...
    def begin(self, consumer_seq: int, pending: int) -> None:
        """The consumer's place before the first of them."""
    def expect(self, offsets: array[int]) -> None:
        """Exactly these are to come; at the first other one it takes no more."""
