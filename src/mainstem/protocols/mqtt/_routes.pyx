# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Topic bytes to Route, compiled. See `wire.py`; the plain one is in `_wire_reference.py`."""

import os

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

from mainstem.broker._live cimport Route

ROUTES_MAX = 1 << 18


cdef inline uint64_t mix(uint64_t value) noexcept nogil:
    value ^= value >> 32
    value *= 0x9E3779B97F4A7C15ULL
    return value ^ (value >> 29)


cdef inline uint64_t hash_of(const uint8_t* at, Py_ssize_t size, uint64_t seed) noexcept nogil:
    cdef uint64_t result = seed ^ <uint64_t>size, word
    while size >= 8:
        memcpy(&word, at, 8)
        result = mix(result ^ word) + seed
        at += 8
        size -= 8
    if size:
        word = 0
        memcpy(&word, at, size)
        result = mix(result ^ word) + seed
    return mix(result)


cdef class RouteTable:
    """Topic bytes to Route, by a hash of the raw bytes: nothing is made to look a topic up."""

    def __init__(self, resolve, uint32_t count_max=ROUTES_MAX):
        self.resolve = resolve
        self.count_max = count_max
        self.seed = int.from_bytes(os.urandom(8), "little")
        self.mask = 63
        self.entries = <Entry*>calloc(64, sizeof(Entry))
        if self.entries == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.entries != NULL:
            self.clear()
            free(self.entries)

    def clear(self):
        """Forget all: rights, filters or routes changed."""
        cdef uint32_t n
        self.generation += 1
        for n in range(self.mask + 1):
            if self.entries[n].topic != NULL:
                Py_DECREF(<object>self.entries[n].topic)
                if self.entries[n].route != NULL:
                    Py_DECREF(<object>self.entries[n].route)
        memset(self.entries, 0, (self.mask + 1) * sizeof(Entry))
        self.count = 0

    cdef Entry* _place(self, uint64_t hash, const uint8_t* topic, Py_ssize_t size) noexcept:
        cdef uint32_t at = <uint32_t>hash & self.mask
        cdef Entry* entry = &self.entries[at]
        while entry.topic != NULL:
            if entry.hash == hash and PyBytes_GET_SIZE(<object>entry.topic) == size \
                    and memcmp(PyBytes_AS_STRING(<object>entry.topic), topic, size) == 0:
                return entry
            at = (at + 1) & self.mask
            entry = &self.entries[at]
        return entry

    cdef Entry* find(self, const uint8_t* topic, Py_ssize_t size) except NULL:
        """Never NULL: an unknown topic is resolved, which may raise."""
        cdef uint64_t hash = hash_of(topic, size, self.seed)
        cdef Entry* entry = self._place(hash, topic, size)
        return entry if entry.topic != NULL else self._resolve(hash, topic, size)

    cdef Entry* _resolve(self, uint64_t hash, const uint8_t* topic, Py_ssize_t size) except NULL:
        cdef bytes name = PyBytes_FromStringAndSize(<const char*>topic, size)
        cdef Entry* entry
        cdef int reason, marks
        route, reason, marks, bytes_max = self.resolve(name)
        if self.count >= self.count_max:
            self.clear()
        elif self.count * 2 > self.mask:
            self._grow()
        entry = self._place(hash, <const uint8_t*>PyBytes_AS_STRING(name), size)
        Py_INCREF(name)
        entry.bytes_max = bytes_max
        entry.hash, entry.topic, entry.reason, entry.marks, entry.route = hash, <void*>name, reason, marks, NULL
        if route is not None:
            Py_INCREF(route)
            entry.route = <void*>(<Route?>route)
        self.count += 1
        return entry

    cdef int _grow(self) except -1:
        cdef Entry* old = self.entries
        cdef uint32_t old_mask = self.mask, n, at
        cdef Entry* grown = <Entry*>calloc((old_mask + 1) * 2, sizeof(Entry))
        if grown == NULL:
            raise MemoryError
        self.entries, self.mask = grown, old_mask * 2 + 1
        for n in range(old_mask + 1):
            if old[n].topic != NULL:
                at = <uint32_t>old[n].hash & self.mask
                while grown[at].topic != NULL:
                    at = (at + 1) & self.mask
                grown[at] = old[n]
        free(old)
        return 0
