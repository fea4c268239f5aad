# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Arrow buffers to RecordBatches. columns.py holds the contract, tests/oracles/column_batches.py the oracle."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from mainstem.codec._batch cimport FRONT_SIZE, BatchBuilder, get_u64, put_varint, varint_size, zigzag
from mainstem.codec._runs cimport Run, grow, put_bytes
from mainstem.model.errors import MessageTooLarge

cdef bytes TOPIC_HEADER = b"ms-topic"
NO_HEADERS = (None, None, 0, (None, None, None, 0), (None, None, None, 0))


cdef class Buffered:
    """One buffer held for the length of a call; None is a buffer of nothing."""

    cdef Py_buffer view
    cdef bint held
    cdef const char* data

    def __cinit__(self, buffer):
        if buffer is not None:
            PyObject_GetBuffer(buffer, &self.view, PyBUF_SIMPLE)
            self.held = True
            self.data = <const char*>self.view.buf

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef class BinaryColumn:
    """(validity or None, int32 offsets, data, first row), as Arrow lays out binary and string."""

    cdef Buffered valid, offsets, data
    cdef int64_t first

    def __cinit__(self, column):
        valid, offsets, data, self.first = column
        self.valid, self.offsets, self.data = Buffered(valid), Buffered(offsets), Buffered(data)

    cdef inline Py_ssize_t size_of(self, int64_t row, const uint8_t** at) noexcept:
        cdef const int32_t* offsets
        row += self.first
        if self.valid.data != NULL and not self.valid.data[row >> 3] >> (row & 7) & 1:
            return -1
        offsets = <const int32_t*>self.offsets.data
        at[0] = <const uint8_t*>self.data.data + offsets[row]
        return offsets[row + 1] - offsets[row]


cdef class HeaderColumn:
    """(validity or None, int32 list offsets, first row, names, values)."""

    cdef Buffered valid, offsets
    cdef BinaryColumn names, values
    cdef int64_t first
    cdef Run encoded

    def __cinit__(self, column):
        valid, offsets, self.first, names, values = column
        self.valid, self.offsets = Buffered(valid), Buffered(offsets)
        self.names, self.values = BinaryColumn(names), BinaryColumn(values)

    def __dealloc__(self):
        free(self.encoded.data)

    cdef int encode(self, int64_t row) except -1:
        """The headers of a row as Kafka writes them, behind what `encoded` holds; returns how many."""
        cdef const int32_t* offsets = <const int32_t*>self.offsets.data
        cdef const uint8_t* at = NULL
        cdef Py_ssize_t size
        cdef int32_t header
        row += self.first
        if offsets == NULL or (self.valid.data != NULL and not self.valid.data[row >> 3] >> (row & 7) & 1):
            return 0
        for header in range(offsets[row], offsets[row + 1]):
            size = self.names.size_of(header, &at)
            self.put(at, size if size > 0 else 0)
            size = self.values.size_of(header, &at)
            self.put(at, size)
        return offsets[row + 1] - offsets[row]

    cdef int put(self, const uint8_t* data, Py_ssize_t size) except -1:
        cdef uint8_t* at
        if self.encoded.size + 10 > self.encoded.room:
            grow(&self.encoded, 10)
        at = put_varint(<uint8_t*>self.encoded.data + self.encoded.size, zigzag(size))
        self.encoded.size = <char*>at - self.encoded.data
        if size > 0:
            put_bytes(&self.encoded, <const char*>data, size)
        return 0


def encode_rows(
    rows, int64_t start, int64_t stop, *, key=None, value=None, headers=None, times=None,
    int64_t now_ms=0, Py_ssize_t batch_bytes_max=1 << 20, Py_ssize_t record_bytes_max=1 << 20, int compression=0,
    bytes topic=None,
):
    cdef BatchBuilder builder = BatchBuilder()
    cdef BinaryColumn key_column = None if key is None else BinaryColumn(key)
    cdef BinaryColumn value_column = None if value is None else BinaryColumn(value)
    cdef HeaderColumn header_column = None
    cdef Buffered row_numbers = Buffered(rows)
    cdef Buffered time_valid = Buffered(None if times is None else times[0])
    cdef Buffered time_values = Buffered(None if times is None else times[1])
    cdef int64_t time_first = 0 if times is None else times[2]
    cdef const uint8_t* key_at = NULL
    cdef const uint8_t* value_at = NULL
    cdef const uint8_t* header_data = NULL
    cdef Py_ssize_t key_size, value_size, headers_size, size
    cdef int64_t i, row, at, time_ms
    cdef int header_count
    cdef list batches = []
    if headers is not None:
        header_column = HeaderColumn(headers)
    elif topic is not None:
        header_column = HeaderColumn(NO_HEADERS)
    for i in range(start, stop):
        row = i if row_numbers.data == NULL else (<const int32_t*>row_numbers.data)[i]
        key_size = -1 if key_column is None else key_column.size_of(row, &key_at)
        value_size = -1 if value_column is None else value_column.size_of(row, &value_at)
        header_count, headers_size = 0, 0
        if header_column is not None:
            header_column.encoded.size = 0
            if topic is not None:
                header_column.put(<const uint8_t*>PyBytes_AS_STRING(TOPIC_HEADER), PyBytes_GET_SIZE(TOPIC_HEADER))
                header_column.put(<const uint8_t*>PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic))
                header_count = 1
            header_count += header_column.encode(row)
            headers_size = <Py_ssize_t>header_column.encoded.size
            header_data = <const uint8_t*>header_column.encoded.data
        size = (key_size if key_size > 0 else 0) + (value_size if value_size > 0 else 0) + headers_size
        if size > record_bytes_max:
            raise MessageTooLarge(f"row {row} makes a record of {size} bytes, limit {record_bytes_max}")
        if builder.count and builder.size - FRONT_SIZE + size + 40 > batch_bytes_max:
            batches.append((builder.count, builder.seal_batch(0, attributes=compression)))
        time_ms = now_ms
        at = row + time_first
        if time_values.data != NULL and (time_valid.data == NULL or time_valid.data[at >> 3] >> (at & 7) & 1):
            # Floor, not towards zero: a microsecond before 1970 is in the millisecond before.
            time_ms = (<const int64_t*>time_values.data)[at]
            time_ms = time_ms / 1000 - (1 if time_ms % 1000 < 0 else 0)
        builder.put(
            key_at, key_size, value_at, value_size,
            header_data, headers_size, header_count, time_ms, 0,
        )
    if builder.count:
        batches.append((builder.count, builder.seal_batch(0, attributes=compression)))
    return batches


cdef class FrameRebuilder:
    """Rows of a raw table back to stored frames, some rows a call; what is built is `take`n."""

    cdef BinaryColumn batch, key, value, stored_headers
    cdef HeaderColumn headers
    cdef Buffered offsets, times, flags
    cdef int64_t base_offset, base_ms
    cdef bint whole
    cdef Run out

    def __cinit__(self, *, batch, offsets, times, flags, key, value, headers, stored_headers):
        self.batch, self.key, self.value = BinaryColumn(batch), BinaryColumn(key), BinaryColumn(value)
        self.headers, self.stored_headers = HeaderColumn(headers), BinaryColumn(stored_headers)
        self.offsets, self.times, self.flags = Buffered(offsets), Buffered(times), Buffered(flags)
        self.whole = True

    def __dealloc__(self):
        free(self.out.data)

    def add(self, int64_t start, int64_t stop):
        """A row with a head begins a frame: the head as stored, then its records; one that is kept whole has no others."""
        cdef const uint8_t* head = NULL
        cdef Py_ssize_t size
        cdef int64_t row
        for row in range(start, stop):
            size = self.batch.size_of(row, &head)
            if size >= 0:
                self.whole = size != FRONT_SIZE
                if not self.whole:
                    self.base_offset = <int64_t>get_u64(head + 16)
                    self.base_ms = <int64_t>get_u64(head + 48 + 27)
                put_bytes(&self.out, <const char*>head, size)
            if not self.whole:
                self.put_record(row)

    cdef int put_record(self, int64_t row) except -1:
        cdef const uint8_t* key = NULL
        cdef const uint8_t* value = NULL
        cdef const uint8_t* headers = NULL
        cdef Py_ssize_t key_size = self.key.size_of(row, &key)
        cdef Py_ssize_t value_size = self.value.size_of(row, &value)
        cdef Py_ssize_t headers_size = self.stored_headers.size_of(row, &headers)
        cdef int64_t micros = (<const int64_t*>self.times.data)[row]
        cdef uint64_t offset_delta = zigzag((<const int64_t*>self.offsets.data)[row] - self.base_offset)
        cdef uint64_t time_delta, count
        cdef int64_t size
        cdef uint8_t* at
        time_delta = zigzag(micros / 1000 - (1 if micros % 1000 < 0 else 0) - self.base_ms)
        count = 0
        if headers_size < 0:
            self.headers.encoded.size = 0
            count = zigzag(self.headers.encode(row))
            headers, headers_size = <const uint8_t*>self.headers.encoded.data, <Py_ssize_t>self.headers.encoded.size
            headers_size += varint_size(count)
        size = 1 + varint_size(time_delta) + varint_size(offset_delta) + varint_size(zigzag(key_size))
        size += varint_size(zigzag(value_size)) + headers_size
        size += (key_size if key_size > 0 else 0) + (value_size if value_size > 0 else 0)
        if self.out.size + size + 10 > self.out.room:
            grow(&self.out, size + 10)
        at = put_varint(<uint8_t*>self.out.data + self.out.size, zigzag(size))
        at[0] = <uint8_t>(<const int32_t*>self.flags.data)[row]
        at = put_varint(put_varint(at + 1, time_delta), offset_delta)
        at = put_sized(put_sized(at, key, key_size), value, value_size)
        if self.stored_headers.size_of(row, &headers) < 0:
            at = put_varint(at, count)
            headers, headers_size = <const uint8_t*>self.headers.encoded.data, <Py_ssize_t>self.headers.encoded.size
        if headers_size > 0:
            memcpy(at, headers, headers_size)
        self.out.size = <char*>(at + headers_size) - self.out.data
        return 0

    def take(self):
        """What was built since the last call."""
        cdef bytes taken = PyBytes_FromStringAndSize(self.out.data, self.out.size)
        self.out.size = 0
        return taken


cdef inline uint8_t* put_sized(uint8_t* at, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    at = put_varint(at, zigzag(size))
    if size > 0:
        memcpy(at, data, size)
        at += size
    return at


cdef uint32_t murmur2(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """As Kafka's producers hash keys."""
    cdef uint32_t h = 0x9747B28CU ^ <uint32_t>size, k
    cdef Py_ssize_t i
    for i in range(size // 4):
        k = data[4 * i] | <uint32_t>data[4 * i + 1] << 8 | <uint32_t>data[4 * i + 2] << 16 | <uint32_t>data[4 * i + 3] << 24
        k *= 0x5BD1E995U
        k ^= k >> 24
        k *= 0x5BD1E995U
        h = h * 0x5BD1E995U ^ k
    data += size & ~<Py_ssize_t>3
    if size & 3 == 3:
        h ^= <uint32_t>data[2] << 16
    if size & 3 >= 2:
        h ^= <uint32_t>data[1] << 8
    if size & 3 >= 1:
        h = (h ^ data[0]) * 0x5BD1E995U
    h = (h ^ h >> 13) * 0x5BD1E995U
    return h ^ h >> 15


def key_partitions(int64_t rows, key, int32_t partitions):
    cdef BinaryColumn column = BinaryColumn(key)
    cdef bytes answer = PyBytes_FromStringAndSize(NULL, 4 * rows)
    cdef int32_t* numbers = <int32_t*>PyBytes_AS_STRING(answer)
    cdef const uint8_t* at = NULL
    cdef Py_ssize_t size
    cdef int64_t row
    for row in range(rows):
        size = column.size_of(row, &at)
        numbers[row] = -1 if size < 0 else <int32_t>(murmur2(at, size) & 0x7FFFFFFFU) % partitions
    return answer
