"""The door to Fetch requests that can be answered at once, as those of a consumer that has something to catch up with:

    PlainFetches(connection).take(request)   False: not of that shape, or not simple; the ordinary handler takes it

They have no session, ask for partitions with logs of their own whose batches Kafka clients sent, and find at least what they
ask for. Whatever is not plainly fine (an error to tell, an aborted transaction, a read that must wait) is left to the
ordinary handler, which gives the same answer, byte for byte, to what is taken here.
"""

from __future__ import annotations

from mainstem.protocols.kafka._plain_fetch import PlainFetches

HEADS_BYTES = 1 << 16  # of the scratch memory that all connections share

__all__ = ["HEADS_BYTES", "PlainFetches"]
