from typing import Any

from mainstem.broker.delivery._live import RecordRef
from mainstem.broker.queues._queue_sink import QueueSink, Taker
from mainstem.log._gather import Ticket
from mainstem.protocols.amqp._outbound import Outbound

class ChannelWire:
    """A channel's unsettled deliveries by tag, its unconfirmed publishes by ticket, its half-read publish."""

    number: int
    out: Outbound
    owner: Any
    confirming: bool
    buffering: bool
    published: int
    unacked_max: int
    next_tag: int
    settled: bool  # something was, since whoever answers reset it
    def __init__(self, number: int, out: Outbound, owner: Any) -> None: ...
    @property
    def unacked(self) -> int: ...
    def skip_tag(self) -> int:
        """A delivery that nobody acks has a tag all the same."""
    def acknowledge(self, tag: int, multiple: bool) -> None: ...
    def holds(self, tag: int) -> bool:
        """Whether the delivery waits for an ack."""
    def oldest_tag(self, holder: Any) -> int:
        """Of what the holder was given and has not settled; 0: nothing."""
    def count_held(self, holder: Any) -> int:
        """How many deliveries the holder was given and has not settled."""
    def take_held(self, tag: int, multiple: bool) -> list[tuple[int, Any, int]]:
        """End deliveries in another way than by an ack: [(tag, consumer, position)], oldest first."""
    def write_deliver(self, head: bytes, record: RecordRef, holder: Any, decorator: Any) -> None:
        """A delivery by a consumer that is no queue's (`head` = class, method, consumer tag)."""
    def write_get_ok(
        self, record: RecordRef, redelivered: bool, attempts: int, tail: bytes, holder: Any, decorator: Any
    ) -> None:
        """The answer to basic.get; `holder` None: no ack is expected."""
    def close(self) -> None:
        """It ends: nothing more is confirmed."""
    def note_published(self, ticket: Ticket | None, persistent: bool) -> None:
        """One more publish on a confirming channel, stored under `ticket` (None: nothing to wait for)."""
    def after_read(self) -> None:
        """The read is done: what was published in it is confirmed together."""
    def refuse_next(self) -> None:
        """One more publish, which was not stored."""
    def released(self, ticket: Ticket | None) -> None:
        """A ticket is due, or a tick is over; answers leave in publish order."""

class Consumer(Taker):
    """basic.consume on a queue."""

    channel: ChannelWire
    queue: Any
    sink: QueueSink
    tag: str
    decorator: Any
    prefetch: int
    stalled: bool
    def __init__(
        self,
        channel: ChannelWire,
        queue: Any,
        tag: str,
        *,
        priority: int = 0,
        credit: int = 0,
        no_ack: bool = False,
        decorator: Any = None,
    ) -> None: ...
    def take(self, record: RecordRef, redelivered: bool, attempts: int) -> bool: ...
    def on_queue_deleted(self) -> None: ...
    @property
    def unacked(self) -> int: ...
