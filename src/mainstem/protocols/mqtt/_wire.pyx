# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The incoming half of an MQTT connection, compiled. See `wire.py`; `_wire_reference.py` is the same in plain Python."""

from collections import deque

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy

from mainstem.broker._live cimport Route
from mainstem.codec._batch cimport get_u16, put_varint, zigzag
from mainstem.log._gather cimport Gather, Ticket
from mainstem.protocols.mqtt._fields cimport get_length, is_utf8
from mainstem.protocols.mqtt._outbound cimport Outbound
from mainstem.protocols.mqtt._routes cimport Entry, RouteTable

from mainstem.protocols.mqtt.packets import Publish, decode
from mainstem.protocols.mqtt.reasons import Violation

cdef enum:
    ORIGIN_MQTT = 1
    FLAG_RETAIN = 4
    FLAG_KEY_IS_TOPIC = 8
    MARK_CLIENT_WANTED = 1
    RECEIVED_BYTES = 8192  # one bit for each packet identifier
    TAIL_BYTES_KEPT = 4096
    MALFORMED = 0x81
    PROTOCOL_ERROR = 0x82
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    PACKET_ID_NOT_FOUND = 0x92
    QUOTA_EXCEEDED = 0x97
    PAYLOAD_FORMAT_INVALID = 0x99
    NOT_AUTHORIZED = 0x87
    CONNECT = 1
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7


cdef class AckRun:
    """Acks that wait for one ticket: each is kind (8 bits), reason (8), packet identifier (16)."""

    def __cinit__(self, Ticket ticket):
        self.ticket = ticket

    def __dealloc__(self):
        free(self.acks)

    cdef int add(self, uint32_t ack) except -1:
        cdef int capacity
        cdef uint32_t* grown
        if self.count == self.capacity:
            capacity = self.capacity * 2 if self.capacity else 16
            grown = <uint32_t*>realloc(self.acks, capacity * sizeof(uint32_t))
            if grown == NULL:
                raise MemoryError
            self.acks, self.capacity = grown, capacity
        self.acks[self.count] = ack
        self.count += 1
        return 0


cdef class Inbound:
    """Bytes in; records into the log, acks into the outbound half, and an event for each packet of the other kinds."""

    def __init__(self, Outbound outbound, limits):
        self.outbound = outbound
        self.limits = limits
        self.version = 0
        self.packet_bytes_max = limits.connect_bytes_max
        self.receive_max = limits.receive_maximum
        self.alias_max = limits.topic_alias_maximum
        self.client_id = b""

    def __dealloc__(self):
        free(self.tail)
        free(self.received)
        free(self.scratch)

    # -- bytes to packets

    def receive(self, bytes data):
        """Bytes from the peer; then call `next` until it returns None."""
        if self.base != NULL and self.at < self.size:
            data = PyBytes_FromStringAndSize(<const char*>self.base + self.at, self.size - self.at) + data
        self.data = data
        self.base, self.at, self.size = <const uint8_t*>PyBytes_AS_STRING(data), 0, PyBytes_GET_SIZE(data)

    def feed(self, bytes data, int64_t time_ms):
        """`receive` and the first `next` in one."""
        self.receive(data)
        self.time_ms = time_ms
        return self._step()

    cdef int take(self, const uint8_t* data, Py_ssize_t size, int64_t time_ms) except -1:
        """A socket's bytes where they lie: what needs no decision is done here, the rest is the connection's."""
        cdef object connection = self.connection, event = None, failure = None
        cdef uint64_t before = self.messages
        if connection is None:
            return 0
        if self.publisher is None or self.base != NULL or connection.held or connection.draining:
            connection.on_data(PyBytes_FromStringAndSize(<const char*>data, size))
            return 0
        self.base, self.at, self.size, self.time_ms = data, 0, size, time_ms
        connection.draining = True
        try:
            self.publisher.check()
            event = self._step()
        except Exception as error:
            failure = error
        connection.draining = False
        if event is not None or failure is not None or self.waiting:
            try:
                connection.on_event(event, before, failure)
            finally:
                self._own()
            return 0
        if self.messages != before and self.server.ticker.pressed:
            self.server.ticker.press(connection)
        if self.outbound.progress:
            connection.on_progress()
        return <int>(self.messages - before)

    cdef int _own(self) except -1:
        """What is not parsed yet outlives the buffer it was lent in."""
        if self.base != NULL and self.data is None:
            self.data = PyBytes_FromStringAndSize(<const char*>self.base + self.at, self.size - self.at)
            self.base, self.at, self.size = <const uint8_t*>PyBytes_AS_STRING(self.data), 0, self.size - self.at
        return 0

    def data_received(self, bytes data):
        """The connection's: what needs no decision is done here, the rest is handed to it."""
        cdef object connection = self.connection, server = self.server, event
        cdef uint64_t before = self.messages
        if connection is None or connection.closing:
            return
        connection.heard_second = server.deadlines.second
        counters = server.counters
        counters.bytes_in += PyBytes_GET_SIZE(data)
        if self.publisher is None or connection.held or connection.draining:
            connection.on_data(data)
            return
        connection.draining = True
        try:
            self.publisher.check()
            event = self.feed(data, <int64_t>self.now_ns() // 1000000)
        except Exception as error:
            connection.draining = False
            connection.on_event(None, before, error)
            return
        connection.draining = False
        if event is not None or self.waiting:
            connection.on_event(event, before, None)
            return
        if self.messages != before:
            counters.messages_in += self.messages - before
            ticker = server.ticker
            if ticker.pressed:
                ticker.press(connection)
        if self.outbound.progress:
            connection.on_progress()

    def next(self, int64_t time_ms):
        """The next packet that needs a decision; publishes and acks on the way there are done when this returns."""
        self.time_ms = time_ms
        return self._step()

    cdef object _step(self):
        cdef const uint8_t* at
        cdef Py_ssize_t available, size = 0, total
        cdef int digits
        cdef object event
        while self.base != NULL:
            if self.tail_size:
                if not self._fill_tail():
                    self.data, self.base = None, NULL
                    return None
                digits = get_length(self.tail + 1, self.tail + self.tail_size, &size)
                total, self.tail_size = self.tail_size, 0
                event = self._packet(self.tail, 1 + digits, total)
                if self.tail_capacity > TAIL_BYTES_KEPT and self.tail_size == 0:
                    free(self.tail)
                    self.tail, self.tail_capacity = NULL, 0
                if event is not None:
                    return event
                continue
            at = self.base + self.at
            available = self.size - self.at
            digits = 0 if available == 0 else get_length(at + 1, at + available, &size)
            if digits < 0:
                raise Violation(MALFORMED, "remaining length is not a variable byte integer in its shortest form")
            total = 1 + digits + size
            if digits and total > self.packet_bytes_max:
                raise Violation(PACKET_TOO_LARGE, f"packet of {total} bytes, limit {self.packet_bytes_max}")
            if digits == 0 or total > available:
                self._keep(at, available)
                self.tail_need = total if digits else 0
                self.data, self.base = None, NULL
                return None
            self.at += total  # first, so that whatever happens below goes on behind this packet
            event = self._packet(at, 1 + digits, total)
            if event is not None:
                return event
        return None

    cdef bint _fill_tail(self) except -1:
        """Complete the packet that the last read left unfinished, and take no more; True when it is whole."""
        cdef const uint8_t* at
        cdef Py_ssize_t available, missing, size = 0
        cdef int digits
        while True:
            at = self.base + self.at
            available = self.size - self.at
            if self.tail_need and self.tail_size == self.tail_need:
                return True
            if available == 0:
                return False
            missing = self.tail_need - self.tail_size if self.tail_need else 1
            if missing > available:
                missing = available
            self._keep(at, missing)
            self.at += missing
            if self.tail_need == 0:
                digits = get_length(self.tail + 1, self.tail + self.tail_size, &size)
                if digits < 0:
                    raise Violation(MALFORMED, "remaining length is not a variable byte integer in its shortest form")
                if digits:
                    self.tail_need = 1 + digits + size
                    if self.tail_need > self.packet_bytes_max:
                        raise Violation(PACKET_TOO_LARGE,
                                        f"packet of {self.tail_need} bytes, limit {self.packet_bytes_max}")

    cdef int _keep(self, const uint8_t* at, Py_ssize_t size) except -1:
        cdef Py_ssize_t capacity = self.tail_capacity if self.tail_capacity else 64
        cdef uint8_t* grown
        while capacity < self.tail_size + size:
            capacity *= 2
        if capacity != self.tail_capacity:
            grown = <uint8_t*>realloc(self.tail, capacity)
            if grown == NULL:
                raise MemoryError
            self.tail, self.tail_capacity = grown, capacity
        if size:
            memcpy(self.tail + self.tail_size, at, size)
            self.tail_size += size
        return 0

    cdef object _packet(self, const uint8_t* packet, Py_ssize_t head, Py_ssize_t size):
        cdef int kind = packet[0] >> 4, flags = packet[0] & 15
        if self.version == 0:
            if kind != CONNECT:
                raise Violation(PROTOCOL_ERROR, "the first packet is not CONNECT")
        elif kind == PUBLISH:
            return self._publish(packet, packet + head, packet + size)
        elif PUBACK <= kind <= PUBCOMP:
            self._ack(kind, flags, packet + head, size - head)
            return None
        elif kind == CONNECT:
            raise Violation(PROTOCOL_ERROR, "a second CONNECT")
        return decode(kind, flags, PyBytes_FromStringAndSize(<const char*>packet + head, size - head),
                      self.version, self.limits)

    # -- PUBLISH

    cdef object _publish(self, const uint8_t* packet, const uint8_t* at, const uint8_t* end):
        cdef Fields fields
        cdef int bit, reason
        self._fields(packet[0] & 15, at, end, &fields)
        self.messages += 1
        if fields.qos == 2:
            if self.received == NULL:
                self.received = <uint8_t*>calloc(1, RECEIVED_BYTES)
                if self.received == NULL:
                    raise MemoryError
            bit = 1 << (fields.packet_id & 7)
            if self.received[fields.packet_id >> 3] & bit:  # a repetition: it is in the log, or on its way there
                self._answer(None, 2, fields.packet_id, 0)
                return None
        if fields.qos:
            if self.version == 5 and self.unacked >= self.receive_max:
                raise Violation(RECEIVE_MAXIMUM_EXCEEDED, f"more than {self.receive_max} publishes unacknowledged")
            self.unacked += 1
            if fields.qos == 2:
                self.received[fields.packet_id >> 3] |= bit
                self.received_count += 1
        if fields.is_text and not is_utf8(fields.payload, fields.payload_size, True):
            if fields.qos == 0:
                raise Violation(PAYLOAD_FORMAT_INVALID, "the payload is not the UTF-8 that it claims to be")
            self._answer(None, fields.qos, fields.packet_id, PAYLOAD_FORMAT_INVALID)
            return None
        if fields.is_special or fields.topic[0] == 0x24:  # `$`
            return self._event(&fields)
        reason = self._route(&fields)
        if reason == 0:
            self._append(&fields)
        elif fields.qos and (self.version == 5 or reason == NOT_AUTHORIZED):
            self._answer(None, fields.qos, fields.packet_id, reason)
        elif reason != NOT_AUTHORIZED:  # there is no way to tell it: better a closed connection than a silent loss
            raise Violation(reason, "a publish was refused")
        return None

    cdef int _fields(self, int flags, const uint8_t* at, const uint8_t* end, Fields* fields) except -1:
        cdef Py_ssize_t size = 0
        cdef int digits
        fields.qos, fields.retain, fields.packet_id = (flags >> 1) & 3, flags & 1, 0
        fields.alias, fields.alias_at, fields.is_text, fields.is_special = 0, -1, 0, 0
        fields.properties, fields.properties_size = NULL, 0
        if fields.qos == 3 or (flags & 8 and fields.qos == 0):
            raise Violation(MALFORMED, f"PUBLISH with flags {flags:#06b}")
        if end - at < 2:
            raise Violation(MALFORMED, "PUBLISH ends inside its topic")
        fields.topic_size = get_u16(at)
        fields.topic = at + 2
        at += 2 + fields.topic_size
        if at > end or (fields.qos and end - at < 2):
            raise Violation(MALFORMED, "PUBLISH ends inside its topic")
        if fields.qos:
            fields.packet_id = get_u16(at)
            at += 2
            if fields.packet_id == 0:
                raise Violation(MALFORMED, "packet identifier 0")
        if self.version == 5:
            digits = get_length(at, end, &size)
            if digits <= 0 or size > end - at - digits:
                raise Violation(MALFORMED, "the property list does not fit its packet")
            at += digits
            if size:
                fields.properties, fields.properties_size = at, size
                self._properties(at, at + size, fields)
                at += size
        fields.payload, fields.payload_size = at, end - at
        if fields.alias_at >= 0 or fields.topic_size == 0:
            self._alias(fields)
        return 0

    cdef int _properties(self, const uint8_t* at, const uint8_t* end, Fields* fields) except -1:
        """Check a publish's properties where they stand; they are stored as they are."""
        cdef const uint8_t* start = at
        cdef uint64_t seen = 0
        cdef int identifier, pairs = 0, user_properties_max = self.limits.user_properties_max
        cdef Py_ssize_t size
        while at < end:
            identifier = at[0]
            if identifier != 38 and identifier < 64:
                if seen >> identifier & 1:
                    raise Violation(PROTOCOL_ERROR, f"property {identifier} stands twice")
                seen |= <uint64_t>1 << identifier
            at += 1
            if identifier == 1:
                if end - at < 1:
                    break
                if at[0] > 1:
                    raise Violation(PROTOCOL_ERROR, "Payload Format Indicator is neither 0 nor 1")
                fields.is_text = at[0]
                at += 1
            elif identifier == 2:
                if end - at < 4:
                    break
                at += 4
            elif identifier == 35:
                if end - at < 2:
                    break
                fields.alias_at = at - 1 - start
                fields.alias = get_u16(at)
                at += 2
            elif identifier == 3 or identifier == 8 or identifier == 9 or identifier == 38:
                if end - at < 2:
                    break
                size = get_u16(at)
                at += 2
                if size > end - at:
                    raise Violation(MALFORMED, "a property does not fit its list")
                if identifier != 9 and not is_utf8(at, size, False):
                    raise Violation(MALFORMED, f"property {identifier} is not UTF-8 without U+0000")
                if identifier == 8 and (size == 0 or memchr(at, 0x23, size) != NULL or memchr(at, 0x2B, size) != NULL):
                    raise Violation(PROTOCOL_ERROR, "Response Topic is empty or holds wildcards")
                if identifier == 38:
                    pairs += 1
                    if size > 3 and memcmp(at, <const char*>"ms-", 3) == 0:
                        fields.is_special = 1
                    at += size
                    if end - at < 2:
                        break
                    size = get_u16(at)
                    at += 2
                    if size > end - at or not is_utf8(at, size, False):
                        raise Violation(MALFORMED, "a user property's value is not UTF-8 inside its list")
                at += size
            elif identifier == 11:
                raise Violation(PROTOCOL_ERROR, "a client's PUBLISH with a Subscription Identifier")
            else:
                raise Violation(MALFORMED, f"property {identifier} in PUBLISH")
        else:
            if pairs > user_properties_max:
                raise Violation(QUOTA_EXCEEDED, f"{pairs} user properties, limit {user_properties_max}")
            return 0
        raise Violation(MALFORMED, "a property does not fit its list")

    cdef int _alias(self, Fields* fields) except -1:
        cdef bytes topic
        if fields.alias_at < 0:
            raise Violation(PROTOCOL_ERROR, "PUBLISH with neither topic nor alias")
        if fields.alias == 0 or fields.alias > self.alias_max:
            raise Violation(TOPIC_ALIAS_INVALID, f"topic alias {fields.alias}, maximum {self.alias_max}")
        if self.aliases is None:
            self.aliases = []
        while len(self.aliases) < fields.alias:
            self.aliases.append(None)
        if fields.topic_size:
            self.aliases[fields.alias - 1] = PyBytes_FromStringAndSize(<const char*>fields.topic, fields.topic_size)
            return 0
        topic = self.aliases[fields.alias - 1]
        if topic is None:
            raise Violation(PROTOCOL_ERROR, f"topic alias {fields.alias} was never set")
        fields.topic, fields.topic_size = <const uint8_t*>PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic)
        return 0

    cdef int _route(self, Fields* fields) except -1:
        """Find the route (`last_route`), or return the reason why there is none."""
        cdef Entry* entry
        if self.last_topic is not None and self.last_generation == self.routes.generation \
                and PyBytes_GET_SIZE(self.last_topic) == fields.topic_size \
                and memcmp(PyBytes_AS_STRING(self.last_topic), fields.topic, fields.topic_size) == 0:
            return 0 if fields.payload_size <= self.last_bytes_max else QUOTA_EXCEEDED
        entry = self.routes.find(fields.topic, fields.topic_size)
        if entry.route == NULL:
            return entry.reason
        self.last_topic = <bytes>entry.topic
        self.last_route = <Route>entry.route
        self.last_marks, self.last_bytes_max = entry.marks, entry.bytes_max
        self.last_generation = self.routes.generation
        return 0 if fields.payload_size <= self.last_bytes_max else QUOTA_EXCEEDED

    cdef int _append(self, Fields* fields) except -1:
        cdef Route route = self.last_route
        cdef Gather gather = route.gather(ORIGIN_MQTT)
        cdef int flags = fields.qos | FLAG_KEY_IS_TOPIC, header_count = 0, index
        cdef Py_ssize_t headers_size = 0, payload_size = fields.payload_size
        if fields.properties_size or self.last_marks or (fields.qos == 2 and self.durable):
            headers_size = self._headers(fields, &header_count)
        if fields.retain:
            flags |= FLAG_RETAIN
            if payload_size == 0:
                payload_size = -1  # nothing is retained any more, in every protocol's words
        index = gather.put_routed(route, fields.topic, fields.topic_size, fields.payload, payload_size,
                                  self.scratch, headers_size, header_count, self.time_ms, <uint8_t>flags)
        if fields.retain:
            self.retained.note(route, gather.ticket, index, payload_size > 0)
        if fields.qos:
            self._answer(gather.ticket, fields.qos, fields.packet_id, 0)
        return 0

    cdef Py_ssize_t _headers(self, Fields* fields, int* count) except -1:
        """Encode the record's headers into `scratch`: properties without the alias, QoS 2 identity, client."""
        cdef Py_ssize_t client_size = PyBytes_GET_SIZE(self.client_id)
        cdef Py_ssize_t size = fields.properties_size, front = size
        cdef uint8_t* at
        cdef const uint8_t* client = <const uint8_t*>PyBytes_AS_STRING(self.client_id)
        if self.scratch_capacity < size + 2 * client_size + 64:
            free(self.scratch)
            self.scratch_capacity = 0
            self.scratch = <uint8_t*>malloc(size + 2 * client_size + 64)
            if self.scratch == NULL:
                raise MemoryError
            self.scratch_capacity = size + 2 * client_size + 64
        at = self.scratch
        if fields.alias_at >= 0:
            front, size = fields.alias_at, size - 3
        if size:
            memcpy(at, <const char*>"\x0ems-mqtt", 8)
            at = put_varint(at + 8, zigzag(size))
            memcpy(at, fields.properties, front)
            if front < size:
                memcpy(at + front, fields.properties + front + 3, size - front)
            at += size
            count[0] += 1
        if fields.qos == 2 and self.durable:
            memcpy(at, <const char*>"\x0ems-qos2", 8)
            at = put_varint(at + 8, zigzag(client_size + 2))
            at[0], at[1] = <uint8_t>(fields.packet_id >> 8), <uint8_t>fields.packet_id
            memcpy(at + 2, client, client_size)
            at += 2 + client_size
            count[0] += 1
        if self.last_marks & MARK_CLIENT_WANTED:
            memcpy(at, <const char*>"\x12ms-client", 10)
            at = put_varint(at + 10, zigzag(client_size))
            memcpy(at, client, client_size)
            at += client_size
            count[0] += 1
        return at - self.scratch

    cdef object _event(self, Fields* fields):
        cdef bytes properties = PyBytes_FromStringAndSize(<const char*>fields.properties, fields.properties_size) \
            if fields.properties_size else b""
        if fields.alias_at >= 0:
            properties = properties[:fields.alias_at] + properties[fields.alias_at + 3:]
        return Publish(
            PyBytes_FromStringAndSize(<const char*>fields.topic, fields.topic_size),
            PyBytes_FromStringAndSize(<const char*>fields.payload, fields.payload_size),
            fields.qos, bool(fields.retain), fields.packet_id, properties,
        )

    # -- acks

    cdef int _ack(self, int kind, int flags, const uint8_t* at, Py_ssize_t size) except -1:
        cdef int packet_id, reason = 0, bit
        cdef Py_ssize_t list_size = 0
        cdef int digits
        if flags != (2 if kind == PUBREL else 0):
            raise Violation(MALFORMED, f"flags {flags:#06b} on an acknowledgement")
        if size < 2 or (self.version != 5 and size != 2):
            raise Violation(MALFORMED, f"an acknowledgement of {size} bytes")
        packet_id = get_u16(at)
        if packet_id == 0:
            raise Violation(MALFORMED, "packet identifier 0")
        if size > 2:
            reason = at[2]
        if size > 3:
            digits = get_length(at + 3, at + size, &list_size)
            if digits <= 0 or list_size != size - 3 - digits:
                raise Violation(MALFORMED, "the property list does not fit its packet")
        if kind != PUBREL:
            self.outbound.acknowledge(kind, packet_id, reason)
            return 0
        bit = 1 << (packet_id & 7)
        if self.received == NULL or not self.received[packet_id >> 3] & bit:
            if self.version == 5:
                self.outbound.write_ack(PUBCOMP << 4, packet_id, PACKET_ID_NOT_FOUND)
            elif self.waiting:  # it is being released: the first answer must not be overtaken
                self.completions.add(<uint32_t>(PUBCOMP << 28) | packet_id)
            else:
                self.outbound.write_ack(PUBCOMP << 4, packet_id, 0)
            return 0
        self.received[packet_id >> 3] &= ~bit
        self.received_count -= 1
        if self.durable:
            if self.completions is None:
                self.completions = AckRun(None)
            self.completions.add(<uint32_t>(PUBCOMP << 28) | packet_id)
            self.waiting = True
        else:
            self.unacked -= 1
            self.outbound.write_ack(PUBCOMP << 4, packet_id, 0)
        return 0

    def complete(self, Ticket ticket):
        """The PUBCOMPs of the releases since the last call leave when `ticket` is stable."""
        cdef AckRun run = self.completions
        self.completions = None
        self.waiting = False
        if run is not None:
            run.ticket = ticket
            self._queue(run)

    def answer(self, ticket, int qos, int packet_id, int reason=0):
        """Acknowledge a publish that came as an event, after `ticket` if there is one, in its turn."""
        if qos:
            self._answer(ticket, qos, packet_id, reason)

    cdef int _answer(self, Ticket ticket, int qos, int packet_id, int reason) except -1:
        cdef int kind = PUBACK if qos == 1 else PUBREC
        cdef AckRun run = self.last_run
        cdef bint fresh
        if qos == 2 and reason >= 0x80:
            self.received[packet_id >> 3] &= ~(1 << (packet_id & 7))
            self.received_count -= 1
        if ticket is None:
            if run is None:
                if qos == 1 or reason >= 0x80:
                    self.unacked -= 1
                self.outbound.write_ack(kind << 4, packet_id, reason)
                return 0
        elif run is None or run.ticket is not ticket:
            run = AckRun(ticket)
            run.add(<uint32_t>(kind << 28) | <uint32_t>(reason << 16) | packet_id)
            self._queue(run)
            return 0
        run.add(<uint32_t>(kind << 28) | <uint32_t>(reason << 16) | packet_id)
        return 0

    def _queue(self, AckRun run):
        if self.runs is None:
            self.runs = deque()
        self.runs.append(run)
        self.last_run = run
        run.ticket.wait(self)

    def released(self, Ticket ticket):
        """A ticket was released: send the acks at the front whose tickets are, in publish order."""
        cdef AckRun run
        while self.runs:
            run = self.runs[0]
            if not run.ticket.stable and run.ticket.error is None:
                return
            self.runs.popleft()
            if run is self.last_run:
                self.last_run = None
            self._send(run)

    cdef int _send(self, AckRun run) except -1:
        cdef int n, packet_id, kind, reason
        cdef bint failed = run.ticket.error is not None
        if failed and self.version != 5:
            self.outbound.fail(run.ticket.error)
            return 0
        for n in range(run.count):
            packet_id = run.acks[n] & 0xFFFF
            kind = run.acks[n] >> 28
            reason = run.acks[n] >> 16 & 0xFF
            if failed and kind != PUBCOMP:
                reason = QUOTA_EXCEEDED
                if kind == PUBREC and self.received[packet_id >> 3] & (1 << (packet_id & 7)):
                    self.received[packet_id >> 3] &= ~(1 << (packet_id & 7))
                    self.received_count -= 1
            if kind != PUBREC or reason >= 0x80:
                self.unacked -= 1
            self.outbound.write_ack(kind << 4, packet_id, reason if self.version == 5 else 0)
        return 0

    # -- QoS 2 identifiers, for the session that keeps them

    def received_ids(self, bint stable=False):
        """Packet identifiers between PUBLISH and PUBREL, ascending; `stable`: only those whose records are."""
        cdef int n, byte
        cdef AckRun run
        if self.received == NULL or self.received_count == 0:
            return []
        found = [byte * 8 + n for byte in range(RECEIVED_BYTES) if self.received[byte]
                 for n in range(8) if self.received[byte] & (1 << n)]
        if stable and self.runs:
            unstable = set()
            for run in self.runs:
                for n in range(run.count):
                    if run.acks[n] >> 28 == PUBREC:
                        unstable.add(run.acks[n] & 0xFFFF)
            found = [packet_id for packet_id in found if packet_id not in unstable]
        return found

    def released_ids(self):
        """Packet identifiers whose PUBREL came since the last `complete`."""
        cdef int n
        if self.completions is None:
            return []
        return [self.completions.acks[n] & 0xFFFF for n in range(self.completions.count)]

    def restore_received(self, ids):
        """A session goes on: these were received and not yet released."""
        cdef int n
        if self.received == NULL:
            self.received = <uint8_t*>calloc(1, RECEIVED_BYTES)
            if self.received == NULL:
                raise MemoryError
        for n in ids:
            if not self.received[n >> 3] & (1 << (n & 7)):
                self.received[n >> 3] |= 1 << (n & 7)
                self.received_count += 1
                self.unacked += 1
