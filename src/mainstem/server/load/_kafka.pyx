# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Kafka clients without a client library in the way. See `kafka.py` for what it measures, `_schedule.pyx` for when it sends.

One send is one Produce request with one batch. Its correlation id is the number of the record behind its last, so that an
answer says by itself how far the broker has come. A consumer asks for what is behind its last record as soon as it has it.

    Produce 7  := ... · i32 partition | i32 size · batch               before the bar: the publisher's front
    its answer := i32 size · i32 correlation · i32 1 · text topic · i32 1 · i32 partition · i16 error · ...
    Fetch 11   := ... · n × (i32 partition · i32 epoch · i64 offset · i64 start · i32 bytes) · ...
    its answer := i32 size · i32 correlation · i32 throttled · i16 error · i32 session · i32 topics × (text topic · i32 n
                  × (i32 partition · i16 error · i64 high · i64 stable · i64 start · aborted · i32 replica · i32 size · batches))
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from mainstem.codec._batch cimport (
    BATCH_HEAD_SIZE,
    RecordParts,
    crc32c_c,
    get_u16,
    get_u32,
    get_u64,
    put_u16,
    put_u32,
    put_u64,
    put_varint,
    read_record,
    varint_size,
    zigzag,
)
from mainstem.server.load._schedule cimport HEAD, Peer, Schedule

from mainstem.protocols.kafka.errors import ErrorCode

cdef extern from "time.h" nogil:
    long time(void* where)

cdef enum:
    ASKED_BYTES = 28  # of one partition in a Fetch request
    ASKED_OFFSET = 8  # in them
    ROOM = 24  # of a record, besides its value
    COMPRESSED = 7
    CONTROL = 32


def error_name(int code):
    return ErrorCode(code).name if code in ErrorCode._value2member_map_ else f"error {code}"


cdef class Load(Schedule):
    """A publisher's `front` is a Produce request up to its records, a consumer's is its whole Fetch request."""

    cdef uint32_t partitions
    cdef Py_ssize_t asked_at

    def __init__(self, *, uint32_t partitions, Py_ssize_t asked_at, **schedule):
        """`partitions` that each publisher goes round; `asked_at`: where a Fetch request names its first partition."""
        super().__init__(acks_wanted=True, **schedule)
        self.partitions, self.asked_at = partitions, asked_at

    def add_consumer(self, int fd, bytes request):
        cdef Peer* peer = self.add_receiver(fd, 0)
        self.set_front(peer, request)
        self._ask(peer)
        self._flush(peer)

    cdef int _ask(self, Peer* peer) except -1:
        memcpy(self.reserve(peer, peer.front_size), peer.front, peer.front_size)
        peer.out_size += peer.front_size
        return 0

    cdef int put(self, Peer* peer, int64_t intended) except -1:
        cdef uint64_t delta
        cdef Py_ssize_t body
        cdef uint8_t* at
        if peer.out_size == 0:
            at = self.reserve(peer, peer.front_size + 4 + BATCH_HEAD_SIZE)
            memcpy(at, peer.front, peer.front_size)
            peer.out_size = peer.front_size + 4 + BATCH_HEAD_SIZE
            peer.opened = peer.sent
        delta = zigzag(<int64_t>(peer.sent - peer.opened))
        body = 4 + varint_size(delta) + varint_size(zigzag(self.size)) + self.size
        at = put_varint(self.reserve(peer, self.size + ROOM), zigzag(body))
        at[0], at[1] = 0, 0  # no attributes, as old as the batch
        at = put_varint(at + 2, delta)
        at[0] = 1  # no key
        at = put_varint(at + 1, zigzag(self.size))
        self.write_head(at, peer, intended)
        at[self.size] = 0  # no headers
        peer.out_size = at + self.size + 1 - peer.out
        return 0

    cdef int seal(self, Peer* peer) except -1:
        """What is known only now: sizes, counts, the checksum. The next request is for the next partition."""
        cdef uint32_t count = <uint32_t>(peer.sent - peer.opened)
        cdef Py_ssize_t size = peer.out_size - peer.front_size - 4
        cdef uint8_t* batch = peer.out + peer.front_size + 4
        cdef uint8_t* partition = peer.front + peer.front_size - 4
        cdef uint64_t now_ms = <uint64_t>time(NULL) * 1000
        put_u32(peer.out, <uint32_t>(peer.out_size - 4))
        put_u32(peer.out + 8, <uint32_t>peer.sent)
        put_u32(batch - 4, <uint32_t>size)
        put_u64(batch, 0)
        put_u32(batch + 8, <uint32_t>(size - 12))
        put_u32(batch + 12, 0xFFFFFFFF)
        batch[16] = 2
        put_u16(batch + 21, 0)
        put_u32(batch + 23, count - 1)
        put_u64(batch + 27, now_ms)
        put_u64(batch + 35, now_ms)
        memset(batch + 43, 0xFF, 14)  # no producer id, epoch, sequence
        put_u32(batch + 57, count)
        put_u32(batch + 17, crc32c_c(batch + 21, size - 21, 0))
        if self.partitions > 1:
            put_u32(partition, (get_u32(partition) + 1) % self.partitions)
        return 0

    cdef Py_ssize_t parse(self, Peer* peer, uint8_t* data, Py_ssize_t size) except -1:
        cdef Py_ssize_t at = 0, body
        while size - at >= 4:
            body = get_u32(data + at)
            if size - at - 4 < body:
                break
            if peer.is_publisher:
                self._produced(peer, data + at + 4)
            else:
                self._fetched(peer, data + at + 4)
                self._ask(peer)
            at += 4 + body
        return at

    cdef int _produced(self, Peer* peer, const uint8_t* at) except -1:
        cdef int16_t error = <int16_t>get_u16(at + 18 + get_u16(at + 8))
        if error:
            self.failure = f"Produce is answered with {error_name(error)}"
        peer.acked += <uint32_t>(get_u32(at) - <uint32_t>peer.acked)
        return 0

    cdef int _fetched(self, Peer* peer, const uint8_t* at) except -1:
        cdef uint32_t topics, count
        cdef int32_t aborted, size
        cdef int16_t error = <int16_t>get_u16(at + 8)
        topics = get_u32(at + 14)
        at += 18
        while topics and not error:
            topics -= 1
            at += 2 + get_u16(at)
            count = get_u32(at)
            at += 4
            while count and not error:
                count -= 1
                error = <int16_t>get_u16(at + 4)
                aborted = <int32_t>get_u32(at + 30)
                size = <int32_t>get_u32(at + 38 + 16 * max(0, aborted))
                self._batches(peer, get_u32(at), at + 42 + 16 * max(0, aborted), max(0, size))
                at += 42 + 16 * max(0, aborted) + max(0, size)
        if error:
            self.failure = f"Fetch is answered with {error_name(error)}"
        return 0

    cdef int _batches(self, Peer* peer, uint32_t partition, const uint8_t* at, Py_ssize_t size) except -1:
        """Whole batches; one that the answer's limit cut off comes again."""
        cdef uint8_t* asked = peer.front + self.asked_at
        cdef uint64_t wanted
        cdef Py_ssize_t length
        asked += ASKED_BYTES * (partition - get_u32(asked)) + ASKED_OFFSET
        wanted = get_u64(asked)
        while size >= BATCH_HEAD_SIZE:
            length = 12 + get_u32(at + 8)
            if length > size:
                break
            if get_u16(at + 21) & COMPRESSED:
                self.failure = "a batch came back compressed"
                return 0
            if not get_u16(at + 21) & CONTROL:
                self._records(peer, at, length, wanted)
            wanted = max(wanted, get_u64(at) + get_u32(at + 23) + 1)
            at += length
            size -= length
        put_u64(asked, wanted)
        return 0

    cdef int _records(self, Peer* peer, const uint8_t* batch, Py_ssize_t size, uint64_t wanted) except -1:
        cdef const uint8_t* at = batch + BATCH_HEAD_SIZE
        cdef const uint8_t* end = batch + size
        cdef uint64_t first = get_u64(batch)
        cdef RecordParts parts
        while at != NULL and at < end:
            at = read_record(at, end, &parts)
            if at != NULL and first + <uint64_t>parts.offset_delta >= wanted and parts.value_size >= HEAD:
                self.receive(peer, parts.value, False)
        if at == NULL:
            self.failure = "a batch came back damaged"
        return 0
