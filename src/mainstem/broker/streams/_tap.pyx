# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What every message does to its stream: it is counted. See `stream.py`."""

from array import array

from cpython.bytes cimport PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from mainstem.broker.delivery._live cimport RecordRef, Sink

cdef enum:
    FIRST_COUNT = 64
    OVERHEAD = 30

OVERHEAD_BYTES = OVERHEAD  # of a stored message, as nats-server counts


cdef class Sizes:
    """Of a stream's newest records, by offset: an array that wraps around."""

    def __init__(self, int64_t count_max):
        """`count_max`: a power of two."""
        self.count_max = count_max

    def __dealloc__(self):
        free(self.at)

    cdef int put(self, int64_t offset, uint32_t size) except -1:
        if self.at == NULL or offset < self.start or offset - self.end >= self.count_max:
            self._begin(offset)
        while offset - self.start > self.mask and self.mask + 1 < self.count_max:
            self._grow()
        if offset - self.start > self.mask:
            self.start = offset - self.mask
        while self.end < offset:  # an unclean stop leaves offsets out
            self.at[self.end & self.mask] = 0
            self.end += 1
        self.at[offset & self.mask] = size
        self.end = offset + 1 if offset >= self.end else self.end
        return 0

    def set(self, int64_t offset, uint32_t size):
        self.put(offset, size)

    def _begin(self, int64_t offset):
        if self.at == NULL:
            self.at = <uint32_t*>calloc(FIRST_COUNT, sizeof(uint32_t))
            if self.at == NULL:
                raise MemoryError
            self.mask = FIRST_COUNT - 1
        memset(self.at, 0, (self.mask + 1) * sizeof(uint32_t))
        self.start = self.end = offset

    cdef int _grow(self) except -1:
        cdef int64_t mask = self.mask * 2 + 1, n
        cdef uint32_t* grown = <uint32_t*>calloc(mask + 1, sizeof(uint32_t))
        if grown == NULL:
            raise MemoryError
        for n in range(self.start, self.end):
            grown[n & mask] = self.at[n & self.mask]
        free(self.at)
        self.at, self.mask = grown, mask
        return 0

    def get(self, int64_t offset):
        """0 where it is not known."""
        return self.at[offset & self.mask] if self.start <= offset < self.end else 0

    def pop(self, int64_t offset):
        """The same, and forget it."""
        cdef uint32_t found = 0
        if self.start <= offset < self.end:
            found = self.at[offset & self.mask]
            self.at[offset & self.mask] = 0
        return found

    def pop_below(self, int64_t offset):
        """How many sizes below an offset are known, and their sum; they are forgotten."""
        cdef int64_t n, count = 0, total = 0, last = offset if offset < self.end else self.end
        for n in range(self.start, last):
            if self.at[n & self.mask]:
                count += 1
                total += self.at[n & self.mask]
        if last > self.start:
            self.start = last
        return count, total

    def sum_from(self, int64_t offset):
        """Of those that are known from an offset on."""
        cdef int64_t n, total = 0
        for n in range(max(offset, self.start), self.end):
            total += self.at[n & self.mask]
        return total


cdef class StreamCounts:
    def __init__(self, int64_t begin, int64_t sizes_max):
        self.first = self.last_seq = begin
        self.gathered_topics = set()
        self.last_id = b""
        self.sizes = Sizes(sizes_max)

    cdef int add_written(self, int64_t offset, int64_t stamp, Py_ssize_t size) except -1:
        if self.messages == 0:
            self.first = offset
        self.messages += 1
        self.stored_bytes += size
        if self.gathered:
            self.gathered -= 1
        if self.gathered == 0 and self.gathered_topics:
            self.gathered_topics = set()
        self.last_seq, self.last_stamp = offset + 1, stamp
        self.sizes.put(offset, <uint32_t>size)
        return 0

    def note_written(self, int64_t offset, int64_t stamp, Py_ssize_t size):
        self.add_written(offset, stamp, size)


cdef class Tap(Sink):
    def __init__(self, StreamCounts stream, log, namespace):
        super().__init__(namespace)
        self.stream, self.log = stream, log

    cpdef bint push(self, RecordRef record, object options) except -1:
        cdef const uint8_t* block = NULL
        cdef Py_ssize_t size = 0
        if record.log is not self.log:
            return True
        if not self.stream.counts_only:
            self.stream.on_written(record)
            return True
        if not record.header_count or not record.find_header("ms-nats", 7, &block, &size) or size <= 0:
            size = -4
        size += 4 + OVERHEAD + PyBytes_GET_SIZE(record.topic) + (record.value_len if record.value_len > 0 else 0)
        self.stream.add_written(record.offset, record.stamp, size)
        return True

    cpdef object choose(self, RecordRef record):
        return None

    def merge(self, options):
        return options[0]

    def filters(self):
        return self.stream.settings.captured


cdef class Handed(Sink):
    def __init__(self, namespace):
        super().__init__(namespace)
        self.offsets = array("q")

    def begin(self, int64_t consumer_seq, int64_t pending):
        self.consumer_seq, self.pending = consumer_seq, pending

    def expect(self, offsets):
        self.offsets = offsets

    cpdef object choose(self, RecordRef record):
        return self

    def merge(self, options):
        return options[0]

    def filters(self):
        return ()
