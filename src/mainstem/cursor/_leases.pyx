# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The first leases of a queue: positions that were handed out once and are not settled yet.

They are handed out in ascending order and mostly acked in that order too, thousands in a loop turn. So they lie in one
array, in order: what is new goes to its end, what is settled is crossed out in place, and the crossed out leave when the
lowest are gone or they outnumber the others.

    at     [ ~3 | 5 | 6 | ~9 | 12 ]        ~: crossed out (the position's complement, which is negative)
              ^ head             ^ tail

Positions are not negative.
"""

from array import array

from cpython cimport array as arrays
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memmove

cdef Py_ssize_t CAPACITY_MIN = 16
cdef Py_ssize_t CAPACITY_KEPT_MAX = 1 << 16  # a larger array is given back once it is empty
cdef arrays.array TEMPLATE = array("q")


cdef inline int64_t named(int64_t entry) noexcept nogil:
    """The position, crossed out or not."""
    return entry ^ (entry >> 63)


cdef class Leases:
    def __dealloc__(self):
        PyMem_Free(self.at)

    def __len__(self):
        return self.tail - self.head - self.gone

    def __contains__(self, int64_t position):
        cdef Py_ssize_t place = self.find(position)
        return place < self.tail and self.at[place] == position

    def __iter__(self):
        cdef Py_ssize_t n
        return iter([self.at[n] for n in range(self.head, self.tail) if self.at[n] >= 0])

    @property
    def lowest(self):
        """None if there is none."""
        return self.at[self.head] if self.head < self.tail else None  # what is crossed out there has left

    def between(self, int64_t first, int64_t last):
        """Those from `first` to `last`."""
        cdef Py_ssize_t n = self.find(first)
        found = []
        while n < self.tail and named(self.at[n]) <= last:
            if self.at[n] >= 0:
                found.append(self.at[n])
            n += 1
        return found

    def add(self, arrays.array positions not None):
        self.put(<const int64_t*>positions.data.as_longlongs, len(positions))

    cdef int put(self, const int64_t* new, Py_ssize_t count) except -1:
        cdef Py_ssize_t n
        cdef bint follow = True
        if count == 0:
            return 0
        if new[0] < 0:
            raise ValueError(f"position {new[0]} is negative")
        for n in range(1, count):
            if new[n] <= new[n - 1]:
                follow = False
                break
        self.reserve(count)
        if follow and (self.head == self.tail or new[0] > named(self.at[self.tail - 1])):
            memcpy(self.at + self.tail, new, count * sizeof(int64_t))
            self.tail += count
            return 0
        for n in range(count):
            self.insert(new[n])
        return 0

    def take(self, arrays.array positions not None):
        cdef Py_ssize_t count = len(positions), taken
        cdef arrays.array found = arrays.clone(TEMPLATE, count, False)
        taken = self.strike(<const int64_t*>positions.data.as_longlongs, count, <int64_t*>found.data.as_longlongs)
        if taken < count:
            arrays.resize(found, taken)
        return found

    cdef Py_ssize_t strike(self, const int64_t* wanted, Py_ssize_t count, int64_t* found) noexcept:
        """They are leased no more; how many were, and which (`found` may be `wanted`)."""
        cdef Py_ssize_t n, taken = 0
        for n in range(count):
            if self.cross_out(wanted[n]):
                found[taken] = wanted[n]
                taken += 1
        self.trim()
        return taken

    def discard(self, int64_t position):
        cdef bint there = self.cross_out(position)
        self.trim()
        return there

    def clear(self):
        self.head = self.tail = self.gone = self.expected = 0
        if self.capacity > CAPACITY_KEPT_MAX:
            PyMem_Free(self.at)
            self.at = NULL
            self.capacity = 0

    cdef Py_ssize_t find(self, int64_t position) noexcept:
        """Where it lies, or would lie."""
        cdef Py_ssize_t low = self.head, high = self.tail, middle
        if self.head <= self.expected < self.tail and named(self.at[self.expected]) == position:
            return self.expected
        while low < high:
            middle = (low + high) >> 1
            if named(self.at[middle]) < position:
                low = middle + 1
            else:
                high = middle
        return low

    cdef bint cross_out(self, int64_t position) noexcept:
        cdef Py_ssize_t place = self.find(position)
        if place >= self.tail or self.at[place] != position or position < 0:
            return False
        self.at[place] = ~position
        self.gone += 1
        self.expected = place + 1
        return True

    cdef int insert(self, int64_t position) except -1:
        """One that does not follow the others; there is room for it."""
        cdef Py_ssize_t place = self.find(position)
        if position < 0:
            raise ValueError(f"position {position} is negative")
        if place < self.tail and named(self.at[place]) == position:
            if self.at[place] < 0:
                self.at[place] = position
                self.gone -= 1
            return 0
        memmove(self.at + place + 1, self.at + place, (self.tail - place) * sizeof(int64_t))
        self.at[place] = position
        self.tail += 1
        return 0

    cdef void trim(self) noexcept:
        """The lowest that are crossed out leave."""
        while self.head < self.tail and self.at[self.head] < 0:
            self.head += 1
            self.gone -= 1
        if self.head == self.tail:
            self.clear()

    cdef int reserve(self, Py_ssize_t count) except -1:
        """Room for so many more: what is crossed out makes it if that is half of all, else the array grows."""
        cdef Py_ssize_t capacity, n, kept = 0
        cdef void* grown
        if self.capacity - self.tail >= count:
            return 0
        if self.head + self.gone >= self.tail // 2 and self.tail:
            for n in range(self.head, self.tail):
                if self.at[n] >= 0:
                    self.at[kept] = self.at[n]
                    kept += 1
            self.head = self.gone = self.expected = 0
            self.tail = kept
        if self.capacity - self.tail < count:
            capacity = self.capacity if self.capacity else CAPACITY_MIN
            while capacity - self.tail < count:
                capacity *= 2
            grown = PyMem_Realloc(self.at, capacity * sizeof(int64_t))
            if grown == NULL:
                raise MemoryError
            self.at = <int64_t*>grown
            self.capacity = capacity
        return 0
