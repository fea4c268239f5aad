# cython: language_level=3
"""What other compiled modules may cimport: checksums, varints, one record in place, the builder of a batch.

Everything `inline` here is compiled into the module that uses it, so the hot loops of wire parsers and the live
delivery call nothing. FORMAT.md draws the bytes.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    FRAME_HEAD_SIZE = 48
    BATCH_HEAD_SIZE = 61
    FRONT_SIZE = 109  # both heads, reserved in front of the records of an open batch

cdef enum FrameKind:
    KIND_DATA = 1
    KIND_STATE = 2
    KIND_MARKER = 3

cdef uint32_t crc32c_c(const uint8_t* data, Py_ssize_t size, uint32_t seed) noexcept nogil


# Varints: seven bits a byte, lowest first; Kafka's are zigzag, so that small negative numbers stay short.

cdef inline uint64_t zigzag(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)


cdef inline int64_t unzigzag(uint64_t value) noexcept nogil:
    return <int64_t>(value >> 1) ^ -<int64_t>(value & 1)


cdef inline int varint_size(uint64_t value) noexcept nogil:
    cdef int size = 1
    while value >= 128:
        value >>= 7
        size += 1
    return size


cdef inline uint8_t* put_varint(uint8_t* at, uint64_t value) noexcept nogil:
    """Writes up to 10 bytes; returns the position behind them."""
    while value >= 128:
        at[0] = <uint8_t>(value | 128)
        value >>= 7
        at += 1
    at[0] = <uint8_t>value
    return at + 1


cdef inline const uint8_t* get_varint(const uint8_t* at, const uint8_t* end, uint64_t* value) noexcept nogil:
    """Returns the position behind the varint, or NULL if it is cut off or longer than 64 bits."""
    cdef uint64_t result = 0
    cdef int shift = 0
    while at < end:
        result |= <uint64_t>(at[0] & 127) << shift
        if at[0] < 128:
            if shift == 63 and at[0] > 1:
                return NULL
            value[0] = result
            return at + 1
        at += 1
        shift += 7
        if shift > 63:
            return NULL
    return NULL


cdef inline const uint8_t* get_signed(const uint8_t* at, const uint8_t* end, int64_t* value) noexcept nogil:
    """The zigzag form of `get_varint`."""
    cdef uint64_t raw = 0
    at = get_varint(at, end, &raw)
    value[0] = unzigzag(raw)
    return at


# Big-endian numbers, as Kafka writes them.

cdef inline void put_u16(uint8_t* at, uint16_t value) noexcept nogil:
    at[0] = <uint8_t>(value >> 8)
    at[1] = <uint8_t>value


cdef inline void put_u32(uint8_t* at, uint32_t value) noexcept nogil:
    at[0] = <uint8_t>(value >> 24)
    at[1] = <uint8_t>(value >> 16)
    at[2] = <uint8_t>(value >> 8)
    at[3] = <uint8_t>value


cdef inline void put_u64(uint8_t* at, uint64_t value) noexcept nogil:
    put_u32(at, <uint32_t>(value >> 32))
    put_u32(at + 4, <uint32_t>value)


cdef inline uint16_t get_u16(const uint8_t* at) noexcept nogil:
    return <uint16_t>((<uint32_t>at[0] << 8) | at[1])


cdef inline uint32_t get_u32(const uint8_t* at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | <uint32_t>at[3]


cdef inline uint64_t get_u64(const uint8_t* at) noexcept nogil:
    return (<uint64_t>get_u32(at) << 32) | <uint64_t>get_u32(at + 4)


ctypedef struct RecordParts:
    # One record in place: pointers into the batch that holds it. A size of -1 is null.
    const uint8_t* key
    Py_ssize_t key_size
    const uint8_t* value
    Py_ssize_t value_size
    const uint8_t* headers  # encoded; `next_header` walks them
    Py_ssize_t headers_size
    int header_count
    int64_t time_delta_ms
    int64_t offset_delta
    uint8_t flags


cdef inline const uint8_t* get_sized(
    const uint8_t* at, const uint8_t* end, const uint8_t** data, Py_ssize_t* size
) noexcept nogil:
    """A zigzag length (-1 = null) and that many bytes; returns the position behind them, or NULL."""
    cdef int64_t length = 0
    at = get_signed(at, end, &length)
    if at == NULL or length < -1 or length > end - at:
        return NULL
    data[0] = at
    size[0] = <Py_ssize_t>length
    if length > 0:
        at += length
    return at


cdef inline const uint8_t* read_record(const uint8_t* at, const uint8_t* end, RecordParts* parts) noexcept nogil:
    """Reads the record that begins at `at`; returns where the next one begins, or NULL if this one is malformed."""
    cdef int64_t length = 0, header_count = 0
    cdef const uint8_t* after
    at = get_signed(at, end, &length)
    if at == NULL or length < 1 or length > end - at:
        return NULL
    after = at + length
    parts.flags = at[0]
    at = get_signed(at + 1, after, &parts.time_delta_ms)
    if at == NULL:
        return NULL
    at = get_signed(at, after, &parts.offset_delta)
    if at == NULL:
        return NULL
    at = get_sized(at, after, &parts.key, &parts.key_size)
    if at == NULL:
        return NULL
    at = get_sized(at, after, &parts.value, &parts.value_size)
    if at == NULL:
        return NULL
    at = get_signed(at, after, &header_count)
    # Each header takes at least two bytes: a count beyond that is a lie that must not become an allocation.
    if at == NULL or header_count < 0 or header_count > (after - at) // 2 or (header_count == 0 and at != after):
        return NULL
    parts.headers = at
    parts.headers_size = after - at
    parts.header_count = <int>header_count
    return after


cdef inline const uint8_t* next_header(
    const uint8_t* at, const uint8_t* end,
    const uint8_t** name, Py_ssize_t* name_size, const uint8_t** value, Py_ssize_t* value_size,
) noexcept nogil:
    """Reads one encoded header; returns where the next begins, or NULL if it is malformed."""
    at = get_sized(at, end, name, name_size)
    if at == NULL or name_size[0] < 0:
        return NULL
    return get_sized(at, end, value, value_size)


cdef class SealedFrame:
    """A finished frame. Owns its bytes, which never change; any number of buffers may look at them."""

    cdef uint8_t* buf
    cdef uint32_t* record_at  # where each record begins, counted from the frame's first byte
    cdef readonly Py_ssize_t size
    cdef readonly int count
    cdef readonly int kind
    cdef readonly int origin
    cdef readonly uint32_t topic_id
    cdef readonly int64_t base_offset
    cdef readonly int64_t stamp
    cdef readonly int64_t first_time_ms
    cdef readonly int64_t max_time_ms


cdef class BatchBuilder:
    """An open batch: records are encoded into it one by one, in place, until it is sealed."""

    cdef uint8_t* buf  # NULL while empty; the first FRONT_SIZE bytes are reserved for the heads
    cdef readonly Py_ssize_t size
    cdef Py_ssize_t capacity
    cdef Py_ssize_t capacity_first
    cdef uint32_t* record_at
    cdef int record_capacity
    cdef readonly int count
    cdef readonly int64_t first_time_ms
    cdef readonly int64_t max_time_ms
    cdef int32_t last_offset_delta

    cdef int put(
        self, const uint8_t* key, Py_ssize_t key_len, const uint8_t* value, Py_ssize_t value_len,
        const uint8_t* headers, Py_ssize_t headers_len, int header_count, int64_t time_ms, uint8_t flags,
    ) except -1
    cdef int put_at(
        self, int32_t offset_delta, const uint8_t* key, Py_ssize_t key_len, const uint8_t* value,
        Py_ssize_t value_len, const uint8_t* headers, Py_ssize_t headers_len, int header_count,
        int64_t time_ms, uint8_t flags,
    ) except -1
    cdef int grow(self, Py_ssize_t need) except -1
    cdef int grow_positions(self) except -1
    cdef void fill_batch_head(
        self, int64_t base_offset, int32_t leader_epoch, int attributes, int64_t producer_id,
        int producer_epoch, int base_sequence,
    ) noexcept nogil
    cpdef SealedFrame seal_frame(
        self, uint64_t log_id, int64_t base_offset, int64_t stamp, int64_t durable_offset, int kind, int origin,
        uint32_t topic_id, int32_t leader_epoch, int attributes=*, int64_t producer_id=*, int producer_epoch=*,
        int base_sequence=*,
    )


cdef uint8_t epoch_check(int32_t leader_epoch) noexcept nogil
cdef void fill_frame_head(
    uint8_t* at, uint64_t log_id, int kind, int origin, uint8_t epoch_check, uint32_t payload_size,
    uint32_t topic_id, int64_t base_offset, int64_t stamp, int64_t durable_offset, uint32_t count,
) noexcept nogil
