from typing import Any

from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.streams.tap import Handed
from mainstem.protocols.nats._outbound import Encoder, Subscription

class Target:
    """A pull that waits, and the one subscription that hears its answers."""

    pull: Any
    one: Subscription
    left: int
    given: int
    def __init__(self, pull: Any, one: Subscription, left: int) -> None: ...

class Handing(Handed):
    """Takes a consumer's unread messages from the log, each as its client is to have it."""

    def __init__(self, namespace: Namespace, encoder: Encoder, front: bytes, targets: list[Target]) -> None:
        """`front`: of the reply subject, up to the sequence."""
    @property
    def in_turn(self) -> list[Target]:
        """The targets that want more, whose turn is next first."""
