# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""AMQP out: deliveries, what waits for an ack, and confirms, without objects. See `wire.py`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF, PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memmove

from mainstem.broker._live cimport RecordRef
from mainstem.broker.queues._lane cimport Lane, Taker
from mainstem.codec._batch cimport next_header, put_u16, put_u32, put_u64
from mainstem.log._gather cimport Ticket
from mainstem.protocols._reactor cimport Line

from mainstem.protocols.amqp.faults import Fault
from mainstem.protocols.connection import OUT_BYTES_MAX

cdef extern from "Python.h":
    PyObject* PyBytes_New "PyBytes_FromStringAndSize" (const char* data, Py_ssize_t size) except NULL
    char* bytes_at "PyBytes_AS_STRING" (PyObject* data) noexcept
    int _PyBytes_Resize(PyObject** data, Py_ssize_t size) except -1

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
    OUT_BYTES_MIN = 512
    OUT_BYTES_FIRST_MAX = 2 << 20  # what is reserved at once, after as much was needed in the last turn
    SPARE_BYTES_MIN = 64 << 10
    SPARE_BYTES_MAX = 2 << 20
    SPARES_MAX = 8
    SPAN_MAX = 65536  # unsettled deliveries kept in a row before stragglers are put aside

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


cdef class Outbound:
    def __cinit__(self):
        self.data = NULL
        self.buf = NULL
        self.size = self.capacity = self.expected = 0

    def __init__(self, ticker, describe, translate):
        self.ticker = ticker
        self.describe = describe
        self.translate = translate
        self.frame_max = 4096
        self.bytes_max = OUT_BYTES_MAX
        self.stalled = []

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

    def flush(self):
        """One write of all that was written since the last; the ticker calls it."""
        cdef object connection = self.connection, server, counters, transport
        if connection.to_confirm or connection.held:
            connection.before_flush()
        transport = connection.transport
        if self.size and transport is not None:
            server = connection.server
            counters = server.counters
            connection.written_second = server.deadlines.second
            counters.bytes_out += self.size
            counters.messages_out += self.messages - self.counted
            self.counted = self.messages
            self._send(transport, connection)
        else:
            self.take()
        if self.stalled and not self.blocked:
            self.ticker.after_tick(connection.retry_stalled)

    cdef int _send(self, object transport, object connection) except -1:
        """A socket of the reactor's takes it from where it lies."""
        cdef Py_ssize_t done
        if type(transport) is not Line:
            connection.write(self.take())
            return 0
        done = (<Line>transport).push(self.buf, self.size)
        if done < self.size:
            (<Line>transport).keep(self.take(), done)
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
        at += listed
        at[0] = FRAME_END
        at += 1
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

    cdef int put_record(self, ChannelWire channel, bytes head, uint64_t tag, bint redelivered, bytes tail,
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
        put_u16(out + 1, channel.number)
        put_u32(out + 3, <uint32_t>(head_size + 9 + names_size + tail_size))
        memcpy(out + FRAME_HEAD, PyBytes_AS_STRING(head), head_size)
        out += FRAME_HEAD + head_size
        put_u64(out, tag)
        out[8] = redelivered
        memcpy(out + 9, PyBytes_AS_STRING(names), names_size)
        out += 9 + names_size
        memcpy(out, PyBytes_AS_STRING(tail), tail_size)
        out[tail_size] = FRAME_END
        self.put_content(channel.number, properties, properties_size, record.value_at,
                         record.value_len if record.value_len > 0 else 0)
        self.messages += 1
        return 0

    def write_deliver(self, ChannelWire channel, bytes head, RecordRef record, holder, decorator):
        """A delivery by a consumer that is no queue's (`head` as in put_record); `holder` None: no ack is expected."""
        cdef uint64_t tag = channel.next_tag
        if holder is None:
            channel.put_gap()
        else:
            tag = channel.hold(holder, record.stamp)
        self.put_record(channel, head, tag, False, b"", record, 0, decorator)

    def write_get_ok(self, ChannelWire channel, RecordRef record, bint redelivered, int attempts, bytes tail, holder,
                     decorator):
        """The answer to basic.get; `holder` None: no ack is expected."""
        cdef uint64_t tag = channel.next_tag
        if holder is None:
            channel.put_gap()
        else:
            tag = channel.hold(holder, record.stamp)
        self.put_record(channel, b"\0\x3c\0\x47", tag, redelivered, tail, record, attempts, decorator)


# -- what waits for an ack ------------------------------------------------------------------------------------------------

cdef class ChannelWire:
    def __cinit__(self):
        self.held = NULL
        self.properties = self.body = NULL
        self.head = self.tail = self.capacity = 0
        self.properties_capacity = self.body_size = 0

    def __init__(self, int number, Outbound out, session):
        self.number = number
        self.out = out
        self.session = session
        self.next_tag = 1
        self.stragglers = {}
        self.waiting = []

    def __dealloc__(self):
        cdef Py_ssize_t n
        for n in range(self.head, self.tail):
            if self.held[n].consumer != NULL:
                Py_DECREF(<object>self.held[n].consumer)
        PyMem_Free(self.held)
        PyMem_Free(self.properties)
        PyMem_Free(self.body)

    # deliveries that wait for an ack, by tag: held[head] is tag next_tag - (tail - head)

    cdef uint64_t hold(self, object consumer, int64_t position) except 0:
        cdef Py_ssize_t capacity
        cdef void* grown
        if self.tail == self.capacity:
            if self.head > self.capacity // 2:
                memmove(self.held, self.held + self.head, (self.tail - self.head) * sizeof(Held))
                self.tail -= self.head
                self.head = 0
            else:
                capacity = self.capacity * 2 if self.capacity else 16
                grown = PyMem_Realloc(self.held, capacity * sizeof(Held))
                if grown == NULL:
                    raise MemoryError
                self.held = <Held*>grown
                self.capacity = capacity
        self.held[self.tail].position = position
        self.held[self.tail].consumer = <PyObject*>consumer
        Py_INCREF(consumer)
        self.tail += 1
        self.unacked += 1
        self.next_tag += 1
        if self.tail - self.head > SPAN_MAX:
            self.compact()
        return self.next_tag - 1

    def skip_tag(self):
        """A delivery that nobody acks has a tag all the same."""
        self.put_gap()
        return self.next_tag - 1

    cdef int put_gap(self) except -1:
        if self.head == self.tail:
            self.next_tag += 1
            return 0
        self.hold(None, 0)  # keeps tags and places in step
        self.unacked -= 1
        if self.tail == self.head:  # all places were given up meanwhile
            self.stragglers.pop(self.next_tag - 1, None)
        else:
            Py_DECREF(None)
            self.held[self.tail - 1].consumer = NULL
        return 0

    cdef int compact(self) except -1:
        """One message held for hours must not keep the places of all that came after it."""
        cdef Py_ssize_t n
        cdef uint64_t base = self.next_tag - (self.tail - self.head)
        if self.unacked - len(self.stragglers) > (self.tail - self.head) // 8:
            return 0
        for n in range(self.head, self.tail):
            if self.held[n].consumer != NULL:
                self.stragglers[base + n - self.head] = (<object>self.held[n].consumer, self.held[n].position)
                Py_DECREF(<object>self.held[n].consumer)
        self.head = self.tail = 0
        return 0

    cdef int settle(self, object consumer, int64_t position) except -1:
        """Tell the queue's lane; the reference held for it is given back by the caller."""
        cdef Consumer one
        self.unacked -= 1
        if isinstance(consumer, Consumer):
            one = <Consumer>consumer
            one.credit += 1
            if one.lane.ack(position):
                one.queue.queues.touch(one.queue)
        else:
            consumer.acked(position)
        return 0

    cpdef acknowledge(self, uint64_t tag, bint multiple):
        cdef uint64_t base = self.next_tag - (self.tail - self.head)
        cdef Py_ssize_t at, last
        cdef PyObject* consumer
        if multiple and tag == 0:
            if self.unacked == 0:
                return
            last = self.tail - 1
        elif tag >= base and tag < self.next_tag:
            last = self.head + <Py_ssize_t>(tag - base)
            if self.held[last].consumer == NULL:
                raise Fault(406, f"unknown delivery tag {tag}")
        elif tag in self.stragglers:
            last = self.head - 1
        else:
            raise Fault(406, f"unknown delivery tag {tag}")
        if not multiple:
            if last < self.head:
                holder, position = self.stragglers.pop(tag)
                self.settle(holder, position)
                return
            consumer = self.held[last].consumer
            self.held[last].consumer = NULL
            self.settle(<object>consumer, self.held[last].position)
            Py_DECREF(<object>consumer)
        else:
            if self.stragglers:
                for old in sorted(self.stragglers):
                    if tag == 0 or old <= tag:
                        holder, position = self.stragglers.pop(old)
                        self.settle(holder, position)
            for at in range(self.head, last + 1):
                consumer = self.held[at].consumer
                if consumer != NULL:
                    self.held[at].consumer = NULL
                    self.settle(<object>consumer, self.held[at].position)
                    Py_DECREF(<object>consumer)
        while self.head < self.tail and self.held[self.head].consumer == NULL:
            self.head += 1
        if self.head == self.tail:
            self.head = self.tail = 0

    def holds(self, uint64_t tag):
        """Whether the delivery waits for an ack."""
        cdef uint64_t base = self.next_tag - (self.tail - self.head)
        if base <= tag < self.next_tag:
            return self.held[self.head + <Py_ssize_t>(tag - base)].consumer != NULL
        return tag in self.stragglers

    def take_held(self, uint64_t tag, bint multiple):
        """End deliveries in another way than by an ack: [(tag, consumer, position)], oldest first."""
        cdef uint64_t base = self.next_tag - (self.tail - self.head)
        cdef uint64_t last = tag if tag else self.next_tag - 1
        cdef Py_ssize_t n
        taken = []
        if not multiple:
            if tag in self.stragglers:
                taken = [(tag, *self.stragglers.pop(tag))]
            elif base <= tag < self.next_tag and self.held[self.head + <Py_ssize_t>(tag - base)].consumer != NULL:
                n = self.head + <Py_ssize_t>(tag - base)
                taken = [(tag, self._release(n), self.held[n].position)]
            else:
                raise Fault(406, f"unknown delivery tag {tag}")
        else:
            if tag and tag not in self.stragglers and not (
                base <= tag < self.next_tag and self.held[self.head + <Py_ssize_t>(tag - base)].consumer != NULL
            ):
                raise Fault(406, f"unknown delivery tag {tag}")
            for old in sorted(self.stragglers):
                if old <= last:
                    taken.append((old, *self.stragglers.pop(old)))
            for n in range(self.head, self.tail):
                if base + n - self.head > last:
                    break
                if self.held[n].consumer != NULL:
                    taken.append((base + n - self.head, self._release(n), self.held[n].position))
        self.unacked -= len(taken)
        while self.head < self.tail and self.held[self.head].consumer == NULL:
            self.head += 1
        if self.head == self.tail:
            self.head = self.tail = 0
        return taken

    def _release(self, Py_ssize_t at):
        consumer = <object>self.held[at].consumer
        Py_DECREF(consumer)
        self.held[at].consumer = NULL
        return consumer

    # confirms

    def note_published(self, ticket):
        """One more publish on a confirming channel, stored under `ticket` (None: nothing to wait for)."""
        self.published += 1
        if ticket is not None and ticket is not self.ticket:
            self._close_ticket(self.published - 1)
            self.ticket = ticket

    def _close_ticket(self, uint64_t until):
        if self.ticket is not None:
            self.waiting.append((until, self.ticket))
            self.ticket.wait(self)
            self.ticket = None

    def after_read(self):
        """The read is done: what was published in it is confirmed together."""
        self.touched = False
        if self.ticket is not None:
            self._close_ticket(self.published)
        else:  # nothing to wait for but this tick's write
            self.waiting.append((self.published, self.out.ticker.ticks))

    def refuse_next(self):
        """One more publish, which was not stored."""
        self.after_read()
        self.published += 1
        self.waiting.append((self.published, False))

    def released(self, ticket):
        """A ticket is due, or a tick is over; answers leave in publish order."""
        cdef uint64_t until = 0
        while self.waiting:
            end, first = self.waiting[0]
            refused = first is False
            if isinstance(first, Ticket):
                refused = (<Ticket>first).error is not None
                if not refused and not (<Ticket>first).stable:
                    break
            elif not refused and first >= self.out.ticker.ticks:
                break
            del self.waiting[0]
            if not refused:
                until = end
                continue
            if until:
                self.session.confirmed(until)
                until = 0
            self.session.refused(end)
        if until:
            self.session.confirmed(until)


cdef class Consumer(Taker):
    def __init__(self, ChannelWire channel, queue, tag, *, int priority=0, int64_t credit=0, bint no_ack=False,
                 decorator=None):
        super().__init__(priority=priority, credit=credit, no_ack=no_ack)
        self.channel = channel
        self.queue = queue
        self.lane = queue.lane
        self.tag = tag
        self.decorator = decorator
        name = tag.encode("utf-8", "surrogateescape")
        self.head = b"\0\x3c\0\x3c" + bytes((len(name),)) + name

    cpdef bint take(self, RecordRef record, bint redelivered, int attempts) except -1:
        cdef ChannelWire channel = self.channel
        cdef Outbound out = channel.out
        cdef uint64_t tag
        if out.blocked or out.size > out.bytes_max or \
                (channel.unacked_max and not self.no_ack and channel.unacked >= channel.unacked_max):
            if not self.stalled:
                self.stalled = True
                out.stalled.append(self)
            return False
        if self.no_ack:
            tag = channel.next_tag
            channel.put_gap()
            self.credit += 1
        else:
            tag = channel.hold(self, record.stamp)
        out.put_record(channel, self.head, tag, redelivered, b"", record, attempts,
                       self.decorator if attempts else None)
        return True

    def on_queue_deleted(self):
        self.channel.session.consumer_lost(self)
