# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The sink of a queue. See `queue_sink.py`."""

from array import array

from cpython cimport array as arrays
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memcmp, memcpy

from mainstem.broker.delivery._live cimport BatchWalk, RecordRef, Sink
from mainstem.codec._batch cimport FRAME_HEAD_SIZE, KIND_DATA
from mainstem.codec._frames cimport FAULT_NONE, FrameFields, check_frame, frame_error, parse_frame
from mainstem.cursor._queue_core cimport QueueCore

from mainstem.log.committed import committed_batches
from mainstem.model.errors import CorruptFrame

cdef int64_t NEVER = 0x7FFFFFFFFFFFFFFF
cdef int ORIGIN_AMQP = 3
cdef int ORIGIN_KAFKA = 2
cdef int DEFAULT_EXCHANGE = 16
cdef int QUEUE_ID_SIZE = 4
cdef int EXPIRATION_BIT = 0x01
cdef Py_ssize_t KEPT_STAMPS_MAX = 1 << 16  # a buffer larger than this is given back once empty
cdef Py_ssize_t ENTRIES_MAX = 10_000
cdef arrays.array POSITIONS = array("q")
cdef int ATTRIBUTE_CODEC = 0x07
cdef int ATTRIBUTE_TRANSACTIONAL = 0x10
cdef int ATTRIBUTE_CONTROL = 0x20


cdef class Entry:
    def __init__(self, *, bint anything=False, bint default=False, bint plain=False, exchanges=frozenset()):
        self.anything = anything
        self.default = default
        self.plain = plain
        self.exchanges = exchanges

    cdef bint has(self, const uint8_t* exchange, Py_ssize_t size) except -1:
        """Most records came through the same exchange as the one before."""
        if self.asked is None or PyBytes_GET_SIZE(self.asked) != size or \
                memcmp(PyBytes_AS_STRING(self.asked), exchange, size) != 0:
            self.asked = PyBytes_FromStringAndSize(<const char*>exchange, size)
            self.found = self.asked in self.exchanges
        return self.found


cdef inline int add_stamp(Stamps* stamps, int64_t stamp) except -1:
    cdef void* grown
    cdef Py_ssize_t capacity
    if stamps.count == stamps.capacity:
        capacity = stamps.capacity * 2 if stamps.capacity else 16
        grown = PyMem_Realloc(stamps.at, capacity * sizeof(int64_t))
        if grown == NULL:
            raise MemoryError
        stamps.at = <int64_t*>grown
        stamps.capacity = capacity
    stamps.at[stamps.count] = stamp
    stamps.count += 1
    return 0


cdef inline void drop_stamps(Stamps* stamps) noexcept:
    stamps.count = 0
    if stamps.capacity > KEPT_STAMPS_MAX:
        PyMem_Free(stamps.at)
        stamps.at = NULL
        stamps.capacity = 0


cdef arrays.array take_stamps(Stamps* stamps):
    cdef arrays.array taken = arrays.clone(POSITIONS, stamps.count, False)
    if stamps.count:
        memcpy(taken.data.as_voidptr, stamps.at, stamps.count * sizeof(int64_t))
    drop_stamps(stamps)
    return taken


cdef class Taker:
    def __init__(self, *, int priority=0, int64_t credit=0, bint no_ack=False):
        self.priority = priority
        self.credit = credit
        self.no_ack = no_ack
        self.queue = None

    cpdef bint take(self, RecordRef record, bint redelivered, int attempts) except -1:
        raise NotImplementedError

    def on_queue_deleted(self):
        pass

    @property
    def unacked(self):
        return 0


cdef class QueueSink(Sink):
    def __cinit__(self):
        self.leased.at = self.acked.at = NULL
        self.leased.count = self.acked.count = 0
        self.leased.capacity = self.acked.capacity = 0

    def __init__(self, namespace, queue_id, owner):
        super().__init__(namespace)
        self.queue_id = int(queue_id).to_bytes(QUEUE_ID_SIZE, "big")
        self.owner = owner
        self.groups = []
        self.turns = []
        self.entered_last = self.handed_last = self.newest = -1

    def merge(self, entries):
        return Entry(
            anything=any(entry.anything for entry in entries),
            default=any(entry.default for entry in entries),
            plain=any(entry.plain for entry in entries),
            exchanges=frozenset().union(*(entry.exchanges for entry in entries)),
        )

    def __dealloc__(self):
        PyMem_Free(self.leased.at)
        PyMem_Free(self.acked.at)

    def set_takers(self, takers):
        by_priority = {}
        for taker in sorted(takers, key=lambda taker: -taker.priority):
            by_priority.setdefault(taker.priority, []).append(taker)
        self.groups = list(by_priority.values())
        self.turns = [0] * len(self.groups)

    @property
    def busy(self):
        return self.entered > 0 or self.handed_last >= 0

    @property
    def entered_count(self):
        return self.entered

    @property
    def wanted(self):
        cdef Taker taker
        for group in self.groups:
            for taker in group:
                if taker.credit > 0:
                    return True
        return False

    @property
    def credit(self):
        cdef Taker taker
        total = 0
        for group in self.groups:
            for taker in group:
                total += max(0, taker.credit)
        return total

    cpdef bint accepts(self, RecordRef record, Entry entry) except -1:
        cdef const uint8_t* value
        cdef Py_ssize_t length, at
        if entry.anything:
            return True
        if record.origin == ORIGIN_AMQP:
            if record.find_header("ms-queues", 9, &value, &length):
                for at in range(0, length - QUEUE_ID_SIZE + 1, QUEUE_ID_SIZE):
                    if memcmp(value + at, PyBytes_AS_STRING(self.queue_id), QUEUE_ID_SIZE) == 0:
                        return True
                return False
        if record.origin != ORIGIN_AMQP:
            return entry.plain
        if record.flags & DEFAULT_EXCHANGE:
            return entry.default
        if not record.find_header("ms-exchange", 11, &value, &length):
            return entry.plain
        return entry.has(value, length)

    cpdef bint push(self, RecordRef record, object options) except -1:
        if not self.accepts(record, <Entry?>options):
            return True
        if self.inspect and not self.owner.inspect(record):
            return True
        if not self.dirty:
            self.dirty = True
            self.owner.on_dirty()
        if record.stamp <= self.newest:
            self.owner.admit(record)
            return True
        self.newest = record.stamp
        self.entered += 1
        self.entered_last = record.stamp
        if record.value_len > 0:
            self.entered_bytes += record.value_len
        if self.direct and self.hand(record, False, 0):
            return True
        self.direct = False
        if not self.expiring:
            self.expiring = may_expire_c(record)
        return True

    cpdef bint hand(self, RecordRef record, bint redelivered, int attempts) except -1:
        cdef list group
        cdef Taker taker
        cdef Py_ssize_t number, step, at, size, turn
        if self.room <= 0:
            return False
        for number in range(PyList_GET_SIZE(self.groups)):
            group = <list>PyList_GET_ITEM(self.groups, number)
            size = PyList_GET_SIZE(group)
            if size == 1:
                taker = <Taker>PyList_GET_ITEM(group, 0)
                if taker.credit > 0 and self.give(taker, record, redelivered, attempts):
                    return True
                continue
            turn = self.turns[number]
            for step in range(size):
                at = turn + step
                if at >= size:
                    at -= size
                taker = <Taker>PyList_GET_ITEM(group, at)
                if taker.credit > 0 and self.give(taker, record, redelivered, attempts):
                    self.turns[number] = at + 1 if at + 1 < size else 0
                    return True
        return False

    cpdef bint give(self, Taker taker, RecordRef record, bint redelivered, int attempts) except -1:
        if not taker.take(record, redelivered or record.stamp < self.doubtful, attempts):
            return False
        taker.credit -= 1
        if record.value_len > 0:
            self.handed_bytes += record.value_len
        self.handed_last = record.stamp
        if taker.no_ack:
            self.passed += 1
        else:
            add_stamp(&self.leased, record.stamp)
            self.room -= 1
        return True

    cpdef int64_t tell(self, QueueCore cursor) except -1:
        cdef int64_t leased = self.leased.count, passed = self.passed
        cdef int64_t bytes_more = self.entered_bytes - self.handed_bytes
        cdef object owner = self.owner, totals = owner.totals
        try:
            if self.entered:
                cursor.enter(self.entered_last, self.entered)
                totals.entered += self.entered
            if leased:
                cursor.lease(self.leased.at, leased)
                totals.delivered += leased
            if passed:
                cursor.pass_over(self.handed_last + 1, passed)
                totals.delivered_no_ack += passed
            if bytes_more:
                owner.ready_bytes = max(0, owner.ready_bytes + bytes_more)
        finally:
            self.forget_events()
        return leased + passed

    cpdef int64_t forget_events(self) except -1:
        cdef int64_t passed = self.passed
        drop_stamps(&self.leased)
        self.entered = self.entered_bytes = self.passed = self.handed_bytes = 0
        self.entered_last = self.handed_last = -1
        return passed

    cpdef bint ack(self, int64_t position) except -1:
        add_stamp(&self.acked, position)
        return self.acked.count == 1

    def take_acked(self):
        return take_stamps(&self.acked)

    cpdef int64_t settle_acked(self, QueueCore cursor) except -1:
        cdef int64_t count
        if not cursor.is_plain():
            return cursor.ack_all(take_stamps(&self.acked))
        count = cursor.settle(self.acked.at, self.acked.count)
        drop_stamps(&self.acked)
        return count

    cpdef bint stand(self, QueueCore cursor) except -1:
        self.direct = cursor.count_ready() == 0
        self.room = cursor.count_room()
        return cursor.is_timed()


cdef class Backlog:
    def __cinit__(self):
        self.planned = NULL
        self.head = self.tail = self.capacity = 0

    def __init__(self, QueueSink sink):
        self.sink = sink
        self.ref = RecordRef()
        self.walk = BatchWalk.__new__(BatchWalk)
        self.sources = []
        self.topics = []
        self.entries = {}

    def __dealloc__(self):
        PyMem_Free(self.planned)

    def __len__(self):
        return self.tail - self.head

    def clear(self):
        self.head = self.tail = 0
        self.bytes = 0
        self.sources, self.topics = [], []
        self.ref.owner = None
        if self.capacity > KEPT_STAMPS_MAX:
            PyMem_Free(self.planned)
            self.planned = NULL
            self.capacity = 0

    def forget_entries(self):
        self.entries.clear()
        self.last_topic = None

    def plan(self, log, data, int64_t[::1] offsets, int64_t from_stamp, int64_t to_stamp, dict topic_of, wants=None,
             int64_t cold_before=NEVER, bytes topic=b"", bint exact=False):
        cdef const uint8_t[::1] view = data
        cdef const uint8_t* at
        cdef const uint8_t* end
        cdef Py_ssize_t length, wanted = 0, before = self.tail, planned, sources
        cdef uint64_t log_id = log.id
        cdef FrameFields fields
        cdef int fault
        cdef bytes named
        if view.shape[0] == 0:
            return 0
        if self.head == self.tail:
            self.clear()
            before = 0
        at = &view[0]
        end = at + view.shape[0]
        self.bytes += view.shape[0]
        while at < end:
            fault = parse_frame(at, end - at, log_id, &fields)
            if fault != FAULT_NONE:
                raise CorruptFrame(f"log {log.id}: {frame_error(fault, at - &view[0])}",
                                   fix=f"mainstem log verify {log.id}")
            length = FRAME_HEAD_SIZE + <Py_ssize_t>fields.payload_size
            while wanted < offsets.shape[0] and offsets[wanted] < fields.base_offset:
                wanted += 1
            if fields.kind == KIND_DATA and length > FRAME_HEAD_SIZE and \
                    (offsets.shape[0] == 0 or
                     (wanted < offsets.shape[0] and offsets[wanted] < fields.base_offset + <int64_t>fields.count)):
                planned, sources = self.tail, len(self.sources)
                try:
                    fault = check_frame(at, &fields, fields.stamp < cold_before)
                    if fault != FAULT_NONE:
                        raise CorruptFrame(frame_error(fault, at - &view[0]))
                    named = topic or (topic_of.get(fields.topic_id, b"") if fields.topic_id else None)
                    self._plan_frame(log, data, at, &fields, offsets, wanted, from_stamp, to_stamp, named, wants, exact)
                except CorruptFrame as error:  # one bad batch must not stop the queue
                    self.tail = planned
                    del self.sources[sources:]
                    self.sink.owner.on_undecodable(log, fields.base_offset, error)
            at += length
        return self.tail - before

    cdef int _plan_frame(self, object log, object data, const uint8_t* frame, const FrameFields* fields,
                         int64_t[::1] offsets, Py_ssize_t wanted, int64_t from_stamp, int64_t to_stamp, bytes named,
                         object wants, bint exact) except -1:
        cdef const uint8_t* batch = frame + FRAME_HEAD_SIZE
        cdef Py_ssize_t size = <Py_ssize_t>fields.payload_size
        cdef QueueSink sink = self.sink
        cdef bytes committed
        if batch[22] & ATTRIBUTE_CONTROL:  # a transaction's records lie where its marker says
            marker = PyBytes_FromStringAndSize(<const char*>batch, size)
            for inner, base, stamp, written in committed_batches(log, marker, fields.base_offset, fields.stamp,
                                                                 from_stamp):
                if not exact and sink.undecided_from <= <int64_t>written < sink.undecided_to:
                    continue  # it came when it was written
                committed = inner
                self._plan_batch(log, committed, <const uint8_t*>PyBytes_AS_STRING(committed), len(committed), base,
                                 stamp, fields, offsets, wanted, from_stamp, to_stamp, named, wants)
        elif not batch[22] & ATTRIBUTE_TRANSACTIONAL or exact or \
                sink.undecided_from <= fields.stamp < sink.undecided_to:
            self._plan_batch(log, data, batch, size, fields.base_offset, fields.stamp, fields, offsets, wanted,
                             from_stamp, to_stamp, named, wants)
        return 0

    cdef int _plan_batch(self, object log, object data, const uint8_t* batch, Py_ssize_t size, int64_t base,
                         int64_t stamp, const FrameFields* fields, int64_t[::1] offsets, Py_ssize_t wanted,
                         int64_t from_stamp, int64_t to_stamp, bytes named, object wants) except -1:
        cdef Planned planned
        cdef RecordRef ref = self.ref
        cdef BatchWalk walk = self.walk
        walk.begin(batch, size, base, stamp)
        if fields.origin == ORIGIN_KAFKA:  # a client's bytes
            walk.check()
        owner = walk.inflated if batch[22] & ATTRIBUTE_CODEC else data
        planned.end = walk.end
        planned.source = <int32_t>len(self.sources)
        self.sources.append((log, fields.origin, owner))
        ref.log, ref.origin, ref.owner = log, fields.origin, owner
        if named is not None:
            ref.topic = named
        while True:
            planned.at = walk.at
            if not walk.next(ref):
                return 0
            if ref.stamp < from_stamp:
                continue
            if ref.stamp >= to_stamp:
                return 0
            if offsets.shape[0]:
                while wanted < offsets.shape[0] and offsets[wanted] < ref.offset:
                    wanted += 1
                if wanted >= offsets.shape[0]:
                    return 0
                if offsets[wanted] != ref.offset:
                    continue
            if named is None:
                ref.set_topic()
            if (self._choose() is None) if wants is None else not wants(ref):
                continue
            planned.offset, planned.stamp, planned.time_ms = ref.offset, ref.stamp, ref.time_ms
            if not self.topics or self.topics[len(self.topics) - 1] != ref.topic:
                self.topics.append(ref.topic)
            planned.topic = <int32_t>len(self.topics) - 1
            self._add(&planned)

    cdef int _add(self, Planned* planned) except -1:
        cdef void* grown
        cdef Py_ssize_t capacity
        if self.tail == self.capacity:
            capacity = self.capacity * 2 if self.capacity else 32
            grown = PyMem_Realloc(self.planned, capacity * sizeof(Planned))
            if grown == NULL:
                raise MemoryError
            self.planned = <Planned*>grown
            self.capacity = capacity
        self.planned[self.tail] = planned[0]
        self.tail += 1
        return 0

    def sort(self):
        qsort(self.planned + self.head, self.tail - self.head, sizeof(Planned), by_stamp)

    cdef int _show(self, const Planned* planned) except -1:
        cdef RecordRef ref = self.ref
        ref.topic = <bytes>PyList_GET_ITEM(self.topics, planned.topic)
        ref.load(planned.at, planned.end, 0, 0, 0)
        ref.offset, ref.stamp, ref.time_ms = planned.offset, planned.stamp, planned.time_ms
        return 0

    cdef RecordRef _load(self, Py_ssize_t at):
        cdef Planned* planned = &self.planned[at]
        cdef RecordRef ref = self.ref
        ref.log, ref.origin, ref.owner = self.sources[planned.source]
        self._show(planned)
        return ref

    cdef object _choose(self):
        cdef RecordRef record = self.ref
        cdef object entry
        if record.stamp < self.constant_from:
            entry = self.sink.owner.entry_of(record.topic, record.stamp)
        elif self.last_topic is not None and self.last_topic == record.topic:
            entry = self.last_entry
        else:
            try:
                entry = self.entries[record.topic]
            except KeyError:
                entry = self.sink.owner.entry_of(record.topic, record.stamp)
                if len(self.entries) < ENTRIES_MAX:
                    self.entries[record.topic] = entry
            self.last_topic, self.last_entry = record.topic, entry
        return entry if entry is not None and self.sink.accepts(record, <Entry?>entry) else None

    def first(self):
        return None if self.head == self.tail else self._load(self.head)

    def skip(self):
        self.head += 1
        if self.head == self.tail:
            self.clear()

    def hand_all(self):
        cdef Py_ssize_t handed = 0
        cdef int32_t source = -1
        cdef Planned* planned
        cdef RecordRef ref = self.ref
        while self.head < self.tail:
            planned = &self.planned[self.head]
            if planned.source != source:
                source = planned.source
                ref.log, ref.origin, ref.owner = self.sources[source]
            self._show(planned)
            if not self.sink.hand(ref, False, 0):
                return handed
            self.head += 1
            handed += 1
        self.clear()
        return handed


cdef int by_stamp(const void* one, const void* other) noexcept nogil:
    cdef int64_t a = (<Planned*>one).stamp
    cdef int64_t b = (<Planned*>other).stamp
    return -1 if a < b else 1 if a > b else 0


cdef bint may_expire_c(RecordRef record) noexcept:
    cdef const uint8_t* value
    cdef Py_ssize_t length
    if record.origin == ORIGIN_AMQP:
        if record.find_header("ms-amqp", 7, &value, &length) and length >= 2 and (value[0] & EXPIRATION_BIT) != 0:
            return True
    elif record.find_header("ms-mqtt", 7, &value, &length):
        return True
    return record.find_header("ms-expires-at", 13, &value, &length)


def may_expire(RecordRef record):
    return may_expire_c(record)
