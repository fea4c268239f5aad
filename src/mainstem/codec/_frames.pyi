Buffer = bytes | bytearray | memoryview

class BatchHead:
    """What a batch's head says."""

    base_offset: int
    size: int
    leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    first_time_ms: int
    max_time_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int
    @property
    def codec(self) -> int: ...
    @property
    def log_append_time(self) -> bool: ...
    @property
    def transactional(self) -> bool: ...
    @property
    def control(self) -> bool: ...

class FrameHead:
    """What a frame's head says, and where it was found."""

    pos: int
    kind: int
    origin: int
    topic_id: int
    base_offset: int
    stamp: int
    durable_offset: int
    count: int
    payload_size: int
    size: int

def check_batch(buf: Buffer, *, bytes_max: int) -> BatchHead:
    """Refuses what a producer must not send. Compressed records stay unopened, the others are looked through."""

def frame_heads(buf: Buffer, log_id: int) -> list[FrameHead]:
    """The heads of all frames in a buffer of whole frames, in order."""

def frames_since(buf: Buffer, log_id: int, time_ms: int) -> tuple[int | None, list[int]]:
    """Of the frames with records in a buffer, by the newest time each batch names: (the newest of all or None, the
    positions of those that reach `time_ms`)."""

def pack_batches(
    buf: bytearray | memoryview, log_id: int, start_offset: int, end_offset: int, bytes_max: int
) -> tuple[int, int, int] | None:
    """The batches of Kafka clients among the frames in a writable buffer are moved together at its front, from the one that
    holds `start_offset` to the last that begins below `end_offset`: as (bytes, records, offset behind them). As many as fit
    into `bytes_max` with their heads, and the first in any case. The last frame may be cut off; a damaged one ends it.

    None where there is no such batch, or a frame of another origin among them: the buffer is spoiled then.
    """

def read_batch_head(buf: Buffer, pos: int = 0) -> BatchHead:
    """The head of the batch at `pos`, which must lie whole in `buf`; its checksum is not looked at."""

def read_frame_head(buf: Buffer, pos: int, log_id: int) -> FrameHead:
    """The head of the frame at `pos`; CorruptFrame unless it is whole, of this log, and its payload is in `buf`."""

def record_count(buf: Buffer) -> int:
    """How many records the batches in a buffer say they have."""

def sent_batches(buf: Buffer, log_id: int, start_offset: int, bytes_max: int) -> tuple[list[Buffer], int, int] | None:
    """The batches of Kafka clients in a buffer of whole frames, without the heads, from the one that holds `start_offset`:
    as (buffers, bytes, records). As many as fit into `bytes_max`, and the first in any case.

    Small ones are joined into one buffer, large ones are slices. None where a frame of another origin lies among them.
    """

def split_batches(buf: Buffer) -> list[memoryview]:
    """The batches of a Kafka records field, as views of it."""

def verify_frame(buf: Buffer, pos: int, log_id: int) -> FrameHead:
    """`read_frame_head`, and the batch's own checksum and agreement with the head."""
