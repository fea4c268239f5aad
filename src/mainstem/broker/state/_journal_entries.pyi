from mainstem.codec._batch import Buffer

def entries_of_batch(batch: Buffer, *, inflated_bytes_max: int) -> bytes:
    """Of the batch behind a state frame's head, whose checksum is known to fit: one entry for each offset."""
