"""Live delivery: every record that was just written goes to the sinks of its route.

A `Sink` is anything that takes records: an MQTT session, a queue, a live tail. While `live` it stands at the head and
`push` gives it each record of its routes once it is written, in stamp order. A sink without room answers False: its
`position` is then the stamp of the record it could not take, and it is no longer live. When it has room again the
namespace replays the log to it from there (`choose` says what it wants of a stored record, `None` for nothing) until it
stands at the head once more.

Topics with `store = false` lie in no log (`log/live_log.py`). Their records are offered by `push_unstored` to sinks with
`takes_unstored`: whoever has no room for one never gets it.

The `RecordRef` given to `push` and `choose` is one reused window into the batch: copy what you keep.
"""

from __future__ import annotations

from mainstem.broker.delivery._live import CUT, FULL, OFFERED, Delivery, Dispatcher, RecordRef, Route, Sink

__all__ = ["CUT", "FULL", "OFFERED", "Delivery", "Dispatcher", "RecordRef", "Route", "Sink"]
