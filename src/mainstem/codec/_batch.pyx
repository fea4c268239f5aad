# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: depends = src/mainstem/codec/crc32c.h
"""Writing batches and frames; FORMAT.md draws the bytes. The plain `tests/oracles/batch.py` says the same.

An open batch is one growing buffer with both heads reserved in front, so sealing fills them in place and hands the
buffer over: from the socket's bytes to the disk a record is copied once.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from mainstem.codec.compression import deflate
from mainstem.model.errors import CorruptFrame, InvalidArgument, MessageTooLarge

cdef extern from "crc32c.h":
    void crc32c_prepare() noexcept nogil
    uint32_t crc32c_run(const uint8_t* at, size_t size, uint32_t seed) noexcept nogil
    uint32_t crc32c_run_by_table(const uint8_t* at, size_t size, uint32_t seed) noexcept nogil

crc32c_prepare()

cdef enum:
    CAPACITY_MIN = 4096
    CAPACITY_FIRST_MAX = 1 << 20  # a fresh buffer starts as large as the last batch was, up to this
    BUFFER_BYTES_MAX = 1 << 30  # an open batch; Kafka's length field ends at 2 GiB
    POSITIONS_MIN = 64
    CRC_WITHOUT_GIL_BYTES = 1 << 16  # below this, giving up the GIL costs more than it frees
    REBUILT_BATCH_BYTES_MAX = 1 << 20

cdef int64_t OFFSET_DELTA_MAX = 0x7FFFFFFF


cdef uint32_t crc32c_c(const uint8_t* data, Py_ssize_t size, uint32_t seed) noexcept nogil:
    return crc32c_run(data, <size_t>size, seed)


def crc32c(data, uint32_t seed=0, *, bint by_table=False):
    """CRC-32C of any bytes-like object; `seed` is the checksum of what came before. `by_table` is for tests."""
    cdef Py_buffer view
    cdef uint32_t result
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if by_table:
            result = crc32c_run_by_table(<const uint8_t*>view.buf, view.len, seed)
        elif view.len < CRC_WITHOUT_GIL_BYTES:
            result = crc32c_run(<const uint8_t*>view.buf, view.len, seed)
        else:
            with nogil:
                result = crc32c_run(<const uint8_t*>view.buf, view.len, seed)
    finally:
        PyBuffer_Release(&view)
    return result


def encode_headers(headers):
    """(name, value or None) pairs as Kafka writes them in a record, without the count in front."""
    cdef Py_ssize_t size = 0
    cdef bytes name, value, result
    cdef uint8_t* at
    for name, value in headers:
        if name is None:
            raise InvalidArgument("a record header needs a name")
        size += varint_size(zigzag(PyBytes_GET_SIZE(name))) + PyBytes_GET_SIZE(name)
        size += 1 if value is None else varint_size(zigzag(PyBytes_GET_SIZE(value))) + PyBytes_GET_SIZE(value)
    result = PyBytes_FromStringAndSize(NULL, size)
    at = <uint8_t*>PyBytes_AS_STRING(result)
    for name, value in headers:
        at = put_bytes(at, <const uint8_t*>PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
        if value is None:
            at = put_bytes(at, NULL, -1)
        else:
            at = put_bytes(at, <const uint8_t*>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    return result


def decode_headers(data, int count):
    """The inverse of `encode_headers`; CorruptFrame unless `data` is exactly `count` headers."""
    cdef Py_buffer view
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef const uint8_t* name = NULL
    cdef const uint8_t* value = NULL
    cdef Py_ssize_t name_size = 0, value_size = 0
    cdef int i
    cdef list result = []
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        at = <const uint8_t*>view.buf
        end = at + view.len
        for i in range(count):
            at = next_header(at, end, &name, &name_size, &value, &value_size)
            if at == NULL:
                raise CorruptFrame(f"record header {i} of {count} is malformed")
            result.append((
                PyBytes_FromStringAndSize(<const char*>name, name_size),
                None if value_size < 0 else PyBytes_FromStringAndSize(<const char*>value, value_size),
            ))
        if at != end:
            raise CorruptFrame(f"{end - at} bytes follow the last of {count} record headers")
    finally:
        PyBuffer_Release(&view)
    return result


cdef inline uint8_t* put_bytes(uint8_t* at, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    at = put_varint(at, zigzag(size))
    if size > 0:
        memcpy(at, data, size)
        at += size
    return at


cdef class SealedFrame:
    """A finished frame. Owns its bytes, which never change; any number of buffers may look at them."""

    def __dealloc__(self):
        free(self.buf)
        free(self.record_at)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        if flags & PyBUF_WRITABLE:
            raise BufferError("a sealed frame is read-only")
        PyBuffer_FillInfo(buffer, self, self.buf, self.size, 1, flags)

    def __len__(self):
        return self.size

    def __bytes__(self):
        return PyBytes_FromStringAndSize(<const char*>self.buf, self.size)

    @property
    def positions(self):
        """Where each record begins, counted from the frame's first byte."""
        return [self.record_at[i] for i in range(self.count)]


cdef class BatchBuilder:
    """An open batch: records are encoded into it one by one, in place, until it is sealed."""

    def __cinit__(self):
        self.size = FRONT_SIZE
        self.capacity_first = CAPACITY_MIN
        self.last_offset_delta = -1

    def __dealloc__(self):
        free(self.buf)
        free(self.record_at)

    cdef int put(
        self, const uint8_t* key, Py_ssize_t key_len, const uint8_t* value, Py_ssize_t value_len,
        const uint8_t* headers, Py_ssize_t headers_len, int header_count, int64_t time_ms, uint8_t flags,
    ) except -1:
        """Adds a record at the next offset and returns its index. A length of -1 is null; headers come encoded."""
        return self.put_at(
            self.last_offset_delta + 1, key, key_len, value, value_len, headers, headers_len, header_count, time_ms,
            flags,
        )

    cdef int put_at(
        self, int32_t offset_delta, const uint8_t* key, Py_ssize_t key_len, const uint8_t* value,
        Py_ssize_t value_len, const uint8_t* headers, Py_ssize_t headers_len, int header_count,
        int64_t time_ms, uint8_t flags,
    ) except -1:
        """`put` with a gap in front: `offset_delta` must be beyond the last record's."""
        cdef uint64_t time_delta, key_code = zigzag(key_len), value_code = zigzag(value_len)
        cdef Py_ssize_t body
        cdef uint8_t* at
        cdef int index = self.count
        if index == 0:
            self.first_time_ms = time_ms
            self.max_time_ms = time_ms
            time_delta = 0
        else:
            # Wraps for absurd times, and unwraps on reading: the pair is exact for any two int64.
            time_delta = zigzag(<int64_t>(<uint64_t>time_ms - <uint64_t>self.first_time_ms))
        body = 2 + varint_size(time_delta) + varint_size(zigzag(offset_delta)) + varint_size(key_code)
        body += varint_size(value_code) + headers_len + (key_len if key_len > 0 else 0)
        body += value_len if value_len > 0 else 0
        if header_count > 63:
            body += varint_size(zigzag(header_count)) - 1
        if self.buf == NULL or self.size + body + 5 > self.capacity:
            self.grow(self.size + body + 5)
        if index >= self.record_capacity:
            self.grow_positions()
        if time_ms > self.max_time_ms:
            self.max_time_ms = time_ms
        self.record_at[index] = <uint32_t>self.size
        at = put_varint(self.buf + self.size, zigzag(body))
        at[0] = flags
        at = put_varint(at + 1, time_delta)
        at = put_varint(at, zigzag(offset_delta))
        at = put_varint(at, key_code)
        if key_len > 0:
            memcpy(at, key, key_len)
            at += key_len
        at = put_varint(at, value_code)
        if value_len > 0:
            memcpy(at, value, value_len)
            at += value_len
        at = put_varint(at, zigzag(header_count))
        if headers_len > 0:
            memcpy(at, headers, headers_len)
            at += headers_len
        self.size = at - self.buf
        self.count = index + 1
        self.last_offset_delta = offset_delta
        return index

    def add(self, bytes key, bytes value, headers=(), int64_t time_ms=0, uint8_t flags=0):
        """`put` for Python callers; returns the record's index in the batch."""
        return self._add(self.last_offset_delta + 1, key, value, headers, time_ms, flags)

    def _add(self, int32_t offset_delta, bytes key, bytes value, headers, int64_t time_ms, uint8_t flags):
        cdef bytes encoded = encode_headers(headers) if headers else b""
        cdef const uint8_t* key_at = NULL
        cdef const uint8_t* value_at = NULL
        cdef Py_ssize_t key_len = -1, value_len = -1
        if key is not None:
            key_at, key_len = <const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
        if value is not None:
            value_at, value_len = <const uint8_t*>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
        return self.put_at(
            offset_delta, key_at, key_len, value_at, value_len,
            <const uint8_t*>PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded), len(headers), time_ms, flags,
        )

    cdef int grow(self, Py_ssize_t need) except -1:
        cdef Py_ssize_t capacity = self.capacity if self.buf != NULL else self.capacity_first
        cdef uint8_t* buf
        if need > BUFFER_BYTES_MAX:
            raise MessageTooLarge(f"the open batch would reach {need} bytes, limit {<int64_t>BUFFER_BYTES_MAX}")
        while capacity < need:
            capacity *= 2
        buf = <uint8_t*>realloc(self.buf, capacity)
        if buf == NULL:
            raise MemoryError(f"no memory for a batch of {capacity} bytes")
        self.buf = buf
        self.capacity = capacity
        return 0

    cdef int grow_positions(self) except -1:
        cdef int capacity = self.record_capacity * 2 if self.record_capacity else POSITIONS_MIN
        cdef uint32_t* record_at = <uint32_t*>realloc(self.record_at, <size_t>capacity * sizeof(uint32_t))
        if record_at == NULL:
            raise MemoryError(f"no memory for the positions of {capacity} records")
        self.record_at = record_at
        self.record_capacity = capacity
        return 0

    def clear(self):
        """Forget the records and keep the buffer."""
        self.size = FRONT_SIZE
        self.count = 0
        self.last_offset_delta = -1

    cdef void fill_batch_head(
        self, int64_t base_offset, int32_t leader_epoch, int attributes, int64_t producer_id,
        int producer_epoch, int base_sequence,
    ) noexcept nogil:
        cdef uint8_t* at = self.buf + FRAME_HEAD_SIZE
        cdef Py_ssize_t size = self.size - FRAME_HEAD_SIZE
        put_u64(at, <uint64_t>base_offset)
        put_u32(at + 8, <uint32_t>(size - 12))
        put_u32(at + 12, <uint32_t>leader_epoch)
        at[16] = 2
        put_u16(at + 21, <uint16_t>attributes)
        put_u32(at + 23, <uint32_t>self.last_offset_delta)
        put_u64(at + 27, <uint64_t>self.first_time_ms)
        put_u64(at + 35, <uint64_t>self.max_time_ms)
        put_u64(at + 43, <uint64_t>producer_id)
        put_u16(at + 51, <uint16_t>producer_epoch)
        put_u32(at + 53, <uint32_t>base_sequence)
        put_u32(at + 57, <uint32_t>self.count)
        put_u32(at + 17, crc32c_run(at + 21, size - 21, 0))

    cpdef SealedFrame seal_frame(
        self, uint64_t log_id, int64_t base_offset, int64_t stamp, int64_t durable_offset, int kind, int origin,
        uint32_t topic_id, int32_t leader_epoch, int attributes=0, int64_t producer_id=-1, int producer_epoch=-1,
        int base_sequence=-1,
    ):
        """Fills both heads and hands the buffer over as a frame; the builder is empty again."""
        cdef SealedFrame frame
        if self.count == 0:
            raise InvalidArgument("there is no record to seal")
        self.fill_batch_head(base_offset, leader_epoch, attributes, producer_id, producer_epoch, base_sequence)
        fill_frame_head(
            self.buf, log_id, kind, origin, epoch_check(leader_epoch), <uint32_t>(self.size - FRAME_HEAD_SIZE),
            topic_id, base_offset, stamp, durable_offset, <uint32_t>(self.last_offset_delta + 1),
        )
        frame = SealedFrame.__new__(SealedFrame)
        frame.buf, frame.size = self.buf, self.size
        frame.record_at, frame.count = self.record_at, self.count
        frame.kind, frame.origin, frame.topic_id = kind, origin, topic_id
        frame.base_offset, frame.stamp = base_offset, stamp
        frame.first_time_ms, frame.max_time_ms = self.first_time_ms, self.max_time_ms
        self.capacity_first = CAPACITY_MIN
        while self.capacity_first < self.size and self.capacity_first < CAPACITY_FIRST_MAX:
            self.capacity_first *= 2
        self.buf, self.record_at = NULL, NULL
        self.capacity, self.record_capacity = 0, 0
        self.clear()
        return frame

    def seal_batch(
        self, int64_t base_offset, int32_t leader_epoch=0, int attributes=0, int64_t producer_id=-1,
        int producer_epoch=-1, int base_sequence=-1, last_offset=None,
    ):
        """The bare batch as bytes, records compressed as `attributes` says; the builder is empty again.

        `last_offset` lets the batch cover offsets behind its last record.
        """
        cdef bytes result
        cdef Py_ssize_t size
        cdef int64_t last_delta
        if self.count == 0:
            raise InvalidArgument("there is no record to seal")
        if last_offset is not None:
            last_delta = min(<int64_t>last_offset - base_offset, OFFSET_DELTA_MAX)
            if last_delta > self.last_offset_delta:
                self.last_offset_delta = <int32_t>last_delta
        if attributes & 7:
            packed = deflate(
                attributes & 7, PyBytes_FromStringAndSize(<const char*>self.buf + FRONT_SIZE, self.size - FRONT_SIZE)
            )
            size = len(packed)
            if FRONT_SIZE + size > self.capacity:
                self.grow(FRONT_SIZE + size)
            memcpy(self.buf + FRONT_SIZE, PyBytes_AS_STRING(packed), size)
            self.size = FRONT_SIZE + size
        self.fill_batch_head(base_offset, leader_epoch, attributes, producer_id, producer_epoch, base_sequence)
        result = PyBytes_FromStringAndSize(<const char*>self.buf + FRAME_HEAD_SIZE, self.size - FRAME_HEAD_SIZE)
        self.clear()
        return result


cdef uint8_t epoch_check(int32_t leader_epoch) noexcept nogil:
    """The XOR of the epoch's four bytes: the one field of a batch that no checksum covers, so the frame's head does."""
    cdef uint32_t bits = <uint32_t>leader_epoch
    return <uint8_t>(bits ^ (bits >> 8) ^ (bits >> 16) ^ (bits >> 24))


cdef void fill_frame_head(
    uint8_t* at, uint64_t log_id, int kind, int origin, uint8_t epoch_check, uint32_t payload_size,
    uint32_t topic_id, int64_t base_offset, int64_t stamp, int64_t durable_offset, uint32_t count,
) noexcept nogil:
    cdef uint8_t place[16]
    put_u32(at, 0x4D534631)
    at[4] = 1
    at[5] = <uint8_t>kind
    at[6] = <uint8_t>origin
    at[7] = epoch_check
    put_u32(at + 8, payload_size)
    put_u32(at + 12, topic_id)
    put_u64(at + 16, <uint64_t>base_offset)
    put_u64(at + 24, <uint64_t>stamp)
    put_u64(at + 32, <uint64_t>durable_offset)
    put_u32(at + 40, count)
    put_u64(place, log_id)
    put_u64(place + 8, <uint64_t>base_offset)
    put_u32(at + 44, crc32c_run(at, 44, crc32c_run(place, 16, 0)))


def make_frame(
    batch, uint64_t log_id, int64_t base_offset, int64_t stamp, int64_t durable_offset, int origin,
    uint32_t topic_id, int32_t leader_epoch, int kind=1, bint in_place=False,
):
    """The frame of a ready batch, as (head, batch): base offset and leader epoch are patched in the one copy made.

    With `in_place` the batch lies in a writable buffer that is nobody else's: it is patched there and not copied.
    """
    cdef Py_buffer view
    cdef bytes head = PyBytes_FromStringAndSize(NULL, FRAME_HEAD_SIZE)
    cdef object copy
    cdef uint8_t* at
    cdef Py_ssize_t size
    cdef int32_t last_delta
    PyObject_GetBuffer(batch, &view, PyBUF_WRITABLE if in_place else PyBUF_SIMPLE)
    try:
        if view.len < BATCH_HEAD_SIZE:
            raise CorruptFrame(f"a batch of {view.len} bytes is shorter than its head of {<int>BATCH_HEAD_SIZE}")
        if <Py_ssize_t>get_u32(<const uint8_t*>view.buf + 8) + 12 != view.len:
            raise CorruptFrame(f"the batch says {get_u32(<const uint8_t*>view.buf + 8) + 12} bytes but has {view.len}")
        last_delta = <int32_t>get_u32(<const uint8_t*>view.buf + 23)
        if last_delta < 0:
            raise CorruptFrame(f"the batch's last offset delta is {last_delta}")
        size = view.len
        if in_place:
            copy = batch
            at = <uint8_t*>view.buf
        else:
            copy = PyBytes_FromStringAndSize(<const char*>view.buf, size)
            at = <uint8_t*>PyBytes_AS_STRING(copy)
        put_u64(at, <uint64_t>base_offset)
        put_u32(at + 12, <uint32_t>leader_epoch)
    finally:
        PyBuffer_Release(&view)
    fill_frame_head(
        <uint8_t*>PyBytes_AS_STRING(head), log_id, kind, origin, epoch_check(leader_epoch),
        <uint32_t>size, topic_id, base_offset, stamp, durable_offset, <uint32_t>last_delta + 1,
    )
    return head, copy


def make_marker(uint64_t log_id, int64_t base_offset, int64_t count, int64_t stamp, int64_t durable_offset):
    """A frame without payload that covers `count` lost offsets."""
    cdef bytes head = PyBytes_FromStringAndSize(NULL, FRAME_HEAD_SIZE)
    if count < 1 or count > 0xFFFFFFFF:
        raise InvalidArgument(f"a marker covers 1 to {0xFFFFFFFF} offsets, not {count}")
    fill_frame_head(
        <uint8_t*>PyBytes_AS_STRING(head), log_id, KIND_MARKER, 0, 0, 0, 0, base_offset, stamp, durable_offset,
        <uint32_t>count,
    )
    return head


def rebuild_batches(list records, *, int attributes=0, last_offset=None, int32_t leader_epoch=0):
    """One batch (or several, when 1 MiB or an int32 of offsets is exceeded) of exactly these records at their offsets.

    The last batch covers offsets up to `last_offset`, so that a client goes on behind what was scanned for it.
    """
    cdef BatchBuilder builder = BatchBuilder()
    cdef int64_t base = -1, offset
    cdef list parts = []
    for record in records:
        offset = record.offset
        if builder.count and offset <= base + builder.last_offset_delta:
            raise InvalidArgument(f"offset {offset} does not follow {base + builder.last_offset_delta}")
        if builder.count and (builder.size > REBUILT_BATCH_BYTES_MAX or offset - base > OFFSET_DELTA_MAX):
            parts.append(builder.seal_batch(base, leader_epoch, attributes, last_offset=offset - 1))
        if builder.count == 0:
            base = offset
        builder._add(
            <int32_t>(offset - base), record.key, record.value, record.headers, record.time_ms, record.flags & 0xFF
        )
    if builder.count:
        parts.append(builder.seal_batch(base, leader_epoch, attributes, last_offset=last_offset))
    return b"".join(parts)
