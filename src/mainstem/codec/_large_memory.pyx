# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Memory for large messages, used again. See `large_memory.py`. Everything here is called with the interpreter's lock."""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

cdef extern from * nogil:
    """
    #include <sys/mman.h>

    #ifndef MAP_NORESERVE
    #define MAP_NORESERVE 0
    #endif

    static void* map_pages(size_t size) {
        void* at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        return at == MAP_FAILED ? NULL : at;
    }
    """
    void* map_pages(size_t size)
    int munmap(void* at, size_t size)

cdef enum:
    HEAD_BYTES = 4096  # before what callers see
    ROUNDED_BYTES = 64 << 10
    PAGED_AT = 1 << 20  # that came of a message that will be paged: what is announced only costs nothing
    KEPT_MAX = 16
    KEPT_BYTES = 128 << 20

PAGED_BYTES_MIN = PAGED_MIN
KEPT_BYTES_MAX = KEPT_BYTES


cdef struct Head:
    bint touched  # all of its pages, by a message before


cdef struct Kept:
    uint8_t* memory
    Py_ssize_t capacity
    bint idle  # since the last call of release_idle

cdef Kept[KEPT_MAX] _kept
cdef int _count = 0
cdef Py_ssize_t _bytes = 0


cdef inline Head* head_of(const uint8_t* memory) noexcept:
    return <Head*>(memory - HEAD_BYTES)


cdef inline void unmap(uint8_t* memory, Py_ssize_t capacity) noexcept nogil:
    munmap(memory - HEAD_BYTES, capacity + HEAD_BYTES)


cdef uint8_t* take(Py_ssize_t* capacity, Py_ssize_t wanted) except NULL:
    """The smallest of those kept in which it has room, unless half of that would lie idle; else a new one."""
    global _count, _bytes
    cdef int n, best = -1
    cdef uint8_t* memory
    wanted = max(wanted, PAGED_MIN + 1)
    for n in range(_count):
        if wanted <= _kept[n].capacity <= 2 * wanted and (best < 0 or _kept[n].capacity < _kept[best].capacity):
            best = n
    if best >= 0:
        memory, capacity[0] = _kept[best].memory, _kept[best].capacity
        _count -= 1
        _kept[best] = _kept[_count]
        _bytes -= capacity[0]
        return memory
    wanted = (wanted + ROUNDED_BYTES - 1) // ROUNDED_BYTES * ROUNDED_BYTES
    memory = <uint8_t*>map_pages(wanted + HEAD_BYTES)
    if memory == NULL:
        raise MemoryError
    capacity[0] = wanted
    return memory + HEAD_BYTES


cdef uint8_t* grow(uint8_t* memory, Py_ssize_t used, Py_ssize_t* capacity, Py_ssize_t wanted, Py_ssize_t need) except NULL:
    """Like realloc: room for `wanted` bytes, of `need` in the end, or 0 if that is not known."""
    cdef Py_ssize_t before = capacity[0]
    cdef uint8_t* grown
    if wanted <= PAGED_MIN and (need <= PAGED_MIN or wanted < PAGED_AT):
        grown = <uint8_t*>realloc(memory, wanted)
        if grown == NULL:
            raise MemoryError
        capacity[0] = wanted
        return grown
    grown = take(capacity, max(wanted, need))
    if used:
        memcpy(grown, memory, used)
    release(memory, before, True)
    return grown


cdef void release(uint8_t* memory, Py_ssize_t capacity, bint again) noexcept:
    """`again`: it held a whole message, or one that grew out of it."""
    global _count, _bytes
    if capacity <= PAGED_MIN:
        free(memory)
    elif again and _count < KEPT_MAX and _bytes + capacity <= KEPT_BYTES:
        head_of(memory).touched = True
        _kept[_count].memory, _kept[_count].capacity, _kept[_count].idle = memory, capacity, False
        _count += 1
        _bytes += capacity
    else:
        unmap(memory, capacity)


cdef Py_ssize_t memory_taken(const uint8_t* memory, Py_ssize_t capacity, Py_ssize_t used) noexcept:
    """Of the capacity, what takes memory."""
    if capacity <= PAGED_MIN or head_of(memory).touched:
        return capacity
    return min(capacity, used + HEAD_BYTES)


def kept_bytes():
    return _bytes


def release_idle():
    global _count, _bytes
    cdef Kept[KEPT_MAX] leaving
    cdef int n = 0, left = 0
    cdef Py_ssize_t given = 0
    while n < _count:
        if _kept[n].idle:
            leaving[left] = _kept[n]
            left += 1
            given += _kept[n].capacity
            _count -= 1
            _kept[n] = _kept[_count]
        else:
            _kept[n].idle = True
            n += 1
    _bytes -= given
    with nogil:
        for n in range(left):
            unmap(leaving[n].memory, leaving[n].capacity)
    return given


cdef class Block:
    def __init__(self, Py_ssize_t size):
        if self.memory != NULL or size <= 0:
            raise ValueError("a block has a size, once")
        self.memory = take(&self.capacity, size)
        self.size = size

    def __dealloc__(self):
        if self.memory != NULL:
            release(self.memory, self.capacity, not self.spoilt)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.memory, self.size, 0, flags)

    def __len__(self):
        return self.size

    def view(self):
        return memoryview(self)

    def kept(self, Py_ssize_t filled):
        return memory_taken(self.memory, self.capacity, filled)

    def spoil(self):
        self.spoilt = True
