# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Produce requests of one batch. `tests/oracles/single_batch.py` reads and answers them in plain Python, and draws them."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from mainstem.codec._batch cimport get_u16, get_u32, put_u16, put_u32, put_u64
from mainstem.codec._frames cimport BatchHead
from mainstem.log._gather cimport Ticket

from mainstem.broker.rights.access import Action
from mainstem.broker.transactions.producers import Verdict
from mainstem.codec.batch import check_batch
from mainstem.codec.large_record import LARGE_BYTES
from mainstem.model.errors import MainstemError
from mainstem.model.origin import Origin
from mainstem.protocols.kafka.errors import code_of

cdef enum:
    VERSION_MIN = 3
    VERSION_MAX = 13
    FLEXIBLE_VERSION_MIN = 9
    IDS_VERSION_MIN = 13
    NAME_BYTES_MAX = 249
    ANSWER_BYTES_MAX = 80 + NAME_BYTES_MAX
    PLACES_MAX = 10_000
    WRITE_NOW_BYTES_MIN = 1 << 18  # while it lies in the processor's cache: the write reads it from there
    TRANSACTIONAL = 0x10
    CODEC = 0x07

cdef int KAFKA = Origin.KAFKA
cdef object _PUBLISH = Action.PUBLISH
cdef object _APPEND = Verdict.APPEND


cdef class SingleBatch:
    """One request: what it says, the place of its answer, and who waits for its batch."""

    cdef readonly int version
    cdef readonly int index
    cdef readonly int32_t correlation
    cdef readonly bytes name  # of the topic, or its id
    cdef readonly Py_ssize_t start
    cdef readonly Py_ssize_t end
    cdef public bint done
    cdef public list parts
    cdef public int64_t base_offset
    cdef public int64_t start_offset
    cdef object _connection
    cdef object _state
    cdef object _head

    def __cinit__(self):
        self.base_offset = self.start_offset = -1

    cpdef tuple key(self):
        """The partition; ids are told from names by the sign."""
        return self.name, (~self.index if self.version >= IDS_VERSION_MIN else self.index)

    cpdef wait(self, Ticket ticket, connection, state, head):
        """Answer once the ticket is released; `state` forgets `head` if it fails."""
        self.base_offset = ticket.base_offset
        self._connection, self._state, self._head = connection, state, head
        ticket.wait(self)

    def released(self, Ticket ticket):
        cdef int error = 0
        if ticket.error is not None:
            self._state.undo(self._head, self.base_offset)
            error, self.base_offset = code_of(ticket.error), -1
        self.parts = [self.answer(error)]
        self.done = True
        self._connection.answered()

    cpdef bytes answer(self, int error):
        """The whole response with its size."""
        cdef uint8_t answer[ANSWER_BYTES_MAX]
        cdef uint8_t* at = answer + 8
        cdef bint flexible = self.version >= FLEXIBLE_VERSION_MIN
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self.name)
        if flexible:
            at[0] = 0
            at[1] = 2
            at += 2
            if self.version < IDS_VERSION_MIN:
                at = put_length(at, <uint32_t>size + 1)
        else:
            put_u32(at, 1)
            put_u16(at + 4, <uint16_t>size)
            at += 6
        memcpy(at, PyBytes_AS_STRING(self.name), size)
        at += size
        if flexible:
            at[0] = 2
            at += 1
        else:
            put_u32(at, 1)
            at += 4
        put_u32(at, <uint32_t>self.index)
        put_u16(at + 4, <uint16_t>error)
        put_u64(at + 6, <uint64_t>self.base_offset)
        put_u64(at + 14, <uint64_t>-1)
        at += 22
        if self.version >= 5:
            put_u64(at, <uint64_t>self.start_offset)
            at += 8
        if flexible:
            put_u32(at, 0x01000000)
            put_u32(at + 4, 0)
            at[8] = 0
            at += 9
        else:
            if self.version >= 8:
                put_u32(at, 0)
                put_u16(at + 4, 0xFFFF)
                at += 6
            put_u32(at, 0)
            at += 4
        put_u32(answer, <uint32_t>(at - answer - 4))
        put_u32(answer + 4, <uint32_t>self.correlation)
        return PyBytes_FromStringAndSize(<const char*>answer, at - answer)


cdef inline uint8_t* put_length(uint8_t* at, uint32_t value) noexcept nogil:
    while value > 0x7F:
        at[0] = <uint8_t>(value & 0x7F | 0x80)
        value >>= 7
        at += 1
    at[0] = <uint8_t>value
    return at + 1


cdef inline const uint8_t* get_length(const uint8_t* at, const uint8_t* end, bint flexible, bint wide,
                                      int64_t* size) noexcept nogil:
    """Reads the size of a string (or, `wide`, of bytes) that is there; NULL if it does not fit."""
    cdef uint64_t value = 0
    cdef uint8_t byte
    cdef int n
    if not flexible:
        n = 4 if wide else 2
        if end - at < n:
            return NULL
        size[0] = <int32_t>get_u32(at) if wide else <int16_t>get_u16(at)
        at += n
        return at if 0 <= size[0] <= end - at else NULL
    for n in range(5):
        if at >= end:
            return NULL
        byte = at[0]
        value |= <uint64_t>(byte & 0x7F) << (7 * n)
        at += 1
        if byte < 0x80:
            size[0] = <int64_t>value - 1
            return at if 0 <= size[0] <= end - at else NULL
    return NULL


cdef inline const uint8_t* get_one(const uint8_t* at, const uint8_t* end, bint flexible) noexcept nogil:
    """An array of one item; NULL if it is not."""
    if flexible:
        return at + 1 if end - at >= 1 and at[0] == 2 else NULL
    return at + 4 if end - at >= 4 and get_u32(at) == 1 else NULL


cdef SingleBatch read_at(const uint8_t* data, Py_ssize_t data_size):
    cdef const uint8_t* at = data
    cdef const uint8_t* end = data + data_size
    cdef const uint8_t* name
    cdef int version, acks
    cdef int64_t size = 0
    cdef bint flexible
    cdef SingleBatch found
    if data_size < 10 or get_u16(at) != 0:
        return None
    version = get_u16(at + 2)
    if version < VERSION_MIN or version > VERSION_MAX:
        return None
    flexible = version >= FLEXIBLE_VERSION_MIN
    size = <int16_t>get_u16(at + 8)
    at += 10
    if size > end - at:
        return None
    at += size if size > 0 else 0
    if end - at < 8:
        return None
    if flexible:
        if at[0] != 0 or at[1] != 0:  # no tags, no transactional id
            return None
    elif get_u16(at) != 0xFFFF:
        return None
    acks = <int16_t>get_u16(at + 2)
    if acks != -1 and acks != 1:
        return None
    at = get_one(at + 8, end, flexible)
    if at == NULL:
        return None
    if version >= IDS_VERSION_MIN:
        size = 16
        if end - at < 16:
            return None
    else:
        at = get_length(at, end, flexible, False, &size)
        if at == NULL or size > NAME_BYTES_MAX:
            return None
    name = at
    at = get_one(at + size, end, flexible)
    if at == NULL or end - at < 4:
        return None
    found = SingleBatch.__new__(SingleBatch)
    found.name = PyBytes_FromStringAndSize(<const char*>name, size)
    found.index = <int32_t>get_u32(at)
    found.version = version
    found.correlation = <int32_t>get_u32(data + 4)
    at = get_length(at + 4, end, flexible, True, &size)
    if at == NULL or size == 0:
        return None
    found.start = at - data
    found.end = found.start + size
    at += size
    if flexible:
        if end - at < 3 or at[0] != 0 or at[1] != 0 or at[2] != 0:
            return None
    return found


def read_single(data):
    """The request, if it is Produce with acks, of one batch to one partition, outside of transactions."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return read_at(<const uint8_t*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef class _Place:
    """A partition that takes batches as they are, as long as its topic stays what it is."""

    cdef object partition
    cdef object topic
    cdef dict topics
    cdef object policy
    cdef object config
    cdef object log
    cdef object route
    cdef object state
    cdef object topic_id
    cdef Py_ssize_t bytes_max
    cdef int64_t after_ms_max
    cdef int64_t time_ms_max  # whatever is not later is none of the future

    def __init__(self, partition, dict topics, state, Py_ssize_t bytes_max, int64_t after_ms_max):
        self.partition = partition
        self.topic = partition.topic
        self.topics = topics
        self.policy, self.config = self.topic.policy, self.topic.config
        self.log, self.route = partition.log, partition.route
        self.state = state
        self.topic_id = self.topic.id
        self.bytes_max, self.after_ms_max = bytes_max, after_ms_max
        self.time_ms_max = 0

    cdef bint admits(self, int64_t time_ms, int64_t now_ms) except -1:
        """The clock is only looked at when time has gone on."""
        self.time_ms_max = now_ms + self.after_ms_max
        return time_ms <= self.time_ms_max

    cdef bint holds(self) except -1:
        topic = self.topic
        return (
            topic.policy is self.policy
            and topic.config is self.config
            and (<list>self.partition.spans)[len(<list>self.partition.spans) - 1].log is self.log
            and self.topics.get(topic.name) is topic
        )


cdef class SingleBatches:
    """The requests of one connection that has logged in."""

    cdef object _connection
    cdef object _channel
    cdef object _service
    cdef object _access
    cdef object _counters
    cdef object _principal
    cdef dict _places

    def __init__(self, connection):
        self._connection = connection
        self._channel = connection.channel
        self._service = connection.service
        self._access = connection.service.access
        self._counters = connection.service.counters
        self._principal = connection.principal
        self._places = {}

    def take(self, data):
        cdef SingleBatch single
        cdef _Place place
        cdef BatchHead head
        cdef Ticket ticket
        if len(data) >= LARGE_BYTES:  # a thread looks at it and writes it
            return False
        single = read_single(data)
        if single is None:
            return False
        place = self._places.get(single.key())
        if place is None or not place.holds():
            place = self._find(single)
            if place is None:
                return False
        if not self._principal.admin and not self._access.allows(self._principal, _PUBLISH, place.topic.name):
            return False
        batch = data[single.start : single.end]
        state, log = place.state, place.log
        try:
            head = check_batch(batch, bytes_max=place.bytes_max)
            if head.attributes & TRANSACTIONAL or self._connection.opening.locked():
                return False
            if head.attributes & CODEC and self._connection.namespace.has_live(place.topic.name):
                return False  # it is inflated first
            if head.producer_id >= 0 and state.check(head)[0] is not _APPEND:
                return False
            if head.max_time_ms > place.time_ms_max and not place.admits(head.max_time_ms, self._service.now_ms()):
                return False
            appended = log.append_batch(
                batch, head, place.route, origin=KAFKA, topic_id=place.topic_id, owned=not batch.readonly
            )
        except MainstemError:
            return False
        ticket = appended.ticket
        if head.producer_id >= 0:
            state.add(head, ticket.base_offset, ticket.end_offset, self._service.now_ms())
        else:
            state.scanned_end = ticket.end_offset
        self._service.producers.count_bytes(log, place.topic_id, state, head.size)
        self._counters.messages_in += head.count
        single.start_offset = place.partition.start_offset
        self._channel.expect(single)
        single.wait(ticket, self._connection, state, head)
        if log.unsynced_bytes > log.unsynced_bytes_max:
            self._connection.hold_for(log)
        if head.size >= WRITE_NOW_BYTES_MIN:
            self._service.ticker.write_early()
        return True

    def _find(self, SingleBatch single):
        """Where it goes; None if that is not plain, and then the ordinary handler finds it out again."""
        self._places.pop(single.key(), None)
        found = self._connection.plain_partition(single.name, single.index, by_id=single.version >= IDS_VERSION_MIN)
        if found is None:
            return None
        if len(self._places) >= PLACES_MAX:
            self._places.clear()
        place = _Place(*found, self._service.rules_of(found[0].topic).after_ms_max)
        self._places[single.key()] = place
        return place
