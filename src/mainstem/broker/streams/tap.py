"""What every message does to its stream: it is counted, in compiled code where the configuration asks for nothing more.

`StreamCounts` is the part of a `Stream` that changes with each message; its `Tap` is subscribed to the stream's subjects,
and hears of whatever anybody publishes there, once it is written.
`Handed` is the way out: a consumer's messages, from the log's frames into a protocol's words.
"""

from __future__ import annotations

from mainstem.broker.streams._tap import OVERHEAD_BYTES, Handed, Sizes, StreamCounts, Tap

__all__ = ["OVERHEAD_BYTES", "Handed", "Sizes", "StreamCounts", "Tap"]
