from collections.abc import Sequence

from mainstem.codec._batch import BatchBuilder
from mainstem.log.log import Log
from mainstem.log.open_batch import Waiter
from mainstem.model.record import Header

class Ticket:
    log: Log
    base_offset: int
    end_offset: int
    stamp: int
    stable: bool
    error: Exception | None
    def __init__(self, log: Log) -> None: ...
    def wait(self, waiter: Waiter) -> None: ...
    @property
    def awaited(self) -> bool: ...
    def release(self) -> None: ...
    def fail(self, error: Exception) -> None: ...

class TopicRef:
    topic: bytes
    number: int
    log: Log
    gathers: list[Gather | None]
    def __init__(self, topic: bytes, number: int, log: Log) -> None: ...
    def renumber(self) -> None: ...
    def open_gather(self, origin: int) -> Gather: ...

class Gather(BatchBuilder):
    log: Log
    origin: int
    kind: int
    ticket: Ticket
    routes: list[TopicRef | None]
    def __init__(self, log: Log, origin: int, kind: int) -> None: ...
    def add_routed(
        self,
        route: TopicRef,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        time_ms: int,
        flags: int,
    ) -> int:
        """Headers as (name, value) pairs; returns the record's index in the batch."""
    def expect(self, size: int, count: int) -> None:
        """About so much will come: room for it is taken at once."""
    def add_state(self, key: bytes, value: bytes | None, time_ms: int) -> int:
        """A record of the journal: it has no topic."""
    def topic_numbers(self) -> bytes:
        """One number per record, as the topic index wants them."""
