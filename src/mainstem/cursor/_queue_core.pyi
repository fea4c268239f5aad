from array import array
from collections.abc import Sequence

from mainstem.cursor._leases import Leases
from mainstem.cursor.key_order import KeyOrder
from mainstem.cursor.queue_journal import Change, Op
from mainstem.cursor.queue_places import Dead

class QueueCore:
    exceptions_max: int
    journaled: bool
    order: KeyOrder | None
    next: int
    head: int
    unread: int
    dead: dict[int, Dead]
    _pending: list[Change]
    _leased: Leases  # first leases
    _leased_again: set[int]  # leases of released positions
    _deadline_of: dict[int, int]  # position -> deadline in ms, only leases that have one
    _deadlines: list[tuple[int, int]]  # heap of (deadline, position)
    _released: list[int]  # heap
    _delayed: dict[int, int]  # position -> due ms
    _due: list[tuple[int, int]]  # heap of (due, position)
    _attempts: dict[int, int]  # only where at least one attempt failed
    def __init__(self, start: int, exceptions_max: int, journaled: bool, order: KeyOrder | None) -> None: ...
    @property
    def ready(self) -> int:
        """What a consumer could get now: unread and released, and what waits for its key."""
    @property
    def waiting(self) -> int:
        """Set aside until the holder of their key takes them, or the key becomes free."""
    @property
    def room(self) -> int:
        """How many more positions may be leased before the exceptions reach their limit; below 0 over it."""
    @property
    def timed(self) -> bool:
        """Whether any lease has a deadline or any position waits for its time."""
    def enter(self, last: int, count: int = 1) -> None:
        """`count` further positions exist, the newest is `last`."""
    def hand_out(self, leased: array[int], passed: int, end: int) -> None:
        """Take the unread positions below `end`: lease some, settle the `passed` others, which nobody will ack.

        They are ascending, the first at or beyond `next`, none left out in between.
        """
    def pass_over(self, position: int, count: int) -> None:
        """Settle the `count` unread positions below `position` without a lease: expired, dropped, or sent with no ack."""
    def ack_plainly(self, positions: array[int]) -> int:
        """Settle leases where there are none but first ones; how many there were. -1: there are others, do it in full."""
    def _reset(self, start: int) -> None: ...
    def _advance(self, position: int, count: int) -> None: ...
    def _note_head(self) -> None: ...
    def _note(self, op: Op, arguments: Sequence[int] | tuple[int, int, int, str]) -> None: ...
