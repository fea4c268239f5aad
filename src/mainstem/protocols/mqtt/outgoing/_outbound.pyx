# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The outgoing half of an MQTT connection. See `outbound.py`; the plain `tests/oracles/mqtt_outbound.py` says the same."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.ref cimport Py_XDECREF, PyObject
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy, memset

from mainstem.broker.delivery._live cimport RecordRef, Sink
from mainstem.codec._batch cimport put_u16
from mainstem.protocols._lent cimport lend
from mainstem.protocols._reactor cimport SocketTransport
from mainstem.protocols.mqtt.outgoing._encoder cimport Encoder, Grant
from mainstem.protocols.mqtt.wire._codes cimport (
    PACKET_ID_NOT_FOUND, PROTOCOL_ERROR, PUBACK, PUBCOMP, PUBREC, PUBREL, SUCCESS,
)
from mainstem.protocols.mqtt.wire._fields cimport get_length, length_size, put_length

from mainstem.protocols.mqtt.wire.packets import encode_refusal
from mainstem.protocols.mqtt.wire.reasons import Violation

cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject** bytes, Py_ssize_t newsize) except -1
    PyObject* NEW_BYTES "PyBytes_FromStringAndSize" (const char* v, Py_ssize_t len) except NULL
    char* BYTES_AT "PyBytes_AS_STRING" (PyObject* string)

cdef enum:
    OUT_BYTES_MAX = 1 << 20
    OUT_BYTES_MIN = 512
    OUT_BYTES_EXPECTED_MAX = 1 << 18
    CROWDED_BYTES = 64 << 20  # in the buffers of all connections: then they are flushed before more is delivered
    CROWDED_BYTES_TIGHT = 16 << 20  # where twice as much is, delivery did not wait: those are flushed early that have
    EARLY_BYTES = 32 << 10  # so much, in turn: twice as fast as more comes, not all of thousands by one record
    EARLY_SAVED_MAX = 4 << 20
    ALIAS_TOPIC_MIN = 4  # an alias costs three bytes
    LENT_BYTES_MIN = 1 << 18  # a payload so large is sent from where it lies
    ORIGIN_MQTT = 1
    ORIGIN_KAFKA = 2
    FLAG_RETAIN = 4

cdef Py_ssize_t _gathered_bytes = 0  # in the buffers of all connections
cdef Py_ssize_t _early_saved = 0  # bytes that may be flushed early by now
cdef bint _tight = False


def set_tight(bint tight):
    """Clients left so much unread that no connection may gather a whole tick's packets before it finds out whether its
    peer takes them."""
    global _tight
    _tight = tight


cdef inline Py_ssize_t crowded_bytes() noexcept:
    return CROWDED_BYTES_TIGHT if _tight else CROWDED_BYTES


def is_crowded():
    """So much waits to be flushed that nothing more should be delivered before."""
    return _gathered_bytes > crowded_bytes()


cdef class Outbound(Sink):
    """Records out as PUBLISH packets, with the state of those that are not acknowledged yet."""

    def __init__(self, namespace, Encoder encoder, ticker):
        super().__init__(namespace)
        self.takes_unstored = True
        self.encoder = encoder
        self.ticker = ticker
        self.version = 4
        self.packet_bytes_max = 268_435_460
        self.window = SLOTS_MAX - 1
        self.client_id = b""

    def __dealloc__(self):
        self._count(0)
        Py_XDECREF(self.chunk)
        free(self.slots)

    # -- the output buffer: a bytes object written in place and handed to the transport, so that nothing is copied twice

    cdef void _count(self, Py_ssize_t capacity) noexcept:
        global _gathered_bytes
        _gathered_bytes += capacity - self.out_capacity
        self.out_capacity = capacity

    cdef uint8_t* _reserve(self, Py_ssize_t size) except NULL:
        cdef Py_ssize_t capacity
        if self.out_size + size > self.out_capacity:
            capacity = self.out_capacity if self.out_capacity else OUT_BYTES_MIN
            while capacity < self.out_size + size or (self.chunk == NULL and capacity < self.out_expected):
                capacity *= 2
            if self.chunk == NULL:
                self.chunk = NEW_BYTES(NULL, capacity)
            else:
                _PyBytes_Resize(&self.chunk, capacity)
            self._count(capacity)
            self.out = <uint8_t*>BYTES_AT(self.chunk)
        if not self.dirty:
            self._mark()
        return self.out + self.out_size

    cdef int _mark(self) except -1:
        self.dirty = True
        self.ticker.mark_dirty(self)
        return 0

    def flush(self):
        """One write of all that was collected; the ticker calls it."""
        cdef Py_ssize_t done
        if self.out_size == 0 or self.transport is None:
            self.take()
            return
        self.bytes_sent += self.out_size
        if type(self.transport) is not SocketTransport:
            self.transport.write(self.take())
            self.connection.note_unsent()
            return
        done = (<SocketTransport>self.transport).push(self.out, self.out_size)
        if done < self.out_size:
            (<SocketTransport>self.transport).keep(self.take(), done)
            return
        self.dirty = False
        if self.out_capacity > OUT_BYTES_MIN:  # the smallest is kept for the next packet
            self.out_expected = min(self.out_size, OUT_BYTES_EXPECTED_MAX)
            Py_XDECREF(self.chunk)
            self.chunk, self.out = NULL, NULL
            self._count(0)
        self.out_size = 0

    def take(self):
        """All that was collected, as bytes; the buffer is empty again."""
        cdef PyObject* chunk = self.chunk
        self.dirty = False
        if self.out_size == 0:
            return b""
        self.chunk, self.out = NULL, NULL
        self.out_expected = min(self.out_size, OUT_BYTES_EXPECTED_MAX)
        _PyBytes_Resize(&chunk, self.out_size)
        self.out_size = 0
        self._count(0)
        cdef object data = <object>chunk
        Py_XDECREF(chunk)
        return data

    def write(self, bytes data):
        """A packet made elsewhere."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        if size:
            memcpy(self._reserve(size), PyBytes_AS_STRING(data), size)
            self.out_size += size

    cdef int write_ack(self, int first, int packet_id, int reason) except -1:
        cdef uint8_t* at
        if reason >= 0x80 and self.explains and first < PUBREL << 4:
            self.write(encode_refusal(first >> 4, packet_id, reason, self.packet_bytes_max))
            return 0
        at = self._reserve(5)
        at[0], at[1] = <uint8_t>first, 2
        put_u16(at + 2, packet_id)
        self.out_size += 4
        if reason and self.version == 5:
            at[1], at[4] = 3, <uint8_t>reason
            self.out_size += 1
        return 0

    def fail(self, error):
        self.connection.fail(error)

    # -- deliveries

    cpdef bint push(self, RecordRef record, object options) except -1:
        cdef Grant grant = options
        cdef int qos = 1 if record.origin == ORIGIN_KAFKA else record.flags & 3
        if grant.no_local and self._is_own(record):
            grant = grant.own
            if grant is None:
                return True
        if self.allows is not None and not self.allows(record.topic):
            if grant.packet_id and self._waits(grant.packet_id, record.stamp):
                self._give_up(grant.packet_id)
            return True
        if qos > grant.qos:
            qos = grant.qos
        return self._send(record, grant, qos, grant.retain_as_published and record.flags & FLAG_RETAIN
                          and record.origin != ORIGIN_KAFKA, None)

    cpdef bint push_unstored(self, RecordRef record, object options) except -1:
        """QoS 0, to whoever is there and has room."""
        if self.transport is None:
            return False
        if self._has_no_room(0):
            self.dropped += 1
            return False
        return self.push(record, options)

    def offer(self, RecordRef record, Grant grant, bint retain=False, source=None):
        """A record that no route brings: a retained one, or one of a queue (`source.settle` is told its end)."""
        cdef int qos = 1 if record.origin == ORIGIN_KAFKA else record.flags & 3
        if grant.no_local and source is None and self._is_own(record):
            return True
        if qos > grant.qos or source is not None:
            qos = grant.qos
        return self._send(record, grant, qos, retain, source)

    cpdef object choose(self, RecordRef record):
        return self.session.choose(record)

    cpdef bint may_drop(self, object options) except -1:
        cdef Grant grant = options
        return grant.qos == 0 and not grant.no_local and grant.packet_id == 0

    def merge(self, list options):
        return Grant.merged(options)

    cdef bint _is_own(self, RecordRef record) noexcept:
        cdef const uint8_t* client = NULL
        cdef Py_ssize_t size = 0
        if record.origin != ORIGIN_MQTT or not record.find_header("ms-client", 9, &client, &size):
            return False
        return size == PyBytes_GET_SIZE(self.client_id) and \
            memcmp(client, PyBytes_AS_STRING(self.client_id), size) == 0

    cdef bint _has_no_room(self, int qos) noexcept:
        return self.blocked or self.out_size >= OUT_BYTES_MAX or (qos > 0 and self.inflight >= self.window)

    @property
    def room(self):
        """Whether a delivery that must not be lost can be taken now."""
        self._flush_full()
        return not self._has_no_room(1)

    cdef int _flush_full(self) except -1:
        """What is collected leaves now, if it is all that is in the way: a socket that takes it all never says that it has
        room again, because it never said that it had none."""
        if self.out_size >= OUT_BYTES_MAX and not self.blocked:
            self.flush()
        return 0

    cdef int _flush_early(self, Py_ssize_t coming) except -1:
        global _early_saved
        _early_saved = min(_early_saved + 2 * max(coming, 64), EARLY_SAVED_MAX)
        if self.out_size >= EARLY_BYTES and self.out_size <= _early_saved:
            _early_saved -= self.out_size
            self.flush()
        return 0

    cdef bint _send(self, RecordRef record, Grant grant, int qos, bint retain, object source) except -1:
        cdef int packet_id = grant.packet_id, flags = qos << 1 | retain
        cdef Py_ssize_t size, before
        cdef bint held = self.held is not None or self.holding > 0 or (qos == 2 and self.durable and packet_id == 0)
        if packet_id and not self._waits(packet_id, record.stamp):
            return True
        self.encoder.load(record)
        if self.encoder.expired:
            if packet_id:
                self._give_up(packet_id)
            return True
        if _gathered_bytes > 2 * crowded_bytes():
            self._flush_early(record.value_len)
        if packet_id:  # sent before, on a connection that is gone
            if self._has_no_room(0) or self.inflight - self.unsent >= self.window:
                return False
            before = self.out_size
            if self._emit(record, grant, flags | 8, packet_id, False, not held) == 0:  # the client takes less than it did
                self._give_up(packet_id)
                return True
            self._note_sent(packet_id)
            self.messages += 1
            if held:
                self._hold(before)
            return True
        self._flush_full()
        if self._has_no_room(qos):
            if qos == 0 and self.live:
                self.dropped += 1
                return True
            return False
        if qos == 0:
            if not held and not retain and not grant.identifiers and not grant.meta and self.alias_max == 0 \
                    and record.value_len < LENT_BYTES_MIN:
                self.messages += self._copy_cached(record)
                return True
        else:
            packet_id = self._next_id()
        before = self.out_size
        size = self._emit(record, grant, flags, packet_id, self.alias_max > 0 and not held, not held)
        if size == 0:  # larger than the client takes: it counts as delivered
            return True
        self.messages += 1
        if qos:
            self.inflight += 1
            self.last_id = packet_id
            self.slots[packet_id].stamp = record.stamp
            self.slots[packet_id].state = AWAIT_PUBACK if qos == 1 else AWAIT_PUBREC
            self.slots[packet_id].sourced = source is not None
            self.slots[packet_id].unsent = 0
            if self.durable and qos == 1 and source is None:
                self._note_begun(packet_id)
            if source is not None:
                if self.sources is None:
                    self.sources = {}
                self.sources[packet_id] = source
        if held:
            self._hold(before)
            if qos == 2 and self.durable:
                self.assigned.append((packet_id, record.stamp))
        return True

    def _hold(self, Py_ssize_t before):
        """A QoS 2 publish to a session that outlives us leaves when its identifier is journaled; what follows, after it."""
        if self.held is None:
            self.assigned = []
            self.held = bytearray()
            self.session.note_held()
        self.held += self.out[before:self.out_size]
        self.out_size = before

    def take_held(self):
        """(new packet identifiers with their stamps, packets) since the last call; `write_held` once that is durable."""
        if self.held is None:
            return [], b""
        assigned, held = self.assigned, bytes(self.held)
        self.assigned = self.held = None
        self.holding += 1
        return assigned, held

    def take_assigned(self):
        """New packet identifiers with their stamps, ahead of their packets, which `take_held` still gives."""
        if not self.assigned:
            return []
        assigned, self.assigned = self.assigned, []
        return assigned

    def write_held(self, bytes packets):
        self.holding -= 1
        self.write(packets)

    cdef int _next_id(self) except -1:
        cdef int packet_id = self.last_id
        if self.inflight + 2 > self.slots_capacity and self.slots_capacity < SLOTS_MAX:
            self._grow_to(self.slots_capacity)
        while True:  # ends: fewer are in flight than there are slots
            packet_id += 1
            if packet_id >= self.slots_capacity:
                packet_id = 1
            if self.slots[packet_id].state == FREE:
                return packet_id

    cdef int _copy_cached(self, RecordRef record) except -1:
        """A QoS 0 packet without anything of this subscriber's own is made once and copied."""
        cdef Encoder encoder = self.encoder
        cdef int n = self.version == 5
        cdef Py_ssize_t before = self.out_size, size
        cdef uint8_t* grown
        if encoder.packet_sizes[n] <= 0:
            size = self._emit(record, None, 0, 0, False, False)
            if size == 0:
                return 0
            if encoder.packet_sizes[n] == 0:  # a second subscriber must want it before a copy pays
                encoder.packet_sizes[n] = -1
                return 1
            if encoder.packet_capacities[n] < size:
                grown = <uint8_t*>realloc(encoder.packets[n], size * 2)
                if grown == NULL:
                    raise MemoryError
                encoder.packets[n], encoder.packet_capacities[n] = grown, size * 2
            memcpy(encoder.packets[n], self.out + before, size)
            encoder.packet_sizes[n] = size
            return 1
        size = encoder.packet_sizes[n]
        if size > self.packet_bytes_max:
            return 0
        memcpy(self._reserve(size), encoder.packets[n], size)
        self.out_size += size
        return 1

    cdef Py_ssize_t _emit(self, RecordRef record, Grant grant, int flags, int packet_id, bint aliased,
                          bint may_lend) except -1:
        """Append one PUBLISH; returns its size, 0 if the client would not take a packet so large."""
        cdef bint lent = may_lend and record.value_len >= LENT_BYTES_MIN and record.owner is not None \
            and type(self.transport) is SocketTransport
        cdef Encoder encoder = self.encoder
        cdef bytes topic = record.topic, identifiers = b"", meta = b""
        cdef Py_ssize_t topic_size = PyBytes_GET_SIZE(topic), size, list_size = 0
        cdef Py_ssize_t payload_size = record.value_len if record.value_len > 0 else 0
        cdef int alias = 0
        cdef bint alias_known = False
        cdef uint8_t* start
        cdef uint8_t* at
        size = 2 + topic_size + payload_size + (2 if packet_id else 0)
        if self.version == 5:
            if grant is not None:
                identifiers = grant.identifiers
                if grant.meta:
                    meta = self.encoder.describe(record)
            if aliased and topic_size >= ALIAS_TOPIC_MIN:
                alias = self._alias(topic)
                alias_known = alias > 0
                if alias < 0:
                    alias = -alias
            list_size = encoder.properties_size + len(identifiers) + len(meta) + (3 if alias else 0)
            size += list_size + length_size(list_size) - (topic_size if alias_known else 0)
        if size + 1 + length_size(size) > self.packet_bytes_max:
            self.dropped += 1
            return 0
        if alias and not alias_known:
            self.aliases[topic] = alias
        start = at = self._reserve(size + 5 - (payload_size if lent else 0))
        at[0] = <uint8_t>(0x30 | flags)
        at = put_length(at + 1, size)
        if alias_known:
            topic_size = 0
        put_u16(at, topic_size)
        memcpy(at + 2, PyBytes_AS_STRING(topic), topic_size)
        at += 2 + topic_size
        if packet_id:
            put_u16(at, packet_id)
            at += 2
        if self.version == 5:
            at = put_length(at, list_size)
            if encoder.properties_size:
                memcpy(at, encoder.properties, encoder.properties_size)
                at += encoder.properties_size
            if alias:
                at[0] = 35
                put_u16(at + 1, alias)
                at += 3
            if identifiers:
                memcpy(at, PyBytes_AS_STRING(identifiers), PyBytes_GET_SIZE(identifiers))
                at += PyBytes_GET_SIZE(identifiers)
            if meta:
                memcpy(at, PyBytes_AS_STRING(meta), PyBytes_GET_SIZE(meta))
                at += PyBytes_GET_SIZE(meta)
        if payload_size and not lent:
            memcpy(at, record.value_at, payload_size)
            at += payload_size
        self.out_size += at - start
        if lent:
            self.flush()  # which may move what was written here; the payload follows it
            self.bytes_sent += payload_size
            (<SocketTransport>self.transport).keep_all([lend(record.owner, record.value_at, payload_size)])
            return size
        return at - start

    def _alias(self, bytes topic):
        """The topic's alias; negative: it is new and must be sent with the topic; 0: all are taken."""
        if self.aliases is None:
            self.aliases = {}
        found = self.aliases.get(topic)
        if found is not None:
            return found
        return -(len(self.aliases) + 1) if len(self.aliases) < self.alias_max else 0

    # -- acknowledgements from the client

    cdef int acknowledge(self, int kind, int packet_id, int reason) except -1:
        cdef int state = self.slots[packet_id].state if packet_id < self.slots_capacity else FREE
        if kind == PUBACK:
            if state == AWAIT_PUBACK:
                self._free(packet_id, reason)
            elif state != FREE:
                self._wrong_kind("PUBACK", packet_id)
        elif kind == PUBCOMP:
            if state == AWAIT_PUBCOMP:
                self._free(packet_id, SUCCESS)
            elif state != FREE:
                self._wrong_kind("PUBCOMP", packet_id)
        elif state == AWAIT_PUBACK:
            self._wrong_kind("PUBREC", packet_id)
        elif state == AWAIT_PUBREC and reason >= 0x80:
            self._free(packet_id, reason)
        elif state == AWAIT_PUBREC and self.durable:
            self.slots[packet_id].state = AWAIT_PUBCOMP
            if self.recorded is None:
                self.recorded = []
                self.session.note_recorded()
            self.recorded.append(packet_id)
        elif state == AWAIT_PUBREC or state == AWAIT_PUBCOMP:
            self.slots[packet_id].state = AWAIT_PUBCOMP
            self.write_ack(PUBREL << 4 | 2, packet_id, 0)
        else:
            self.write_ack(PUBREL << 4 | 2, packet_id, PACKET_ID_NOT_FOUND)
        return 0

    def _wrong_kind(self, kind, int packet_id):
        raise Violation(PROTOCOL_ERROR, f"{kind} for packet identifier {packet_id}, whose publish waits for another answer")

    def take_recorded(self):
        """Packet identifiers whose PUBREC came since the last call: send their PUBREL (`release`) once that is durable."""
        recorded, self.recorded = self.recorded or [], None
        return recorded

    def release(self, packet_ids):
        for packet_id in packet_ids:
            self.write_ack(PUBREL << 4 | 2, packet_id, 0)

    cdef bint _waits(self, int packet_id, int64_t stamp) noexcept:
        """Whether this is still to be sent again: some clients acknowledge what they got before the connection broke."""
        return self.slots[packet_id].stamp == stamp and FREE < self.slots[packet_id].state < AWAIT_PUBCOMP

    cdef void _note_sent(self, int packet_id) noexcept:
        if self.slots[packet_id].unsent:
            self.slots[packet_id].unsent = 0
            self.unsent -= 1

    cdef int _free(self, int packet_id, int reason) except -1:
        cdef Slot* slot = &self.slots[packet_id]
        self._note_sent(packet_id)
        if self.durable and not slot.sourced:
            self._note_ended(packet_id)
        slot.state = FREE
        self.inflight -= 1
        self.progress = True
        if slot.sourced:
            slot.sourced = 0
            self.sources.pop(packet_id).settle(reason)
        return 0

    cdef int _give_up(self, int packet_id) except -1:
        """It cannot be sent again. With QoS 2 its client may hold the identifier and take what comes next under it for a
        repetition: so it is told to let go, and the identifier is free when it has."""
        if self.slots[packet_id].state == AWAIT_PUBREC:
            self._note_sent(packet_id)
            self.slots[packet_id].state = AWAIT_PUBCOMP
            self.write_ack(PUBREL << 4 | 2, packet_id, 0)
        elif self.slots[packet_id].state == AWAIT_PUBACK:
            self._free(packet_id, SUCCESS)
        return 0

    def forget(self, int packet_id):
        """What was in flight under this identifier cannot be sent again: it is gone from the log."""
        if packet_id < self.slots_capacity and self.slots[packet_id].state != FREE:
            self._give_up(packet_id)

    # -- what a session keeps of this

    cdef int _note_begun(self, int packet_id) except -1:
        """1: it was free at the last look; 2: it was in flight then, and has ended since; 0: it has ended."""
        if self.moves is None:
            self.moves = {}
        if not self.begun:
            self.begun = True
            self.session.note_begun()
        self.moves[packet_id] = 1 if self.moves.get(packet_id) is None else 2
        return 0

    cdef int _note_ended(self, int packet_id) except -1:
        if self.moves is None:
            self.moves = {}
        if self.moves.get(packet_id) == 1:
            del self.moves[packet_id]
        else:
            self.moves[packet_id] = 0
        return 0

    def take_moves(self):
        """Since the last call: identifiers that became free, and those of QoS 1 that were given out, with their stamps.

        Identifiers of QoS 2 are journaled before they are used (`take_held`); here only their ends are told, unless
        they were given out again.
        """
        cdef int packet_id
        ended, begun = [], []
        for packet_id in self.moves or ():
            if self.slots[packet_id].state == FREE:
                ended.append(packet_id)
            elif self.slots[packet_id].state == AWAIT_PUBACK:
                begun.append((packet_id, self.slots[packet_id].stamp))
        self.moves = None
        self.begun = False
        return ended, begun

    def flight(self):
        """(packet identifier, state, stamp) of what is in flight and came through no source, oldest first."""
        cdef int n
        found = [
            (self.slots[n].stamp, n, self.slots[n].state)
            for n in range(self.slots_capacity)
            if self.slots[n].state != FREE and not self.slots[n].sourced
        ] if self.inflight else []
        return [(n, state, stamp) for stamp, n, state in sorted(found)]

    def restore(self, flight):
        cdef int n, state
        for n, state, stamp in flight:
            if n >= self.slots_capacity:
                self._grow_to(n)
            if self.slots[n].state == FREE:
                self.inflight += 1
            self.slots[n].state, self.slots[n].stamp, self.slots[n].sourced = state, stamp, 0
            self.slots[n].unsent = state != AWAIT_PUBCOMP
            self.unsent += self.slots[n].unsent

    cdef int _grow_to(self, int packet_id) except -1:
        cdef int capacity = self.slots_capacity if self.slots_capacity else SLOTS_MIN
        while capacity <= packet_id:
            capacity *= 2
        cdef Slot* grown = <Slot*>realloc(self.slots, capacity * sizeof(Slot))
        if grown == NULL:
            raise MemoryError
        memset(&grown[self.slots_capacity], 0, (capacity - self.slots_capacity) * sizeof(Slot))
        self.slots, self.slots_capacity = grown, capacity
        return 0

    def unsettled_sources(self):
        """What was delivered from queues and is not settled."""
        return list(self.sources.values()) if self.sources else []

    def take_sources(self):
        """What was delivered from queues and is not settled; the caller gives it back."""
        cdef int packet_id
        found = list(self.sources.values()) if self.sources else []
        for packet_id in list(self.sources or ()):
            self.slots[packet_id].state = FREE
            self.slots[packet_id].sourced = 0
            self.inflight -= 1
        self.sources = None
        return found
