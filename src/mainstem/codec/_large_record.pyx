# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""One large record as a frame of its own, whose value stays where it was received. See `large_record.py`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from mainstem.codec._batch cimport (
    FRAME_HEAD_SIZE, FRONT_SIZE, KIND_DATA, crc32c_c, epoch_check, fill_frame_head, put_u16, put_u32, put_u64,
    put_varint, varint_size, zigzag,
)
from mainstem.codec._large_memory cimport release

cdef enum:
    CHECKED_AT = FRAME_HEAD_SIZE + 21  # of a batch the checksum covers what follows it


cdef class Bulk:
    """Memory that a connection received a message into: whoever has it owns it, and nothing of it was copied."""

    @staticmethod
    cdef Bulk adopt(uint8_t* memory, Py_ssize_t capacity, Py_ssize_t at, Py_ssize_t size):
        cdef Bulk bulk = Bulk.__new__(Bulk)
        bulk.memory, bulk.capacity, bulk.at, bulk.size = memory, capacity, at, size
        return bulk

    def __dealloc__(self):
        release(self.memory, self.capacity, True)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        if flags & PyBUF_WRITABLE:
            raise BufferError("what was received is read-only")
        PyBuffer_FillInfo(buffer, self, self.memory + self.at, self.size, 1, flags)

    def __len__(self):
        return self.size


cdef class LargeRecord:
    def __init__(self, bytes key, value, bytes encoded, int count, int64_t time_ms, int flags):
        cdef const uint8_t[::1] view = value
        cdef Py_ssize_t key_size = PyBytes_GET_SIZE(key), value_size = view.shape[0], body
        cdef uint8_t number[10]
        cdef uint8_t* start
        cdef uint8_t* at = put_varint(number, zigzag(count))
        self.back = (<char*>number)[:at - number] + encoded
        body = 3 + varint_size(zigzag(key_size)) + key_size + varint_size(zigzag(value_size)) + value_size
        body += PyBytes_GET_SIZE(self.back)
        self.front = bytearray(FRONT_SIZE + varint_size(zigzag(body)) + body - value_size - PyBytes_GET_SIZE(self.back))
        start = <uint8_t*><char*>self.front
        at = put_varint(start + FRONT_SIZE, zigzag(body))
        at[0], at[1], at[2] = <uint8_t>flags, 0, 0  # no time and no offset beyond the batch's
        at = put_varint(at + 3, zigzag(key_size))
        memcpy(at, PyBytes_AS_STRING(key), key_size)
        self.key_at, self.key_size = at - start, key_size
        put_varint(at + key_size, zigzag(value_size))
        self.value, self.view = value, view
        self.value_at, self.value_size = &view[0], value_size
        self.headers_at, self.header_count = PyBytes_GET_SIZE(self.back) - PyBytes_GET_SIZE(encoded), count
        self.time_ms, self.flags = time_ms, flags
        self.size = len(self.front) + value_size + PyBytes_GET_SIZE(self.back)

    @property
    def pieces(self):
        """The frame, in order."""
        return [self.front, self.value, self.back]

    def close(self):
        """Fill the batch's head and its checksum, which cover neither offset nor epoch. For a thread: the lock is free."""
        cdef uint8_t* batch = <uint8_t*><char*>self.front + FRAME_HEAD_SIZE
        cdef Py_ssize_t front_size = len(self.front), back_size = PyBytes_GET_SIZE(self.back)
        cdef const uint8_t* back = <const uint8_t*>PyBytes_AS_STRING(self.back)
        cdef uint32_t checksum
        put_u32(batch + 8, <uint32_t>(self.size - FRAME_HEAD_SIZE - 12))
        batch[16] = 2
        put_u16(batch + 21, 0)
        put_u32(batch + 23, 0)
        put_u64(batch + 27, <uint64_t>self.time_ms)
        put_u64(batch + 35, <uint64_t>self.time_ms)
        put_u64(batch + 43, <uint64_t>-1)
        put_u16(batch + 51, 0xFFFF)
        put_u32(batch + 53, 0xFFFFFFFF)
        put_u32(batch + 57, 1)
        with nogil:
            checksum = crc32c_c(batch + 21, front_size - CHECKED_AT, 0)
            checksum = crc32c_c(self.value_at, self.value_size, checksum)
            checksum = crc32c_c(back, back_size, checksum)
        put_u32(batch + 17, checksum)

    def place(self, uint64_t log_id, int64_t base_offset, int64_t stamp, int64_t durable_offset, int origin, int32_t epoch):
        """Its place is known: the frame's head, and what the batch's says of it."""
        cdef uint8_t* at = <uint8_t*><char*>self.front
        put_u64(at + FRAME_HEAD_SIZE, <uint64_t>base_offset)
        put_u32(at + FRAME_HEAD_SIZE + 12, <uint32_t>epoch)
        fill_frame_head(at, log_id, KIND_DATA, origin, epoch_check(epoch), <uint32_t>(self.size - FRAME_HEAD_SIZE), 0,
                        base_offset, stamp, durable_offset, 1)
