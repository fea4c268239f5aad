from collections.abc import Callable, Sequence
from typing import Any

from mainstem.broker.delivery._live import RecordRef, Sink
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.protocols._outgoing import Outgoing

class Subscription:
    """One SUB. `limit` counts from SUB on, as UNSUB's maximum does."""

    start: int
    delivered: int
    limit: int
    closed: bool
    def __init__(
        self, owner: Any, outbound: Outbound, sid: bytes, topic_filter: bytes, queue: bytes = b"", subject: bytes = b""
    ) -> None: ...
    @property
    def owner(self) -> Any: ...
    @property
    def sid(self) -> bytes: ...
    @property
    def filter(self) -> bytes: ...
    @property
    def queue(self) -> bytes: ...
    @property
    def subject(self) -> bytes: ...

class Encoder:
    """What is worked out once per record, however many subscriptions it has."""

    def __init__(self, translate: Callable[[RecordRef], tuple[bytes, bytes] | None]) -> None:
        """`translate` gives another protocol's record as (headers, reply), or None where it has expired."""

class Outbound(Outgoing):
    """One connection's output."""

    headers: bool
    identity: bytes
    allows: Callable[[bytes], bool] | None
    waiting: bool
    @property
    def bytes_out(self) -> int: ...
    def __init__(self, connection: Any, ticker: Any, encoder: Encoder) -> None: ...
    @property
    def full(self) -> bool: ...
    def write_message(self, one: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        """A message that lies in no log."""

class PlainSink(Sink):
    """The subscriptions of one connection that are in no queue group."""

    def __init__(self, connection: Any, namespace: Namespace) -> None: ...
    def push(self, record: RecordRef, options: Any) -> bool: ...
    def choose(self, record: RecordRef) -> Any: ...
    def merge(self, options: list[Any]) -> Any: ...
    def filters(self) -> Sequence[bytes]: ...

class GroupSink(Sink):
    """A queue group: each record goes to one member, at random among those that have room."""

    @property
    def members(self) -> dict[bytes, list[Subscription]]: ...
    def __init__(self, namespace: Namespace) -> None: ...
    def push(self, record: RecordRef, options: Any) -> bool: ...
    def choose(self, record: RecordRef) -> Any: ...
    def merge(self, options: list[Any]) -> Any: ...
    def filters(self) -> Sequence[bytes]: ...
