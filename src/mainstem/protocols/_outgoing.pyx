# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What AMQP and NATS write to a peer: one buffer that is filled in place, and one write of it per tick.

The buffer is a bytes object. A socket of the reactor's takes it from where it lies; what the socket does not take, and
everything for the loop's own transports, is handed on as that very object, so that nothing is copied twice.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.ref cimport Py_DECREF, Py_XDECREF, PyObject
from libc.stdint cimport uint8_t
from libc.string cimport memcpy

from mainstem.protocols._reactor cimport SocketTransport

from mainstem.protocols.connection import OUT_BYTES_MAX

cdef extern from "Python.h":
    PyObject* PyBytes_New "PyBytes_FromStringAndSize" (const char* data, Py_ssize_t size) except NULL
    char* bytes_at "PyBytes_AS_STRING" (PyObject* data) noexcept
    int _PyBytes_Resize(PyObject** data, Py_ssize_t size) except -1

cdef enum:
    OUT_BYTES_MIN = 512
    OUT_BYTES_FIRST_MAX = 2 << 20  # what is reserved at once, after as much was needed in the last turn
    SPARE_BYTES_MIN = 64 << 10
    SPARE_BYTES_MAX = 2 << 20
    SPARES_MAX = 8

cdef PyObject* spares[SPARES_MAX]  # large buffers that were sent: memory that is new to the process costs a fault a page
cdef int spare_count = 0

cdef PyObject* new_buffer(Py_ssize_t size) except NULL:
    """A bytes object of at least this size, which nobody else has."""
    global spare_count
    if spare_count and size >= SPARE_BYTES_MIN and PyBytes_GET_SIZE(<bytes>spares[spare_count - 1]) >= size:
        spare_count -= 1
        return spares[spare_count]
    return PyBytes_New(NULL, size)


cdef int keep_buffer(PyObject* data) except -1:
    """It was sent: the next connection with as much to say takes it."""
    global spare_count
    cdef Py_ssize_t size = PyBytes_GET_SIZE(<bytes>data)
    if spare_count < SPARES_MAX and SPARE_BYTES_MIN <= size <= SPARE_BYTES_MAX:
        spares[spare_count] = data
        spare_count += 1
    else:
        Py_DECREF(<object>data)
    return 0


cdef class Outgoing:
    def __cinit__(self, *_):
        self.data = NULL
        self.buf = NULL
        self.size = self.capacity = self.expected = 0

    def __init__(self, ticker):
        self.ticker = ticker
        self.bytes_max = OUT_BYTES_MAX

    def __dealloc__(self):
        Py_XDECREF(self.data)

    @property
    def out_bytes(self):
        return self.size

    cdef uint8_t* room(self, Py_ssize_t need) except NULL:
        """Where the next `need` bytes go; they count as written."""
        cdef Py_ssize_t capacity
        if self.capacity - self.size < need:
            capacity = self.capacity if self.capacity else self.expected if self.expected else OUT_BYTES_MIN
            while capacity - self.size < need:
                capacity *= 2
            self.capacity = 0
            if self.data == NULL:
                self.data = new_buffer(capacity)
                capacity = PyBytes_GET_SIZE(<bytes>self.data)
            else:
                _PyBytes_Resize(&self.data, capacity)
            self.buf = <uint8_t*>bytes_at(self.data)
            self.capacity = capacity
        self.size += need
        if not self.dirty:
            self.mark()
        return self.buf + self.size - need

    def touch(self):
        """Be flushed by this turn's tick."""
        if not self.dirty:
            self.mark()

    cdef int mark(self) except -1:
        self.dirty = True
        self.ticker.mark_dirty(self)
        return 0

    def take(self):
        """All that was written since the last call. What is sent is what was filled, not a copy."""
        cdef PyObject* data = self.data
        self.dirty = False
        if self.size == 0:
            return b""
        self._expect()
        self.data = self.buf = NULL
        self.capacity = 0
        if _PyBytes_Resize(&data, self.size) < 0:
            raise MemoryError
        self.size = 0
        taken = <bytes>data
        Py_DECREF(taken)
        return taken

    cdef int send_all(self, object transport, object connection) except -1:
        """A socket of the reactor's takes it from where it lies."""
        cdef object counters = connection.server.counters
        cdef Py_ssize_t done
        counters.bytes_out += self.size
        counters.messages_out += self.messages - self.counted
        self.counted = self.messages
        if type(transport) is not SocketTransport:
            connection.write(self.take())
            return 0
        done = (<SocketTransport>transport).push(self.buf, self.size)
        if done < self.size:
            (<SocketTransport>transport).keep(self.take(), done)
            return 0
        self.dirty = False
        self._expect()
        keep_buffer(self.data)
        self.data = self.buf = NULL
        self.size = self.capacity = 0
        return 0

    cdef void _expect(self) noexcept:
        """As much is likely to be written in the next turn."""
        self.expected = 0 if self.size < OUT_BYTES_MIN else \
            self.size + self.size // 4 if self.size < OUT_BYTES_FIRST_MAX else OUT_BYTES_FIRST_MAX

    def write(self, bytes data):
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        memcpy(self.room(size), PyBytes_AS_STRING(data), size)

    def flush(self):
        raise NotImplementedError
