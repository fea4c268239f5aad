# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Reading frames and batches; FORMAT.md draws the bytes. The plain `tests/oracles/frames.py` says the same.

Nothing is believed before it is checked: head checksum, bounds, batch checksum; records are `_records.pyx`'s.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove

from mainstem.codec._batch cimport (
    BATCH_HEAD_SIZE, FRAME_HEAD_SIZE, KIND_DATA, KIND_MARKER,
    crc32c_c, get_signed, get_u16, get_u32, get_u64, next_header, put_u64,
)

from mainstem.model.errors import CorruptFrame, InvalidArgument, MessageTooLarge

cdef enum:
    FRAME_MAGIC = 0x4D534631
    FRAME_VERSION = 1
    CODEC_MASK = 7
    LOG_APPEND_TIME = 8
    TRANSACTIONAL = 16
    CONTROL = 32
    UNLOCKED_BYTES_MIN = 1 << 16  # whoever checks so much in a thread does it beside the loop
    ORIGIN_KAFKA = 2
    WITHOUT_GIL_BYTES = 1 << 16
    SLICE_BYTES_MIN = 4096  # below it copying a batch is cheaper than an object for it
    COMPRESSED_RECORDS_MAX = 1 << 24  # of one batch: each takes an offset and a stamp, said or true

cdef int64_t OFFSET_MAX = 0x7FFFFFFFFFFFFFFF
cdef tuple _FAULTS = (
    "", "shorter than a frame head", "no frame begins here (magic)",
    "the head's checksum does not match this log and offset", "the frame's version is newer than this program",
    "the frame's kind is unknown", "the frame's offsets are impossible",
    "the payload's size is wrong for the frame's kind", "the buffer ends before the frame does",
    "the batch's length is not the frame's", "the batch's base offset is not the frame's",
    "the batch's leader epoch does not match the frame's", "the batch is not of magic 2",
    "the batch's last offset is not the frame's", "the batch's checksum does not match",
)


cdef class FrameHead:
    """What a frame's head says, and where it was found."""

    def __repr__(self):
        return (
            f"FrameHead(pos={self.pos}, kind={self.kind}, origin={self.origin}, topic_id={self.topic_id}, "
            f"base_offset={self.base_offset}, stamp={self.stamp}, durable_offset={self.durable_offset}, "
            f"count={self.count}, payload_size={self.payload_size}, size={self.size})"
        )


cdef class BatchHead:
    """What a batch's head says."""

    @property
    def codec(self):
        return self.attributes & CODEC_MASK

    @property
    def log_append_time(self):
        return self.attributes & LOG_APPEND_TIME != 0

    @property
    def transactional(self):
        return self.attributes & TRANSACTIONAL != 0

    @property
    def control(self):
        return self.attributes & CONTROL != 0

    def __repr__(self):
        return (
            f"BatchHead(base_offset={self.base_offset}, size={self.size}, leader_epoch={self.leader_epoch}, "
            f"attributes={self.attributes:#06x}, last_offset_delta={self.last_offset_delta}, count={self.count}, "
            f"producer_id={self.producer_id}, producer_epoch={self.producer_epoch}, base_sequence={self.base_sequence})"
        )


cdef int parse_frame(const uint8_t* at, Py_ssize_t size, uint64_t log_id, FrameFields* fields) noexcept nogil:
    cdef uint8_t place[16]
    if size < FRAME_HEAD_SIZE:
        return FAULT_SHORT
    if get_u32(at) != FRAME_MAGIC:
        return FAULT_MAGIC
    put_u64(place, log_id)
    put_u64(place + 8, get_u64(at + 16))
    if crc32c_c(at, 44, crc32c_c(place, 16, 0)) != get_u32(at + 44):
        return FAULT_HEAD_CRC
    if at[4] != FRAME_VERSION:
        return FAULT_VERSION
    fields.kind = at[5]
    fields.origin = at[6]
    fields.epoch_check = at[7]
    fields.payload_size = get_u32(at + 8)
    fields.topic_id = get_u32(at + 12)
    fields.base_offset = <int64_t>get_u64(at + 16)
    fields.stamp = <int64_t>get_u64(at + 24)
    fields.durable_offset = <int64_t>get_u64(at + 32)
    fields.count = get_u32(at + 40)
    if fields.kind < KIND_DATA or fields.kind > KIND_MARKER:
        return FAULT_KIND
    if fields.count == 0 or fields.base_offset < 0 or fields.base_offset > OFFSET_MAX - fields.count:
        return FAULT_COUNT
    if fields.kind == KIND_MARKER:
        if fields.payload_size != 0:
            return FAULT_PAYLOAD_SIZE
    elif fields.payload_size < BATCH_HEAD_SIZE:
        return FAULT_PAYLOAD_SIZE
    if <Py_ssize_t>fields.payload_size > size - FRAME_HEAD_SIZE:
        return FAULT_CUT_OFF
    return FAULT_NONE


cdef int check_frame(const uint8_t* at, const FrameFields* fields, bint with_crc) noexcept nogil:
    """Whether the batch behind a parsed head at `at` is the one the head speaks of, and whole."""
    cdef const uint8_t* batch = at + FRAME_HEAD_SIZE
    if fields.kind == KIND_MARKER:
        return FAULT_NONE
    if get_u32(batch + 8) + 12 != fields.payload_size:
        return FAULT_BATCH_LENGTH
    if <int64_t>get_u64(batch) != fields.base_offset:
        return FAULT_BATCH_OFFSET
    if batch[12] ^ batch[13] ^ batch[14] ^ batch[15] ^ fields.epoch_check:
        return FAULT_BATCH_EPOCH
    if batch[16] != 2:
        return FAULT_BATCH_MAGIC
    if get_u32(batch + 23) + 1 != fields.count:
        return FAULT_BATCH_COUNT
    if with_crc and crc32c_c(batch + 21, fields.payload_size - 21, 0) != get_u32(batch + 17):
        return FAULT_BATCH_CRC
    return FAULT_NONE


cdef object frame_error(int fault, Py_ssize_t pos):
    return CorruptFrame(f"frame at byte {pos}: {_FAULTS[fault]}")


cdef FrameHead new_frame_head(Py_ssize_t pos, const FrameFields* fields):
    cdef FrameHead head = FrameHead.__new__(FrameHead)
    head.pos = pos
    head.kind = fields.kind
    head.origin = fields.origin
    head.topic_id = fields.topic_id
    head.base_offset = fields.base_offset
    head.stamp = fields.stamp
    head.durable_offset = fields.durable_offset
    head.count = fields.count
    head.payload_size = fields.payload_size
    head.size = FRAME_HEAD_SIZE + <Py_ssize_t>fields.payload_size
    return head


cdef FrameHead head_at(buf, Py_ssize_t pos, uint64_t log_id, bint with_batch):
    cdef Py_buffer view
    cdef FrameFields fields
    cdef const uint8_t* at
    cdef int fault
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        if pos < 0 or pos > view.len:
            raise frame_error(FAULT_SHORT, pos)
        at = <const uint8_t*>view.buf + pos
        fault = parse_frame(at, view.len - pos, log_id, &fields)
        if fault == FAULT_NONE and with_batch:
            if fields.payload_size < UNLOCKED_BYTES_MIN:
                fault = check_frame(at, &fields, True)
            else:
                with nogil:
                    fault = check_frame(at, &fields, True)
        if fault != FAULT_NONE:
            raise frame_error(fault, pos)
        return new_frame_head(pos, &fields)
    finally:
        PyBuffer_Release(&view)


def read_frame_head(buf, Py_ssize_t pos, uint64_t log_id):
    """The head of the frame at `pos`; CorruptFrame unless it is whole, of this log, and its payload is in `buf`."""
    return head_at(buf, pos, log_id, False)


def verify_frame(buf, Py_ssize_t pos, uint64_t log_id):
    """`read_frame_head`, and the batch's own checksum and agreement with the head."""
    return head_at(buf, pos, log_id, True)


def frame_heads(buf, uint64_t log_id):
    """The heads of all frames in a buffer of whole frames, in order."""
    cdef Py_buffer view
    cdef FrameFields fields
    cdef Py_ssize_t pos = 0
    cdef int fault
    cdef list heads = []
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        while pos < view.len:
            fault = parse_frame(<const uint8_t*>view.buf + pos, view.len - pos, log_id, &fields)
            if fault != FAULT_NONE:
                raise frame_error(fault, pos)
            heads.append(new_frame_head(pos, &fields))
            pos += FRAME_HEAD_SIZE + <Py_ssize_t>fields.payload_size
    finally:
        PyBuffer_Release(&view)
    return heads


cdef inline bint is_sent(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """Whether a client's batch lies there that agrees with the frame's head in all they both say: no checksum is needed
    then to know where it ends, and whoever opens the batch checks its own."""
    cdef const uint8_t* batch = at + FRAME_HEAD_SIZE
    cdef uint32_t payload_size
    if size < FRAME_HEAD_SIZE + BATCH_HEAD_SIZE or get_u32(at) != FRAME_MAGIC or at[4] != FRAME_VERSION:
        return False
    if at[5] != KIND_DATA or at[6] != ORIGIN_KAFKA:
        return False
    payload_size = get_u32(at + 8)
    return (
        payload_size >= BATCH_HEAD_SIZE
        and <Py_ssize_t>payload_size <= size - FRAME_HEAD_SIZE
        and get_u32(batch + 8) + 12 == payload_size
        and get_u64(batch) == get_u64(at + 16)
        and batch[16] == 2
        and get_u32(batch + 23) + 1 == get_u32(at + 40)
        and (batch[12] ^ batch[13] ^ batch[14] ^ batch[15]) == at[7]
    )


def sent_batches(buf, uint64_t log_id, int64_t start_offset, Py_ssize_t bytes_max):
    """The batches of Kafka clients in a buffer of whole frames, without the heads, from the one that holds `start_offset`:
    as (buffers, bytes, records). As many as fit into `bytes_max`, and the first in any case.

    Small ones are joined into one buffer, large ones are slices. None where a frame of another origin lies among them.
    """
    cdef Py_buffer view
    cdef FrameFields fields
    cdef Py_ssize_t pos = 0, end = 0, count = 0, total = 0, records = 0, size
    cdef const uint8_t* at
    cdef uint8_t* out
    cdef int fault
    cdef bytes joined
    cdef list slices
    cdef object whole
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        at = <const uint8_t*>view.buf
        while pos < view.len:
            if is_sent(at + pos, view.len - pos):
                size = <Py_ssize_t>get_u32(at + pos + 8)
                if <int64_t>get_u64(at + pos + 16) + <int64_t>get_u32(at + pos + 40) > start_offset:
                    if count and total + size > bytes_max:
                        break
                    count += 1
                    total += size
                    records += <Py_ssize_t>get_u32(at + pos + FRAME_HEAD_SIZE + 57)
            else:
                fault = parse_frame(at + pos, view.len - pos, log_id, &fields)
                if fault == FAULT_NONE and fields.kind == KIND_DATA and fields.origin == ORIGIN_KAFKA:
                    fault = check_frame(at + pos, &fields, False)
                if fault != FAULT_NONE:
                    raise frame_error(fault, pos)
                if fields.kind == KIND_DATA and fields.base_offset + <int64_t>fields.count > start_offset:
                    return None
                size = <Py_ssize_t>fields.payload_size
            pos += FRAME_HEAD_SIZE + size
            end = pos
        slices = []
        if not count:
            return slices, 0, 0
        joined = None if total >= count * SLICE_BYTES_MIN else PyBytes_FromStringAndSize(NULL, total)
        out = NULL if joined is None else <uint8_t*>PyBytes_AS_STRING(joined)
        whole = memoryview(buf)
        pos = 0
        while pos < end:
            size = <Py_ssize_t>get_u32(at + pos + 8)
            if (
                at[pos + 5] == KIND_DATA
                and <int64_t>get_u64(at + pos + 16) + <int64_t>get_u32(at + pos + 40) > start_offset
            ):
                if out == NULL:
                    slices.append(whole[pos + FRAME_HEAD_SIZE : pos + FRAME_HEAD_SIZE + size])
                else:
                    memcpy(out, at + pos + FRAME_HEAD_SIZE, size)
                    out += size
            pos += FRAME_HEAD_SIZE + size
    finally:
        PyBuffer_Release(&view)
    return (slices if joined is None else [joined]), total, records


cdef int pack_frames(
    uint8_t* at, Py_ssize_t size, uint64_t log_id, int64_t start_offset, int64_t end_offset, Py_ssize_t bytes_max,
    PackedBatches* packed,
) noexcept nogil:
    """`pack_batches`, of `size` bytes at `at`; False for None."""
    cdef FrameFields fields
    cdef Py_ssize_t pos = 0, first = 0, payload_size
    cdef int64_t base_offset, frame_end
    packed.size = packed.records = 0
    packed.next_offset = start_offset
    while size - pos >= FRAME_HEAD_SIZE:
        if is_sent(at + pos, size - pos):
            payload_size = <Py_ssize_t>get_u32(at + pos + 8)
            base_offset = <int64_t>get_u64(at + pos + 16)
            frame_end = base_offset + <int64_t>get_u32(at + pos + 40)
            if base_offset >= end_offset:
                break
            if frame_end > start_offset:
                if not packed.size:
                    first = pos
                elif pos + FRAME_HEAD_SIZE + payload_size - first > bytes_max:
                    break
                packed.records += <Py_ssize_t>get_u32(at + pos + FRAME_HEAD_SIZE + 57)
                memmove(at + packed.size, at + pos + FRAME_HEAD_SIZE, payload_size)
                packed.size += payload_size
        else:
            if parse_frame(at + pos, size - pos, log_id, &fields) != FAULT_NONE:
                break  # cut off, or damaged
            payload_size = <Py_ssize_t>fields.payload_size
            frame_end = fields.base_offset + <int64_t>fields.count
            if fields.base_offset >= end_offset:
                break
            if fields.kind == KIND_DATA:
                if fields.origin == ORIGIN_KAFKA:
                    break  # its head is whole, but not of this batch
                if frame_end > start_offset:
                    return False
        if frame_end > start_offset:
            packed.next_offset = frame_end
        pos += FRAME_HEAD_SIZE + payload_size
    return packed.size > 0


def pack_batches(buf, uint64_t log_id, int64_t start_offset, int64_t end_offset, Py_ssize_t bytes_max):
    """The batches of Kafka clients among the frames in a writable buffer are moved together at its front, from the one that
    holds `start_offset` to the last that begins below `end_offset`: as (bytes, records, offset behind them). As many as fit
    into `bytes_max` with their heads, and the first in any case. The last frame may be cut off; a damaged one ends it.

    None where there is no such batch, or a frame of another origin among them: the buffer is spoiled then.
    """
    cdef Py_buffer view
    cdef PackedBatches packed
    cdef bint found
    PyObject_GetBuffer(buf, &view, PyBUF_WRITABLE)
    found = pack_frames(<uint8_t*>view.buf, view.len, log_id, start_offset, end_offset, bytes_max, &packed)
    PyBuffer_Release(&view)
    return (packed.size, packed.records, packed.next_offset) if found else None


def record_count(buf):
    """How many records the batches in a buffer say they have."""
    cdef Py_buffer view
    cdef Py_ssize_t pos = 0, total = 0
    cdef const uint8_t* at
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    at = <const uint8_t*>view.buf
    while pos + BATCH_HEAD_SIZE <= view.len:
        total += <Py_ssize_t>get_u32(at + pos + 57)
        pos += 12 + <Py_ssize_t>get_u32(at + pos + 8)
    PyBuffer_Release(&view)
    return total


def frames_since(buf, uint64_t log_id, int64_t time_ms):
    """Of the frames with records in a buffer, by the newest time each batch names: (the newest of all or None, the
    positions of those that reach `time_ms`)."""
    cdef Py_buffer view
    cdef FrameFields fields
    cdef Py_ssize_t pos = 0
    cdef int64_t newest = 0, time
    cdef bint any_there = False
    cdef const uint8_t* at
    cdef int fault
    cdef list found = []
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        at = <const uint8_t*>view.buf
        while pos < view.len:
            fault = parse_frame(at + pos, view.len - pos, log_id, &fields)
            if fault != FAULT_NONE:
                raise frame_error(fault, pos)
            if fields.kind == KIND_DATA and not at[pos + FRAME_HEAD_SIZE + 22] & CONTROL:
                time = <int64_t>get_u64(at + pos + FRAME_HEAD_SIZE + 35)
                if not any_there or time > newest:
                    newest = time
                any_there = True
                if time >= time_ms:
                    found.append(pos)
            pos += FRAME_HEAD_SIZE + <Py_ssize_t>fields.payload_size
    finally:
        PyBuffer_Release(&view)
    return (newest if any_there else None), found


cdef BatchHead new_batch_head(const uint8_t* at):
    cdef BatchHead head = BatchHead.__new__(BatchHead)
    head.base_offset = <int64_t>get_u64(at)
    head.size = <Py_ssize_t><int32_t>get_u32(at + 8) + 12
    head.leader_epoch = <int32_t>get_u32(at + 12)
    head.crc = get_u32(at + 17)
    head.attributes = get_u16(at + 21)
    head.last_offset_delta = <int32_t>get_u32(at + 23)
    head.first_time_ms = <int64_t>get_u64(at + 27)
    head.max_time_ms = <int64_t>get_u64(at + 35)
    head.producer_id = <int64_t>get_u64(at + 43)
    head.producer_epoch = <int16_t>get_u16(at + 51)
    head.base_sequence = <int32_t>get_u32(at + 53)
    head.count = <int32_t>get_u32(at + 57)
    return head


cdef BatchHead bounded_batch_head(const uint8_t* at, Py_ssize_t size, Py_ssize_t pos):
    """The head of the batch at `at`, of which `size` bytes are there; CorruptFrame unless all of it is."""
    cdef BatchHead head
    if size < BATCH_HEAD_SIZE:
        raise CorruptFrame(f"batch at byte {pos}: {size} bytes are shorter than a batch head")
    head = new_batch_head(at)
    if at[16] != 2:
        raise InvalidArgument(
            f"batch at byte {pos}: magic {at[16]}, only 2 is taken (message format of Kafka 0.11 and later)"
        )
    if head.size < BATCH_HEAD_SIZE or head.size > size:
        raise CorruptFrame(f"batch at byte {pos}: it says {head.size} bytes, {size} are there")
    return head


def read_batch_head(buf, Py_ssize_t pos=0):
    """The head of the batch at `pos`, which must lie whole in `buf`; its checksum is not looked at."""
    cdef Py_buffer view
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        if pos < 0 or pos > view.len:
            raise CorruptFrame(f"batch at byte {pos}: outside the buffer of {view.len} bytes")
        return bounded_batch_head(<const uint8_t*>view.buf + pos, view.len - pos, pos)
    finally:
        PyBuffer_Release(&view)


def split_batches(buf):
    """The batches of a Kafka records field, as views of it."""
    whole = memoryview(buf)
    cdef Py_ssize_t pos = 0, size
    cdef list parts = []
    while pos < whole.nbytes:
        size = (<BatchHead>read_batch_head(whole, pos)).size
        parts.append(whole[pos : pos + size])
        pos += size
    return parts


def check_batch(buf, *, Py_ssize_t bytes_max):
    """Refuses what a producer must not send. Compressed records stay unopened, the others are looked through."""
    cdef Py_buffer view
    cdef BatchHead head
    cdef const uint8_t* at
    cdef uint32_t crc
    cdef bint sound
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        at = <const uint8_t*>view.buf
        if view.len > bytes_max:
            raise MessageTooLarge(f"a batch of {view.len} bytes, limit {bytes_max}")
        head = bounded_batch_head(at, view.len, 0)
        if head.size != view.len:
            raise CorruptFrame(f"the batch says {head.size} bytes, {view.len} were sent")
        if view.len < WITHOUT_GIL_BYTES:
            crc = crc32c_c(at + 21, view.len - 21, 0)
        else:
            with nogil:
                crc = crc32c_c(at + 21, view.len - 21, 0)
        if crc != head.crc:
            raise CorruptFrame(f"the batch's checksum is {crc:#010x}, its head says {head.crc:#010x}")
        check_produced(head)
        if head.attributes & CODEC_MASK == 0:
            if view.len < WITHOUT_GIL_BYTES:
                sound = are_records(at + BATCH_HEAD_SIZE, at + view.len, head.count)
            else:
                with nogil:
                    sound = are_records(at + BATCH_HEAD_SIZE, at + view.len, head.count)
            if not sound:
                raise InvalidArgument(f"the batch does not hold the {head.count} records it says")
        elif head.count > COMPRESSED_RECORDS_MAX:
            raise InvalidArgument(f"{head.count} records in a batch; the limit is {COMPRESSED_RECORDS_MAX}")
        return head
    finally:
        PyBuffer_Release(&view)


cdef inline const uint8_t* skip_number(const uint8_t* at, const uint8_t* end, int64_t* value) noexcept nogil:
    """`get_signed`, quicker for the one or two bytes that almost all numbers of records take."""
    cdef uint32_t raw
    if end - at < 2:
        return get_signed(at, end, value)
    raw = at[0]
    if raw >= 128:
        if at[1] >= 128:
            return get_signed(at, end, value)
        raw = raw & 127 | <uint32_t>at[1] << 7
        at += 1
    value[0] = <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)
    return at + 1


cdef inline const uint8_t* skip_sized(const uint8_t* at, const uint8_t* end) noexcept nogil:
    cdef int64_t length = 0
    at = skip_number(at, end, &length)
    if at == NULL or length < -1 or length > end - at:
        return NULL
    return at + length if length > 0 else at


cdef bint are_records(const uint8_t* at, const uint8_t* end, int32_t count) noexcept nogil:
    """Whether exactly so many records lie there, each as long as its parts."""
    cdef const uint8_t* after
    cdef const uint8_t* name
    cdef const uint8_t* value
    cdef Py_ssize_t name_size = 0, value_size = 0
    cdef int64_t number = 0
    while count > 0:
        count -= 1
        at = skip_number(at, end, &number)
        if at == NULL or number < 1 or number > end - at:
            return False
        after = at + number
        at = skip_number(at + 1, after, &number)  # after its attributes: time, offset, key, value
        if at != NULL:
            at = skip_number(at, after, &number)
        if at != NULL:
            at = skip_sized(at, after)
        if at != NULL:
            at = skip_sized(at, after)
        if at != NULL:
            at = skip_number(at, after, &number)
        if at == NULL or number < 0 or number > (after - at) // 2:
            return False
        while number > 0:
            number -= 1
            at = next_header(at, after, &name, &name_size, &value, &value_size)
            if at == NULL:
                return False
        if at != after:
            return False
    return at == end


cdef int check_produced(BatchHead head) except -1:
    if head.count < 1 or head.last_offset_delta != head.count - 1:
        raise InvalidArgument(
            f"the batch has {head.count} records but its last offset delta is {head.last_offset_delta}"
        )
    if head.attributes & CODEC_MASK > 4:
        raise InvalidArgument(f"compression {head.attributes & CODEC_MASK} is not one of 0 to 4")
    if head.attributes & ~(CODEC_MASK | TRANSACTIONAL):
        raise InvalidArgument(
            f"attributes {head.attributes:#06x}: a producer may only set compression and the transactional bit"
        )
    if head.producer_id >= 0:
        if head.producer_epoch < 0 or head.base_sequence < 0:
            raise InvalidArgument(
                f"producer {head.producer_id} with epoch {head.producer_epoch} and sequence {head.base_sequence}"
            )
    elif head.attributes & TRANSACTIONAL:
        raise InvalidArgument("a transactional batch without a producer id")
    return 0
