# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Messages of a consumer on their way to those who pull. See `handing.py`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from mainstem.broker.delivery._live cimport RecordRef
from mainstem.broker.streams._tap cimport Handed
from mainstem.protocols.nats._outbound cimport Encoder, Outbound, Subscription, digits_of, put_number

cdef enum:
    NUMBERS_SPACE = 96  # four of at most 20 digits, and the dots between them


cdef class Target:
    """A pull that waits, and the one subscription that hears its answers."""

    def __init__(self, pull, Subscription one, Py_ssize_t left):
        self.pull, self.one, self.left = pull, one, left


cdef class Handing(Handed):
    def __init__(self, namespace, Encoder encoder, bytes front, list targets):
        super().__init__(namespace)
        self.encoder, self.front, self.targets = encoder, front, targets
        self.reply = <uint8_t*>malloc(len(front) + NUMBERS_SPACE)
        if self.reply == NULL:
            raise MemoryError
        memcpy(self.reply, PyBytes_AS_STRING(front), PyBytes_GET_SIZE(front))

    def __dealloc__(self):
        free(self.reply)

    @property
    def in_turn(self):
        """The targets that want more, whose turn is next first."""
        return self.targets[self.turn:] + self.targets[:self.turn]

    cpdef bint push(self, RecordRef record, object options) except -1:
        cdef Encoder encoder = self.encoder
        cdef Target target
        cdef Outbound outbound
        cdef uint8_t* at
        if self.count >= self.offsets.shape[0] or record.offset != self.offsets[self.count] or not self.targets:
            return False
        target = self.targets[self.turn]
        outbound = target.one.outbound
        if target.one.closed or outbound.is_full():
            return False
        encoder.load(record)
        self.consumer_seq += 1
        self.pending -= 1
        at = self.reply + PyBytes_GET_SIZE(self.front)
        at = put_number(at, record.offset + 1, digits_of(record.offset + 1))
        at[0] = 46
        at = put_number(at + 1, self.consumer_seq, digits_of(self.consumer_seq))
        at[0] = 46
        at = put_number(at + 1, record.stamp, digits_of(record.stamp))
        at[0] = 46
        at = put_number(at + 1, self.pending, digits_of(self.pending))
        outbound.put(target.one, encoder.subject, self.reply, at - self.reply,
                     encoder.headers, 0 if encoder.expired else encoder.headers_size,
                     encoder.payload, encoder.payload_size, None)
        self.count += 1
        target.given += 1
        target.left -= 1
        if target.left == 0:
            del self.targets[self.turn]
        else:
            self.turn += 1
        if self.turn >= len(self.targets):
            self.turn = 0
        return True
