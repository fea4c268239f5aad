"""The first leases of a queue: positions that were handed out once and are not settled yet.

They are handed out in ascending order and mostly acked in that order too, thousands in a loop turn. So they lie in one
array, in order: what is new goes to its end, what is settled is crossed out in place, and the crossed out leave when the
lowest are gone or they outnumber the others.

    at     [ ~3 | 5 | 6 | ~9 | 12 ]        ~: crossed out (the position's complement, which is negative)
              ^ head             ^ tail

Positions are not negative.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstem.model.compiled import COMPILED

if TYPE_CHECKING or not COMPILED:
    from mainstem.cursor._leases_reference import Leases
else:
    from mainstem.cursor._leases import Leases

__all__ = ["Leases"]
