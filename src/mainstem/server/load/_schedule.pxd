# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    HEAD = 20  # bytes that every message begins with

cdef int64_t now_ns() noexcept nogil


cdef struct Peer:
    int fd
    int is_publisher
    uint8_t* out
    Py_ssize_t out_at, out_size, out_capacity
    uint8_t* tail
    Py_ssize_t tail_size, tail_capacity
    int wants_write
    # a publisher
    uint64_t sent, acked, received  # receptions of its messages, by all receivers together
    uint64_t opened  # what it had sent before the batch that it fills now
    int64_t due_ns
    uint8_t* front  # what goes before each message, if that is always the same; what a receiver asks with
    Py_ssize_t front_size
    # a receiver: what it expects next of each publisher, and the last tag it saw and acknowledged
    uint64_t* expected
    uint64_t last_tag, acked_tag
    int repeated  # what the broker says of the message that comes next


cdef class Schedule:
    cdef Peer* peers
    cdef readonly int count, publishers
    cdef int capacity, epoll
    cdef Py_ssize_t size, send_bytes
    cdef uint8_t* read_buffer
    cdef uint64_t window, receivers, step
    cdef int64_t interval_ns, read_ns
    cdef bint in_order  # each receiver gets a publisher's messages in the order of their numbers
    cdef bint acks_wanted  # a message counts as done only when the broker has acknowledged it, too
    cdef uint64_t[4096] histogram
    cdef uint64_t latencies
    cdef readonly uint64_t duplicated, reordered, total_received
    cdef bint sending, measuring
    cdef str failure

    # What a protocol says.
    cdef int put(self, Peer* peer, int64_t intended) except -1
    cdef Py_ssize_t parse(self, Peer* peer, uint8_t* data, Py_ssize_t size) except -1
    cdef int seal(self, Peer* peer) except -1
    cdef int after_read(self, Peer* peer) except -1

    # What a protocol calls.
    cdef Peer* add(self, int fd) except NULL
    cdef Peer* add_receiver(self, int fd, uint64_t first) except NULL
    cdef int set_front(self, Peer* peer, bytes front) except -1
    cdef uint8_t* reserve(self, Peer* peer, Py_ssize_t size) except NULL
    cdef void write_head(self, uint8_t* at, Peer* peer, int64_t intended) noexcept
    cdef int receive(self, Peer* peer, const uint8_t* at, bint repeated) except -1
    cdef uint64_t sent_total(self) noexcept

    cdef bint _done(self) noexcept
    cdef uint64_t _progress(self) noexcept
    cdef int _turn(self, int64_t now) except -1
    cdef bint _publish(self, Peer* peer, int64_t now) except -1
    cdef int _flush(self, Peer* peer) except -1
    cdef int _read(self, Peer* peer) except -1
    cdef int _keep(self, Peer* peer, const uint8_t* data, Py_ssize_t size) except -1
