# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""AMQP out: frames and deliveries on their way to the socket, without objects. See `wire.py`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from mainstem.broker.delivery._live cimport RecordRef
from mainstem.codec._batch cimport next_header, put_u16, put_u32, put_u64
from mainstem.protocols._outgoing cimport Outgoing
from mainstem.protocols._lent cimport lend
from mainstem.protocols._reactor cimport SocketTransport

cdef enum:
    FRAME_METHOD = 1
    FRAME_HEADER = 2
    FRAME_BODY = 3
    FRAME_END = 0xCE
    FRAME_HEAD = 7
    FRAME_OVERHEAD = 8
    BASIC_ACK = 0x003C0050
    BASIC_NACK = 0x003C0078
    ORIGIN_AMQP = 3
    FLAG_DEFAULT_EXCHANGE = 16
    LENT_BYTES_MIN = 1 << 18  # a body so large is sent from where it lies

cdef class Outbound(Outgoing):
    def __init__(self, ticker, describe, translate):
        super().__init__(ticker)
        self.describe = describe
        self.translate = translate
        self.frame_max = 4096
        self.stalled = []

    def flush(self):
        """One write of all that was written since the last; the ticker calls it."""
        cdef object connection = self.connection, transport
        if connection.to_confirm or connection.held:
            connection.before_flush()
        transport = connection.transport
        if self.size and transport is not None:
            connection.written_second = connection.server.deadlines.second
            self.send_all(transport, connection)
        else:
            self.take()
        if self.stalled and not self.blocked:
            self.ticker.after_tick(connection.retry_stalled)

    def write_frame(self, int kind, int channel, bytes payload):
        cdef Py_ssize_t size = PyBytes_GET_SIZE(payload)
        cdef uint8_t* at = self.room(size + FRAME_OVERHEAD)
        at[0] = kind
        put_u16(at + 1, channel)
        put_u32(at + 3, <uint32_t>size)
        memcpy(at + FRAME_HEAD, PyBytes_AS_STRING(payload), size)
        at[FRAME_HEAD + size] = FRAME_END

    def write_ack(self, int channel, uint64_t tag, bint multiple, bint positive=True):
        cdef uint8_t* at = self.room(21)
        at[0] = FRAME_METHOD
        put_u16(at + 1, channel)
        put_u32(at + 3, 13)
        put_u32(at + 7, BASIC_ACK if positive else BASIC_NACK)
        put_u64(at + 11, tag)
        at[19] = multiple
        at[20] = FRAME_END

    def write_content(self, int channel, bytes method, bytes properties, bytes body):
        """A method with its content: basic.return, get-ok, replies."""
        self.write_frame(FRAME_METHOD, channel, method)
        self.put_content(channel, <const uint8_t*>PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties),
                         <const uint8_t*>PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))

    cdef int put_content(self, uint16_t channel, const uint8_t* properties, Py_ssize_t properties_size,
                         const uint8_t* body, Py_ssize_t body_size) except -1:
        cdef Py_ssize_t piece_max = self.frame_max - FRAME_OVERHEAD if self.frame_max else 0x7FFFFFFF
        cdef Py_ssize_t pieces = (body_size + piece_max - 1) // piece_max
        cdef Py_ssize_t listed = properties_size if properties_size else 2
        cdef Py_ssize_t piece
        cdef uint8_t* at = self.room(FRAME_OVERHEAD + 12 + listed + pieces * FRAME_OVERHEAD + body_size)
        at = self._put_head(at, channel, properties, properties_size, body_size)
        while body_size:
            piece = body_size if body_size < piece_max else piece_max
            at[0] = FRAME_BODY
            put_u16(at + 1, channel)
            put_u32(at + 3, <uint32_t>piece)
            memcpy(at + FRAME_HEAD, body, piece)
            at[FRAME_HEAD + piece] = FRAME_END
            at += FRAME_OVERHEAD + piece
            body += piece
            body_size -= piece
        return 0

    cdef uint8_t* _put_head(self, uint8_t* at, uint16_t channel, const uint8_t* properties, Py_ssize_t properties_size,
                            Py_ssize_t body_size) noexcept:
        """The content header's frame; returns where it ends."""
        cdef Py_ssize_t listed = properties_size if properties_size else 2
        at[0] = FRAME_HEADER
        put_u16(at + 1, channel)
        put_u32(at + 3, <uint32_t>(12 + listed))
        put_u32(at + 7, 60 << 16)
        put_u64(at + 11, body_size)
        at += 19
        if properties_size:
            memcpy(at, properties, properties_size)
        else:
            at[0] = at[1] = 0
        at[listed] = FRAME_END
        return at + listed + 1

    cdef bytes names_of(self, RecordRef record, const uint8_t* exchange, Py_ssize_t exchange_size, bint own_key):
        """Exchange and routing key as two short strings; the last answer is kept, most records follow their like."""
        cdef bint same
        if own_key:
            return self.describe(record)
        same = self.last_topic is not None and self.last_flags == (record.flags & FLAG_DEFAULT_EXCHANGE) and \
            (record.topic is self.last_topic or record.topic == self.last_topic)
        if same:
            if exchange == NULL:
                same = self.last_exchange is None
            else:
                same = self.last_exchange is not None and PyBytes_GET_SIZE(self.last_exchange) == exchange_size and \
                    memcmp(PyBytes_AS_STRING(self.last_exchange), exchange, exchange_size) == 0
        if not same:
            self.last_names = self.describe(record)
            self.last_topic = record.topic
            self.last_flags = record.flags & FLAG_DEFAULT_EXCHANGE
            self.last_exchange = None if exchange == NULL else PyBytes_FromStringAndSize(
                <const char*>exchange, exchange_size)
        return self.last_names

    cdef int put_record(self, uint16_t channel, bytes head, uint64_t tag, bint redelivered, bytes tail,
                        RecordRef record, int attempts, object decorator) except -1:
        """basic.deliver (`head` = class, method, consumer tag) or get-ok (`tail` = message count) and the content."""
        cdef const uint8_t* at = record.headers_at
        cdef const uint8_t* end = at + record.headers_len
        cdef const uint8_t* name
        cdef const uint8_t* value
        cdef const uint8_t* properties = NULL
        cdef const uint8_t* exchange = NULL
        cdef Py_ssize_t name_size, value_size, properties_size = 0, exchange_size = 0
        cdef bint own_key = False
        cdef bytes names, made
        cdef Py_ssize_t head_size = PyBytes_GET_SIZE(head), names_size, tail_size = PyBytes_GET_SIZE(tail)
        cdef uint8_t* out
        cdef int n
        if record.origin == ORIGIN_AMQP:
            for n in range(record.header_count):
                at = next_header(at, end, &name, &name_size, &value, &value_size)
                if at == NULL:
                    break
                if name_size == 7 and memcmp(name, b"ms-amqp", 7) == 0:
                    properties, properties_size = value, value_size
                elif name_size == 11 and memcmp(name, b"ms-exchange", 11) == 0:
                    exchange, exchange_size = value, value_size
                elif name_size == 14 and memcmp(name, b"ms-routing-key", 14) == 0:
                    own_key = True
        if record.origin != ORIGIN_AMQP:
            made = self.translate(record)
            properties, properties_size = <const uint8_t*>PyBytes_AS_STRING(made), PyBytes_GET_SIZE(made)
        if decorator is not None:
            made = decorator(record, attempts, PyBytes_FromStringAndSize(<const char*>properties, properties_size)
                             if properties_size else b"")
            properties, properties_size = <const uint8_t*>PyBytes_AS_STRING(made), PyBytes_GET_SIZE(made)
        names = self.names_of(record, exchange, exchange_size, own_key)
        names_size = PyBytes_GET_SIZE(names)
        out = self.room(FRAME_OVERHEAD + head_size + 9 + names_size + tail_size)
        out[0] = FRAME_METHOD
        put_u16(out + 1, channel)
        put_u32(out + 3, <uint32_t>(head_size + 9 + names_size + tail_size))
        memcpy(out + FRAME_HEAD, PyBytes_AS_STRING(head), head_size)
        out += FRAME_HEAD + head_size
        put_u64(out, tag)
        out[8] = redelivered
        memcpy(out + 9, PyBytes_AS_STRING(names), names_size)
        out += 9 + names_size
        memcpy(out, PyBytes_AS_STRING(tail), tail_size)
        out[tail_size] = FRAME_END
        if (
            record.value_len >= LENT_BYTES_MIN
            and record.owner is not None
            and type(self.connection.transport) is SocketTransport
        ):
            self._put_lent(channel, properties, properties_size, record)
        else:
            self.put_content(channel, properties, properties_size, record.value_at,
                             record.value_len if record.value_len > 0 else 0)
        self.messages += 1
        return 0

    cdef int _put_lent(self, uint16_t channel, const uint8_t* properties, Py_ssize_t properties_size,
                       RecordRef record) except -1:
        """The content with its body where it lies: only what stands between its pieces is written."""
        cdef Py_ssize_t piece_max = self.frame_max - FRAME_OVERHEAD if self.frame_max else 0x7FFFFFFF
        cdef Py_ssize_t left = record.value_len, size
        cdef const uint8_t* at = record.value_at
        cdef SocketTransport transport = self.connection.transport
        cdef uint8_t between[FRAME_OVERHEAD]
        cdef int first = 1  # the head frame has its own end
        cdef list pieces = []
        self._put_head(self.room(FRAME_OVERHEAD + 12 + max(properties_size, 2)), channel, properties, properties_size, left)
        self.send_all(transport, self.connection)
        self.connection.server.counters.bytes_out += left
        between[0], between[1] = FRAME_END, FRAME_BODY
        put_u16(between + 2, channel)
        while left:
            size = left if left < piece_max else piece_max
            put_u32(between + 4, <uint32_t>size)
            pieces.append(PyBytes_FromStringAndSize(<const char*>between + first, FRAME_OVERHEAD - first))
            pieces.append(lend(record.owner, at, size))
            at, left, first = at + size, left - size, 0
        pieces.append(b"\xce")
        transport.keep_all(pieces)
        return 0
