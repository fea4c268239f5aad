from collections.abc import Callable
from typing import Any

from mainstem.broker.delivery._live import RecordRef
from mainstem.model.record import Record

class Grant:
    """What one subscription, or several that overlap, asks of a delivery. Never changed once made."""

    qos: int
    no_local: bool
    own: Grant | None
    retain_as_published: bool
    identifiers: bytes
    meta: bool
    packet_id: int
    def __init__(
        self,
        qos: int,
        *,
        no_local: bool = False,
        retain_as_published: bool = False,
        identifiers: bytes = b"",
        meta: bool = False,
        packet_id: int = 0,
        own: Grant | None = None,
    ) -> None: ...
    @staticmethod
    def merged(grants: list[Grant]) -> Grant:
        """Overlapping subscriptions are served by one copy: the highest QoS, all identifiers. Those with No Local have no
        part in the client's own messages."""

def ref_of(record: Record) -> RecordRef:
    """A stored record as the window that `offer` takes."""

class Encoder:
    """What is worked out once per record, however many subscribers it has. One for all connections of a server."""

    translate: Callable[[Any, int], bytes | None]
    describe: Callable[[Any], bytes]
    now_ns: int
    def __init__(self, translate: Callable[[Any, int], bytes | None], describe: Callable[[Any], bytes]) -> None: ...
