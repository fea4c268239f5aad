"""What every turn does with a queue's cursor: positions enter, are leased in their order, and are settled.

The rest of the cursor (`queue.py`) is for what seldom happens. All its state is here, so that a turn of a queue whose
consumers simply ack is a few calls, whatever it brought.
"""

from __future__ import annotations

from mainstem.cursor._queue_core import QueueCore

__all__ = ["QueueCore"]
