"""The door to Produce requests of one batch, which almost all are: read, appended and answered without an object per field.

    SingleBatches(connection).take(request)   False: not of that shape, or not simple; the ordinary handler takes it

Whatever is not plainly fine (a batch that must be opened or refused, a repeat, a transaction, a topic that is not there) is
left to the ordinary handler, which alone knows what to say.
"""

from __future__ import annotations

from mainstem.protocols.kafka._single_batch import SingleBatch, SingleBatches, read_single

__all__ = ["SingleBatch", "SingleBatches", "read_single"]
