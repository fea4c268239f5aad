# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Live delivery: every record that was just written goes to the sinks of its route. See `live.py`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from mainstem.codec._batch cimport (
    BATCH_HEAD_SIZE, FRAME_HEAD_SIZE, KIND_DATA, RecordParts, SealedFrame, get_u32, get_u64, next_header, read_record,
)
from mainstem.codec._large_record cimport LargeRecord
from mainstem.codec._records cimport check_walk, records_fault
from mainstem.codec._frames cimport FAULT_NONE, FrameFields, check_frame, frame_error, parse_frame
from mainstem.log._gather cimport Gather, TopicRef

import logging
from collections import deque

from mainstem.codec.batch import decode_headers
from mainstem.log.committed import committed_batches
from mainstem.log.inflating import inflate_soon
from mainstem.model.errors import CorruptFrame, MainstemError
from mainstem.model.record import Record
from mainstem.model.origin import Origin
from mainstem.storage.engine import NotLocal

logger = logging.getLogger("mainstem.broker")

FULL, OFFERED, CUT = 0, 1, 2  # how a replay ends
cdef enum:
    FULL_C, OFFERED_C, CUT_C
cdef Py_ssize_t UNCLOCKED_MAX = 8  # records of a replay between two looks at the clock
cdef Py_ssize_t PUSHES_UNCLOCKED_MAX = 32  # the same of live delivery
cdef int64_t PRICED_NS = 1_000_000, PRICED_BYTES = 64 << 10  # after so much delivery is priced

INFLATED_BYTES_MAX = 64 << 20
cdef int KEY_IS_TOPIC = 8
cdef int ORIGIN_KAFKA = 2
cdef int ATTRIBUTE_CODEC = 0x07
cdef int ATTRIBUTE_APPEND_TIME = 0x08
cdef int ATTRIBUTE_TRANSACTIONAL = 0x10
cdef int ATTRIBUTE_CONTROL = 0x20
_ORIGINS = [Origin(n) for n in range(len(Origin))]


cdef inline bint is_before(const uint8_t* frame, const FrameFields* fields, int64_t stamp) noexcept nogil:
    """Whether all its records were offered in a slice before. A marker's records have stamps of their own."""
    return fields.stamp + <int64_t>fields.count <= stamp and fields.payload_size > 22 and \
        not frame[FRAME_HEAD_SIZE + 22] & ATTRIBUTE_CONTROL


cdef class RecordRef:
    def __init__(self):
        self.topic = b""

    cdef const uint8_t* load(self, const uint8_t* at, const uint8_t* end, int64_t base_offset,
                             int64_t base_stamp, int64_t first_time_ms) except NULL:
        """Read the record at `at`; returns where the next one begins."""
        cdef RecordParts parts
        at = read_record(at, end, &parts)
        if at == NULL:
            raise CorruptFrame("a record is longer than its batch")
        self.flags = 0 if self.origin == ORIGIN_KAFKA else parts.flags
        self.key_at, self.key_len = parts.key, parts.key_size
        self.value_at, self.value_len = parts.value, parts.value_size
        self.headers_at, self.headers_len = parts.headers, parts.headers_size
        self.header_count = parts.header_count
        self.time_ms = first_time_ms + parts.time_delta_ms
        self.offset = base_offset + parts.offset_delta
        self.stamp = base_stamp + parts.offset_delta
        self.serial += 1
        return at

    cdef int load_large(self, LargeRecord record, int64_t offset, int64_t stamp) except -1:
        """The same of a record in pieces."""
        self.flags = record.flags
        self.key_at, self.key_len = <const uint8_t*><char*>record.front + record.key_at, record.key_size
        self.value_at, self.value_len = record.value_at, record.value_size
        self.headers_at = <const uint8_t*>PyBytes_AS_STRING(record.back) + record.headers_at
        self.headers_len, self.header_count = len(record.back) - record.headers_at, record.header_count
        self.time_ms, self.offset, self.stamp = record.time_ms, offset, stamp
        self.serial += 1
        return 0

    cdef bint find_header(self, const char* name, Py_ssize_t name_len,
                          const uint8_t** value, Py_ssize_t* value_len) noexcept:
        """The first header of that name; False if there is none or the headers are malformed."""
        cdef const uint8_t* at = self.headers_at
        cdef const uint8_t* end = at + self.headers_len
        cdef const uint8_t* found
        cdef Py_ssize_t found_len
        cdef int n
        for n in range(self.header_count):
            at = next_header(at, end, &found, &found_len, value, value_len)
            if at == NULL:
                return False
            if found_len == name_len and memcmp(found, name, name_len) == 0:
                return True
        return False

    cdef void set_topic(self):
        """Where the frame does not say it: the key, or the header that does."""
        cdef const uint8_t* value
        cdef Py_ssize_t length
        if self.origin != ORIGIN_KAFKA and self.flags & KEY_IS_TOPIC and self.key_len >= 0:
            self.topic = PyBytes_FromStringAndSize(<const char*>self.key_at, self.key_len)
        elif self.origin != ORIGIN_KAFKA and self.find_header("ms-topic", 8, &value, &length) and length >= 0:
            self.topic = PyBytes_FromStringAndSize(<const char*>value, length)
        else:
            self.topic = b""

    @property
    def key(self):
        return None if self.key_len < 0 else PyBytes_FromStringAndSize(<const char*>self.key_at, self.key_len)

    @property
    def value(self):
        return None if self.value_len < 0 else PyBytes_FromStringAndSize(<const char*>self.value_at, self.value_len)

    @property
    def value_size(self):
        return max(self.value_len, 0)

    @property
    def headers(self):
        if not self.header_count:
            return []
        return decode_headers(PyBytes_FromStringAndSize(<const char*>self.headers_at, self.headers_len),
                              self.header_count)

    def header(self, bytes name):
        cdef const uint8_t* value
        cdef Py_ssize_t length
        if not self.find_header(PyBytes_AS_STRING(name), len(name), &value, &length) or length < 0:
            return None
        return PyBytes_FromStringAndSize(<const char*>value, length)

    def outline(self):
        """A copy without its value, of which only whether it is null is kept: what its headers say does not need it."""
        return Record(None if self.value_len < 0 else b"", self.key, self.headers, self.time_ms, self.flags, self.offset,
                      self.stamp, _ORIGINS[self.origin], self.topic)

    def copy(self):
        return Record(self.value, self.key, self.headers, self.time_ms, self.flags, self.offset, self.stamp,
                      _ORIGINS[self.origin], self.topic)


cdef class Sink:
    def __init__(self, namespace, int64_t position=0):
        self.namespace = namespace
        self.live = True
        self.position = position
        self.hint.stamp = -1

    cpdef bint push(self, RecordRef record, object options) except -1:
        raise NotImplementedError

    cpdef bint push_unstored(self, RecordRef record, object options) except -1:
        raise NotImplementedError

    cpdef object choose(self, RecordRef record):
        raise NotImplementedError

    cpdef bint may_drop(self, object options) except -1:
        return False

    def merge(self, options):
        raise NotImplementedError

    def filters(self):
        raise NotImplementedError


cdef class Delivery:
    def __init__(self, Sink sink, options, int64_t since=0):
        self.sink = sink
        self.options = options
        self.since = since
        self.lossy = sink.may_drop(options)


cdef class Route(TopicRef):
    def __init__(self, bytes topic, number, log, namespace):
        super().__init__(topic, number, log)
        self.namespace = namespace
        self.deliveries = []
        self.epoch = 0

    def move(self, log, uint32_t number):
        """The topic's layout or engine changed: what is published from now on goes there."""
        self.log = log
        self.gathers = log.gathers
        self.number = number

    def renumber(self):
        self.namespace.renumber(self)


cdef class BatchWalk:
    """The records of one batch, one after the other into a RecordRef: inflated, numbered and timed as the log says."""

    cdef int begin(self, const uint8_t* batch, Py_ssize_t size, int64_t base_offset, int64_t base_stamp) except -1:
        cdef int attributes = batch[22]
        self.at = batch + BATCH_HEAD_SIZE
        self.end = batch + size
        self.base_offset = base_offset
        self.base_stamp = base_stamp
        self.first_time_ms = <int64_t>get_u64(batch + 27)
        self.append_time_ms = <int64_t>get_u64(batch + 35)
        self.appended = attributes & ATTRIBUTE_APPEND_TIME != 0
        self.place = 0
        self.count = <int32_t>get_u32(batch + 57)
        # In a batch without gaps the place is the offset, whatever a producer wrote: the log counted so.
        self.last_delta = <int32_t>get_u32(batch + 23)
        self.dense = self.last_delta == self.count - 1
        self.inflated = None
        if attributes & ATTRIBUTE_CODEC:
            self.inflated = inflate_soon(attributes & ATTRIBUTE_CODEC, PyBytes_FromStringAndSize(
                <const char*>self.at, self.end - self.at), INFLATED_BYTES_MAX, (self.count, self.last_delta))
            self.at = <const uint8_t*>PyBytes_AS_STRING(self.inflated)
            self.end = self.at + len(self.inflated)
        return 0

    cdef int check(self) except -1:
        """Whether a client's batch decodes to its end. What its checksum covers may still be nonsense."""
        cdef int place = 0, fault
        if self.inflated is None:  # else it was checked where it was inflated
            fault = check_walk(self.at, self.end, self.count, self.last_delta, &place)
            if fault:
                raise records_fault(fault, place, self.count)
        return 0

    cdef bint next(self, RecordRef ref) except -1:
        if self.place >= self.count:
            return False
        self.at = ref.load(self.at, self.end, self.base_offset, self.base_stamp, self.first_time_ms)
        if self.dense:
            ref.offset = self.base_offset + self.place
            ref.stamp = self.base_stamp + self.place
        if self.appended:
            ref.time_ms = self.append_time_ms
        self.place += 1
        return True


cdef inline bint reads_undecided(Sink sink, int64_t written_at) noexcept:
    return sink.undecided_from <= written_at < sink.undecided_to


cdef bint any_reads_undecided(Route route, int64_t written_at) noexcept:
    cdef Py_ssize_t n
    for n in range(PyList_GET_SIZE(route.deliveries)):
        if reads_undecided((<Delivery>PyList_GET_ITEM(route.deliveries, n)).sink, written_at):
            return True
    return False


cdef class Dispatcher:
    """Walks what was written, in stamp order, and pushes it to those who stand at the head."""

    def __init__(self):
        self.epoch = 1
        self.ref = RecordRef()
        self.waiting = deque()

    cpdef int keep(self, list appended) except -1:
        """What was written waits behind what waits already."""
        self.waiting.extend(appended)
        for item in appended:
            self.waiting_bytes += item.ref.size
        return 0

    def deliver(self, list appended, int64_t until_ns=0):
        """Offer what was written, behind what still waits, to those who listen, until it is later than `until_ns`
        (monotonic; 0: all of it). Returns the stamp below which everything was offered."""
        self.keep(appended)
        self.deadline_ns = until_ns
        self.unclocked = 0
        self.spent_ns -= now_ns()
        while self.waiting:
            item = self.waiting[0]
            if item.kind == KIND_DATA:
                self.ref.log = item.log
                self.ref.origin = item.origin
                self.unstored = not item.log.keeps
                if item.gather is not None:
                    if not self._deliver_gather(item):
                        break
                elif item.large is not None:
                    self._deliver_large(item)
                else:
                    try:
                        if not self._deliver_batch(item):
                            break
                    except MainstemError:
                        self.walk = self.walk_owner = self.committed = None
                        self.in_transaction = False
                        self._fall_back(item)
            self.head = item.stamp_end
            self.waiting.popleft()
            self.waiting_bytes -= item.ref.size
            self.spent_bytes += item.ref.size
        self.ref.owner = None
        self.spent_ns += now_ns()
        if self.spent_bytes and (self.spent_ns > PRICED_NS or self.spent_bytes > PRICED_BYTES):
            self.ns_per_byte = (self.ns_per_byte + <double>self.spent_ns / self.spent_bytes) / 2
            self.spent_ns = self.spent_bytes = 0
        return self.head

    def bytes_within(self, int64_t time_ns, Py_ssize_t bytes_max):
        """How much can be delivered in that time, at present's price."""
        return bytes_max if self.ns_per_byte * bytes_max <= time_ns else <Py_ssize_t>(time_ns / self.ns_per_byte)

    cdef int _push_all(self, Route route) except -1:
        cdef Delivery delivery
        cdef Sink sink
        cdef list deliveries = route.deliveries
        cdef bint taken
        cdef Py_ssize_t n
        self.ref.topic = route.topic
        for n in range(PyList_GET_SIZE(deliveries)):
            delivery = <Delivery>PyList_GET_ITEM(deliveries, n)
            sink = delivery.sink
            if not sink.live or self.ref.stamp < delivery.since:
                continue
            if self.in_transaction and self.decided == reads_undecided(sink, self.written_at):
                continue
            if delivery.lossy and sink.blocked:  # thousands who read nothing cost their listeners nothing
                sink.dropped += 1
                continue
            try:
                taken = sink.push(self.ref, delivery.options)
            except Exception:
                self._push_failed(sink)
                continue
            if taken:
                self.delivered += 1
            elif sink.live:
                sink.live = False
                sink.position = self.ref.stamp
        return 0

    cdef int _push_unstored(self, Route route) except -1:
        """Nobody reads it again: it goes to all who can take it now, those who catch up with other topics, too."""
        cdef Delivery delivery
        self.ref.topic = route.topic
        for n in range(PyList_GET_SIZE(route.deliveries)):
            delivery = <Delivery>PyList_GET_ITEM(route.deliveries, n)
            if self.ref.stamp < delivery.since:
                continue
            try:
                self.delivered += delivery.sink.push_unstored(self.ref, delivery.options)
            except Exception:  # it breaks alone
                self.failures += 1
                logger.exception("a subscriber could not take a message of %r, which is live only", route.topic)
        return 0

    def _push_failed(self, Sink sink):
        """A sink that breaks breaks alone: it stays where it was, the others get their records."""
        self.failures += 1
        sink.live = False
        sink.position = self.ref.stamp
        logger.exception("a subscriber could not take offset %d of log %d", self.ref.offset, self.ref.log.id)

    def _fall_back(self, item):
        """What could not be read just now is read again by catching up: nobody loses it."""
        cdef int64_t position = max(<int64_t>item.ref.stamp, self.head)
        logger.exception("offset %d of log %d cannot be delivered live", item.ref.base_offset, item.log.id)
        for delivery in item.route.deliveries:
            if delivery.sink.live:
                delivery.sink.live = False
                delivery.sink.position = position
                delivery.sink.namespace.resume(delivery.sink)

    cdef bint _deliver_gather(self, object item) except -1:
        """False: the slice is over, and there is more."""
        cdef Gather gather = item.gather
        cdef SealedFrame frame = item.sealed
        cdef list routes = gather.routes
        cdef const uint8_t* start = frame.buf
        cdef const uint8_t* end = start + frame.size
        cdef int64_t first_time_ms = frame.first_time_ms
        cdef Route route
        cdef Py_ssize_t pushes
        cdef int n
        self.ref.owner = frame
        for n in range(self.place, frame.count):
            route = <Route>PyList_GET_ITEM(routes, n)
            if route.epoch != self.epoch:
                route.namespace.refresh(route)
            pushes = PyList_GET_SIZE(route.deliveries)
            if pushes:
                self.ref.load(start + frame.record_at[n], end, frame.base_offset, frame.stamp, first_time_ms)
                if self.unstored:
                    self._push_unstored(route)
                else:
                    self._push_all(route)
                if self._is_over(pushes, PUSHES_UNCLOCKED_MAX) and n + 1 < frame.count:
                    self.place, self.head = n + 1, self.ref.stamp + 1
                    return False
        self.place = 0
        return True

    cdef int _deliver_large(self, object item) except -1:
        """A record that is a frame by itself, in pieces."""
        cdef Route route = item.route
        cdef LargeRecord record = item.large
        if route.epoch != self.epoch:
            route.namespace.refresh(route)
        if PyList_GET_SIZE(route.deliveries):
            self.ref.owner = record
            self.ref.load_large(record, item.ref.base_offset, item.ref.stamp)
            self._push_all(route)
        return 0

    cdef bint _deliver_batch(self, object item) except -1:
        """A batch a client made: one topic. A transaction's records wait for its decision (see `committed.py`), but for
        those who read undecided ones."""
        cdef Route route = item.route
        cdef bytes batch
        cdef int attributes
        if route.epoch != self.epoch:
            route.namespace.refresh(route)
        if self.walk is None and self.committed is None:
            if not route.deliveries:
                return True
            batch = bytes(item.data[1])
            attributes = (<const uint8_t*>PyBytes_AS_STRING(batch))[22]
            if attributes & ATTRIBUTE_CONTROL:
                self.committed = committed_batches(item.log, batch, item.ref.base_offset, item.ref.stamp)
                self.in_transaction = self.decided = True
            elif not attributes & ATTRIBUTE_TRANSACTIONAL:
                self._open(batch, item.ref.base_offset, item.ref.stamp)
            elif any_reads_undecided(route, item.ref.stamp):
                self.in_transaction, self.decided, self.written_at = True, False, item.ref.stamp
                self._open(batch, item.ref.base_offset, item.ref.stamp)
        while True:
            if self.walk is None:
                inner = next(self.committed, None) if self.committed is not None else None
                if inner is None:
                    self.committed = None
                    self.in_transaction = False
                    return True
                self.written_at = inner[3]
                self._open(inner[0], inner[1], inner[2])
                continue
            self.ref.owner = self.walk_owner
            while self.walk.next(self.ref):
                self._push_all(route)
                self.head = self.ref.stamp + 1
                if self._is_over(PyList_GET_SIZE(route.deliveries), PUSHES_UNCLOCKED_MAX):
                    return False
            self.walk = self.walk_owner = None

    cdef int _open(self, bytes batch, int64_t base_offset, int64_t stamp) except -1:
        try:
            self.walk = self._begin(<const uint8_t*>PyBytes_AS_STRING(batch), len(batch), base_offset, stamp)
        except NotLocal as missing:  # its producer waited until it was inflated: that is long ago, or a subscriber is new
            missing.bring()
            self.walk = self._begin(<const uint8_t*>PyBytes_AS_STRING(batch), len(batch), base_offset, stamp)
        self.walk_owner = (batch, self.walk)
        return 0

    cdef bint _is_over(self, Py_ssize_t pushes, Py_ssize_t unclocked_max) noexcept:
        self.unclocked += pushes
        if not self.deadline_ns or self.unclocked < unclocked_max:
            return False
        self.unclocked = 0
        return now_ns() >= self.deadline_ns

    cdef BatchWalk _begin(self, const uint8_t* batch, Py_ssize_t size, int64_t base_offset, int64_t stamp):
        """None for a client's batch that cannot be read: it is counted, and stays in the log for those who can."""
        cdef BatchWalk walk = BatchWalk.__new__(BatchWalk)
        try:
            walk.begin(batch, size, base_offset, stamp)
            if self.ref.origin == ORIGIN_KAFKA:
                walk.check()
        except MainstemError as error:
            if self.ref.origin != ORIGIN_KAFKA:
                raise
            self.undecodable += 1
            if self.undecodable & (self.undecodable - 1) == 0:  # said less and less often
                logger.warning("the batch at offset %d of log %d cannot be read (%s) and is skipped; %d so far",
                               base_offset, self.ref.log.id, error, self.undecodable)
            return None
        return walk

    def replay(self, Sink sink, log, data, int64_t[::1] offsets, int64_t from_stamp, int64_t to_stamp, dict topic_of,
               bytes topic=b"", int64_t until_ns=0):
        """Offer stored frames to a sink that catches up, in order. `offsets` (sorted) chooses records; empty = all.
        `topic` names it where all of the log is of one.

        OFFERED: all of [from_stamp, to_stamp) in `data` was. FULL: the sink had no room, its `position` is the record it
        could not take. CUT: it is later than `until_ns` (monotonic), the rest begins at its `position`. CorruptFrame where
        the stored bytes are damaged.
        """
        cdef const uint8_t[::1] view = data
        cdef const uint8_t* at
        cdef const uint8_t* start
        cdef const uint8_t* end
        cdef Py_ssize_t length, wanted = 0
        cdef FrameFields fields
        cdef uint64_t log_id = log.id
        cdef int fault, ended
        cdef bytes named
        if view.shape[0] == 0:
            return OFFERED
        self.deadline_ns = until_ns
        at = start = &view[0]
        end = at + view.shape[0]
        self.ref.log = log
        self.ref.owner = data
        while at < end:
            fault = parse_frame(at, end - at, log_id, &fields)
            if fault != FAULT_NONE:
                raise CorruptFrame(f"log {log.id}: {frame_error(fault, at - start)}")
            length = FRAME_HEAD_SIZE + <Py_ssize_t>fields.payload_size
            while wanted < offsets.shape[0] and offsets[wanted] < fields.base_offset:
                wanted += 1
            if fields.kind == KIND_DATA and not is_before(at, &fields, from_stamp) and \
                    (offsets.shape[0] == 0 or
                     (wanted < offsets.shape[0] and offsets[wanted] < fields.base_offset + <int64_t>fields.count)):
                fault = check_frame(at, &fields, True)
                if fault != FAULT_NONE:
                    raise CorruptFrame(
                        f"log {log.id}, offset {fields.base_offset}: {frame_error(fault, at - start)}",
                        fix=f"mainstem log verify {log.id}",
                    )
                named = topic if topic or not fields.topic_id else topic_of.get(fields.topic_id, b"")
                ended = self._replay_frame(sink, log, at, length, offsets, wanted, from_stamp, to_stamp, named)
                if ended != OFFERED_C:
                    return ended
            at += length
        self.ref.owner = None
        return OFFERED

    cdef int _replay_frame(self, Sink sink, object log, const uint8_t* frame, Py_ssize_t length, int64_t[::1] offsets,
                            Py_ssize_t wanted, int64_t from_stamp, int64_t to_stamp, bytes topic) except -1:
        cdef const uint8_t* batch = frame + FRAME_HEAD_SIZE
        cdef Py_ssize_t size = length - FRAME_HEAD_SIZE
        cdef int64_t base = <int64_t>get_u64(frame + 16), stamp = <int64_t>get_u64(frame + 24)
        cdef bytes visible
        cdef object owner = self.ref.owner
        cdef int ended
        self.ref.origin = frame[6]
        if batch[22] & ATTRIBUTE_CONTROL:
            marker = PyBytes_FromStringAndSize(<const char*>batch, size)
            for inner, inner_base, inner_stamp, _ in committed_batches(log, marker, base, stamp, from_stamp):
                visible = self.ref.owner = inner
                ended = self._replay_batch(sink, <const uint8_t*>PyBytes_AS_STRING(visible), len(visible), inner_base,
                                           inner_stamp, offsets, wanted, from_stamp, to_stamp, topic)
                if ended != OFFERED_C:
                    return ended
            self.ref.owner = owner
            return OFFERED_C
        if batch[22] & ATTRIBUTE_TRANSACTIONAL:
            return OFFERED_C
        ended = self._replay_batch(sink, batch, size, base, stamp, offsets, wanted, from_stamp, to_stamp, topic)
        self.ref.owner = owner
        return ended

    cdef int _replay_batch(self, Sink sink, const uint8_t* batch, Py_ssize_t size, int64_t base, int64_t stamp,
                           int64_t[::1] offsets, Py_ssize_t wanted, int64_t from_stamp, int64_t to_stamp,
                           bytes topic) except -1:
        cdef BatchWalk walk = self._begin(batch, size, base, stamp)
        cdef RecordRef ref = self.ref
        cdef object options
        cdef const uint8_t* begin
        cdef Hint hint
        if walk is None:
            return OFFERED_C
        if walk.inflated is not None:
            ref.owner = walk.inflated
        begin = walk.at
        hint.stamp, hint.crc = stamp, get_u32(batch + 17)
        if walk.inflated is not None and sink.hint.stamp == stamp and sink.hint.crc == hint.crc and \
                sink.hint.position <= from_stamp:
            walk.at, walk.place = begin + sink.hint.at, sink.hint.place
        while True:
            hint.at, hint.place = walk.at - begin, walk.place
            if not walk.next(ref):
                return OFFERED_C
            if ref.stamp < from_stamp:
                continue
            if ref.stamp >= to_stamp:
                return OFFERED_C
            if offsets.shape[0]:
                while wanted < offsets.shape[0] and offsets[wanted] < ref.offset:
                    wanted += 1
                if wanted >= offsets.shape[0]:
                    return OFFERED_C
                if offsets[wanted] != ref.offset:
                    continue
            if self._is_over(1, UNCLOCKED_MAX):
                sink.position = hint.position = ref.stamp
                sink.hint = hint
                return CUT_C
            if topic:
                ref.topic = topic
            else:
                ref.set_topic()
            options = sink.choose(ref)
            if options is None:
                continue
            if not sink.push(ref, options):
                sink.position = hint.position = ref.stamp
                sink.hint = hint
                return FULL_C
            self.delivered += 1
            sink.position = ref.stamp + 1
