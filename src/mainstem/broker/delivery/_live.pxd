# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from mainstem.codec._large_record cimport LargeRecord
from mainstem.log._gather cimport TopicRef

cdef extern from "<time.h>" nogil:
    ctypedef int clockid_t
    cdef struct timespec:
        long tv_sec
        long tv_nsec
    clockid_t CLOCK_MONOTONIC
    int clock_gettime(clockid_t clock, timespec* now)


cdef inline int64_t now_ns() noexcept nogil:
    """Monotonic."""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec


cdef class RecordRef:
    cdef const uint8_t* key_at
    cdef const uint8_t* value_at
    cdef const uint8_t* headers_at
    cdef Py_ssize_t key_len
    cdef Py_ssize_t value_len
    cdef Py_ssize_t headers_len
    cdef int header_count
    cdef public int flags
    cdef public int origin
    cdef public int64_t offset
    cdef public int64_t stamp
    cdef public int64_t time_ms
    cdef public bytes topic
    cdef public object log
    cdef public uint64_t serial
    cdef object owner

    cdef const uint8_t* load(self, const uint8_t* at, const uint8_t* end, int64_t base_offset,
                             int64_t base_stamp, int64_t first_time_ms) except NULL
    cdef int load_large(self, LargeRecord record, int64_t offset, int64_t stamp) except -1
    cdef void set_topic(self)
    cdef bint find_header(self, const char* name, Py_ssize_t name_len,
                          const uint8_t** value, Py_ssize_t* value_len) noexcept


cdef struct Hint:
    # Where in a compressed batch a replay stopped, so that the next one need not walk all that came before.
    int64_t stamp, position
    uint32_t crc
    Py_ssize_t at
    int place


cdef class Sink:
    cdef public bint live
    cdef public bint takes_unstored  # it is offered records of topics that are live only
    cdef public bint blocked  # its socket takes nothing just now
    cdef public uint64_t dropped  # records that were for it and went past, which QoS 0 allows
    cdef public int64_t position
    cdef public int64_t undecided_from  # records of transactions written from here on come as they are written,
    cdef public int64_t undecided_to  # up to here; others where their transaction is committed
    cdef public object namespace
    cdef Hint hint

    cpdef bint push(self, RecordRef record, object options) except -1
    cpdef bint push_unstored(self, RecordRef record, object options) except -1
    cpdef object choose(self, RecordRef record)
    cpdef bint may_drop(self, object options) except -1


cdef class Delivery:
    cdef public int64_t since
    cdef public Sink sink
    cdef public object options
    cdef bint lossy


cdef class Route(TopicRef):
    cdef public object namespace
    cdef public list deliveries
    cdef public uint64_t epoch


cdef class BatchWalk:
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef int64_t base_offset
    cdef int64_t base_stamp
    cdef int64_t first_time_ms
    cdef int64_t append_time_ms
    cdef int place
    cdef int count
    cdef int last_delta
    cdef bint dense
    cdef bint appended
    cdef bytes inflated

    cdef int begin(self, const uint8_t* batch, Py_ssize_t size, int64_t base_offset, int64_t base_stamp) except -1
    cdef int check(self) except -1
    cdef bint next(self, RecordRef ref) except -1


cdef class Dispatcher:
    cdef public uint64_t epoch
    cdef public uint64_t delivered
    cdef public uint64_t undecodable
    cdef public uint64_t failures
    cdef RecordRef ref
    cdef int64_t deadline_ns  # of the slice at hand; 0: none
    cdef Py_ssize_t unclocked
    cdef object waiting  # written, and not yet offered to all who listen
    cdef public Py_ssize_t waiting_bytes
    cdef bint unstored  # the item at hand lies in no log
    cdef int64_t spent_ns  # with what was offered since the price was last reckoned
    cdef int64_t spent_bytes
    cdef double ns_per_byte  # what delivery costs at present: it grows with how many listen
    cdef int64_t head  # all records below it were
    cdef int place  # in the gathered batch at hand
    cdef BatchWalk walk  # through the client's batch at hand
    cdef object walk_owner
    cdef object committed  # batches that the marker at hand makes visible
    cdef bint in_transaction  # the batch at hand is one's
    cdef bint decided  # and comes by its marker
    cdef int64_t written_at  # its own stamp

    cpdef int keep(self, list appended) except -1
    cdef bint _is_over(self, Py_ssize_t pushes, Py_ssize_t unclocked_max) noexcept
    cdef int _push_all(self, Route route) except -1
    cdef int _push_unstored(self, Route route) except -1
    cdef bint _deliver_gather(self, object item) except -1
    cdef int _deliver_large(self, object item) except -1
    cdef bint _deliver_batch(self, object item) except -1
    cdef int _open(self, bytes batch, int64_t base_offset, int64_t stamp) except -1
    cdef BatchWalk _begin(self, const uint8_t* batch, Py_ssize_t size, int64_t base_offset, int64_t stamp)
    cdef int _replay_frame(self, Sink sink, object log, const uint8_t* frame, Py_ssize_t length, int64_t[::1] offsets,
                            Py_ssize_t wanted, int64_t from_stamp, int64_t to_stamp, bytes topic) except -1
    cdef int _replay_batch(self, Sink sink, const uint8_t* batch, Py_ssize_t size, int64_t base, int64_t stamp,
                            int64_t[::1] offsets, Py_ssize_t wanted, int64_t from_stamp, int64_t to_stamp,
                            bytes topic) except -1
