"""The open batch of a log, and the promise about it.

Publishers put records into the `Gather` of their topic's log and origin; the tick seals it. Nothing is made per
message: the record's bytes go straight into the batch, and all its publishers share the batch's one `Ticket`, which is
released when the log's durability policy is fulfilled for it, or failed (with `error` set) when it could not be written.
Once sealed, the record of index i has offset `ticket.base_offset + i` and stamp `ticket.stamp + i`.

`TopicRef` is what a record is put under: its topic, the topic's number in the shared log's dictionary (0 = forgotten
since: ask again) and its log. The broker's `Route` adds who listens.
"""

from __future__ import annotations

from mainstem.log._gather import Gather, Ticket, TopicRef
from mainstem.log.open_batch import Waiter

__all__ = ["Gather", "Ticket", "TopicRef", "Waiter"]
