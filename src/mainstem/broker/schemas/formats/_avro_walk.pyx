# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Whether bytes are Avro of a schema, without making anything of them and without the interpreter's lock.

A schema is a program of numbers (made by avro_walk.py), a node at each place that another names:

    NULL | BOOLEAN | VARINT low high | FIXED bytes | BYTES | STRING | ENUM symbols
    RECORD n node... | ARRAY node | MAP node | UNION n node...

What is accepted here, fastavro reads; what is not is for fastavro to judge, and to say why.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp

from mainstem.codec._column_text cimport is_utf8

cdef enum:
    NULL_ = 0
    BOOLEAN = 1
    VARINT = 2
    FIXED = 3
    BYTES = 4
    STRING = 5
    ENUM = 6
    RECORD = 7
    ARRAY = 8
    MAP = 9
    UNION = 10


cdef const uint8_t* varint(const uint8_t* at, const uint8_t* end, int64_t* value) noexcept nogil:
    """Zigzag; NULL where it is cut or longer than ten bytes."""
    cdef uint64_t raw = 0
    cdef int shift = 0
    while at < end and shift < 64:
        raw |= <uint64_t>(at[0] & 0x7F) << shift
        if not at[0] & 0x80:
            value[0] = <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)
            return at + 1
        at += 1
        shift += 7
    return NULL


cdef const uint8_t* text(const uint8_t* at, const uint8_t* end, bint utf8) noexcept nogil:
    cdef int64_t size = 0
    at = varint(at, end, &size)
    if at == NULL or size < 0 or size > end - at or (utf8 and not is_utf8(at, size)):
        return NULL
    return at + size


cdef const uint8_t* blocks(const int64_t* program, int64_t node, bint keyed, const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Items in blocks: a count (a negative one is followed by the bytes of the block), the items; 0 ends them."""
    cdef int64_t count = 0, size = 0
    while True:
        at = varint(at, end, &count)
        if at == NULL or count == 0:
            return at
        if count < 0:
            at = varint(at, end, &size)
            count = -count
        if at == NULL or count < 0 or count > end - at:  # every item takes a byte, or the schema is not walked
            return NULL
        while count:
            if keyed:
                at = text(at, end, True)
            if at != NULL:
                at = walk(program, node, at, end)
            if at == NULL:
                return NULL
            count -= 1


cdef const uint8_t* walk(const int64_t* program, int64_t node, const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Behind the value, or NULL. As deep as the schema, which does not hold itself."""
    cdef const int64_t* told = program + node
    cdef int64_t number = 0
    cdef int64_t kind = told[0]
    if kind == NULL_:
        return at
    if kind == VARINT:
        at = varint(at, end, &number)
        return NULL if at == NULL or number < told[1] or number > told[2] else at
    if kind == FIXED:
        return NULL if end - at < told[1] else at + told[1]
    if kind == STRING or kind == BYTES:
        return text(at, end, kind == STRING)
    if kind == BOOLEAN:
        return NULL if at == end or at[0] > 1 else at + 1
    if kind == RECORD:
        for number in range(told[1]):
            at = walk(program, told[2 + number], at, end)
            if at == NULL:
                return NULL
        return at
    if kind == ARRAY or kind == MAP:
        return blocks(program, told[1], kind == MAP, at, end)
    at = varint(at, end, &number)
    if at == NULL or number < 0 or number >= told[1]:
        return NULL
    return at if kind == ENUM else walk(program, told[2 + number], at, end)


cdef struct Value:
    const uint8_t* at
    Py_ssize_t size


cdef class Walker:
    cdef int64_t* _program

    def __cinit__(self, list program):
        cdef Py_ssize_t at
        self._program = <int64_t*>malloc(len(program) * sizeof(int64_t))
        if self._program == NULL:
            raise MemoryError
        for at in range(len(program)):
            self._program[at] = program[at]

    def __dealloc__(self):
        free(self._program)

    def unfit(self, list values, bytes head, Py_ssize_t bytes_max):
        """The places of those that do not begin with `head` and go on as the schema says. What is empty or None fits."""
        cdef Py_ssize_t count = len(values), at, unfit_count = 0
        cdef Py_ssize_t head_size = PyBytes_GET_SIZE(head)
        cdef const char* wanted = PyBytes_AS_STRING(head)
        cdef Value* told = <Value*>malloc((count or 1) * sizeof(Value))
        cdef Py_ssize_t* unfit = <Py_ssize_t*>malloc((count or 1) * sizeof(Py_ssize_t))
        try:
            if told == NULL or unfit == NULL:
                raise MemoryError
            for at in range(count):
                value = values[at]
                if value is None:
                    told[at].at, told[at].size = NULL, 0
                else:
                    told[at].at = <const uint8_t*>PyBytes_AS_STRING(value)
                    told[at].size = PyBytes_GET_SIZE(value)
            with nogil:
                for at in range(count):
                    if told[at].size == 0:
                        continue
                    if (
                        told[at].size < head_size
                        or told[at].size > bytes_max
                        or memcmp(told[at].at, wanted, head_size) != 0
                        or walk(self._program, 0, told[at].at + head_size, told[at].at + told[at].size)
                        != told[at].at + told[at].size
                    ):
                        unfit[unfit_count] = at
                        unfit_count += 1
            return [unfit[at] for at in range(unfit_count)]
        finally:
            free(told)
            free(unfit)
