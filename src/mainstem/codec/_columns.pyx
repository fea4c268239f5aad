# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Frames to Arrow buffers without an object per record. columns.py holds the contract, tests/oracles/columns.py the oracle."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy

from mainstem.codec._batch cimport (
    BATCH_HEAD_SIZE, FRAME_HEAD_SIZE, KIND_DATA, RecordParts, crc32c_c, get_u16, get_u32, get_u64, next_header, put_varint,
    read_record, zigzag
)
from mainstem.codec._column_buffers cimport take_binary, take_run
from mainstem.codec._column_text cimport amqp_content_type, in_years, is_utf8, mqtt_content_type, put_text, shown_ms
from mainstem.codec._column_topics cimport TABLE_FULL, Topic, TopicTable
from mainstem.codec._runs cimport (
    Binary, Run, begin_values, copy_padded, end_values, put_absent, put_bit, put_bytes, put_i32, put_i64, put_octets,
    put_value
)
from mainstem.model.errors import CorruptFrame, MainstemError, UnreadableBatch

cdef enum:
    # Columns, one bit each; columns.py gives them to callers.
    KEY = 1
    VALUE = 2
    TOPIC = 4
    PARTITION = 8
    OFFSET = 16
    TIMESTAMP = 32
    TIMESTAMP_TYPE = 64
    HEADERS = 128
    CANONICAL = 256
    LEVELS = 512
    ORIGIN = 1024
    CONTENT_TYPE = 2048
    FLAGS = 4096
    STAMP = 8192
    BATCH = 16384
    STORED_HEADERS = 32768
    ORIGIN_NUMBER = 65536

    FRAME_MAGIC = 0x4D534631
    ORIGIN_MQTT = 1
    ORIGIN_KAFKA = 2
    ORIGIN_AMQP = 3
    ORIGIN_SPARK = 6
    KEY_IS_TOPIC = 8
    COMPRESSION = 7  # bits of a batch's attributes
    APPEND_TIME = 8
    TRANSACTIONAL = 16
    CONTROL = 32

    # Columns that say of each row what its topic or its batch says of all: written for many rows at once, see `_fill`.
    BY_TOPIC = TOPIC | PARTITION | TIMESTAMP_TYPE | CANONICAL | LEVELS | ORIGIN | ORIGIN_NUMBER
    ORIGIN_SHIFT = 32
    TIME_TYPE_SHIFT = 40

    EACH_RECORD = -1  # the batch names no topic
    TRANSLATIONS_MAX = 4096  # distinct header blocks whose translation is remembered

# Padded for copy_padded.
cdef char[7][32] ORIGIN_NAMES
cdef int[7] ORIGIN_SIZES
for _number, _name in enumerate((b"broker", b"mqtt", b"kafka", b"amqp", b"nats", b"http", b"spark")):
    memcpy(ORIGIN_NAMES[<int>_number], PyBytes_AS_STRING(_name + bytes(32)), 32)
    ORIGIN_SIZES[<int>_number] = len(_name)


cdef enum:
    # where each column of variable size keeps its buffers
    AT_KEY, AT_VALUE, AT_TOPIC, AT_CANONICAL, AT_ORIGIN, AT_CONTENT_TYPE, AT_BATCH, AT_NAME, AT_HEADER, AT_LEVEL, AT_STORED, BINARIES

cdef enum:
    AT_PARTITION, AT_OFFSET, AT_TIMESTAMP, AT_TYPE, AT_FLAGS, AT_STAMP, AT_HEADER_VALID, AT_HEADERS, AT_LEVELS, AT_NUMBER, AT_ROWS, RUNS


cdef class ColumnDecoder:
    cdef uint32_t columns
    cdef readonly int64_t rows
    cdef readonly int64_t position
    cdef readonly bint finished
    cdef int64_t start, end
    cdef bint has_log_id, has_translate, has_source
    cdef uint8_t log_id[8]
    cdef object inflate, translate
    cdef dict aborted, translations
    cdef TopicTable table
    cdef int32_t topic_fixed

    cdef Py_buffer source
    cdef const uint8_t* data
    cdef int64_t data_size, at
    cdef bytes inflated

    cdef const uint8_t* frame  # of the batch being decoded
    cdef const uint8_t* record
    cdef const uint8_t* records_end
    cdef int32_t records_left, batch_topic, time_type
    cdef int64_t frame_size, base_offset, offset_min, frame_end, base_ms, max_ms, stamp
    cdef uint8_t origin
    cdef bint trusted, header_written, kept_whole
    cdef bint has_odd_name  # of the record being decoded
    cdef const uint8_t* content_type
    cdef Py_ssize_t content_type_size

    cdef Binary binary[BINARIES]
    cdef Run run[RUNS]
    cdef int64_t header_nulls
    cdef size_t bytes_used

    def __init__(
        self, columns, resolve, inflate, *, start=0, end=(1 << 63) - 1, topic=None, log_id=None, aborted=(), translate=None
    ):
        self.columns = columns
        self.inflate, self.translate, self.has_translate = inflate, translate, translate is not None
        self.start, self.end, self.position = start, end, start
        self.translations, self.aborted = {}, {}
        for producer_id, first, last in aborted:
            self.aborted.setdefault(producer_id, []).append((first, last))
        self.has_log_id = log_id is not None
        if self.has_log_id:
            packed = log_id.to_bytes(8, "big")
            memcpy(self.log_id, PyBytes_AS_STRING(packed), 8)
        self.table = TopicTable(resolve)
        self.topic_fixed = EACH_RECORD if topic is None else self.table.add(topic, resolve(topic))

    def __dealloc__(self):
        if self.has_source:
            PyBuffer_Release(&self.source)
        for i in range(BINARIES):
            free(self.binary[i].valid.data)
            free(self.binary[i].offsets.data)
            free(self.binary[i].data.data)
        for i in range(RUNS):
            free(self.run[i].data)

    def feed(self, data):
        if self.has_source:
            PyBuffer_Release(&self.source)
            self.has_source = False
        self.inflated = None
        self.records_left = 0
        PyObject_GetBuffer(data, &self.source, PyBUF_SIMPLE)
        self.has_source = True
        self.data = <const uint8_t*>self.source.buf
        self.data_size = self.source.len
        self.at = 0

    @property
    def consumed(self):
        return self.at

    def decode(self, int64_t rows_max, size_t bytes_max):
        cdef bint more
        with nogil:
            more = self._decode(rows_max, bytes_max)
        return more

    cdef int _decode(self, int64_t rows_max, size_t bytes_max) except -1 nogil:
        while not self.finished and self.rows < rows_max and self.bytes_used < bytes_max:
            if self.records_left > 0:
                self._decode_records(rows_max, bytes_max)
            elif not self._next_batch():
                return 0
        return not self.finished and (self.records_left > 0 or self.at < self.data_size)

    def pass_unreadable(self):
        """After UnreadableBatch: (the frame's bytes, the first offset that could not be read); decoding goes on behind it."""
        cdef int64_t first = self.offset_min if self.offset_min > self.start else self.start
        frame = PyBytes_FromStringAndSize(<const char*>self.frame, <Py_ssize_t>self.frame_size)
        self.at = self.frame - self.data + self.frame_size
        self.records_left = 0
        self._pass(self.frame_end)
        return frame, first

    def take(self):
        cdef dict taken = {}
        self._fill()
        if self.columns & KEY:
            taken[KEY] = take_binary(&self.binary[AT_KEY])
        if self.columns & VALUE:
            taken[VALUE] = take_binary(&self.binary[AT_VALUE])
        if self.columns & TOPIC:
            taken[TOPIC] = take_binary(&self.binary[AT_TOPIC])
        if self.columns & PARTITION:
            taken[PARTITION] = (take_run(&self.run[AT_PARTITION]),)
        if self.columns & OFFSET:
            taken[OFFSET] = (take_run(&self.run[AT_OFFSET]),)
        if self.columns & TIMESTAMP:
            taken[TIMESTAMP] = (take_run(&self.run[AT_TIMESTAMP]),)
        if self.columns & TIMESTAMP_TYPE:
            taken[TIMESTAMP_TYPE] = (take_run(&self.run[AT_TYPE]),)
        if self.columns & HEADERS:
            taken[HEADERS] = self._take_headers()
        if self.columns & CANONICAL:
            taken[CANONICAL] = take_binary(&self.binary[AT_CANONICAL])
        if self.columns & LEVELS:
            taken[LEVELS] = self._take_levels()
        if self.columns & ORIGIN:
            taken[ORIGIN] = take_binary(&self.binary[AT_ORIGIN])
        if self.columns & CONTENT_TYPE:
            taken[CONTENT_TYPE] = take_binary(&self.binary[AT_CONTENT_TYPE])
        if self.columns & FLAGS:
            taken[FLAGS] = (take_run(&self.run[AT_FLAGS]),)
        if self.columns & STAMP:
            taken[STAMP] = (take_run(&self.run[AT_STAMP]),)
        if self.columns & BATCH:
            taken[BATCH] = take_binary(&self.binary[AT_BATCH])
        if self.columns & STORED_HEADERS:
            taken[STORED_HEADERS] = take_binary(&self.binary[AT_STORED])
        if self.columns & ORIGIN_NUMBER:
            taken[ORIGIN_NUMBER] = (take_run(&self.run[AT_NUMBER]),)
        self.bytes_used = 0
        self.rows = 0
        return taken

    cdef tuple _take_headers(self):
        nulls, count = self.header_nulls, self.binary[AT_NAME].rows
        self.header_nulls = 0
        if self.rows == 0:
            put_i32(&self.run[AT_HEADERS], 0)
        valid = take_run(&self.run[AT_HEADER_VALID])
        names, values = take_binary(&self.binary[AT_NAME]), take_binary(&self.binary[AT_HEADER])
        return (valid if nulls else None, take_run(&self.run[AT_HEADERS]), nulls, count, names, values)

    cdef tuple _take_levels(self):
        count = self.binary[AT_LEVEL].rows
        if self.rows == 0:
            put_i32(&self.run[AT_LEVELS], 0)
        return (take_run(&self.run[AT_LEVELS]), count, take_binary(&self.binary[AT_LEVEL]))

    # Frames and batches.

    cdef int _refuse(self, const char* why) except -1 nogil:
        with gil:
            raise CorruptFrame(f"{why.decode()}, {self.at} bytes into what was read, after offset {self.position}")

    cdef int _unreadable(self, const char* why) except -1 nogil:
        """The checksum fits, so this is what its client sent; whoever reads may pass it over."""
        with gil:
            raise UnreadableBatch(f"offsets {self.offset_min} to {self.frame_end - 1} cannot be read: {why.decode()}")

    cdef void _pass(self, int64_t offset) noexcept nogil:
        if offset > self.end:
            offset = self.end
        if offset > self.position:
            self.position = offset

    cdef int _next_batch(self) except -1 nogil:
        """Open the next batch that may hold wanted records; 0 when the fed bytes hold no further whole frame."""
        cdef const uint8_t* frame
        cdef int64_t left, size, base, frame_end
        while True:
            left = self.data_size - self.at
            if left < FRAME_HEAD_SIZE:
                return 0
            frame = self.data + self.at
            if get_u32(frame) != FRAME_MAGIC:
                if get_u64(frame) == 0 and get_u64(frame + 40) == 0:
                    self.at = self.data_size  # room preallocated behind the last frame
                    return 0
                self._refuse(b"no frame begins here")
            size = FRAME_HEAD_SIZE + <int64_t>get_u32(frame + 8)
            base = <int64_t>get_u64(frame + 16)
            frame_end = base + get_u32(frame + 40)
            if self.has_log_id:
                self._check_head(frame)
            if base >= self.end:
                self._pass(base)
                self.finished = True
                return 0
            if size > left:
                return 0
            if frame[5] == KIND_DATA and frame_end > self.start and self._open_batch(frame, size, frame_end):
                self.at += size
                return 1
            self.at += size
            self._pass(frame_end)

    cdef int _check_head(self, const uint8_t* frame) except -1 nogil:
        cdef uint32_t crc = crc32c_c(self.log_id, 8, 0)
        crc = crc32c_c(frame + 16, 8, crc)
        if crc32c_c(frame, 44, crc) != get_u32(frame + 44):
            self._refuse(b"the frame header's checksum is wrong")
        return 0

    cdef int _open_batch(self, const uint8_t* frame, int64_t size, int64_t frame_end) except -1 nogil:
        """Make this frame's batch the current one; 0 when none of its records is wanted."""
        cdef const uint8_t* batch = frame + FRAME_HEAD_SIZE
        cdef uint16_t attributes
        cdef int64_t batch_size
        if size < FRAME_HEAD_SIZE + BATCH_HEAD_SIZE:
            self._refuse(b"a data frame without a batch")
        attributes = get_u16(batch + 21)
        batch_size = 12 + <int64_t><int32_t>get_u32(batch + 8)
        if batch_size < BATCH_HEAD_SIZE or batch_size > size - FRAME_HEAD_SIZE:
            self._refuse(b"the batch is not what its frame describes")
        if attributes & CONTROL:
            return 0
        if attributes & TRANSACTIONAL and self._is_aborted(<int64_t>get_u64(batch + 43), <int64_t>get_u64(frame + 16)):
            return 0
        self.origin = frame[6]
        self.trusted = self.origin != ORIGIN_KAFKA and self.origin != ORIGIN_SPARK
        self.batch_topic = self._topic_of_frame(get_u32(frame + 12))
        if self.batch_topic >= 0 and not self.table.topics[self.batch_topic].wanted:
            return 0
        if crc32c_c(batch + 21, <Py_ssize_t>(batch_size - 21), 0) != get_u32(batch + 17):
            self._refuse(b"the batch's checksum is wrong")
        self.frame, self.frame_size, self.frame_end = frame, size, frame_end
        self.header_written = False
        self.base_offset = self.offset_min = <int64_t>get_u64(frame + 16)
        self.stamp = <int64_t>get_u64(frame + 24)
        self.time_type = 1 if attributes & APPEND_TIME else 0
        self.base_ms = <int64_t>get_u64(batch + 27)
        self.max_ms = <int64_t>get_u64(batch + 35)
        self.records_left = <int32_t>get_u32(batch + 57)
        self.kept_whole = self.batch_topic >= 0 and (
            attributes & (COMPRESSION | APPEND_TIME) or not in_years(self.base_ms) or not in_years(self.max_ms)
        )
        self.record = batch + BATCH_HEAD_SIZE
        self.records_end = batch + batch_size
        if attributes & COMPRESSION:
            self._inflate(attributes & COMPRESSION)
        return self.records_left > 0

    cdef int _inflate(self, int method) except -1 nogil:
        with gil:
            packed = PyBytes_FromStringAndSize(<const char*>self.record, self.records_end - self.record)
            try:
                self.inflated = self.inflate(method, packed)
            except MainstemError as error:
                self.records_left = 0
                raise UnreadableBatch(
                    f"offsets {self.offset_min} to {self.frame_end - 1} cannot be read: {error.message}"
                ) from error
            self.record = <const uint8_t*>PyBytes_AS_STRING(self.inflated)
            self.records_end = self.record + PyBytes_GET_SIZE(self.inflated)
        return 0

    cdef int _is_aborted(self, int64_t producer_id, int64_t offset) except -1 with gil:
        return any(first <= offset <= last for first, last in self.aborted.get(producer_id, ()))

    cdef int32_t _topic_of_frame(self, uint32_t topic_id) except -2 nogil:
        if self.topic_fixed >= 0:
            return self.topic_fixed
        if topic_id == 0:
            return EACH_RECORD
        with gil:
            number = self.table.by_id(topic_id)
            if number == TABLE_FULL:
                self._start_table_anew()
                number = self.table.by_id(topic_id)
            return number

    # Records.

    cdef int _decode_records(self, int64_t rows_max, size_t bytes_max) except -1 nogil:
        cdef RecordParts parts
        cdef int64_t offset
        cdef int32_t number
        cdef Topic* topic
        while self.records_left > 0 and self.rows < rows_max and self.bytes_used < bytes_max:
            self.record = read_record(self.record, self.records_end, &parts)
            if self.record == NULL:
                self._unreadable(b"a record is longer than its batch")
            offset = self.base_offset + parts.offset_delta
            if offset < self.offset_min or offset >= self.frame_end:
                self._unreadable(b"a record's offset is not its batch's")
            if parts.header_count > 0 and not self._look_at_headers(&parts):
                self._unreadable(b"a record's headers do not fit")
            self.records_left -= 1
            self.offset_min = offset + 1
            if offset >= self.end:
                self._pass(offset)
                self.finished = True
                return 0
            self._pass(offset + 1)
            if offset < self.start:
                continue
            number = self.batch_topic
            if number == EACH_RECORD:
                number = self._topic_of_record(&parts)
            topic = &self.table.topics[number]
            if topic.wanted and topic.start <= offset < topic.end:
                if self.columns & BY_TOPIC:
                    self._put_row(topic, number)
                self._put_fixed(&parts, offset)
                self._put_sized(&parts)
        if self.records_left == 0:
            self._pass(self.frame_end)
        return 0

    cdef bint _look_at_headers(self, RecordParts* parts) noexcept nogil:
        """0 if they do not fit: before anything of the record is put into a column, so that columns stay of equal length.

        What columns ask of all headers (a name that is not a text, a content type) is noted on the same walk.
        """
        cdef const uint8_t* at = parts.headers
        cdef const uint8_t* name = NULL
        cdef const uint8_t* value = NULL
        cdef Py_ssize_t name_size = 0, size = 0
        self.has_odd_name, self.content_type = False, NULL
        for _ in range(parts.header_count):
            at = next_header(at, parts.headers + parts.headers_size, &name, &name_size, &value, &size)
            if at == NULL:
                return False
            self.has_odd_name |= not is_utf8(name, name_size)
            if name_size == 12 and self.content_type == NULL and memcmp(name, b"content-type", 12) == 0:
                self.content_type, self.content_type_size = value, size
        return True

    cdef int32_t _topic_of_record(self, RecordParts* parts) except -2 nogil:
        cdef const uint8_t* name = NULL
        cdef Py_ssize_t size = 0
        cdef int32_t number
        if self.trusted and parts.flags & KEY_IS_TOPIC and parts.key_size >= 0:
            name, size = parts.key, parts.key_size
        elif not self._find_header(parts, b"ms-topic", 8, &name, &size) or size < 0:
            name, size = <const uint8_t*><const char*>b"", 0
        number = self.table.by_name(<const char*>name, <uint32_t>size)
        if number == TABLE_FULL:
            self._start_table_anew()
            number = self.table.by_name(<const char*>name, <uint32_t>size)
        return number

    cdef int _start_table_anew(self) except -1 with gil:
        self._fill()  # rows that mean topics by their numbers
        self.table.forget()
        return 0

    cdef int _find_header(
        self, RecordParts* parts, const char* wanted, Py_ssize_t wanted_size, const uint8_t** value, Py_ssize_t* size
    ) except -1 nogil:
        """1 and the first header of that name, or 0."""
        cdef const uint8_t* at = parts.headers
        cdef const uint8_t* name = NULL
        cdef Py_ssize_t name_size = 0
        for _ in range(parts.header_count):
            at = next_header(at, parts.headers + parts.headers_size, &name, &name_size, value, size)
            if name_size == wanted_size and memcmp(name, wanted, <size_t>wanted_size) == 0:
                return 1
        return 0

    cdef int _put_row(self, Topic* topic, int32_t number) except -1 nogil:
        """Only remembered; `_fill` writes what it means into columns."""
        if self.columns & (ORIGIN | ORIGIN_NUMBER) and self.origin > ORIGIN_SPARK:
            self._refuse(b"a frame of an unknown origin")
        if self.columns & TOPIC:
            self.bytes_used += topic.kafka_size
        if self.columns & CANONICAL:
            self.bytes_used += topic.canonical_size
        if self.columns & LEVELS:
            self.bytes_used += topic.levels_size + 4 * topic.level_count
        return put_i64(
            &self.run[AT_ROWS], number | <int64_t>self.origin << ORIGIN_SHIFT | <int64_t>self.time_type << TIME_TYPE_SHIFT
        )

    cdef int _fill(self) except -1 nogil:
        """The columns of BY_TOPIC for the rows remembered, a column at a time: short loops over few buffers."""
        cdef const int64_t* rows = <const int64_t*>self.run[AT_ROWS].data
        cdef int64_t count = <int64_t>(self.run[AT_ROWS].size >> 3)
        cdef Binary* origins = &self.binary[AT_ORIGIN]
        cdef int64_t i
        cdef int origin
        if count == 0:
            return 0
        self.run[AT_ROWS].size = 0
        if self.columns & TOPIC:
            self.table.fill_kafka(rows, count, &self.binary[AT_TOPIC])
        if self.columns & CANONICAL:
            self.table.fill_canonical(rows, count, &self.binary[AT_CANONICAL])
        if self.columns & PARTITION:
            self.table.fill_partitions(rows, count, &self.run[AT_PARTITION])
        if self.columns & LEVELS:
            self.table.fill_levels(rows, count, &self.run[AT_LEVELS], &self.binary[AT_LEVEL])
        if self.columns & TIMESTAMP_TYPE:
            put_octets(&self.run[AT_TYPE], rows, count, TIME_TYPE_SHIFT)
        if self.columns & ORIGIN_NUMBER:
            put_octets(&self.run[AT_NUMBER], rows, count, ORIGIN_SHIFT)
        if self.columns & ORIGIN:
            begin_values(origins, count, count * 8)
            for i in range(count):
                origin = <int>(rows[i] >> ORIGIN_SHIFT & 0xFF)
                end_values(origins, copy_padded(&origins.data, ORIGIN_NAMES[origin], ORIGIN_SIZES[origin]))
        return 0

    cdef int _put_fixed(self, RecordParts* parts, int64_t offset) except -1 nogil:
        self.rows += 1
        self.bytes_used += 24
        if self.columns & OFFSET:
            put_i64(&self.run[AT_OFFSET], offset)
        if self.columns & TIMESTAMP:
            put_i64(&self.run[AT_TIMESTAMP], shown_ms(self.max_ms if self.time_type else self.base_ms + parts.time_delta_ms) * 1000)
        if self.columns & FLAGS:
            put_i32(&self.run[AT_FLAGS], parts.flags)
        if self.columns & STAMP:
            put_i64(&self.run[AT_STAMP], self.stamp + parts.offset_delta)
        if self.columns & BATCH:
            self._put_batch()
        return 0

    cdef int _put_batch(self) except -1 nogil:
        cdef int64_t size = self.frame_size if self.kept_whole else FRAME_HEAD_SIZE + BATCH_HEAD_SIZE
        if self.header_written:
            return put_value(&self.binary[AT_BATCH], NULL, -1)
        self.header_written = True
        self.bytes_used += <size_t>size
        return put_value(&self.binary[AT_BATCH], <const char*>self.frame, <Py_ssize_t>size)

    cdef int _put_sized(self, RecordParts* parts) except -1 nogil:
        if self.columns & KEY:
            put_value(&self.binary[AT_KEY], <const char*>parts.key, parts.key_size)
            self.bytes_used += <size_t>parts.key_size if parts.key_size > 0 else 0
        if self.columns & VALUE:
            put_value(&self.binary[AT_VALUE], <const char*>parts.value, parts.value_size)
            self.bytes_used += <size_t>parts.value_size if parts.value_size > 0 else 0
        if self.columns & CONTENT_TYPE:
            self._put_content_type(parts)
        if self.columns & HEADERS:
            self._put_headers(parts)
        if self.columns & STORED_HEADERS:
            self._put_stored_headers(parts)
        return 0

    cdef int _put_content_type(self, RecordParts* parts) except -1 nogil:
        cdef const uint8_t* found = NULL
        cdef const uint8_t* value = NULL
        cdef Py_ssize_t size = -1
        if parts.header_count > 0:
            if self.origin == ORIGIN_MQTT:
                if self._find_header(parts, b"ms-mqtt", 7, &value, &size):
                    found = mqtt_content_type(value, value + size, &size)
            elif self.origin == ORIGIN_AMQP:
                if self._find_header(parts, b"ms-amqp", 7, &value, &size):
                    found = amqp_content_type(value, value + size, &size)
            else:
                found, size = self.content_type, self.content_type_size
        return put_text(&self.binary[AT_CONTENT_TYPE], found, size if found != NULL else -1)

    cdef int _put_headers(self, RecordParts* parts) except -1 nogil:
        cdef const uint8_t* at = parts.headers
        cdef const uint8_t* name = NULL
        cdef const uint8_t* value = NULL
        cdef Py_ssize_t name_size = 0, size = 0
        cdef int64_t before = self.binary[AT_NAME].rows
        if self.run[AT_HEADERS].size == 0:
            put_i32(&self.run[AT_HEADERS], 0)
        if parts.header_count > 0 and self.trusted and self.has_translate:
            self._put_translated(parts)
        else:
            for _ in range(parts.header_count):
                at = next_header(at, parts.headers + parts.headers_size, &name, &name_size, &value, &size)
                if self.has_odd_name:
                    put_text(&self.binary[AT_NAME], name, name_size)
                else:
                    put_value(&self.binary[AT_NAME], <const char*>name, name_size)
                put_value(&self.binary[AT_HEADER], <const char*>value, size)
                self.bytes_used += <size_t>(name_size + 8) + (<size_t>size if size > 0 else 0)
        put_bit(&self.run[AT_HEADER_VALID], <size_t>(self.rows - 1), self.binary[AT_NAME].rows > before)
        if self.binary[AT_NAME].rows == before:
            self.header_nulls += 1
        return put_i32(&self.run[AT_HEADERS], <int32_t>self.binary[AT_NAME].rows)

    cdef int _put_stored_headers(self, RecordParts* parts) except -1 nogil:
        """The encoded block, count in front, where the HEADERS column does not tell all of it; else null."""
        cdef Run* data = &self.binary[AT_STORED].data
        cdef uint8_t count[10]
        cdef uint8_t* end
        if parts.header_count == 0 or not (self.trusted or self.has_odd_name):
            return put_value(&self.binary[AT_STORED], NULL, -1)
        if self.binary[AT_STORED].absent:
            put_absent(&self.binary[AT_STORED])
        end = put_varint(count, zigzag(parts.header_count))
        put_bytes(data, <const char*>count, end - count)
        put_value(&self.binary[AT_STORED], <const char*>parts.headers, parts.headers_size)
        self.bytes_used += <size_t>parts.headers_size
        return 0

    cdef int _put_translated(self, RecordParts* parts) except -1 nogil:
        """Headers as another protocol stored them, in the words of a Kafka reader; one call per distinct block."""
        with gil:
            block = (self.origin, parts.header_count, PyBytes_FromStringAndSize(<const char*>parts.headers, parts.headers_size))
            headers = self.translations.get(block)
            if headers is None:
                if len(self.translations) >= TRANSLATIONS_MAX:
                    self.translations.clear()
                headers = self.translations[block] = self.translate(*block)
            for name, value in headers:
                put_text(&self.binary[AT_NAME], <const uint8_t*>PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
                if value is None:
                    put_value(&self.binary[AT_HEADER], NULL, -1)
                else:
                    put_value(&self.binary[AT_HEADER], PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
                    self.bytes_used += <size_t>PyBytes_GET_SIZE(value)
        return 0
