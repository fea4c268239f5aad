# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""AMQP in: frames and publishes, without objects; the other methods are events. See `wire.py`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from mainstem.broker.delivery._live cimport Route
from mainstem.codec._batch cimport get_u16, get_u32, get_u64, put_varint, zigzag
from mainstem.codec._large_memory cimport grow, memory_taken, release
from mainstem.codec._large_record cimport Bulk
from mainstem.log._gather cimport Gather
from mainstem.protocols._reactor cimport Intake
from mainstem.protocols.amqp._channel_wire cimport ChannelWire
from mainstem.protocols.amqp._outbound cimport Outbound
from mainstem.protocols.amqp._properties cimport LOOK_MALFORMED, LOOK_PERSISTENT, LOOK_SLOW, look_at, skip_short

from mainstem.codec.large_record import LARGE_BYTES, LargeRecord
from mainstem.log.large import takes_large
from mainstem.protocols.amqp.events import LargePublishEvent, MethodEvent, PublishEvent
from mainstem.protocols.amqp.faults import EXPECTED, Fault, bad_frame, undecodable

cdef enum:
    FRAME_METHOD = 1
    FRAME_HEADER = 2
    FRAME_BODY = 3
    FRAME_HEARTBEAT = 8
    FRAME_END = 0xCE
    FRAME_HEAD = 7
    FRAME_OVERHEAD = 8
    BASIC_PUBLISH = 0x003C0028
    BASIC_ACK = 0x003C0050
    EXPECT_METHOD = 0
    EXPECT_HEADER = 1
    EXPECT_BODY = 2
    MANDATORY = 1
    ORIGIN_AMQP = 3
    FLAG_QOS_1 = 1
    TARGETS_MAX = 10000
    SCRATCH = 512
    NOTED_MIN = 4096  # as `unfinished.NOTED_MIN`
    BODY_BYTES_FIRST = 4096


cdef Py_ssize_t LARGE = LARGE_BYTES


cdef class Target:
    def __init__(self, route, exchange, key, *, int flags, bytes head, int head_count, bint plain, bint live=False):
        self.route = route
        self.exchange = exchange
        self.key = key
        self.flags = flags
        self.head = head
        self.head_count = head_count
        self.plain = plain
        self.live = live


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


cdef class Inbound(Intake):
    def __init__(self, connection=None, Outbound out=None):
        self.connection = connection
        self.out = out
        self.frame_max = 4096
        self.body_bytes_max = 16 << 20
        self.channels = []
        self.touched = []

    def receive(self, bytes data):
        """Take over what a read brought."""
        self._feed(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), data)

    cdef int take(self, const uint8_t* data, Py_ssize_t size, int64_t time_ms) except -1:
        """Handle what a read brought where it lies; what must wait is copied. The connection is asked only if it must be."""
        cdef object connection = self.connection, broker = connection.server.broker, event = None, failure = None
        cdef uint64_t before = self.messages, published
        if self.targets is None:  # before connection.open every frame is a decision
            connection.on_data(PyBytes_FromStringAndSize(<const char*>data, size))
            return 0
        self._feed(data, size, None)
        try:
            self.unchecked = True
            try:
                event = self.next(time_ms)
            except Exception as error:
                failure = error
            published = self.messages - before
            if event is not None or failure is not None:
                connection.drain(time_ms, event, failure)
            else:
                if self.acked:
                    broker.queues.flush_settled()
                if self.touched or self.out.stalled or connection.to_resume:
                    connection.after_read()
            if published and (broker.ticker.pressed or broker.maintenance.space_low):
                connection.hold_back()
        finally:
            self.acked = False
            self._keep()
        if self.bodies + self.size - self.at > NOTED_MIN or connection.unfinished:
            connection.note_unfinished()
        return <int>published

    cdef int _feed(self, const uint8_t* data, Py_ssize_t size, bytes owner) except -1:
        """Only the frame that was cut by a read is copied together, not what follows. Without `owner` it is borrowed."""
        cdef Py_ssize_t left = self.size - self.at, missing = 0
        if self.is_out_of_step:
            return 0
        if left == 0 and self.more_size == 0:
            self.base, self.size, self.at, self.data = data, size, 0, owner
            return 0
        if self.more_size == 0 and left >= FRAME_HEAD:
            missing = <Py_ssize_t>get_u32(self.base + self.at + 3) + FRAME_OVERHEAD - left
        if not 0 < missing < size:
            self._join(data, size)
            return 0
        self._join(data, missing)
        self.more_base, self.more_size, self.more = data + missing, size - missing, owner
        return 0

    cdef int _join(self, const uint8_t* data, Py_ssize_t size) except -1:
        """What is left, what follows it and `data` in one piece, which is ours."""
        cdef Py_ssize_t left = self.size - self.at
        cdef bytes joined = PyBytes_FromStringAndSize(NULL, left + self.more_size + size)
        cdef uint8_t* to = <uint8_t*>PyBytes_AS_STRING(joined)
        if left:  # nothing may be NULL, which memcpy must not be given whatever the size
            memcpy(to, self.base + self.at, left)
        if self.more_size:
            memcpy(to + left, self.more_base, self.more_size)
        if size:
            memcpy(to + left + self.more_size, data, size)
        self.base, self.size, self.at, self.data = to, left + self.more_size + size, 0, joined
        self.more_base, self.more_size, self.more = NULL, 0, None
        return 0

    cdef int _keep(self) except -1:
        """The memory of the read is about to be used for another."""
        if self.at == self.size and self.more_size == 0:
            self.base, self.size, self.at, self.data = NULL, 0, 0, None
        elif (self.data is None and self.at < self.size) or (self.more is None and self.more_size):
            self._join(NULL, 0)
        return 0

    def open(self, ChannelWire channel):
        while len(self.channels) <= channel.number:
            self.channels.append(None)
        self.channels[channel.number] = channel

    def close(self, int number):
        if number < len(self.channels):
            if self.channels[number] is not None:
                self._free_body(self.channels[number])
            self.channels[number] = None

    def kept_bytes(self):
        """Of frames and contents that are not whole yet."""
        return self.bodies + self.size - self.at + self.more_size

    def forget(self):
        """The peer is gone: what it left unfinished is not waited for."""
        self.base, self.size, self.at, self.data = NULL, 0, 0, None
        self.more_base, self.more_size, self.more = NULL, 0, None

    cdef int _add_body(self, ChannelWire channel, const uint8_t* piece, Py_ssize_t size) except -1:
        """A part of a content: memory grows with what came, not with what the header announced."""
        cdef Py_ssize_t wanted = channel.body_at + size
        cdef Py_ssize_t taken = memory_taken(channel.body, channel.body_capacity, channel.body_at)
        if wanted > channel.body_capacity:
            wanted = min(max(2 * wanted, BODY_BYTES_FIRST), channel.body_size)
            channel.body = grow(channel.body, channel.body_at, &channel.body_capacity, wanted, channel.body_size)
        memcpy(channel.body + channel.body_at, piece, size)
        channel.body_at += size
        self.bodies += memory_taken(channel.body, channel.body_capacity, channel.body_at) - taken
        return 0

    cdef int _free_body(self, ChannelWire channel) except -1:
        self.bodies -= memory_taken(channel.body, channel.body_capacity, channel.body_at)
        release(channel.body, channel.body_capacity, channel.body_at == channel.body_size)
        channel.body, channel.body_capacity = NULL, 0
        return 0

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

    cpdef object next(self, int64_t time_ms):
        """Handle what can be handled here; the next event, or None when no whole frame is left."""
        event = self._next(time_ms)
        if event is None and self.more_size and self.at == self.size:
            self.base, self.size, self.at, self.data = self.more_base, self.more_size, 0, self.more
            self.more_base, self.more_size, self.more = NULL, 0, None
            event = self._next(time_ms)
        return event

    cdef object _out_of_step(self, fault):
        """Where the next frame begins is not known: nothing that came or comes can be read, so nothing of it is kept."""
        self.is_out_of_step = True
        self.base, self.size, self.at, self.data = NULL, 0, 0, None
        self.more_base, self.more_size, self.more = NULL, 0, None
        return fault

    cdef object _next(self, int64_t time_ms):
        cdef const uint8_t* start = self.base
        cdef Py_ssize_t total = self.size
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
            self.method_number = 0
            if self.frame_max and size > self.frame_max - FRAME_OVERHEAD:
                raise self._out_of_step(
                    bad_frame(kind, b"", f"{{frame_too_large,{size},{self.frame_max - FRAME_OVERHEAD}}}"))
            if total - at < <Py_ssize_t>size + FRAME_OVERHEAD:
                break
            payload = start + at + FRAME_HEAD
            if payload[size] != FRAME_END:
                raise self._out_of_step(bad_frame(kind, PyBytes_FromStringAndSize(<const char*>payload, size),
                                                  f"{{invalid_frame_end_marker,{payload[size]}}}"))
            at += size + FRAME_OVERHEAD
            self.at = at
            self.channel_number = channel_number
            channel = <ChannelWire>self.channels[channel_number] if channel_number < PyList_GET_SIZE(self.channels) \
                else None
            if channel is not None and channel.expect != EXPECT_METHOD:
                self.method_number = BASIC_PUBLISH
            if kind == FRAME_METHOD:
                if size < 4:
                    raise bad_frame(kind, PyBytes_FromStringAndSize(<const char*>payload, size), "unknown_frame")
                if self.method_number:
                    raise Fault(505, EXPECTED[channel.expect])
                number = self.method_number = get_u32(payload)
                if channel is not None:
                    if number == BASIC_PUBLISH:
                        self.begin(channel, payload, size)
                        continue
                    if number == BASIC_ACK and not channel.buffering and size == 13:
                        self.acked = True
                        channel.acknowledge(get_u64(payload + 4), payload[12] & 1)
                        continue
                return MethodEvent(channel_number, number,
                                   PyBytes_FromStringAndSize(<const char*>payload + 4, size - 4))
            if kind == FRAME_HEARTBEAT:
                if channel_number or size:
                    raise bad_frame(kind, PyBytes_FromStringAndSize(<const char*>payload, size),
                                    "" if channel_number else "unknown_frame")
                continue
            if kind != FRAME_HEADER and kind != FRAME_BODY:
                raise bad_frame(kind, PyBytes_FromStringAndSize(<const char*>payload, size), "unknown_frame")
            if channel is None:
                return MethodEvent(channel_number, kind, b"")
            event = None
            if kind == FRAME_HEADER:
                if channel.expect != EXPECT_HEADER:
                    raise Fault(505, EXPECTED[channel.expect])
                if self.header_frame(channel, payload, size):
                    event = self.finish(channel, NULL, 0, time_ms)
            elif channel.expect != EXPECT_BODY:
                raise Fault(505, EXPECTED[channel.expect])
            elif size == channel.body_size and channel.body_at == 0:
                event = self.finish(channel, payload, size, time_ms)
            else:
                if size > channel.body_size - channel.body_at:
                    raise Fault(505, "a content body longer than its header said")
                self._add_body(channel, payload, size)
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
        if after == NULL or end - after != 1:
            raise undecodable(PyBytes_FromStringAndSize(<const char*>payload + 4, size - 4))
        if self.unchecked:  # the first of this read: what only acks costs no look
            self.unchecked = False
            self.connection.publisher.check()
        channel.target = self.targets.find(name, after - name)
        channel.publish_flags = after[0] & 3
        channel.expect = EXPECT_HEADER
        return 0

    cdef int header_frame(self, ChannelWire channel, const uint8_t* payload, Py_ssize_t size) except -1:
        """The content header; 1 if there is no body to come."""
        cdef uint64_t body_size
        cdef void* grown
        if size < 14:
            self.method_number = 0
            raise bad_frame(FRAME_HEADER, PyBytes_FromStringAndSize(<const char*>payload, size), "unknown_frame")
        if get_u16(payload) != 60:
            raise Fault(505, f"expected content header for class 60, got one for class {get_u16(payload)} instead")
        if get_u16(payload + 2):
            raise Fault(505, EXPECTED[EXPECT_HEADER])
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
        cdef Target target = <Target>channel.target
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
        if channel.publish_flags or channel.buffering or channel.look & LOOK_SLOW or not target.plain \
                or (target.live and channel.look & LOOK_PERSISTENT):
            event = PublishEvent(
                channel.number, target, bool(channel.publish_flags & MANDATORY), bool(channel.publish_flags & 2),
                PyBytes_FromStringAndSize(<const char*>channel.properties, channel.properties_size)
                if channel.properties_size else b"",
                PyBytes_FromStringAndSize(<const char*>body, size) if size else b"", bool(channel.look & LOOK_PERSISTENT),
                channel.time_ms if channel.time_ms else time_ms)
            self._free_body(channel)
            return event
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
        if size >= LARGE and body == channel.body and takes_large(target.route.log):
            event = self._large(channel, target, PyBytes_FromStringAndSize(<const char*>headers, at - headers), flags,
                                channel.time_ms if channel.time_ms else time_ms)
            if headers != scratch:
                PyMem_Free(headers)
            return event
        gather = target.route.gather(ORIGIN_AMQP)
        try:
            gather.put_routed(
                target.route, <const uint8_t*>PyBytes_AS_STRING(target.route.topic), PyBytes_GET_SIZE(target.route.topic),
                body, size, headers, at - headers, target.head_count + (1 if channel.properties_size else 0),
                channel.time_ms if channel.time_ms else time_ms, <uint8_t>flags)
        finally:
            if headers != scratch:
                PyMem_Free(headers)
            if channel.body != NULL:
                self._free_body(channel)
        if channel.confirming:
            channel.published += 1
            channel.join_ticket(gather.ticket, channel.look & LOOK_PERSISTENT)
            if not channel.touched:
                channel.touched = True
                self.touched.append(channel)
        return None

    cdef object _large(self, ChannelWire channel, Target target, bytes headers, int flags, int64_t time_ms):
        """Its body stays in the memory that it was received into, which is no longer ours."""
        cdef Bulk body = Bulk.adopt(channel.body, channel.body_capacity, 0, channel.body_size)
        self.bodies -= memory_taken(channel.body, channel.body_capacity, channel.body_at)
        channel.body, channel.body_capacity = NULL, 0
        record = LargeRecord(target.route.topic, body, headers,
                             target.head_count + (1 if channel.properties_size else 0), time_ms, flags)
        return LargePublishEvent(channel.number, record, target.route.topic)
