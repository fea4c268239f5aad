# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The open batch of a log, and the promise about it. See `gather.py`."""

import logging

from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport realloc

from mainstem.codec._batch cimport BatchBuilder
from mainstem.codec._batch import encode_headers
from mainstem.log.open_batch import BYTES_MAX, RECORDS_MAX

logger = logging.getLogger("mainstem.log")

cdef Py_ssize_t _BYTES_MAX = BYTES_MAX
cdef int _RECORDS_MAX = RECORDS_MAX
cdef Py_ssize_t _EXPECTED_BYTES_MAX = 1 << 20


cdef class Ticket:
    def __init__(self, log):
        self.log = log
        self.base_offset = self.end_offset = self.stamp = -1
        self.stable = False
        self.error = None
        self.waiters = []

    cpdef wait(self, waiter):
        if self.stable or self.error is not None:
            waiter.released(self)
        else:
            self.waiters.append(waiter)
            if self.end_offset >= 0:
                self.log.on_awaited(self.log)

    @property
    def awaited(self):
        return bool(self.waiters)

    cpdef release(self):
        self.stable = True
        _tell(self)

    cpdef fail(self, error):
        self.error = error
        _tell(self)


cdef object _tell(Ticket ticket):
    waiters, ticket.waiters = ticket.waiters, []
    for waiter in waiters:
        try:
            waiter.released(ticket)
        except Exception:  # one publisher's failure is its own
            logger.exception("a publisher could not be told that its records are kept")


cdef class TopicRef:
    def __init__(self, bytes topic, uint32_t number, log):
        self.topic = topic
        self.number = number
        self.log = log
        self.gathers = log.gathers

    def renumber(self):
        raise NotImplementedError

    cdef Gather gather(self, int origin):
        cdef object found = self.gathers[origin]
        if found is None:
            found = self.log.open(origin)
        return <Gather>found

    def open_gather(self, int origin):
        return self.gather(origin)


cdef class Gather(BatchBuilder):
    def __init__(self, log, int origin, int kind):
        super().__init__()
        self.log = log
        self.origin = origin
        self.kind = kind
        self.ticket = Ticket(log)
        self.routes = []
        self.numbers = NULL
        self.numbers_capacity = 0

    def __dealloc__(self):
        if self.numbers != NULL:
            PyMem_Free(self.numbers)
            self.numbers = NULL

    cdef int _number(self, int index, uint32_t number) except -1:
        cdef int capacity
        cdef void* grown
        if index >= self.numbers_capacity:
            capacity = self.numbers_capacity * 2 if self.numbers_capacity else 64
            grown = PyMem_Realloc(self.numbers, capacity * sizeof(uint32_t))
            if grown == NULL:
                raise MemoryError
            self.numbers = <uint32_t*>grown
            self.numbers_capacity = capacity
        self.numbers[index] = number
        return 0

    cdef int put_routed(self, TopicRef route, const uint8_t* key, Py_ssize_t key_len,
                        const uint8_t* value, Py_ssize_t value_len,
                        const uint8_t* headers, Py_ssize_t headers_len, int header_count,
                        int64_t time_ms, uint8_t flags) except -1:
        if route.number == 0:
            route.renumber()
        cdef int index = self.put(key, key_len, value, value_len, headers, headers_len, header_count, time_ms, flags)
        self._number(index, route.number)
        self.routes.append(route)
        if self.size >= _BYTES_MAX or index + 1 >= _RECORDS_MAX:
            self.log.rotate(self)
        return index

    def expect(self, Py_ssize_t size, int count):
        """About so much will come: room for it is taken at once, instead of growing into it."""
        cdef void* grown
        cdef int capacity = 64
        while self.capacity_first < size and self.capacity_first < _EXPECTED_BYTES_MAX:
            self.capacity_first *= 2
        while capacity < count and capacity < _RECORDS_MAX:
            capacity *= 2
        grown = realloc(self.record_at, capacity * sizeof(uint32_t))
        if grown == NULL:
            raise MemoryError
        self.record_at, self.record_capacity = <uint32_t*>grown, capacity
        grown = PyMem_Realloc(self.numbers, capacity * sizeof(uint32_t))
        if grown == NULL:
            raise MemoryError
        self.numbers, self.numbers_capacity = <uint32_t*>grown, capacity

    def add_routed(self, TopicRef route, key, value, headers, int64_t time_ms, int flags):
        """The same for callers in Python; headers as (name, value) pairs."""
        cdef bytes encoded = encode_headers(headers) if headers else b""
        cdef const uint8_t* key_at = NULL
        cdef const uint8_t* value_at = NULL
        cdef const uint8_t[::1] key_view
        cdef const uint8_t[::1] value_view
        cdef Py_ssize_t key_len = -1, value_len = -1
        if key is not None:
            key_len = len(key)
            if key_len:
                key_view = key
                key_at = &key_view[0]
        if value is not None:
            value_len = len(value)
            if value_len:
                value_view = value
                value_at = &value_view[0]
        return self.put_routed(route, key_at, key_len, value_at, value_len,
                               <const uint8_t*><char*>encoded, len(encoded), len(headers), time_ms, flags)

    def add_state(self, bytes key, value, int64_t time_ms):
        """A record of the journal: it has no topic."""
        cdef int index = self.add(key, value, (), time_ms, 0)
        self._number(index, 0)
        self.routes.append(None)
        if self.size >= _BYTES_MAX or index + 1 >= _RECORDS_MAX:
            self.log.rotate(self)
        return index

    def topic_numbers(self):
        """One number per record, as the topic index wants them."""
        if self.count == 0:
            return b""
        return <bytes>((<char*>self.numbers)[: self.count * sizeof(uint32_t)])
