"""What happened to the records of a queue, counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Totals:
    """Since the start; the management page makes rates of them."""

    entered: int = 0
    delivered: int = 0
    delivered_no_ack: int = 0
    redelivered: int = 0
    pulled: int = 0
    acked: int = 0
    dead: int = 0
