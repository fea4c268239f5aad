# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Stored records as objects; FORMAT.md draws the bytes. The plain `tests/oracles/records.py` says the same.

Frames and batches are checked first (`_frames.pyx`), then the records one by one. What passes its checksum and still
does not decode was sent so by a client; it goes to `bad`, where the caller gives one.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from mainstem.codec._batch cimport (
    BATCH_HEAD_SIZE, FRAME_HEAD_SIZE, KIND_DATA, KIND_MARKER, RecordParts,
    crc32c_c, get_signed, get_u16, get_u32, get_u64, next_header, read_record,
)
from mainstem.codec._frames cimport (
    FAULT_NONE, BatchHead, FrameFields, bounded_batch_head, check_frame, frame_error, parse_frame,
)

from mainstem.codec.compression import inflate
from mainstem.model.errors import CorruptFrame, InvalidArgument, MainstemError
from mainstem.model.origin import Origin
from mainstem.model.record import Record

cdef enum:
    CODEC_MASK = 7
    LOG_APPEND_TIME = 8
    CONTROL = 32
    FLAG_KEY_IS_TOPIC = 8
    FLAG_CONTROL = 0x100  # beyond the stored byte: this record lies in a control batch
    ORIGIN_KAFKA = 2
    RECORDS_AT_ONCE = 4096  # well under a millisecond
    FOUND_MAX = 128

cdef int64_t OFFSET_MAX = 0x7FFFFFFFFFFFFFFF
cdef object _Record = Record
cdef list _ORIGINS = [Origin(number) for number in range(len(Origin))]


cdef class Reading:
    """One walk over a batch's records: what is wanted of them, and what the frame says of each."""

    cdef int64_t base_offset, start_offset, end_offset
    cdef int64_t stamp  # of the frame, -1 where there is none
    cdef int origin
    cdef bint trusted  # the broker encoded the records itself: flags and `ms-*` headers count
    cdef bytes topic  # of the frame, or None where each record names its own
    cdef const int64_t* chosen  # sorted offsets still wanted, NULL where all between start and end are
    cdef const int64_t* chosen_end
    cdef bint values_only
    cdef object inflated_bytes_max
    cdef object inflate  # (codec, data, bytes_max)
    cdef uint32_t* numbers  # of the topics, one for each offset of the frame; NULL where records are wanted
    cdef Py_ssize_t number_count
    cdef dict known  # topic → number

    cdef int records(self, const uint8_t* batch, Py_ssize_t size, list out) except -1:
        """Appends the wanted records of a checked batch to `out`."""
        cdef int attributes = get_u16(batch + 21)
        cdef bytes inflated
        cdef const uint8_t* at = batch + BATCH_HEAD_SIZE
        cdef const uint8_t* end = batch + size
        if attributes & CODEC_MASK:
            inflated = (inflate if self.inflate is None else self.inflate)(
                attributes & CODEC_MASK, PyBytes_FromStringAndSize(<const char*>at, end - at), self.inflated_bytes_max
            )
            at = <const uint8_t*>PyBytes_AS_STRING(inflated)
            end = at + PyBytes_GET_SIZE(inflated)
        return self.walk(batch, at, end, out)

    cdef int walk(self, const uint8_t* batch, const uint8_t* at, const uint8_t* end, list out) except -1:
        cdef int32_t i, count = <int32_t>get_u32(batch + 57), last_delta = <int32_t>get_u32(batch + 23)
        cdef int64_t delta = -1, delta_before, offset, length = 0
        cdef bint dense = <int64_t>count - 1 == last_delta
        cdef const uint8_t* begin
        cdef RecordParts parts
        for i in range(count):
            if i % RECORDS_AT_ONCE == RECORDS_AT_ONCE - 1:
                with nogil:  # whoever waits for the interpreter has it now
                    pass
            begin = at
            at = get_signed(at, end, &length)
            if at == NULL or length < 1 or length > end - at:
                raise CorruptFrame(f"record {i} of {count} is malformed")
            # In a batch without gaps the place is the offset, whatever a producer wrote: the broker counted so.
            delta_before = delta
            delta = i
            if not dense:
                delta = offset_delta_of(at, at + length)
                if delta <= delta_before or delta > last_delta:
                    raise CorruptFrame(f"record {i} of {count} lies outside its batch or out of order")
            at += length
            offset = self.base_offset + delta
            if self.chosen != NULL:
                while self.chosen < self.chosen_end and self.chosen[0] < offset:
                    self.chosen += 1
                if self.chosen == self.chosen_end:
                    return 0
                if self.chosen[0] != offset:
                    continue
            elif offset < self.start_offset:
                continue
            elif offset >= self.end_offset:
                return 0
            if read_record(begin, end, &parts) == NULL:
                raise CorruptFrame(f"record {i} of {count} is malformed")
            if self.numbers != NULL:
                self.note_topic(offset, &parts)
            elif not self.values_only:
                out.append(self.record(batch, offset, &parts))
            elif parts.value_size < 0:
                out.append(None)
            else:
                out.append(PyBytes_FromStringAndSize(<const char*>parts.value, parts.value_size))
        if at != end:
            raise CorruptFrame(f"{end - at} bytes follow the last of {count} records")
        return 0

    cdef int note_topic(self, int64_t offset, const RecordParts* parts) except -1:
        cdef const uint8_t* name = NULL
        cdef Py_ssize_t size = 0
        cdef bytes topic = self.topic
        if topic is None:
            if self.trusted and self.stamp >= 0:
                if parts.flags & FLAG_KEY_IS_TOPIC:
                    name, size = parts.key, parts.key_size
                else:
                    find_topic(parts, &name, &size)
            topic = PyBytes_FromStringAndSize(<const char*>name, size) if size > 0 else b""
        number = self.known.get(topic)
        if number is None:
            number = self.known[topic] = len(self.known)
        if offset - self.base_offset < self.number_count:
            self.numbers[offset - self.base_offset] = number
        return 0

    cdef object record(self, const uint8_t* batch, int64_t offset, const RecordParts* parts):
        cdef int attributes = get_u16(batch + 21)
        cdef int flags = parts.flags if self.trusted else 0
        cdef int64_t time_ms
        cdef list headers = read_headers(parts)
        key = None if parts.key_size < 0 else PyBytes_FromStringAndSize(<const char*>parts.key, parts.key_size)
        value = None if parts.value_size < 0 else PyBytes_FromStringAndSize(<const char*>parts.value, parts.value_size)
        if attributes & LOG_APPEND_TIME:
            time_ms = <int64_t>get_u64(batch + 35)
        else:
            time_ms = <int64_t>(get_u64(batch + 27) + <uint64_t>parts.time_delta_ms)
        topic = self.topic
        if topic is None:
            topic = b""
            if self.trusted and self.stamp >= 0:
                topic = (key or b"") if flags & FLAG_KEY_IS_TOPIC else topic_header(headers)
        if attributes & CONTROL:
            flags |= FLAG_CONTROL
        return _Record(
            value, key, headers, time_ms, flags, offset,
            self.stamp + offset - self.base_offset if self.stamp >= 0 else -1, _ORIGINS[self.origin], topic,
        )


cdef inline int64_t offset_delta_of(const uint8_t* at, const uint8_t* end) noexcept nogil:
    cdef int64_t value = 0
    at = get_signed(at + 1, end, &value)
    if at != NULL:
        at = get_signed(at, end, &value)
    return -1 if at == NULL else value


cdef list read_headers(const RecordParts* parts):
    cdef list result = []
    cdef const uint8_t* at = parts.headers
    cdef const uint8_t* end = at + parts.headers_size
    cdef const uint8_t* name = NULL
    cdef const uint8_t* value = NULL
    cdef Py_ssize_t name_size = 0, value_size = 0
    cdef int i
    for i in range(parts.header_count):
        at = next_header(at, end, &name, &name_size, &value, &value_size)
        if at == NULL:
            raise CorruptFrame(f"record header {i} of {parts.header_count} is malformed")
        result.append((
            PyBytes_FromStringAndSize(<const char*>name, name_size),
            None if value_size < 0 else PyBytes_FromStringAndSize(<const char*>value, value_size),
        ))
    if at != end:
        raise CorruptFrame(f"{end - at} bytes follow the last of {parts.header_count} record headers")
    return result


cdef int find_topic(const RecordParts* parts, const uint8_t** topic, Py_ssize_t* topic_size) except -1:
    """The value of the first header that names the record's topic, in place; all of them are checked."""
    cdef const uint8_t* at = parts.headers
    cdef const uint8_t* end = at + parts.headers_size
    cdef const uint8_t* name = NULL
    cdef const uint8_t* value = NULL
    cdef Py_ssize_t name_size = 0, value_size = 0
    cdef int i
    cdef bint found = False
    for i in range(parts.header_count):
        at = next_header(at, end, &name, &name_size, &value, &value_size)
        if at == NULL:
            raise CorruptFrame(f"record header {i} of {parts.header_count} is malformed")
        if not found and name_size == 8 and memcmp(name, b"ms-topic", 8) == 0:
            topic[0], topic_size[0], found = value, value_size, True
    if at != end:
        raise CorruptFrame(f"{end - at} bytes follow the last of {parts.header_count} record headers")
    return 0


cdef bytes topic_header(list headers):
    for name, value in headers:
        if name == b"ms-topic":
            return value or b""
    return b""


def decode_batch(buf, Py_ssize_t pos=0, *, inflated_bytes_max, bint verify=True):
    """The records of the batch at `pos`. Those of a control batch carry CONTROL_FLAG in `flags`."""
    return walk_batch(buf, pos, inflated_bytes_max, verify, False)


def decode_values(buf, *, inflated_bytes_max):
    """The values of a batch whose checksum is known to fit."""
    return walk_batch(buf, 0, inflated_bytes_max, False, True)


cdef list walk_batch(buf, Py_ssize_t pos, inflated_bytes_max, bint verify, bint values_only):
    cdef Py_buffer view
    cdef BatchHead head
    cdef const uint8_t* at
    cdef Reading reading = Reading.__new__(Reading)
    cdef list out = []
    reading.values_only = values_only
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        if pos < 0 or pos > view.len:
            raise CorruptFrame(f"batch at byte {pos}: outside the buffer of {view.len} bytes")
        at = <const uint8_t*>view.buf + pos
        head = bounded_batch_head(at, view.len - pos, pos)
        if verify and crc32c_c(at + 21, head.size - 21, 0) != head.crc:
            raise CorruptFrame(f"batch at byte {pos}: its checksum does not match")
        reading.base_offset = reading.start_offset = head.base_offset
        reading.end_offset = OFFSET_MAX
        reading.stamp = -1
        reading.trusted = True
        reading.inflated_bytes_max = inflated_bytes_max
        reading.records(at, head.size, out)
    finally:
        PyBuffer_Release(&view)
    return out


def decode_frames(
    buf, uint64_t log_id, *, int64_t start_offset=0, end_offset=None, bint data_only=True, inflated_bytes_max,
    dict topic_of=None, bint verify=True, list bad=None, inflate=None,
):
    """The records from `start_offset` to before `end_offset` of a buffer of whole frames, each told where it lies."""
    cdef Reading reading = Reading.__new__(Reading)
    reading.start_offset = start_offset
    reading.end_offset = OFFSET_MAX if end_offset is None else end_offset
    reading.inflated_bytes_max = inflated_bytes_max
    reading.inflate = inflate
    return walk_frames(buf, log_id, reading, data_only, topic_of, verify, bad)


def note_topics(buf, uint64_t log_id, numbers, dict known, *, inflated_bytes_max, dict topic_of=None):
    """Of one frame: into `numbers` (array('I'), one for each offset) what `known` says of its topic, which new ones join."""
    cdef Reading reading = Reading.__new__(Reading)
    cdef Py_buffer view
    reading.end_offset = OFFSET_MAX
    reading.inflated_bytes_max = inflated_bytes_max
    reading.known = known
    PyObject_GetBuffer(numbers, &view, PyBUF_WRITABLE)
    try:
        reading.numbers, reading.number_count = <uint32_t*>view.buf, view.len // 4
        walk_frames(buf, log_id, reading, True, topic_of, True, None)
    finally:
        PyBuffer_Release(&view)


def decode_chosen(
    buf, uint64_t log_id, offsets, *, bint data_only=True, inflated_bytes_max, dict topic_of=None, bint verify=True,
    list bad=None, inflate=None,
):
    """The records at `offsets` (sorted int64, an array('q') or a view of one); all others are stepped over in place."""
    cdef Reading reading = Reading.__new__(Reading)
    cdef Py_buffer view
    PyObject_GetBuffer(offsets, &view, PyBUF_SIMPLE)
    try:
        if view.len == 0:
            return []
        if view.len & 7:
            raise InvalidArgument(f"offsets of {view.len} bytes are not whole int64 numbers")
        reading.chosen = <const int64_t*>view.buf
        reading.chosen_end = reading.chosen + view.len // 8
        reading.start_offset = reading.chosen[0]
        reading.end_offset = (reading.chosen_end - 1)[0] + 1
        reading.inflated_bytes_max = inflated_bytes_max
        reading.inflate = inflate
        return walk_frames(buf, log_id, reading, data_only, topic_of, verify, bad)
    finally:
        PyBuffer_Release(&view)


cdef list walk_frames(buf, uint64_t log_id, Reading reading, bint data_only, dict topic_of, bint verify, list bad):
    cdef Py_buffer view
    cdef FrameFields fields
    cdef const uint8_t* at
    cdef Py_ssize_t pos = 0, size, kept
    cdef int fault
    cdef list out = []
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        while pos < view.len:
            at = <const uint8_t*>view.buf + pos
            fault = parse_frame(at, view.len - pos, log_id, &fields)
            if fault != FAULT_NONE:
                raise frame_error(fault, pos)
            if fields.base_offset >= reading.end_offset:
                break
            size = FRAME_HEAD_SIZE + <Py_ssize_t>fields.payload_size
            if wanted(reading, &fields, data_only):
                fault = check_frame(at, &fields, verify)
                if fault != FAULT_NONE:
                    raise frame_error(fault, pos)
                if data_only and get_u16(at + FRAME_HEAD_SIZE + 21) & CONTROL:
                    pos += size
                    continue
                begin_frame(reading, &fields, topic_of, pos)
                kept = len(out)
                try:
                    reading.records(at + FRAME_HEAD_SIZE, fields.payload_size, out)
                except MainstemError as error:
                    if bad is None:
                        raise
                    del out[kept:]
                    bad.append((fields.base_offset, error))
            pos += size
    finally:
        PyBuffer_Release(&view)
    return out


cdef bint wanted(Reading reading, const FrameFields* fields, bint data_only) noexcept:
    cdef int64_t end = fields.base_offset + fields.count
    if fields.kind == KIND_MARKER or end <= reading.start_offset:
        return False
    if data_only and fields.kind != KIND_DATA:
        return False
    if reading.chosen == NULL:
        return True
    while reading.chosen < reading.chosen_end and reading.chosen[0] < fields.base_offset:
        reading.chosen += 1
    return reading.chosen < reading.chosen_end and reading.chosen[0] < end


cdef int begin_frame(Reading reading, const FrameFields* fields, dict topic_of, Py_ssize_t pos) except -1:
    if fields.origin >= len(_ORIGINS):
        raise CorruptFrame(f"frame at byte {pos}: origin {fields.origin} is unknown to this program")
    reading.base_offset = fields.base_offset
    reading.stamp = fields.stamp
    reading.origin = fields.origin
    reading.trusted = fields.origin != ORIGIN_KAFKA
    reading.topic = None
    if fields.topic_id != 0:
        reading.topic = topic_of.get(fields.topic_id, b"") if topic_of is not None else b""
    return 0


cdef int check_walk(const uint8_t* at, const uint8_t* end, int count, int last_delta, int* place) noexcept nogil:
    """0, or what is wrong with the record at `place[0]`: 1 it is malformed, 2 a header of it is, 3 it is longer than its
    headers, 4 it lies outside its batch or out of order, 5 bytes follow the last."""
    cdef const uint8_t* header
    cdef const uint8_t* name = NULL
    cdef const uint8_t* value = NULL
    cdef Py_ssize_t name_size = 0, value_size = 0
    cdef RecordParts parts
    cdef int64_t before = -1
    cdef bint dense = last_delta == count - 1
    cdef int n, h
    for n in range(count):
        place[0] = n
        at = read_record(at, end, &parts)
        if at == NULL:
            return 1
        header = parts.headers
        for h in range(parts.header_count):
            header = next_header(header, at, &name, &name_size, &value, &value_size)
            if header == NULL:
                return 2
        if header != at:
            return 3
        if not dense:
            if parts.offset_delta <= before or parts.offset_delta > last_delta:
                return 4
            before = parts.offset_delta
    return 5 if at != end else 0


cdef object _FAULTS = (
    "", "is malformed", "has a malformed header", "is longer than its headers", "lies outside its batch or out of order",
    "is the last, and bytes follow it",
)


cdef object records_fault(int fault, int place, int count):
    return CorruptFrame(f"record {place} of {count} {_FAULTS[fault]}")


def check_records(bytes records, int count, int last_delta):
    """Whether a client's records decode to their end. What a checksum covers may still be nonsense."""
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(records)
    cdef const uint8_t* end = at + PyBytes_GET_SIZE(records)
    cdef int place = 0, fault
    with nogil:
        fault = check_walk(at, end, count, last_delta, &place)
    if fault:
        raise records_fault(fault, place, count)


def keyless_records(const uint8_t[::1] records, int count, int last_delta, int places_max):
    """How many of a client's records have no key, and the places of the first. They decode to their end."""
    cdef const uint8_t* at = &records[0] if records.shape[0] else NULL
    cdef const uint8_t* end = at + records.shape[0]
    cdef int[FOUND_MAX] places
    cdef int place = 0, found = 0, n, fault
    cdef RecordParts parts
    places_max = min(places_max, FOUND_MAX)
    with nogil:
        fault = check_walk(at, end, count, last_delta, &place)
        if not fault:
            for n in range(count):
                at = read_record(at, end, &parts)
                if parts.key_size < 0:
                    if found < places_max:
                        places[found] = n
                    found += 1
    if fault:
        raise records_fault(fault, place, count)
    return found, [places[n] for n in range(min(found, places_max))]
