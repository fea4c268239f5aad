# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from mainstem.protocols._sockets cimport epoll_event


cdef class Intake:
    cdef int take(self, const uint8_t* data, Py_ssize_t size, int64_t time_ms) except -1


cdef class SocketTransport:
    cdef Reactor reactor
    cdef PollSet poll_set
    cdef object protocol
    cdef Intake intake
    cdef object peer
    cdef object waiting  # deque of bytes and Lents that the socket did not take yet
    cdef Py_ssize_t waiting_at, waiting_size
    cdef Py_ssize_t high, low
    cdef int fd
    cdef uint32_t watched
    cdef uint32_t heard
    cdef Py_ssize_t wrote  # since it was last read
    cdef Py_ssize_t said  # to it and by it until then, halved every 8 ms
    cdef int64_t said_ms  # when it was halved
    cdef bint reading
    cdef bint deaf  # we said goodbye: what still comes is not heard
    cdef bint closing
    cdef bint ending  # our side ends behind what waits
    cdef bint full
    cdef bint lost

    cdef Py_ssize_t push(self, const uint8_t* data, Py_ssize_t size) except -1
    cdef int keep(self, bytes data, Py_ssize_t at) except -1
    cdef int keep_all(self, list pieces) except -1
    cdef int _measure(self) except -1
    cdef int _serve(self, uint32_t events, Py_ssize_t bytes_max) except -1
    cdef int _read(self, Py_ssize_t bytes_max) except -1
    cdef bint _is_quiet(self, Py_ssize_t size, int64_t now_ms) noexcept
    cdef int _drain(self) except -1
    cdef int _watch(self) except -1
    cdef int _lose(self, object error) except -1


cdef class PollSet:
    cdef Reactor reactor
    cdef str tenant
    cdef uint64_t number
    cdef int epoll
    cdef Py_ssize_t sockets  # how many
    cdef uint64_t round  # that it had its last turn in
    cdef int events_max  # sockets that are served in one round: as many as there is time for
    cdef bint crowd  # most of those that the last turn saw were leaving: they are told apart from those who stay
    cdef double ns_per_byte  # of its turns, with their ticks
    cdef int64_t quiet_until_ns  # until then some of its clients have little to say, and it is served between others' turns
    cdef bint priced  # this turn is measured, for the last was large: the processor's time is a system call

    cdef int leave(self) except -1
    cdef double _part(self, double share)
    cdef int _stayers_first(self, epoll_event* events, int ready) noexcept
    cdef bint _is_alone(self, int64_t at_ns, ticker) except -1
    cdef Py_ssize_t _affordable(self, int64_t at_ns) noexcept
    cdef void _price(self, uint64_t size, int64_t took_ns) noexcept


cdef class Reactor:
    cdef object loop
    cdef object server
    cdef object now_ns
    cdef object accepting
    cdef list transports  # by file descriptor
    cdef object leaving  # deque of (transport, error): their protocols are told in slices
    cdef bint parting  # such a slice is asked for
    cdef dict poll_sets  # by namespace
    cdef list quiet  # of these: QUIET_SETS_MAX at most
    cdef uint8_t* buffer
    cdef uint32_t second
    cdef int64_t time_ms
    cdef uint64_t bytes_in, messages_in  # of this turn
    cdef uint64_t drained  # bytes of waiting output that left in this turn
    cdef uint64_t round
    cdef double largest, largest_next  # share of the poll sets that waited in the round before, and in this one

    cdef PollSet _poll_set(self, str tenant)
    cdef int _note_quiet(self, PollSet poll_set, int64_t until_ns) except -1
