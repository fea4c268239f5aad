# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Live delivery: every record that was just written goes to the sinks of its route. See `live.py`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from mainstem.codec._batch cimport (
    BATCH_HEAD_SIZE, FRAME_HEAD_SIZE, KIND_DATA, RecordParts, SealedFrame, get_u32, get_u64, next_header, read_record,
)
from mainstem.codec._frames cimport FAULT_NONE, FrameFields, check_frame, frame_error, parse_frame
from mainstem.log._gather cimport Gather, TopicRef

import logging

from mainstem.codec.batch import decode_headers, inflate
from mainstem.log.committed import committed_batches
from mainstem.model.errors import CorruptFrame, MainstemError
from mainstem.model.record import Record
from mainstem.model.origin import Origin

logger = logging.getLogger("mainstem.broker")

INFLATED_BYTES_MAX = 64 << 20
cdef int KEY_IS_TOPIC = 8
cdef int ORIGIN_KAFKA = 2
cdef int ATTRIBUTE_CODEC = 0x07
cdef int ATTRIBUTE_APPEND_TIME = 0x08
cdef int ATTRIBUTE_TRANSACTIONAL = 0x10
cdef int ATTRIBUTE_CONTROL = 0x20
_ORIGINS = [Origin(n) for n in range(len(Origin))]


cdef class RecordRef:
    def __init__(self):
        self.topic = b""

    cdef const uint8_t* load(self, const uint8_t* at, const uint8_t* end, int64_t base_offset,
                             int64_t base_stamp, int64_t first_time_ms) except NULL:
        """Read the record at `at`; returns where the next one begins."""
        cdef RecordParts parts
        at = read_record(at, end, &parts)
        if at == NULL:
            raise CorruptFrame("a record does not fit its batch")
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

    def copy(self):
        return Record(self.value, self.key, self.headers, self.time_ms, self.flags, self.offset, self.stamp,
                      _ORIGINS[self.origin], self.topic)


cdef class Sink:
    def __init__(self, namespace, int64_t position=0):
        self.namespace = namespace
        self.live = True
        self.position = position

    cpdef bint push(self, RecordRef record, object options) except -1:
        raise NotImplementedError

    cpdef object choose(self, RecordRef record):
        raise NotImplementedError

    def merge(self, options):
        raise NotImplementedError

    def filters(self):
        raise NotImplementedError


cdef class Delivery:
    def __init__(self, Sink sink, options):
        self.sink = sink
        self.options = options


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
        if attributes & ATTRIBUTE_CODEC:
            self.inflated = inflate(attributes & ATTRIBUTE_CODEC, PyBytes_FromStringAndSize(
                <const char*>self.at, self.end - self.at), INFLATED_BYTES_MAX)
            self.at = <const uint8_t*>PyBytes_AS_STRING(self.inflated)
            self.end = self.at + len(self.inflated)
        return 0

    cdef int check(self) except -1:
        """Whether a client's batch decodes to its end. What its checksum covers may still be nonsense."""
        cdef const uint8_t* at = self.at
        cdef const uint8_t* header
        cdef const uint8_t* name
        cdef const uint8_t* value
        cdef Py_ssize_t name_size, value_size
        cdef RecordParts parts
        cdef int64_t before = -1
        cdef int n, h
        for n in range(self.count):
            at = read_record(at, self.end, &parts)
            if at == NULL:
                raise CorruptFrame(f"record {n} of {self.count} is malformed")
            header = parts.headers
            for h in range(parts.header_count):
                header = next_header(header, at, &name, &name_size, &value, &value_size)
                if header == NULL:
                    raise CorruptFrame(f"header {h} of record {n} is malformed")
            if header != at:
                raise CorruptFrame(f"record {n} of {self.count} is longer than its headers")
            if not self.dense:
                if parts.offset_delta <= before or parts.offset_delta > self.last_delta:
                    raise CorruptFrame(f"record {n} of {self.count} lies outside its batch or out of order")
                before = parts.offset_delta
        if at != self.end:
            raise CorruptFrame(f"{self.end - at} bytes follow the last of {self.count} records")
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


cdef class Dispatcher:
    """Walks what was written, in stamp order, and pushes it to those who stand at the head."""

    def __init__(self):
        self.epoch = 1
        self.ref = RecordRef()

    def deliver(self, list appended):
        self.ref.stamp = -1
        for item in appended:
            if item.kind != KIND_DATA:
                continue
            self.ref.log = item.log
            self.ref.origin = item.origin
            if item.gather is not None:
                self._deliver_gather(item)
            else:
                try:
                    self._deliver_batch(item)
                except MainstemError:
                    self._fall_back(item)
        self.ref.owner = None

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
            if not sink.live:
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

    def _push_failed(self, Sink sink):
        """A sink that breaks breaks alone: it stays where it was, the others get their records."""
        self.failures += 1
        sink.live = False
        sink.position = self.ref.stamp
        logger.exception("a subscriber could not take offset %d of log %d", self.ref.offset, self.ref.log.id)

    def _fall_back(self, item):
        """What could not be read just now is read again by catching up: nobody loses it."""
        cdef int64_t position = max(<int64_t>item.ref.stamp, self.ref.stamp + 1)
        logger.exception("offset %d of log %d cannot be delivered live", item.ref.base_offset, item.log.id)
        for delivery in item.route.deliveries:
            if delivery.sink.live:
                delivery.sink.live = False
                delivery.sink.position = position
                delivery.sink.namespace.resume(delivery.sink)

    cdef int _deliver_gather(self, object item) except -1:
        cdef Gather gather = item.gather
        cdef SealedFrame frame = item.sealed
        cdef list routes = gather.routes
        cdef const uint8_t* start = frame.buf
        cdef const uint8_t* end = start + frame.size
        cdef int64_t first_time_ms = frame.first_time_ms
        cdef Route route
        cdef int n
        self.ref.owner = frame
        for n in range(frame.count):
            route = <Route>PyList_GET_ITEM(routes, n)
            if route.epoch != self.epoch:
                route.namespace.refresh(route)
            if PyList_GET_SIZE(route.deliveries):
                self.ref.load(start + frame.record_at[n], end, frame.base_offset, frame.stamp, first_time_ms)
                self._push_all(route)
        return 0

    cdef int _deliver_batch(self, object item) except -1:
        """A batch a client made: one topic. A transaction's records wait for its decision (see `committed.py`)."""
        cdef Route route = item.route
        if route.epoch != self.epoch:
            route.namespace.refresh(route)
        if not route.deliveries:
            return 0
        cdef bytes batch = bytes(item.data[1])
        cdef int attributes = (<const uint8_t*>PyBytes_AS_STRING(batch))[22]
        if attributes & ATTRIBUTE_CONTROL:
            for inner, base, stamp in committed_batches(item.log, batch, item.ref.base_offset, item.ref.stamp):
                self._walk(inner, route, base, stamp)
        elif not attributes & ATTRIBUTE_TRANSACTIONAL:
            self._walk(batch, route, item.ref.base_offset, item.ref.stamp)
        return 0

    cdef int _walk(self, bytes batch, Route route, int64_t base_offset, int64_t stamp) except -1:
        cdef BatchWalk walk = self._begin(<const uint8_t*>PyBytes_AS_STRING(batch), len(batch), base_offset, stamp)
        if walk is None:
            return 0
        self.ref.owner = (batch, walk)
        while walk.next(self.ref):
            self._push_all(route)
        return 0

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
               bytes topic=b""):
        """Offer stored frames to a sink that catches up, in order. `offsets` (sorted) chooses records; empty = all.
        `topic` names it where all of the log is of one.

        Returns True when all of [from_stamp, to_stamp) in `data` was offered; False when the sink had no room, its
        `position` then being the record it could not take. CorruptFrame where the stored bytes are damaged.
        """
        cdef const uint8_t[::1] view = data
        cdef const uint8_t* at
        cdef const uint8_t* start
        cdef const uint8_t* end
        cdef Py_ssize_t length, wanted = 0
        cdef FrameFields fields
        cdef uint64_t log_id = log.id
        cdef int fault
        cdef bytes named
        if view.shape[0] == 0:
            return True
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
            if fields.kind == KIND_DATA and \
                    (offsets.shape[0] == 0 or
                     (wanted < offsets.shape[0] and offsets[wanted] < fields.base_offset + <int64_t>fields.count)):
                fault = check_frame(at, &fields, True)
                if fault != FAULT_NONE:
                    raise CorruptFrame(
                        f"log {log.id}, offset {fields.base_offset}: {frame_error(fault, at - start)}",
                        fix=f"mainstem log verify {log.id}",
                    )
                named = topic if topic or not fields.topic_id else topic_of.get(fields.topic_id, b"")
                if not self._replay_frame(sink, log, at, length, offsets, wanted, from_stamp, to_stamp, named):
                    return False
            at += length
        self.ref.owner = None
        return True

    cdef bint _replay_frame(self, Sink sink, object log, const uint8_t* frame, Py_ssize_t length, int64_t[::1] offsets,
                            Py_ssize_t wanted, int64_t from_stamp, int64_t to_stamp, bytes topic) except -1:
        cdef const uint8_t* batch = frame + FRAME_HEAD_SIZE
        cdef Py_ssize_t size = length - FRAME_HEAD_SIZE
        cdef int64_t base = <int64_t>get_u64(frame + 16), stamp = <int64_t>get_u64(frame + 24)
        cdef bytes visible
        self.ref.origin = frame[6]
        if batch[22] & ATTRIBUTE_CONTROL:
            marker = PyBytes_FromStringAndSize(<const char*>batch, size)
            for inner, inner_base, inner_stamp in committed_batches(log, marker, base, stamp, from_stamp):
                visible = inner
                if not self._replay_batch(sink, <const uint8_t*>PyBytes_AS_STRING(visible), len(visible), inner_base,
                                          inner_stamp, offsets, wanted, from_stamp, to_stamp, topic):
                    return False
            return True
        if batch[22] & ATTRIBUTE_TRANSACTIONAL:
            return True
        return self._replay_batch(sink, batch, size, base, stamp, offsets, wanted, from_stamp, to_stamp, topic)

    cdef bint _replay_batch(self, Sink sink, const uint8_t* batch, Py_ssize_t size, int64_t base, int64_t stamp,
                            int64_t[::1] offsets, Py_ssize_t wanted, int64_t from_stamp, int64_t to_stamp,
                            bytes topic) except -1:
        cdef BatchWalk walk = self._begin(batch, size, base, stamp)
        cdef RecordRef ref = self.ref
        cdef object options
        if walk is None:
            return True
        while walk.next(ref):
            if ref.stamp < from_stamp:
                continue
            if ref.stamp >= to_stamp:
                return True
            if offsets.shape[0]:
                while wanted < offsets.shape[0] and offsets[wanted] < ref.offset:
                    wanted += 1
                if wanted >= offsets.shape[0]:
                    return True
                if offsets[wanted] != ref.offset:
                    continue
            if topic:
                ref.topic = topic
            else:
                ref.set_topic()
            options = sink.choose(ref)
            if options is None:
                continue
            if not sink.push(ref, options):
                sink.position = ref.stamp
                return False
            self.delivered += 1
            sink.position = ref.stamp + 1
        return True
