# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What every turn does with a queue's cursor. See `queue_core.py`."""

from array import array

from cpython cimport array as arrays
from cpython.list cimport PyList_GET_SIZE
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from mainstem.cursor._leases cimport Leases

from mainstem.cursor.queue_journal import Op

cdef arrays.array TEMPLATE = array("q")
cdef object OP_HEAD = Op.HEAD
cdef object OP_LEASE = Op.LEASE
cdef object OP_PASS = Op.PASS
cdef object OP_SETTLE = Op.SETTLE


cdef arrays.array packed(const int64_t* positions, Py_ssize_t count):
    cdef arrays.array made = arrays.clone(TEMPLATE, count, False)
    memcpy(made.data.as_voidptr, positions, count * sizeof(int64_t))
    return made


cdef class QueueCore:
    def __init__(self, int64_t start, int64_t exceptions_max, bint journaled, order):
        self.exceptions_max = exceptions_max
        self.journaled = journaled
        self.order = order
        self._pending = []
        self._reset(start)

    def _reset(self, int64_t start):
        self.next = self.head = start
        self.unread = 0
        self.dead = {}
        self._leased = Leases()
        self._leased_again = set()
        self._deadline_of = {}
        self._deadlines = []
        self._released = []
        self._delayed = {}
        self._due = []
        self._attempts = {}

    @property
    def ready(self):
        return self.count_ready()

    @property
    def waiting(self):
        return self.order.waiting if self.order is not None else 0

    @property
    def room(self):
        return self.count_room()

    @property
    def timed(self):
        return self.is_timed()

    cdef bint is_timed(self):
        return PyList_GET_SIZE(self._deadlines) > 0 or PyList_GET_SIZE(self._due) > 0

    cdef bint is_plain(self):
        """No leases but first ones, which nothing else is known of."""
        return not (self._leased_again or self._deadline_of or self._attempts or self.order is not None)

    cdef int64_t count_ready(self) except -1:
        cdef int64_t ready = self.unread + PyList_GET_SIZE(self._released)
        return ready if self.order is None else ready + <int64_t>self.order.waiting

    cdef int64_t count_room(self) except? -1:
        cdef int64_t taken = len(self._leased_again) + PyList_GET_SIZE(self._released) + len(self._delayed) + len(self.dead)
        if self.order is not None:
            taken += <int64_t>self.order.waiting
        return self.exceptions_max - (self._leased.tail - self._leased.head - self._leased.gone) - taken

    cpdef int enter(self, int64_t last, int64_t count=1) except -1:
        assert last >= self.head, "positions only grow"
        self.head = last + 1
        self.unread += count
        self._note_head()
        return 0

    def hand_out(self, arrays.array leased not None, int64_t passed, int64_t end):
        self.lease(<const int64_t*>leased.data.as_longlongs, len(leased))
        if passed:
            self.pass_over(end, passed)

    cdef int lease(self, const int64_t* positions, Py_ssize_t count) except -1:
        if count == 0:
            return 0
        assert positions[0] >= self.next, "an unread position lies at or beyond next"
        self._leased.put(positions, count)
        self._advance(positions[count - 1] + 1, count)
        if self.journaled:
            self._pending.append((OP_LEASE, packed(positions, count)))
            self._note_head()
        return 0

    cpdef int pass_over(self, int64_t position, int64_t count) except -1:
        if count or position > self.next:
            self._advance(position if position > self.next else self.next, count)
            if self.journaled:
                self._pending.append((OP_PASS, (self.next, self.unread)))
        return 0

    def ack_plainly(self, arrays.array positions not None):
        cdef arrays.array copied
        if not self.is_plain():
            return -1
        copied = arrays.copy(positions)
        return self.settle(<int64_t*>copied.data.as_longlongs, len(copied))

    cdef Py_ssize_t settle(self, int64_t* positions, Py_ssize_t count) except -1:
        """Leases of a cursor without any but first ones: those that were leased are left in `positions`."""
        count = self._leased.strike(positions, count, positions)
        if count and self.journaled:
            self._pending.append((OP_SETTLE, packed(positions, count)))
        return count

    cpdef int _advance(self, int64_t position, int64_t count) except -1:
        self.next = position
        if position > self.head:
            self.head = position
        self.unread = self.unread - count if self.unread > count else 0
        return 0

    cpdef int _note_head(self) except -1:
        if not self.journaled:
            return 0
        if self._pending and self._pending[len(self._pending) - 1][0] is OP_HEAD:
            self._pending.pop()  # only the newest counts
        self._pending.append((OP_HEAD, (self.head, self.unread)))
        return 0

    cpdef int _note(self, object op, object arguments) except -1:
        if self.journaled:
            self._pending.append((op, arguments))
        return 0
