# cython: language_level=3
from libc.stdint cimport int32_t, int64_t, uint8_t

from mainstem.broker.delivery._live cimport BatchWalk, RecordRef, Sink
from mainstem.codec._frames cimport FrameFields
from mainstem.cursor._queue_core cimport QueueCore


cdef class Entry:
    cdef public bint anything
    cdef public bint default
    cdef public bint plain
    cdef readonly frozenset exchanges
    cdef bytes asked  # the exchange that was looked for last
    cdef bint found

    cdef bint has(self, const uint8_t* exchange, Py_ssize_t size) except -1


cdef struct Stamps:
    int64_t* at
    Py_ssize_t count
    Py_ssize_t capacity


cdef class Taker:
    cdef public int priority
    cdef public int64_t credit
    cdef public bint no_ack
    cdef public object queue

    cpdef bint take(self, RecordRef record, bint redelivered, int attempts) except -1


cdef class QueueSink(Sink):
    cdef public bytes queue_id
    cdef public object owner
    cdef public bint direct
    cdef public bint expiring
    cdef public bint inspect
    cdef public bint dirty
    cdef public int64_t room
    cdef public int64_t newest
    cdef public int64_t doubtful
    cdef public list groups
    cdef public list turns
    cdef int64_t entered
    cdef int64_t entered_bytes
    cdef int64_t entered_last
    cdef int64_t passed
    cdef int64_t handed_bytes
    cdef int64_t handed_last
    cdef Stamps leased
    cdef Stamps acked

    cpdef bint accepts(self, RecordRef record, Entry entry) except -1
    cpdef bint hand(self, RecordRef record, bint redelivered, int attempts) except -1
    cpdef bint give(self, Taker taker, RecordRef record, bint redelivered, int attempts) except -1
    cpdef bint ack(self, int64_t position) except -1
    cpdef int64_t tell(self, QueueCore cursor) except -1
    cpdef int64_t forget_events(self) except -1
    cpdef int64_t settle_acked(self, QueueCore cursor) except -1
    cpdef bint stand(self, QueueCore cursor) except -1


cdef struct Planned:
    # One record of the log that waits to be handed out: where its bytes lie and what its frame says of it.
    const uint8_t* at
    const uint8_t* end
    int64_t offset
    int64_t stamp
    int64_t time_ms
    int32_t source
    int32_t topic


cdef class Backlog:
    cdef public QueueSink sink
    cdef public int64_t constant_from
    cdef public int64_t bytes
    cdef RecordRef ref
    cdef BatchWalk walk
    cdef Planned* planned
    cdef Py_ssize_t head
    cdef Py_ssize_t tail
    cdef Py_ssize_t capacity
    cdef list sources
    cdef list topics
    cdef dict entries
    cdef bytes last_topic
    cdef object last_entry

    cdef int _plan_frame(self, object log, object data, const uint8_t* frame, const FrameFields* fields,
                         int64_t[::1] offsets, Py_ssize_t wanted, int64_t from_stamp, int64_t to_stamp, bytes named,
                         object wants, bint exact) except -1
    cdef int _plan_batch(self, object log, object data, const uint8_t* batch, Py_ssize_t size, int64_t base,
                         int64_t stamp, const FrameFields* fields, int64_t[::1] offsets, Py_ssize_t wanted,
                         int64_t from_stamp, int64_t to_stamp, bytes named, object wants) except -1
    cdef int _add(self, Planned* planned) except -1
    cdef int _show(self, const Planned* planned) except -1
    cdef RecordRef _load(self, Py_ssize_t at)
    cdef object _choose(self)
