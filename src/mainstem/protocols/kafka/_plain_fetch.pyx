# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Fetch requests that can be answered at once, compiled. `plain_fetch.py` says which; the ordinary handler does the same.

An answer is made where its batches were read: they are moved together, and what goes before them is written before them.

    | head room ... size · correlation · ... · partition | batch | batch | ... | tags |
                    ^ sent from here                                           ^ to here

Batches that lie there since another answer (`answer_buffers.py`) get a head of their own: that one may not be sent yet.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from mainstem.codec._batch cimport FRAME_HEAD_SIZE, get_u16, get_u32, get_u64, put_u16, put_u32, put_u64
from mainstem.codec._frames cimport PackedBatches, pack_frames

from mainstem.broker.rights.access import Action
from mainstem.model.errors import MainstemError

cdef enum:
    FETCH = 1
    VERSION_MIN = 4
    VERSION_MAX = 18
    FLEXIBLE_VERSION_MIN = 12
    IDS_VERSION_MIN = 13
    READ_COMMITTED = 1
    PLACES_MAX = 10_000
    PARTITIONS_MAX = 500
    NAME_BYTES_MAX = 249
    HEAD_ROOM = 512  # more than one partition's head with its topic's and the answer's
    HEADS_BYTES = 1 << 16  # of partitions without batches, and of what goes before the first
    READ_AHEAD = 4096 + FRAME_HEAD_SIZE  # where a read begins, the index knows to 4 KiB
    WANTED_MAX = (2 << 20) - HEAD_ROOM - READ_AHEAD  # of one partition: what the kept buffers hold
    COPIED_MAX = 16 * 1024  # an answer up to this size is copied, and the buffer free at once
    SEND_NOW_BYTES_MIN = 64 * 1024

cdef object _CONSUME = Action.CONSUME


cdef class FetchAnswer:
    """The place of an answer among those of its connection; it is there already."""

    cdef public bint done
    cdef public list parts


cdef class _Place:
    """A partition with one log of its own, as long as it is that."""

    cdef object partition
    cdef object span
    cdef object topic
    cdef dict topics
    cdef object log
    cdef object state
    cdef object engine

    def __init__(self, partition, dict topics, state):
        self.partition = partition
        self.span = partition.spans[0]
        self.topic, self.topics = partition.topic, topics
        self.log = partition.log
        self.state = state
        self.engine = self.log.engine

    cdef bint holds(self) except -1:
        spans = <list>self.partition.spans
        return (
            len(spans) == 1
            and spans[0] is self.span
            and self.span.end is None
            and self.topics.get(self.topic.name) is self.topic
        )


cdef class _Asked:
    """One partition of a request, and what was found for it."""

    cdef _Place place
    cdef bytes name  # its topic's, or the id
    cdef bint new_topic  # the first of its topic in the request
    cdef uint32_t topic_partitions  # of the request, if it is
    cdef int32_t index
    cdef int32_t leader_epoch
    cdef int64_t offset
    cdef int32_t bytes_max
    cdef int64_t start
    cdef int64_t stable
    cdef int64_t committed_end
    cdef object memory  # its batches lie there
    cdef bint found  # since another answer
    cdef Py_ssize_t size


cdef struct Cursor:
    const uint8_t* at
    const uint8_t* end
    bint flexible
    bint bad


cdef inline bint has(Cursor* cursor, Py_ssize_t size) noexcept nogil:
    if cursor.end - cursor.at < size:
        cursor.bad = True
    return not cursor.bad


cdef inline int32_t next_i32(Cursor* cursor) noexcept nogil:
    if not has(cursor, 4):
        return 0
    cursor.at += 4
    return <int32_t>get_u32(cursor.at - 4)


cdef inline int64_t next_i64(Cursor* cursor) noexcept nogil:
    if not has(cursor, 8):
        return 0
    cursor.at += 8
    return <int64_t>get_u64(cursor.at - 8)


cdef inline uint32_t next_varint(Cursor* cursor) noexcept nogil:
    cdef uint32_t value = 0
    cdef uint8_t byte
    cdef int n
    for n in range(5):
        if not has(cursor, 1):
            return 0
        byte = cursor.at[0]
        cursor.at += 1
        value |= <uint32_t>(byte & 0x7F) << (7 * n)
        if byte < 0x80:
            return value
    cursor.bad = True
    return 0


cdef inline int64_t next_count(Cursor* cursor) noexcept nogil:
    """Of an array; -1 for none."""
    return <int64_t>next_varint(cursor) - 1 if cursor.flexible else <int64_t>next_i32(cursor)


cdef inline int64_t next_size(Cursor* cursor) noexcept nogil:
    """Of a string; -1 for none. Its bytes are there."""
    cdef int64_t size = 0
    if cursor.flexible:
        size = <int64_t>next_varint(cursor) - 1
    elif has(cursor, 2):
        size = <int16_t>get_u16(cursor.at)
        cursor.at += 2
    if size > 0:
        has(cursor, size)
    return size


cdef inline void expect_no_tags(Cursor* cursor) noexcept nogil:
    if cursor.flexible and has(cursor, 1):
        cursor.bad = cursor.at[0] != 0
        cursor.at += 1


cdef class PlainFetches:
    """The requests of one connection that has logged in."""

    cdef object _connection
    cdef object _service
    cdef object _access
    cdef object _principal
    cdef object _buffers
    cdef dict _places
    cdef bytearray _heads
    cdef uint8_t* _heads_at
    cdef Py_ssize_t _heads_size
    cdef int _version
    cdef int32_t _correlation
    cdef int32_t _wait_ms
    cdef int32_t _bytes_min
    cdef int32_t _bytes_max
    cdef bint _committed
    cdef uint32_t _topics
    cdef list _asked

    def __init__(self, connection):
        self._connection = connection
        self._service = connection.service
        self._access = connection.service.access
        self._principal = connection.principal
        self._buffers = connection.service.answer_buffers
        self._heads = connection.service.answer_heads
        assert len(self._heads) >= HEADS_BYTES
        self._heads_at = <uint8_t*>PyByteArray_AS_STRING(self._heads)
        self._places = {}

    def take(self, data):
        """Whether the request was one, and is answered."""
        cdef Py_buffer view
        cdef bint found
        connection = self._connection
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if view.len < 10 or get_u16(<const uint8_t*>view.buf) != FETCH or connection.blocked or connection.parked:
                return False
            found = self._parse(<const uint8_t*>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)
        try:
            return found and self._answer()
        except MainstemError:
            return False  # whose fault it is, the ordinary handler says
        finally:
            self._asked = None

    # -- what it asks ----------------------------------------------------------------------------------------------

    cdef bint _parse(self, const uint8_t* data, Py_ssize_t size) except -1:
        cdef Cursor cursor
        cdef int version = get_u16(data + 2)
        cdef int64_t count, client_size = <int16_t>get_u16(data + 8)
        if version < VERSION_MIN or version > VERSION_MAX:
            return False
        cursor.at, cursor.end = data + 10, data + size
        cursor.flexible, cursor.bad = version >= FLEXIBLE_VERSION_MIN, False
        self._version, self._correlation = version, <int32_t>get_u32(data + 4)
        if client_size > 0 and has(&cursor, client_size):
            cursor.at += client_size
        expect_no_tags(&cursor)
        if version <= 14 and next_i32(&cursor) >= 0:
            return False  # a replica
        self._wait_ms, self._bytes_min, self._bytes_max = next_i32(&cursor), next_i32(&cursor), next_i32(&cursor)
        if not has(&cursor, 1):
            return False
        self._committed = cursor.at[0] == READ_COMMITTED
        cursor.at += 1
        if version >= 7 and (next_i32(&cursor) != 0 or next_i32(&cursor) != -1):
            return False  # a session
        self._asked = []
        count = next_count(&cursor)
        if cursor.bad or not 0 < count <= PARTITIONS_MAX:
            return False
        self._topics = <uint32_t>count
        while count:
            if not self._parse_topic(&cursor):
                return False
            count -= 1
        if version >= 7 and next_count(&cursor) != 0:
            return False
        if version >= 11:
            client_size = next_size(&cursor)
            if client_size > 0 and not cursor.bad:
                cursor.at += client_size
        expect_no_tags(&cursor)
        return not cursor.bad

    cdef bint _parse_topic(self, Cursor* cursor) except -1:
        cdef _Asked one
        cdef bytes name
        cdef int64_t count, size = 16
        cdef bint first = True
        if self._version < IDS_VERSION_MIN:
            size = next_size(cursor)
        if not has(cursor, size) or not 0 < size <= NAME_BYTES_MAX:
            return False
        name = PyBytes_FromStringAndSize(<const char*>cursor.at, size)
        cursor.at += size
        count = next_count(cursor)
        if cursor.bad or not 0 < count <= PARTITIONS_MAX - len(self._asked):
            return False
        while count:
            one = _Asked.__new__(_Asked)
            one.name, one.new_topic, one.topic_partitions, first = name, first, <uint32_t>count, False
            one.index = next_i32(cursor)
            one.leader_epoch = next_i32(cursor) if self._version >= 9 else -1
            one.offset = next_i64(cursor)
            if self._version >= 12:
                next_i32(cursor)
            if self._version >= 5:
                next_i64(cursor)
            one.bytes_max = next_i32(cursor)
            expect_no_tags(cursor)
            if cursor.bad:
                return False
            one.place = self._place_of(name, one.index)
            if one.place is None:
                return False
            self._asked.append(one)
            count -= 1
        expect_no_tags(cursor)
        return not cursor.bad

    cdef _Place _place_of(self, bytes name, int32_t index):
        """None if the partition is not plain."""
        cdef _Place place
        cdef bint by_id = self._version >= IDS_VERSION_MIN
        cdef tuple key = (name, ~index if by_id else index)
        place = self._places.get(key)
        if place is None or not place.holds():
            self._places.pop(key, None)
            found = self._connection.readable_partition(name, index, by_id=by_id)
            if found is None:
                return None
            if len(self._places) >= PLACES_MAX:
                self._places.clear()
            place = _Place(*found)
            self._places[key] = place
        if not self._principal.admin and not self._access.allows(self._principal, _CONSUME, place.topic.name):
            return None
        return place

    # -- what is there ---------------------------------------------------------------------------------------------

    cdef bint _answer(self) except -1:
        cdef _Asked one
        cdef FetchAnswer answer
        cdef Py_ssize_t total = 0, size, records = 0
        cdef int64_t room = self._service.config.kafka.fetch_bytes_max
        if 0 < self._bytes_max < room:
            room = self._bytes_max
        for one in self._asked:
            if not self._read(one, room - total, total == 0, &records):
                return False
            total += one.size
        if not total or (total < self._bytes_min and self._wait_ms > 0):
            return False  # it waits for more
        answer = FetchAnswer.__new__(FetchAnswer)
        answer.parts = []
        size = self._encode(answer.parts)
        if not size:
            return False
        answer.done = True
        connection = self._connection
        self._service.counters.messages_out += records
        connection.channel.expect(answer)
        self._asked = None  # the buffers are the answer's alone
        if size >= SEND_NOW_BYTES_MIN:
            connection.flush()
        else:
            connection.answered()
        return True

    cdef bint _read(self, _Asked one, int64_t room, bint first, Py_ssize_t* records) except -1:
        cdef _Place place = one.place
        cdef int64_t limit, wanted, next_offset, first_offset = place.span.first
        log, state = place.log, place.state
        one.start = max(<int64_t>place.partition.low_mark, max(first_offset, <int64_t>log.start_offset))
        one.stable = max(<int64_t>log.stable, first_offset)
        one.committed_end = one.stable
        if state.open:
            one.committed_end = min(<int64_t>state.stable_end(one.stable), one.stable)
        if not one.start <= one.offset <= max(one.stable, one.start):
            return False
        if one.leader_epoch >= 0 and one.leader_epoch != <int64_t>log.epoch:
            return False
        limit = one.committed_end if self._committed else one.stable
        if one.offset >= limit or (room <= 0 and not first):
            return True
        wanted = max(min(<int64_t>one.bytes_max, room, <int64_t>WANTED_MAX), 1)
        segments = place.engine.segments
        stretch = self._buffers.find(segments, one.offset, limit, wanted)
        one.found = stretch is not None
        if stretch is None:
            stretch = self._read_stretch(place, segments, one.offset, limit, wanted)
            if stretch is None:
                return False
        if stretch.size > wanted and not first:
            return True
        next_offset = stretch.next_offset
        if self._committed and state.aborted and state.aborted_in(one.offset, next_offset):
            return False
        one.memory, one.size = stretch.view(), stretch.size
        records[0] += <Py_ssize_t>stretch.records
        return True

    cdef object _read_stretch(self, _Place place, segments, int64_t offset, int64_t limit, int64_t wanted):
        """None if that is not plain."""
        cdef Py_buffer view
        cdef PackedBatches packed
        cdef Py_ssize_t got
        cdef bint found
        stretch = self._buffers.take(HEAD_ROOM + wanted + READ_AHEAD)
        memory = stretch.view()
        got = place.engine.read_into(offset, memory[HEAD_ROOM : HEAD_ROOM + wanted + READ_AHEAD])
        PyObject_GetBuffer(memory, &view, PyBUF_WRITABLE)
        found = got > 0 and pack_frames(
            <uint8_t*>view.buf + HEAD_ROOM, got, place.log.id, offset, limit, wanted + FRAME_HEAD_SIZE, &packed
        )
        PyBuffer_Release(&view)
        if not found:
            return None
        stretch.segments, stretch.offset, stretch.limit, stretch.wanted = segments, offset, limit, wanted
        stretch.size, stretch.records, stretch.next_offset = packed.size, packed.records, packed.next_offset
        return stretch

    # -- the answer ------------------------------------------------------------------------------------------------

    cdef Py_ssize_t _encode(self, list parts) except -1:
        """Returns its size; 0 if it has too many partitions to tell of."""
        cdef _Asked one
        cdef uint8_t* heads = self._heads_at
        cdef uint8_t* size_at = NULL
        cdef Py_ssize_t total = 0
        cdef bint flexible = self._version >= FLEXIBLE_VERSION_MIN, opened = False
        self._heads_size = 0
        self._put_head()
        for one in self._asked:
            if HEADS_BYTES - self._heads_size < HEAD_ROOM:
                return 0
            if opened and one.new_topic and flexible:
                heads[self._heads_size] = 0
                self._heads_size += 1
            self._put_partition(one)
            opened = True
            if one.size:
                total += self._put_batches(one, parts, &size_at)
            if flexible:
                heads[self._heads_size] = 0
                self._heads_size += 1
        if flexible:
            heads[self._heads_size] = heads[self._heads_size + 1] = 0
            self._heads_size += 2
        if self._heads_size:
            parts.append(PyBytes_FromStringAndSize(<const char*>heads, self._heads_size))
            total += self._heads_size
        put_u32(size_at, <uint32_t>(total - 4))
        return total

    cdef void _put_head(self) noexcept:
        cdef uint8_t* at = self._heads_at
        put_u32(at + 4, <uint32_t>self._correlation)
        at += 8
        if self._version >= FLEXIBLE_VERSION_MIN:
            at[0] = 0
            at += 1
        put_u32(at, 0)
        at += 4
        if self._version >= 7:
            put_u16(at, 0)
            put_u32(at + 2, 0)
            at += 6
        at = put_count(at, self._topics, self._version >= FLEXIBLE_VERSION_MIN)
        self._heads_size = at - self._heads_at

    cdef void _put_partition(self, _Asked one) noexcept:
        """All that goes before its batches."""
        cdef uint8_t* at = self._heads_at + self._heads_size
        cdef bint flexible = self._version >= FLEXIBLE_VERSION_MIN
        cdef Py_ssize_t size = len(one.name)
        if one.new_topic:
            if self._version < IDS_VERSION_MIN:
                if flexible:
                    at = put_varint(at, <uint32_t>size + 1)
                else:
                    put_u16(at, <uint16_t>size)
                    at += 2
            memcpy(at, <const char*>one.name, size)
            at = put_count(at + size, one.topic_partitions, flexible)
        put_u32(at, <uint32_t>one.index)
        put_u16(at + 4, 0)
        put_u64(at + 6, <uint64_t>one.stable)
        put_u64(at + 14, <uint64_t>one.committed_end)
        at += 22
        if self._version >= 5:
            put_u64(at, <uint64_t>one.start)
            at += 8
        if flexible:  # aborted transactions: none, or not asked for
            at[0] = 1 if self._committed else 0
            at += 1
        else:
            put_u32(at, 0 if self._committed else 0xFFFFFFFF)
            at += 4
        if self._version >= 11:
            put_u32(at, 0xFFFFFFFF)
            at += 4
        if flexible:
            at = put_varint(at, <uint32_t>one.size + 1)
        else:
            put_u32(at, <uint32_t>one.size)
            at += 4
        self._heads_size = at - self._heads_at

    cdef Py_ssize_t _put_batches(self, _Asked one, list parts, uint8_t** size_at) except -1:
        """What was told so far goes before them; returns how much both are."""
        cdef Py_buffer view
        cdef Py_ssize_t told = self._heads_size, begin = HEAD_ROOM, size
        cdef uint8_t* at
        cdef bytearray copy
        PyObject_GetBuffer(one.memory, &view, PyBUF_WRITABLE)
        at = <uint8_t*>view.buf
        PyBuffer_Release(&view)
        if one.found or told > HEAD_ROOM:
            copy = PyByteArray_FromStringAndSize(<const char*>self._heads_at, told)
            if size_at[0] == NULL:
                size_at[0] = <uint8_t*>PyByteArray_AS_STRING(copy)
            parts.append(copy)
        else:
            begin -= told
            memcpy(at + begin, self._heads_at, told)
        at += begin
        size = HEAD_ROOM - begin + one.size
        if size <= COPIED_MAX:
            copy = PyByteArray_FromStringAndSize(<const char*>at, size)
            at = <uint8_t*>PyByteArray_AS_STRING(copy)
            parts.append(copy)
        else:
            parts.append(one.memory[begin : begin + size])
        if size_at[0] == NULL:
            size_at[0] = at
        one.memory = None
        self._heads_size = 0
        return told + one.size


cdef inline uint8_t* put_varint(uint8_t* at, uint32_t value) noexcept nogil:
    while value > 0x7F:
        at[0] = <uint8_t>(value & 0x7F | 0x80)
        value >>= 7
        at += 1
    at[0] = <uint8_t>value
    return at + 1


cdef inline uint8_t* put_count(uint8_t* at, uint32_t count, bint flexible) noexcept nogil:
    if flexible:
        return put_varint(at, count + 1)
    put_u32(at, count)
    return at + 4
