# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What a publisher writes on the wire (an MQTT topic, a NATS subject) to its Route; `tests/oracles/mqtt_wire.py` says the same."""

import os

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memset

from mainstem.broker.delivery._live cimport Route, now_ns

ROUTES_MAX = 1 << 18
# Of all tables: a connection that is given another table (its rights changed) must not take it for the one it knew.
cdef uint64_t _generations = 0


cdef class RouteTable:
    """Topic bytes to Route, by a hash of the raw bytes: nothing is made to look a topic up."""

    def __init__(self, resolve, uint32_t count_max=ROUTES_MAX):
        self.resolve, self.routes = resolve, []
        self.count_max = count_max
        self.seed = int.from_bytes(os.urandom(8), "little")
        self._begin_generation()
        self.mask, self.capacity = 127, 64
        self.slots = <uint64_t*>calloc(128, sizeof(uint64_t))
        self.entries = <Entry*>malloc(64 * sizeof(Entry))
        if self.slots == NULL or self.entries == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.entries != NULL:
            self._drop_topics()
        free(self.entries)
        free(self.slots)

    cdef void _begin_generation(self) noexcept:
        global _generations
        _generations += 1
        self.generation = _generations

    def clear(self):
        """Forget all: rights, filters or routes changed."""
        self._begin_generation()
        self._drop_topics()
        memset(self.slots, 0, (self.mask + 1) * sizeof(uint64_t))
        self.routes = []

    cdef void _drop_topics(self) noexcept:
        cdef uint32_t n
        for n in range(self.count):
            Py_DECREF(<object>self.entries[n].topic)
        self.count = 0

    cdef uint64_t foresee(self, const uint8_t* topic, Py_ssize_t size) noexcept:
        """The hash of a topic that `find` will be asked for soon: its slot is fetched from memory meanwhile."""
        cdef uint64_t hash = hash_of(topic, size, self.seed)
        prefetch(&self.slots[<uint32_t>hash & self.mask])
        return hash

    cdef Entry* find(self, const uint8_t* topic, Py_ssize_t size, uint64_t hash) except NULL:
        """Never NULL: an unknown topic is resolved, which may raise. `hash`: what `foresee` returned, or 0."""
        cdef uint64_t slot
        cdef uint32_t at
        cdef Entry* entry
        if hash == 0:
            hash = hash_of(topic, size, self.seed)
        at = <uint32_t>hash & self.mask
        while True:
            slot = self.slots[at]
            if slot == 0:
                return self._resolve(hash, topic, size)
            if slot >> 32 == hash >> 32:
                entry = &self.entries[<uint32_t>slot - 1]
                if entry.size == size and memcmp(PyBytes_AS_STRING(<object>entry.topic), topic, size) == 0:
                    return entry
            at = (at + 1) & self.mask

    cdef Entry* _resolve(self, uint64_t hash, const uint8_t* topic, Py_ssize_t size) except NULL:
        cdef bytes name = PyBytes_FromStringAndSize(<const char*>topic, size)
        cdef Entry* entry
        cdef int reason, marks
        cdef int64_t began_ns = now_ns()
        try:
            route, reason, marks, bytes_max = self.resolve(name)
        finally:
            self.spent_ns += now_ns() - began_ns
            self.resolved += 1
        if self.count >= self.count_max:
            self.clear()
        elif self.count == self.capacity:
            self._grow()
        entry = &self.entries[self.count]
        Py_INCREF(name)
        entry.bytes_max = bytes_max
        entry.hash, entry.topic, entry.reason, entry.marks, entry.route = hash, <void*>name, reason, marks, NULL
        entry.size = <uint32_t>size
        if route is not None:
            entry.route = <void*>(<Route?>route)
            self.routes.append(route)
        self._put(hash, self.count)
        self.count += 1
        return entry

    cdef void _put(self, uint64_t hash, uint32_t place) noexcept:
        cdef uint32_t at = <uint32_t>hash & self.mask
        while self.slots[at]:
            at = (at + 1) & self.mask
        self.slots[at] = (hash >> 32 << 32) | (place + 1)

    cdef int _grow(self) except -1:
        cdef uint32_t capacity = self.capacity * 2, n
        cdef uint64_t* slots
        cdef Entry* entries = <Entry*>realloc(self.entries, capacity * sizeof(Entry))
        if entries == NULL:
            raise MemoryError
        self.entries = entries
        slots = <uint64_t*>calloc(capacity * 2, sizeof(uint64_t))
        if slots == NULL:
            raise MemoryError
        free(self.slots)
        self.slots, self.mask, self.capacity = slots, capacity * 2 - 1, capacity
        for n in range(self.count):
            self._put(self.entries[n].hash, n)
        return 0
