# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The incoming half of an MQTT connection. See `wire.py`; the plain `tests/oracles/mqtt_wire.py` says the same.

`_publish.pyx` reads one PUBLISH, `_receipts.pyx` keeps what is owed to the publisher; here bytes become packets, and
publishes records.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from mainstem.broker.delivery._live cimport Route
from mainstem.codec._batch cimport get_u16, put_varint, zigzag
from mainstem.codec._large_memory cimport memory_taken, release
from mainstem.codec._large_record cimport Bulk
from mainstem.log._gather cimport Gather
from mainstem.protocols.mqtt.outgoing._outbound cimport Outbound
from mainstem.protocols.mqtt.wire._codes cimport (
    AUTH,
    CONNECT,
    DISCONNECT,
    MALFORMED,
    NOT_AUTHORIZED,
    PACKET_TOO_LARGE,
    PAYLOAD_FORMAT_INVALID,
    PROTOCOL_ERROR,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    QUOTA_EXCEEDED,
    RECEIVE_MAXIMUM_EXCEEDED,
    TOPIC_ALIAS_INVALID,
)
from mainstem.protocols.mqtt.wire._fields cimport get_length, is_utf8
from mainstem.protocols.mqtt.wire._publish cimport Fields, read_publish
from mainstem.protocols.mqtt.wire._receipts cimport Receipts
from mainstem.protocols._routes cimport Entry
from mainstem.protocols._tail cimport keep_tail

from mainstem.codec.large_record import LARGE_BYTES, LargeRecord
from mainstem.log.large import takes_large
from mainstem.protocols.connection import LOOP_READ_BYTES
from mainstem.protocols.mqtt.wire.packets import LargePublish, Pause, Publish, decode
from mainstem.protocols.mqtt.wire.reasons import Violation

cdef enum:
    ORIGIN_MQTT = 1
    FLAG_RETAIN = 4
    FLAG_KEY_IS_TOPIC = 8
    MARK_CLIENT_WANTED = 1
    MARK_CHECKED = 2
    MARK_LIVE = 4
    TAIL_BYTES_KEPT = 4096  # as `unfinished.NOTED_MIN`
    NEW_TOPICS_NS = 1000000  # with topics that are new to the broker, in one turn of a connection's
    NEW_TOPICS_MIN = 8  # however long they take
    VERSION_5 = 5


cdef Py_ssize_t LARGE = LARGE_BYTES

PAUSE = Pause()


cdef class Inbound(Receipts):
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
        release(self.tail, self.tail_capacity, False)
        free(self.scratch)

    # -- bytes to packets

    def receive(self, bytes data):
        """Bytes from the peer; then call `next` until it returns None."""
        if self.base != NULL and self.at < self.size:
            data = PyBytes_FromStringAndSize(<const char*>self.base + self.at, self.size - self.at) + data
        self.data = data
        self.base, self.at, self.size = <const uint8_t*>PyBytes_AS_STRING(data), 0, PyBytes_GET_SIZE(data)
        self.foreseen = 0

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
        self.foreseen = 0
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
            self.foreseen = 0
            self.data = PyBytes_FromStringAndSize(<const char*>self.base + self.at, self.size - self.at)
            self.base, self.at, self.size = <const uint8_t*>PyBytes_AS_STRING(self.data), 0, self.size - self.at
        return 0

    def data_received(self, bytes data):
        """The connection's: what needs no decision is done here, the rest is handed to it."""
        connection = self.connection
        if connection is not None and not connection.closing:
            self._receive(connection, data)
            if PyBytes_GET_SIZE(data) >= LOOP_READ_BYTES:
                connection.wait_for_turn()

    def _receive(self, connection, bytes data):
        cdef object server = self.server, event
        cdef uint64_t before = self.messages
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
        self.refused = 0
        try:
            return self._packets()
        finally:
            if self.refused > REFUSALS_NAMED and self.connection is not None:
                self.connection.refused_publish(None, self.refused - REFUSALS_NAMED)

    cdef object _packets(self):
        cdef const uint8_t* at
        cdef Py_ssize_t available, size = 0, total
        cdef int digits
        cdef object event
        cdef int64_t until_ns = self.routes.spent_ns + NEW_TOPICS_NS if self.routes is not None else 0
        cdef uint64_t known = self.routes.resolved if self.routes is not None else 0
        while self.base != NULL:
            if self.tail_size:
                if not self._fill_tail():
                    self.data, self.base = None, NULL
                    self._note()
                    return None
                digits = get_length(self.tail + 1, self.tail + self.tail_size, &size)
                total, self.tail_size = self.tail_size, 0
                self.hash = 0
                event = self._packet(self.tail, 1 + digits, total)
                if self.tail_capacity > TAIL_BYTES_KEPT and self.tail_size == 0:
                    release(self.tail, self.tail_capacity, True)
                    self.tail, self.tail_capacity = NULL, 0
                if self.noted:
                    self._note()
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
                self.tail_need = total if digits else 0
                self._keep(at, available)
                self.data, self.base = None, NULL
                self._note()
                return None
            self.hash = self._foresee() if self.roams or self.foreseen else 0
            self.at += total  # before, so that whatever happens below goes on behind this packet
            event = self._packet(at, 1 + digits, total)
            if event is not None:
                return event
            if self.routes is not None and self.routes.spent_ns > until_ns and self.at < self.size and \
                    self.routes.resolved - known >= NEW_TOPICS_MIN:
                return PAUSE
        return None

    cdef uint64_t _foresee(self) noexcept:
        """The hash of this packet's topic; those of the next few are taken, too, and what they need fetched meanwhile."""
        cdef const uint8_t* end = self.base + self.size
        cdef const uint8_t* at
        cdef Py_ssize_t size = 0, topic_size
        cdef uint64_t hash
        cdef int digits
        if self.foreseen == 0:
            self.scout = self.at
        while self.roams and self.foreseen < AHEAD:
            at = self.base + self.scout
            digits = 0 if end - at < 4 else get_length(at + 1, end, &size)
            if digits <= 0 or size > end - at - 1 - digits:
                break
            hash = 0
            if at[0] >> 4 == PUBLISH and size >= 2:
                topic_size = get_u16(at + 1 + digits)
                if 0 < topic_size <= size - 2:
                    hash = self.routes.foresee(at + 3 + digits, topic_size)
            self.hashes[(self.hashes_at + self.foreseen) % AHEAD] = hash
            self.foreseen += 1
            self.scout += 1 + digits + size
        if self.foreseen == 0:
            return 0
        hash = self.hashes[self.hashes_at]
        self.hashes_at = (self.hashes_at + 1) % AHEAD
        self.foreseen -= 1
        return hash

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

    cdef int _note(self) except -1:
        """Large packets that are not whole count against what all connections may keep of such."""
        cdef Py_ssize_t kept = memory_taken(self.tail, self.tail_capacity, self.tail_size)
        if kept <= TAIL_BYTES_KEPT:
            kept = 0
        if kept != self.noted:
            self.noted = kept
            if self.connection is not None and self.server is not None:
                self.server.unfinished.note(self.connection, kept)
        return 0

    def forget(self):
        """The peer is gone: what it left unfinished is not waited for."""
        self.data, self.base, self.connection = None, NULL, None
        release(self.tail, self.tail_capacity, False)
        self.tail, self.tail_size, self.tail_capacity = NULL, 0, 0

    cdef int _keep(self, const uint8_t* at, Py_ssize_t size) except -1:
        return keep_tail(&self.tail, &self.tail_size, &self.tail_capacity, at, size, self.tail_need)

    cdef object _packet(self, const uint8_t* packet, Py_ssize_t head, Py_ssize_t size):
        cdef int kind = packet[0] >> 4, flags = packet[0] & 15
        if self.authenticating:
            if kind != AUTH and kind != DISCONNECT:
                raise Violation(PROTOCOL_ERROR, "neither AUTH nor DISCONNECT before CONNACK")
        elif self.version == 0:
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
                      VERSION_5 if self.authenticating else self.version, self.limits)

    # -- PUBLISH

    cdef object _publish(self, const uint8_t* packet, const uint8_t* at, const uint8_t* end):
        cdef Fields fields
        cdef int reason
        read_publish(self.version, self.limits, packet[0] & 15, at, end, &fields)
        if fields.alias_at >= 0 or fields.topic_size == 0:
            self._alias(&fields)
        self.messages += 1
        if fields.qos == 2:
            self._begin_received()
            if self.received[fields.packet_id >> 3] & (1 << (fields.packet_id & 7)):
                # A repetition: it is in the log, or on its way there.
                self._answer(None, 2, fields.packet_id, 0)
                return None
        if fields.qos:
            if self.version == 5 and self.unacked >= self.receive_max:
                raise Violation(RECEIVE_MAXIMUM_EXCEEDED, f"more than {self.receive_max} publishes unacknowledged")
            self.unacked += 1
        if fields.is_text and not is_utf8(fields.payload, fields.payload_size, True):
            if fields.qos == 0:
                raise Violation(PAYLOAD_FORMAT_INVALID, "the payload is not the UTF-8 that it claims to be")
            self._answer(None, fields.qos, fields.packet_id, PAYLOAD_FORMAT_INVALID)
            return None
        if fields.is_special or fields.topic[0] == 0x24:  # `$`
            return self._event(&fields)
        reason = self._route(&fields)
        if reason == 0 and fields.retain and fields.payload_size and self.retained.full:
            reason = QUOTA_EXCEEDED
        if reason == 0 and self.last_marks & MARK_CHECKED and not self._fits(&fields):
            return self._event(&fields)  # whoever can say why
        if reason == 0 and self.last_marks & MARK_LIVE and (fields.qos or fields.retain):
            return self._event(&fields)
        if reason == 0 and fields.payload_size >= LARGE and packet == self.tail and not fields.retain \
                and takes_large(self.last_route.log):
            return self._large(&fields)
        if reason == 0:
            self._append(&fields)
            return None
        if reason == NOT_AUTHORIZED and self.connection is not None:
            self.refused += 1
            if self.refused <= REFUSALS_NAMED:
                self.connection.refused_publish(PyBytes_FromStringAndSize(<const char*>fields.topic, fields.topic_size))
        if fields.qos and (self.version == 5 or reason == NOT_AUTHORIZED):
            self._answer(None, fields.qos, fields.packet_id, reason)
        elif reason != NOT_AUTHORIZED:  # there is no way to tell it: better a closed connection than a silent loss
            raise Violation(reason, "a publish was refused")
        return None

    cdef bint _fits(self, Fields* fields) except -1:
        """Whether the payload is one that the topic's schema accepts."""
        return self.last_route.namespace.record_rules.allows(
            self.last_topic, PyBytes_FromStringAndSize(<const char*>fields.payload, fields.payload_size))

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
            self.roams = False
            return 0 if fields.payload_size <= self.last_bytes_max else QUOTA_EXCEEDED
        self.roams = True
        entry = self.routes.find(fields.topic, fields.topic_size, self.hash)
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
        if fields.properties_size or self.last_marks & MARK_CLIENT_WANTED or fields.retain or (fields.qos == 2 and self.durable):
            headers_size = self._headers(fields, &header_count)
        if fields.retain:
            flags |= FLAG_RETAIN
            if payload_size == 0:
                payload_size = -1  # nothing is retained any more, in every protocol's words
        index = gather.put_routed(route, fields.topic, fields.topic_size, fields.payload, payload_size,
                                  self.scratch, headers_size, header_count, self.time_ms, <uint8_t>flags)
        if fields.retain:
            self.retained.note(route, gather.ticket, index, payload_size > 0, fields.payload_size)
        if fields.qos:
            self._answer(gather.ticket, fields.qos, fields.packet_id, 0)
        return 0

    cdef object _large(self, Fields* fields):
        """Its payload stays in the memory that it was received into, which is no longer ours."""
        cdef int header_count = 0
        cdef Py_ssize_t headers_size = self._headers(fields, &header_count)
        cdef Bulk payload = Bulk.adopt(
            self.tail, self.tail_capacity, fields.payload - self.tail, fields.payload_size)
        self.tail, self.tail_capacity = NULL, 0
        record = LargeRecord(
            self.last_topic, payload, PyBytes_FromStringAndSize(<const char*>self.scratch, headers_size), header_count,
            self.time_ms, fields.qos | FLAG_KEY_IS_TOPIC)
        return LargePublish(record, self.last_topic, fields.qos, fields.packet_id)

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
        if self.last_marks & MARK_CLIENT_WANTED or fields.retain:  # a retained one may meet No Local later
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
