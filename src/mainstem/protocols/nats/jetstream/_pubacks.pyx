# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Who waits for a PubAck, without an object for each message. See `pubacks.py`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from mainstem.log._gather cimport Ticket
from mainstem.protocols.nats._outbound cimport Subscription, digits_of, put_number

cdef enum:
    ACK_SPACE = 64  # beside the stream's name and what is added: a sequence and punctuation
    FULL_CHECKED = 64  # acks to one connection between two looks at what it left unread


cdef class PubAcks:
    """Of one batch of one stream, in the order of publishing."""

    def __init__(self, Gate gate):
        self.gate = gate

    def __dealloc__(self):
        free(self.at)
        free(self.text)

    def add(self, int index, bytes reply, bytes more):
        """`more`: what the ack says behind the sequence."""
        self.put(index, <const uint8_t*>PyBytes_AS_STRING(reply), PyBytes_GET_SIZE(reply),
                 <const uint8_t*>PyBytes_AS_STRING(more), PyBytes_GET_SIZE(more))

    cdef int put(self, int index, const uint8_t* reply, Py_ssize_t reply_size, const uint8_t* more,
                 Py_ssize_t more_size) except -1:
        cdef Awaited* last
        cdef Awaited* new
        cdef void* grown
        if self.count == self.capacity:
            grown = realloc(self.at, (self.capacity * 2 + 16) * sizeof(Awaited))
            if grown == NULL:
                raise MemoryError
            self.at, self.capacity = <Awaited*>grown, self.capacity * 2 + 16
        new = &self.at[self.count]
        new.index, new.reply_size, new.more_size = index, reply_size, more_size
        new.more_at = self._keep(more, more_size) if more_size else 0
        last = &self.at[self.count - 1] if self.count else NULL
        if last != NULL and last.reply_size == reply_size and \
                memcmp(self.text + last.reply_at, reply, reply_size) == 0:
            new.reply_at = last.reply_at
        else:
            new.reply_at = self._keep(reply, reply_size)
        self.count += 1
        return 0

    cdef Py_ssize_t _keep(self, const uint8_t* data, Py_ssize_t size) except -1:
        cdef Py_ssize_t capacity = self.text_capacity if self.text_capacity else 256
        cdef void* grown
        while capacity < self.text_size + size:
            capacity *= 2
        if capacity != self.text_capacity:
            grown = realloc(self.text, capacity)
            if grown == NULL:
                raise MemoryError
            self.text, self.text_capacity = <uint8_t*>grown, capacity
        memcpy(self.text + self.text_size, data, size)
        self.text_size += size
        return self.text_size - size

    def released(self, Ticket ticket):
        """The batch is durable, or could not be written."""
        cdef Py_ssize_t n
        if self.gate.acks is self:
            self.gate.acks = self.gate.ticket = None
        if ticket.error is None:
            self._send(ticket.base_offset + 1)
            return
        replies = [PyBytes_FromStringAndSize(<const char*>self.text + self.at[n].reply_at, self.at[n].reply_size)
                   for n in range(self.count)]
        self.gate.jetstream.publisher.failed(self.gate.stream, replies, ticket.error)

    cdef int _send(self, int64_t first) except -1:
        """All at once into the buffers of who listens to the replies."""
        cdef bytes front = self.gate.front
        cdef bytes payload = PyBytes_FromStringAndSize(NULL, PyBytes_GET_SIZE(front) + self.text_size + ACK_SPACE)
        cdef uint8_t* start = <uint8_t*>PyBytes_AS_STRING(payload)
        cdef uint8_t* at
        cdef Py_ssize_t n, reply_at = -1, size
        cdef int64_t seq
        cdef bytes reply = b""
        cdef list receivers = []
        cdef bint shared = False
        memcpy(start, PyBytes_AS_STRING(front), PyBytes_GET_SIZE(front))
        for n in range(self.count):
            if self.at[n].reply_at != reply_at or shared or n % FULL_CHECKED == 0:
                if self.at[n].reply_at != reply_at:
                    reply_at = self.at[n].reply_at
                    reply = PyBytes_FromStringAndSize(<const char*>self.text + reply_at, self.at[n].reply_size)
                receivers = self.gate.jetstream.receivers(reply)
                shared = False
                for one in receivers:
                    shared = shared or (<Subscription>one).queue != b""
            if not receivers:
                continue
            seq = first + self.at[n].index
            at = start + PyBytes_GET_SIZE(front)
            at = put_number(at, seq, digits_of(seq))
            memcpy(at, self.text + self.at[n].more_at, self.at[n].more_size)
            at += self.at[n].more_size
            at[0] = 125  # }
            size = at + 1 - start
            for one in receivers:
                if not (<Subscription>one).closed:
                    (<Subscription>one).outbound.put(<Subscription>one, reply, NULL, 0, NULL, 0, start, size, None)
        return 0


cdef class Gate:
    """What a publisher's connection must know of a stream to put a message into it, and to have it acked."""

    def __init__(self, jetstream, StreamCounts stream):
        self.jetstream, self.stream, self.config = jetstream, stream, stream.config
        self.front = b'{"stream":"%b","seq":' % stream.name.encode()
        self.bytes_max = stream.config["max_msg_size"]
        if self.bytes_max < 0:
            self.bytes_max = (<Py_ssize_t>1) << 60

    cdef PubAcks acks_of(self, Ticket ticket):
        cdef PubAcks acks
        if ticket is self.ticket:
            return self.acks
        acks = PubAcks(self)
        if not ticket.stable and ticket.error is None:
            self.ticket, self.acks = ticket, acks
            ticket.wait(acks)
        return acks

    def await_durable(self, Ticket ticket, int index, bytes reply, bytes more=b""):
        """An ack leaves when the ticket is released."""
        cdef PubAcks acks = self.acks_of(ticket)
        acks.add(index, reply, more)
        if ticket.stable or ticket.error is not None:
            acks.released(ticket)
