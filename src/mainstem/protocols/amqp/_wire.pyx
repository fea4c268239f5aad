# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""AMQP bytes: the hot four methods without objects. See `wire.py`; `_wire_reference.py` is plain Python."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memmove

from mainstem.broker._live cimport RecordRef, Route
from mainstem.broker.queues._lane cimport Lane, Taker
from mainstem.codec._batch cimport (
    get_u16, get_u32, get_u64, next_header, put_u16, put_u32, put_u64, put_varint, varint_size, zigzag,
)
from mainstem.log._gather cimport Gather, Ticket

from mainstem.protocols.amqp.events import MethodEvent, PublishEvent
from mainstem.protocols.amqp.faults import Fault

cdef enum:
    FRAME_METHOD = 1
    FRAME_HEADER = 2
    FRAME_BODY = 3
    FRAME_HEARTBEAT = 8
    FRAME_END = 0xCE
    FRAME_HEAD = 7
    FRAME_OVERHEAD = 8
    BASIC_PUBLISH = 0x003C0028
    BASIC_DELIVER = 0x003C003C
    BASIC_GET_OK = 0x003C0047
    BASIC_ACK = 0x003C0050
    BASIC_NACK = 0x003C0078
    EXPECT_METHOD = 0
    EXPECT_HEADER = 1
    EXPECT_BODY = 2
    MANDATORY = 1
    ORIGIN_AMQP = 3
    FLAG_QOS_1 = 1
    FLAG_KEY_IS_TOPIC = 8
    FLAG_DEFAULT_EXCHANGE = 16
    OUT_BYTES_MAX = 1 << 20
    OUT_BYTES_MIN = 512
    OUT_BYTES_KEPT = 1 << 18
    SPAN_MAX = 65536  # unsettled deliveries kept in a row before stragglers are put aside
    NESTING_MAX = 64
    TARGETS_MAX = 10000
    SCRATCH = 512

cdef enum Look:
    # What a publish's properties say. SLOW: someone must read them (CC, BCC, x-delay, reply-to, user-id, expiration).
    LOOK_MALFORMED = -1
    LOOK_PERSISTENT = 1
    LOOK_SLOW = 2


# -- properties ----------------------------------------------------------------------------------------------------------

cdef inline const uint8_t* skip_short(const uint8_t* at, const uint8_t* end) noexcept:
    if at == NULL or at >= end or end - at < 1 + at[0]:
        return NULL
    return at + 1 + at[0]


cdef const uint8_t* skip_value(const uint8_t* at, const uint8_t* end, int depth) noexcept:
    """Behind the table value at `at`; NULL if it is malformed, of unknown type or nested too deeply."""
    cdef uint8_t kind
    cdef int64_t size
    if at == NULL or at >= end:
        return NULL
    kind = at[0]
    at += 1
    if kind == c"t" or kind == c"b" or kind == c"B":
        size = 1
    elif kind == c"s" or kind == c"u" or kind == c"U":
        size = 2
    elif kind == c"I" or kind == c"i" or kind == c"f":
        size = 4
    elif kind == c"l" or kind == c"L" or kind == c"d" or kind == c"T":
        size = 8
    elif kind == c"D":
        size = 5
    elif kind == c"V":
        size = 0
    elif kind == c"S" or kind == c"x" or kind == c"A" or kind == c"F":
        if end - at < 4:
            return NULL
        size = get_u32(at)
        at += 4
        if size > end - at:
            return NULL
        if kind == c"A" or kind == c"F":
            if depth >= NESTING_MAX:
                return NULL
            return skip_values(at, at + size, kind == c"F", depth + 1)
    else:
        return NULL
    return at + size if size <= end - at else NULL


cdef const uint8_t* skip_values(const uint8_t* at, const uint8_t* end, bint named, int depth) noexcept:
    while at < end:
        if named:
            at = skip_short(at, end)
        at = skip_value(at, end, depth)
        if at == NULL:
            return NULL
    return end


cdef inline bint is_special(const uint8_t* name, int size) noexcept:
    """Headers that change where or when a message goes."""
    return (size == 2 and memcmp(name, b"CC", 2) == 0) or (size == 3 and memcmp(name, b"BCC", 3) == 0) or \
        (size == 7 and memcmp(name, b"x-delay", 7) == 0) or (size > 3 and memcmp(name, b"ms-", 3) == 0)


cdef int look_at(const uint8_t* at, const uint8_t* end, int64_t* time_ms) noexcept:
    """Check a content header's properties and tell what the hot path must know of them."""
    cdef int flags, found = 0, bit
    cdef const uint8_t* after
    if end - at < 2:
        return LOOK_MALFORMED
    flags = get_u16(at)
    at += 2
    if flags & 3:
        return LOOK_MALFORMED
    if flags & 0x8000:
        at = skip_short(at, end)
    if flags & 0x4000:
        at = skip_short(at, end)
    if at == NULL:
        return LOOK_MALFORMED
    if flags & 0x2000:
        if end - at < 4 or get_u32(at) > end - at - 4:
            return LOOK_MALFORMED
        after = at + 4 + get_u32(at)
        at += 4
        while at < after:
            if after - at > at[0] and is_special(at + 1, at[0]):
                found |= LOOK_SLOW
            at = skip_value(skip_short(at, after), after, 0)
            if at == NULL:
                return LOOK_MALFORMED
    if flags & 0x1000:
        if at >= end:
            return LOOK_MALFORMED
        if at[0] == 2:
            found |= LOOK_PERSISTENT
        at += 1
    if flags & 0x0800:
        at += 1
    for bit in range(10, 1, -1):
        if not flags & (1 << bit):
            continue
        if bit == 6:
            if end - at < 8:
                return LOOK_MALFORMED
            if 0 < get_u64(at) < (<uint64_t>1 << 43):
                time_ms[0] = <int64_t>get_u64(at) * 1000
            at += 8
            continue
        if (bit == 9 and end - at > 21 and memcmp(at + 1, b"amq.rabbitmq.reply-to", 21) == 0) or bit == 8 or bit == 4:
            found |= LOOK_SLOW
        at = skip_short(at, end)
        if at == NULL:
            return LOOK_MALFORMED
    return found if at == end else LOOK_MALFORMED


def check_properties(bytes properties):
    """(well formed, persistent, needs a look, time in ms or 0): for tests and for the slow path."""
    cdef int64_t time_ms = 0
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(properties)
    cdef int found = look_at(at, at + PyBytes_GET_SIZE(properties), &time_ms)
    if found == LOOK_MALFORMED:
        return False, False, False, 0
    return True, bool(found & LOOK_PERSISTENT), bool(found & LOOK_SLOW), time_ms


# -- where publishes go --------------------------------------------------------------------------------------------------

cdef class Target:
    def __init__(self, route, exchange, key, *, int flags, bytes head, int head_count, bint plain):
        self.route = route
        self.exchange = exchange
        self.key = key
        self.flags = flags
        self.head = head
        self.head_count = head_count
        self.plain = plain


cdef class TargetTable:
    def __init__(self, resolve):
        self.resolve = resolve
        self.epoch = 1
        self.targets = {}

    def clear(self):
        self.epoch += 1
        self.targets = {}
        self.last = None

    cdef Target find(self, const uint8_t* raw, Py_ssize_t size):
        cdef Target target = self.last
        cdef bytes name
        cdef int exchange_size
        if target is not None and PyBytes_GET_SIZE(target.raw) == size and \
                memcmp(PyBytes_AS_STRING(target.raw), raw, size) == 0:
            return target
        name = PyBytes_FromStringAndSize(<const char*>raw, size)
        found = self.targets.get(name)
        if found is None:
            exchange_size = raw[0]
            target = self.resolve(name[1:1 + exchange_size], name[2 + exchange_size:])
            target.raw = name
            target.epoch = self.epoch
            if len(self.targets) >= TARGETS_MAX:
                self.targets.clear()
            self.targets[name] = target
        else:
            target = found
        self.last = target
        return target


# -- out -----------------------------------------------------------------------------------------------------------------

cdef class Outbound:
    def __cinit__(self):
        self.buf = NULL
        self.size = self.capacity = 0

    def __init__(self, ticker, describe, translate):
        self.ticker = ticker
        self.describe = describe
        self.translate = translate
        self.frame_max = 4096
        self.stalled = []

    def __dealloc__(self):
        PyMem_Free(self.buf)

    @property
    def out_bytes(self):
        return self.size

    cdef uint8_t* room(self, Py_ssize_t need) except NULL:
        """Where the next `need` bytes go; they count as written."""
        cdef Py_ssize_t capacity
        cdef void* grown
        if self.capacity - self.size < need:
            capacity = self.capacity if self.capacity else OUT_BYTES_MIN
            while capacity - self.size < need:
                capacity *= 2
            grown = PyMem_Realloc(self.buf, capacity)
            if grown == NULL:
                raise MemoryError
            self.buf = <uint8_t*>grown
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
        self.ticker.mark_dirty(self.connection)
        return 0

    def take(self):
        """All that was written since the last call."""
        self.dirty = False
        if self.size == 0:
            return b""
        data = PyBytes_FromStringAndSize(<const char*>self.buf, self.size)
        self.size = 0
        if self.capacity > OUT_BYTES_KEPT or self.capacity == OUT_BYTES_MIN:
            PyMem_Free(self.buf)  # an idle connection keeps no buffer, a busy one not the largest it ever needed
            self.buf = NULL
            self.capacity = 0
        return data

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


# -- channels ------------------------------------------------------------------------------------------------------------

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
        if out.blocked or out.size > OUT_BYTES_MAX or \
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


# -- in ------------------------------------------------------------------------------------------------------------------

cdef class Inbound:
    def __init__(self):
        self.frame_max = 4096
        self.body_bytes_max = 16 << 20
        self.channels = []
        self.touched = []
        self.data = b""

    def receive(self, bytes data):
        if self.at < PyBytes_GET_SIZE(self.data):
            self.data = self.data[self.at:] + data
        else:
            self.data = data
        self.at = 0

    def open(self, ChannelWire channel):
        while len(self.channels) <= channel.number:
            self.channels.append(None)
        self.channels[channel.number] = channel

    def close(self, int number):
        if number < len(self.channels):
            self.channels[number] = None

    def touch(self, ChannelWire channel):
        """A publish of the slow path is to be confirmed with this read's."""
        if not channel.touched:
            channel.touched = True
            self.touched.append(channel)

    def take_touched(self):
        """Confirming channels that published since the last call."""
        if not self.touched:
            return self.touched
        touched, self.touched = self.touched, []
        return touched

    def next(self, int64_t time_ms):
        """Handle what can be handled here; the next event, or None when no whole frame is left."""
        cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(self.data)
        cdef Py_ssize_t total = PyBytes_GET_SIZE(self.data)
        cdef Py_ssize_t at = self.at
        cdef const uint8_t* payload
        cdef uint32_t size, number
        cdef int kind
        cdef uint16_t channel_number
        cdef ChannelWire channel
        while total - at >= FRAME_HEAD:
            kind = start[at]
            channel_number = get_u16(start + at + 1)
            size = get_u32(start + at + 3)
            if self.frame_max and size > self.frame_max - FRAME_OVERHEAD:
                raise Fault(501, f"type {kind}, a frame of {size + 8} octets, limit {self.frame_max}: frame_too_large")
            if total - at < <Py_ssize_t>size + FRAME_OVERHEAD:
                break
            payload = start + at + FRAME_HEAD
            if payload[size] != FRAME_END:
                raise Fault(501, f"type {kind}, all octets: invalid_frame_end_marker {payload[size]}")
            at += size + FRAME_OVERHEAD
            self.at = at
            self.channel_number = channel_number
            self.method_number = BASIC_PUBLISH
            channel = <ChannelWire>self.channels[channel_number] if channel_number < PyList_GET_SIZE(self.channels) \
                else None
            if kind == FRAME_METHOD:
                if size < 4:
                    raise Fault(502, "a method frame without a method")
                number = self.method_number = get_u32(payload)
                if channel is not None:
                    if channel.expect != EXPECT_METHOD:
                        raise Fault(505, _expected(channel.expect))
                    if number == BASIC_PUBLISH:
                        self.begin(channel, payload, size)
                        continue
                    if number == BASIC_ACK and not channel.buffering and size == 13:
                        channel.acknowledge(get_u64(payload + 4), payload[12] & 1)
                        continue
                return MethodEvent(channel_number, number,
                                   PyBytes_FromStringAndSize(<const char*>payload + 4, size - 4))
            if kind == FRAME_HEARTBEAT:
                if channel_number:
                    raise Fault(501, "a heartbeat on a channel")
                continue
            if kind != FRAME_HEADER and kind != FRAME_BODY:
                raise Fault(501, f"type {kind}, all octets: unknown_frame")
            if channel is None:
                return MethodEvent(channel_number, kind, b"")
            event = None
            if kind == FRAME_HEADER:
                if channel.expect != EXPECT_HEADER:
                    raise Fault(505, _expected(channel.expect))
                if self.header_frame(channel, payload, size):
                    event = self.finish(channel, NULL, 0, time_ms)
            elif channel.expect != EXPECT_BODY:
                raise Fault(505, _expected(channel.expect))
            elif size == channel.body_size and channel.body_at == 0:
                event = self.finish(channel, payload, size, time_ms)
            else:
                if channel.body == NULL:
                    channel.body = <uint8_t*>PyMem_Malloc(channel.body_size)
                    if channel.body == NULL:
                        raise MemoryError
                if size > channel.body_size - channel.body_at:
                    raise Fault(505, "a content body longer than its header said")
                memcpy(channel.body + channel.body_at, payload, size)
                channel.body_at += size
                if channel.body_at == channel.body_size:
                    event = self.finish(channel, channel.body, channel.body_size, time_ms)
            if event is not None:
                return event
        return None

    cdef int begin(self, ChannelWire channel, const uint8_t* payload, Py_ssize_t size) except -1:
        """basic.publish: find where it goes; its content follows."""
        cdef const uint8_t* end = payload + size
        cdef const uint8_t* name = payload + 6
        cdef const uint8_t* after = skip_short(skip_short(name, end), end)
        if after == NULL or end - after < 1:
            raise Fault(502, "basic.publish ends inside its fields")
        channel.target = self.targets.find(name, after - name)
        channel.publish_flags = after[0] & 3
        channel.expect = EXPECT_HEADER
        return 0

    cdef int header_frame(self, ChannelWire channel, const uint8_t* payload, Py_ssize_t size) except -1:
        """The content header; 1 if there is no body to come."""
        cdef uint64_t body_size
        cdef void* grown
        if size < 14:
            raise Fault(502, "a content header that is too short")
        if get_u16(payload) != 60:
            raise Fault(505, f"expected content header for class 60, got one for class {get_u16(payload)} instead")
        body_size = get_u64(payload + 4)
        channel.time_ms = 0
        channel.look = look_at(payload + 12, payload + size, &channel.time_ms)
        if channel.look == LOOK_MALFORMED:
            raise Fault(502, "malformed properties in a content header")
        if body_size > <uint64_t>self.body_bytes_max:
            channel.expect = EXPECT_METHOD
            raise Fault(406, f"message size {body_size} is larger than configured max size {self.body_bytes_max}")
        size -= 12
        if size > channel.properties_capacity:
            grown = PyMem_Realloc(channel.properties, size + 64)
            if grown == NULL:
                raise MemoryError
            channel.properties = <uint8_t*>grown
            channel.properties_capacity = size + 64
        memcpy(channel.properties, payload + 12, size)
        channel.properties_size = size if size > 2 else 0
        channel.body_size = <Py_ssize_t>body_size
        channel.body_at = 0
        channel.expect = EXPECT_BODY
        return body_size == 0

    cdef object finish(self, ChannelWire channel, const uint8_t* body, Py_ssize_t size, int64_t time_ms):
        """A whole publish: into the log's open batch, or an event for whoever must look at it."""
        cdef Target target = channel.target
        cdef Gather gather
        cdef uint8_t scratch[SCRATCH]
        cdef uint8_t* headers = scratch
        cdef uint8_t* at
        cdef Py_ssize_t head_size, need
        cdef int flags
        cdef object event = None
        channel.expect = EXPECT_METHOD
        channel.target = None
        self.messages += 1
        if channel.publish_flags or channel.buffering or channel.look & LOOK_SLOW or not target.plain:
            event = PublishEvent(
                channel.number, target, bool(channel.publish_flags & MANDATORY), bool(channel.publish_flags & 2),
                PyBytes_FromStringAndSize(<const char*>channel.properties, channel.properties_size)
                if channel.properties_size else b"",
                PyBytes_FromStringAndSize(<const char*>body, size) if size else b"", bool(channel.look & LOOK_PERSISTENT),
                channel.time_ms if channel.time_ms else time_ms)
            PyMem_Free(channel.body)
            channel.body = NULL
            return event
        gather = target.route.gather(ORIGIN_AMQP)
        head_size = PyBytes_GET_SIZE(target.head)
        need = head_size + 32 + channel.properties_size
        if need > SCRATCH:
            headers = <uint8_t*>PyMem_Malloc(need)
            if headers == NULL:
                raise MemoryError
        memcpy(headers, PyBytes_AS_STRING(target.head), head_size)
        at = headers + head_size
        if channel.properties_size:
            at = put_varint(at, zigzag(7))
            memcpy(at, b"ms-amqp", 7)
            at = put_varint(at + 7, zigzag(channel.properties_size))
            memcpy(at, channel.properties, channel.properties_size)
            at += channel.properties_size
        flags = target.flags | (FLAG_QOS_1 if channel.look & LOOK_PERSISTENT else 0)
        try:
            gather.put_routed(
                target.route, <const uint8_t*>PyBytes_AS_STRING(target.route.topic), PyBytes_GET_SIZE(target.route.topic),
                body, size, headers, at - headers, target.head_count + (1 if channel.properties_size else 0),
                channel.time_ms if channel.time_ms else time_ms, <uint8_t>flags)
        finally:
            if headers != scratch:
                PyMem_Free(headers)
            if channel.body != NULL:
                PyMem_Free(channel.body)
                channel.body = NULL
        if channel.confirming:
            channel.published += 1
            if channel.look & LOOK_PERSISTENT and gather.ticket is not channel.ticket:
                if channel.ticket is not None:
                    channel._close_ticket(channel.published - 1)
                channel.ticket = gather.ticket
            if not channel.touched:
                channel.touched = True
                self.touched.append(channel)
        return None


cdef str _expected(int expect):
    if expect == EXPECT_METHOD:
        return "expected method frame, got non method frame instead"
    if expect == EXPECT_HEADER:
        return "expected content header for class 60, got non content header frame instead"
    return "expected content body, got non content body frame instead"
