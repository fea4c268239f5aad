# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The incoming half of a NATS connection. See `wire.py`; the plain `tests/oracles/nats_wire.py` says the same."""

from array import array

from cpython cimport array as arrays
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy

from mainstem.codec._batch cimport put_varint, zigzag
from mainstem.log._gather cimport Gather, Ticket
from mainstem.protocols._routes cimport Entry
from mainstem.codec._large_memory cimport memory_taken, release
from mainstem.protocols._tail cimport keep_tail
from mainstem.protocols.nats._outbound cimport Outbound
from mainstem.protocols.nats.jetstream._pubacks cimport Gate

from mainstem.protocols.nats import commands
from mainstem.protocols.nats.commands import WireError

cdef enum:
    ORIGIN_NATS = 4
    FLAG_KEY_IS_TOPIC = 8
    VERB_MAX = 8  # bytes of a line beside its arguments
    WORDS_MAX = 5  # of a publish: HPUB subject reply header-size size
    NUMBER_DIGITS_MAX = 12
    TAIL_BYTES_KEPT = 4096  # as `unfinished.NOTED_MIN`
    NEW_TOPICS_NS = 1000000  # with subjects that are new to the broker, before the adapter looks at the clock
    NEW_TOPICS_MIN = 8  # however long they take
    MARK_STREAM = 1  # as `publishing.STREAM`
    ACK_TOKENS = 9
    ACK_NUMBERS = 4  # deliveries, two sequences, stamp
    ACKS_MAX = 8192  # settled at once
    ACKS_KEPT = 256  # room for so many is not given back
    STREAM_HEAD_MAX = 65536  # as `jetstream.publishing.HEADER_BYTES_MAX`

cdef arrays.array TEMPLATE = array("q")
cdef dict VERBS = {
    b"SUB": commands.SUB, b"UNSUB": commands.UNSUB, b"CONNECT": commands.CONNECT, b"PING": commands.PING,
    b"PONG": commands.PONG, b"INFO": commands.INFO, b"+OK": commands.OK, b"-ERR": commands.ERR,
}
PAUSE = (commands.PONG,)  # says nothing
cdef object PUB = commands.PUB, HPUB = commands.HPUB, SUB = commands.SUB, UNSUB = commands.UNSUB
cdef frozenset WITH_TEXT = frozenset((commands.CONNECT, commands.INFO, commands.ERR))


cdef inline bint is_space(uint8_t byte) noexcept nogil:
    return byte == 32 or 9 <= byte <= 13


cdef int64_t long_number_of(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """-1 where it is none."""
    cdef int64_t value = 0
    cdef Py_ssize_t n
    if size <= 0 or size > 18 + (at[0] == 49):  # up to 1999…, which is less than 2^63
        return -1
    for n in range(size):
        if at[n] < 48 or at[n] > 57:
            return -1
        value = value * 10 + at[n] - 48
    return value


cdef Py_ssize_t number_of(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """The same of sizes."""
    return long_number_of(at, size) if size <= NUMBER_DIGITS_MAX else -1


cdef bint is_done(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """Whether an ack says no more than that: it is empty, `+ACK` or `+OK`."""
    return size == 0 or (size == 4 and memcmp(at, <const char*>"+ACK", 4) == 0) or \
        (size == 3 and memcmp(at, <const char*>"+OK", 3) == 0)


cdef bint says_more(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """Whether a header begins with `ms-`, however its letters are written: perhaps a key, or a time."""
    cdef const uint8_t* end = at + size
    at = <const uint8_t*>memchr(at, 10, size)
    while at != NULL and end - at > 3:
        if at[3] == 45 and at[1] | 32 == 109 and at[2] | 32 == 115:
            return True
        at = <const uint8_t*>memchr(at + 1, 10, end - at - 1)
    return False


cdef bint asks_more(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """Whether a header is one for JetStream: `Nats-`, as it is written."""
    cdef const uint8_t* end = at + size
    at = <const uint8_t*>memchr(at, 10, size)
    while at != NULL and end - at > 5:
        if memcmp(at + 1, <const char*>"Nats-", 5) == 0:
            return True
        at = <const uint8_t*>memchr(at + 1, 10, end - at - 1)
    return False


cdef uint8_t* put_header(uint8_t* at, const char* name, int name_size, const uint8_t* value, Py_ssize_t size) noexcept nogil:
    """`name` with its length before it."""
    memcpy(at, name, name_size)
    at = put_varint(at + name_size, zigzag(size))
    memcpy(at, value, size)
    return at + size


cdef class Inbound(Intake):
    """Bytes in; records into the log, and a tuple of `commands` for each command that needs a decision."""

    def __init__(self, Py_ssize_t payload_max, Py_ssize_t line_max=commands.CONTROL_LINE_MAX):
        self.payload_max = payload_max
        self.line_max = line_max
        self.identity = b""

    def __dealloc__(self):
        release(self.tail, self.tail_capacity, False)
        free(self.scratch)
        free(self.acks)

    # -- bytes to commands

    def kept_bytes(self):
        """Of a command that is not whole."""
        cdef Py_ssize_t kept = memory_taken(self.tail, self.tail_capacity, self.tail_size)
        return kept if kept > TAIL_BYTES_KEPT else 0

    @property
    def has_more(self):
        """Whether `next` may find something before more is received."""
        return self.base != NULL

    def receive(self, bytes data):
        """Bytes from the peer; then call `next` until it returns None."""
        if self.base != NULL and self.at < self.size:
            data = PyBytes_FromStringAndSize(<const char*>self.base + self.at, self.size - self.at) + data
        self.data = data
        self.base, self.at, self.size = <const uint8_t*>PyBytes_AS_STRING(data), 0, PyBytes_GET_SIZE(data)

    def next(self, int64_t time_ms):
        """The next command that needs a decision; publishes on the way there are done. None: more must be received.

        WireError where the peer must be closed.
        """
        self.time_ms = time_ms
        self._begin()
        return self._step()

    cdef int take(self, const uint8_t* data, Py_ssize_t size, int64_t time_ms) except -1:
        """A socket's bytes where they lie: what needs no decision is done here, the rest is the connection's."""
        cdef object connection = self.connection, event = None, failure = None
        cdef uint64_t before = self.messages_in
        if connection is None:
            return 0
        if self.publisher is None or self.fresh or self.base != NULL or connection.held or connection.draining:
            connection.on_data(PyBytes_FromStringAndSize(<const char*>data, size))
            return 0
        connection.pings_out = 0
        self.base, self.at, self.size, self.time_ms = data, 0, size, time_ms
        connection.draining = True
        try:
            self._begin()
            event = self._step()
        except Exception as error:
            failure = error
        connection.draining = False
        if event is not None or failure is not None:
            try:
                connection.handle(event, before, failure)
            finally:
                self._own()
            return 0
        if self.tail_capacity > TAIL_BYTES_KEPT or connection.unfinished:
            connection.note_unfinished()
        if self.messages_in != before and connection.server.ticker.pressed:
            connection.server.ticker.press(connection)
        return <int>(self.messages_in - before)

    cdef int _begin(self) except -1:
        """Once per read: whether its publishes need nobody's decision."""
        self.direct = self.publisher is not None and self.publisher.check()
        self.ack_front = None
        if self.direct:
            self.routes = self.publisher.routes
        return 0

    cdef int _own(self) except -1:
        """What is not parsed yet outlives the buffer it was lent in."""
        if self.base != NULL and self.data is None:
            self.data = PyBytes_FromStringAndSize(<const char*>self.base + self.at, self.size - self.at)
            self.base, self.at, self.size = <const uint8_t*>PyBytes_AS_STRING(self.data), 0, self.size - self.at
        return 0

    def forget(self):
        """The peer is gone: what it left unfinished is not waited for."""
        self.data, self.base, self.connection, self.publisher = None, NULL, None, None
        release(self.tail, self.tail_capacity, False)
        self.tail, self.tail_size, self.tail_capacity = NULL, 0, 0

    cdef object _step(self):
        """Acks of messages are collected, and settled together before anything that needs a decision."""
        try:
            return self._parse()
        finally:
            if self.ack_count:
                self._settle_acks()

    cdef object _parse(self):
        cdef Publish publish
        cdef const uint8_t* at
        cdef Py_ssize_t line = 0, available
        cdef int kind
        cdef object event
        cdef int64_t until_ns = self.routes.spent_ns + NEW_TOPICS_NS if self.routes is not None else 0
        cdef uint64_t known = self.routes.resolved if self.routes is not None else 0
        while self.base != NULL:
            if self.tail_size:
                if not self._fill_tail():
                    self.data, self.base = None, NULL
                    return None
                event = self._finish_tail()
                if event is not None:
                    return event
                continue
            at, available = self.base + self.at, self.size - self.at
            if available == 0:
                self.data, self.base = None, NULL
                return None
            if 0 < self.line_size < available and memcmp(at, self.line, self.line_size) == 0:
                kind, line, publish = 2, self.line_size, self.line_publish
            else:
                kind = self._find_end(at, available, &line, &publish)
                if kind == 2:
                    self._keep_line(at, line, &publish)
            if kind == 0 or (kind == 2 and line + publish.total + 2 > available):
                self._keep(at, available)
                self.tail_need = line + publish.total + 2 if kind == 2 else 0
                self.data, self.base = None, NULL
                return None
            if kind == 1:
                self.at += line
                event = self._line(at, line - 1)
            else:
                self.at += line + publish.total + 2
                event = self._take_publish(at + line, &publish)
            if event is not None:
                return event
            if self.routes is not None and self.routes.spent_ns > until_ns and \
                    self.routes.resolved - known >= NEW_TOPICS_MIN:
                return PAUSE
        return None

    cdef int _find_end(self, const uint8_t* at, Py_ssize_t size, Py_ssize_t* line, Publish* publish) except -1:
        """0: the line is not whole. 1: it is, and `line` bytes long. 2: the same, and a publish, whose payload follows."""
        cdef const uint8_t* words[WORDS_MAX]
        cdef Py_ssize_t sizes[WORDS_MAX]
        cdef const uint8_t* found = <const uint8_t*>memchr(at, 10, size)
        cdef const uint8_t* end
        cdef int count = 0, last
        cdef bint has_headers = False
        if (size if found == NULL else found - at) > self.line_max + VERB_MAX:
            raise WireError(commands.CONTROL_LINE_EXCEEDED)
        if found == NULL:
            return 0
        line[0] = found - at + 1
        end = found
        while True:
            while at < end and is_space(at[0]):
                at += 1
            if at == end or count == WORDS_MAX:
                break
            words[count] = at
            while at < end and not is_space(at[0]):
                at += 1
            sizes[count] = at - words[count]
            if count == 0:
                has_headers = sizes[0] == 4 and words[0][0] | 32 == 104
                if sizes[0] != 3 + has_headers or words[0][has_headers] | 32 != 112 or \
                        words[0][has_headers + 1] | 32 != 117 or words[0][has_headers + 2] | 32 != 98:
                    return 1
            count += 1
        if count == 0:
            return 1
        last = count - 1
        if at != end or (last != 2 + has_headers and last != 3 + has_headers):
            raise WireError("")
        publish.has_headers = has_headers
        publish.total = number_of(words[last], sizes[last])
        publish.head = number_of(words[last - 1], sizes[last - 1]) if has_headers else 0
        if publish.total < 0 or publish.head < 0 or publish.head > publish.total:
            raise WireError("")
        if publish.total > self.payload_max:
            raise WireError(commands.MAXIMUM_PAYLOAD)
        publish.subject, publish.subject_size = words[1], sizes[1]
        publish.reply, publish.reply_size = NULL, 0
        if last == 3 + has_headers:
            publish.reply, publish.reply_size = words[2], sizes[2]
        return 2

    cdef void _keep_line(self, const uint8_t* at, Py_ssize_t size, Publish* publish) noexcept:
        self.line_size = size if size <= LINE_KEPT else 0
        if self.line_size:
            memcpy(self.line, at, size)
            self.line_publish = publish[0]
            self.line_publish.subject = self.line + (publish.subject - at)
            if publish.reply_size:
                self.line_publish.reply = self.line + (publish.reply - at)

    cdef bint _fill_tail(self) except -1:
        """Complete the command that the last read left unfinished, and take no more; True when it is whole."""
        cdef Publish publish
        cdef const uint8_t* at = self.base + self.at
        cdef const uint8_t* found
        cdef Py_ssize_t available = self.size - self.at, missing, line = 0
        cdef int kind
        if self.tail_need == 0:
            found = <const uint8_t*>memchr(at, 10, available)
            missing = available if found == NULL else found - at + 1
            self._keep(at, min(missing, self.line_max + VERB_MAX + 2))
            self.at += missing
            kind = self._find_end(self.tail, self.tail_size, &line, &publish)
            if kind == 0:
                return False
            self.tail_need = line + (publish.total + 2 if kind == 2 else 0)
            at, available = self.base + self.at, self.size - self.at
        missing = min(self.tail_need - self.tail_size, available)
        self._keep(at, missing)
        self.at += missing
        return self.tail_size == self.tail_need

    cdef object _finish_tail(self):
        cdef Publish publish
        cdef Py_ssize_t line = 0
        cdef int kind = self._find_end(self.tail, self.tail_size, &line, &publish)
        cdef object event
        self.tail_size = 0  # before, so that whatever happens below goes on behind this command
        event = self._line(self.tail, line - 1) if kind == 1 else self._take_publish(self.tail + line, &publish)
        if self.tail_capacity > TAIL_BYTES_KEPT:
            release(self.tail, self.tail_capacity, True)
            self.tail, self.tail_capacity = NULL, 0
        return event

    cdef int _keep(self, const uint8_t* at, Py_ssize_t size) except -1:
        return keep_tail(&self.tail, &self.tail_size, &self.tail_capacity, at, size, self.tail_need)

    cdef object _line(self, const uint8_t* at, Py_ssize_t size):
        """Any command but a publish."""
        cdef bytes line = PyBytes_FromStringAndSize(<const char*>at, size)
        cdef list words
        if line.endswith(b"\r"):
            line = line[: size - 1]
        words = line.split(None, 1)
        kind = VERBS.get((<bytes>words[0]).upper()) if words else None
        if kind is None:
            raise WireError(commands.UNKNOWN_OPERATION)
        rest = words[1] if len(words) > 1 else b""
        if kind in WITH_TEXT:
            return kind, rest
        words = rest.split()
        if kind == SUB:
            if len(words) not in (2, 3):
                raise WireError("")
            return kind, words[0], words[1] if len(words) == 3 else b"", words[len(words) - 1]
        if kind == UNSUB:
            if len(words) not in (1, 2):
                raise WireError("")
            limit = number_of(<const uint8_t*>PyBytes_AS_STRING(words[1]), len(words[1])) if len(words) == 2 else 0
            if limit < 0:
                raise WireError("")
            return kind, words[0], limit
        return (kind,)

    # -- PUB and HPUB

    cdef object _take_publish(self, const uint8_t* at, Publish* publish):
        """`at`: where its headers begin. Returns the command where somebody must decide about it."""
        if at[publish.total] != 13 or at[publish.total + 1] != 10:
            raise WireError(commands.UNKNOWN_OPERATION)
        publish.headers = at
        if self.direct and publish.subject[0] == 36 and self._take_ack(publish):
            self.messages_in += 1
            self.bytes_in += publish.total
            if self.verbose:
                self.outbound.write(b"+OK\r\n")
            return None
        if self.direct and (not publish.has_headers or self.takes_headers) and self._route(publish):
            self.messages_in += 1
            self.bytes_in += publish.total
            self._append(publish)
            if self.verbose:
                self.outbound.write(b"+OK\r\n")
            return None
        return (
            HPUB if publish.has_headers else PUB,
            PyBytes_FromStringAndSize(<const char*>publish.subject, publish.subject_size),
            PyBytes_FromStringAndSize(<const char*>publish.reply, publish.reply_size) if publish.reply_size else b"",
            PyBytes_FromStringAndSize(<const char*>at, publish.head),
            PyBytes_FromStringAndSize(<const char*>at + publish.head, publish.total - publish.head),
        )

    cdef bint _route(self, Publish* publish) except -1:
        """Find the route (`last_route`); False where the publish is not one that just goes there."""
        cdef Entry* entry
        if self.last_subject is None or self.last_generation != self.routes.generation \
                or PyBytes_GET_SIZE(self.last_subject) != publish.subject_size \
                or memcmp(PyBytes_AS_STRING(self.last_subject), publish.subject, publish.subject_size) != 0:
            entry = self.routes.find(publish.subject, publish.subject_size, 0)
            if entry.route == NULL:
                return False
            self.last_subject, self.last_route = <bytes>entry.topic, <Route>entry.route
            self.last_bytes_max, self.last_generation = entry.bytes_max, self.routes.generation
            self.last_gate = self.publisher.gates[self.last_subject] if entry.marks & MARK_STREAM else None
        if self.last_gate is not None:
            return self._is_plain(publish)
        if publish.total - publish.head > self.last_bytes_max:
            return False
        if publish.reply_size and self.no_responders and (
            self.last_route.epoch != self.dispatcher.epoch or PyList_GET_SIZE(self.last_route.deliveries) == 0
        ):
            return False  # perhaps nobody is there to answer
        return publish.head == 0 or not says_more(publish.headers, publish.head)

    cdef bint _take_ack(self, Publish* publish) except -1:
        """$JS.ACK.stream.consumer.deliveries.sequence.consumer sequence.stamp.pending; False: it is not just that."""
        cdef const uint8_t* at = publish.subject
        cdef const uint8_t* end = at + publish.subject_size
        cdef const uint8_t* dots[ACK_TOKENS]
        cdef int64_t* told
        cdef Py_ssize_t size
        cdef int64_t number
        cdef int count = 0, n
        if publish.reply_size or publish.has_headers or publish.subject_size < 16 or \
                memcmp(at, <const char*>"$JS.ACK.", 8) != 0 or not is_done(publish.headers, publish.total):
            return False
        at = <const uint8_t*>memchr(at, 46, end - at)
        while at != NULL:
            if count == ACK_TOKENS:
                return False
            dots[count] = at
            count += 1
            at = <const uint8_t*>memchr(at + 1, 46, end - at - 1)
        if count != ACK_TOKENS - 1:
            return False
        size = dots[3] + 1 - publish.subject  # up to the consumer's name
        if self.ack_front is None or PyBytes_GET_SIZE(self.ack_front) != size or \
                memcmp(PyBytes_AS_STRING(self.ack_front), publish.subject, size) != 0:
            if self.ack_count:
                self._settle_acks()
            self.ack_front = PyBytes_FromStringAndSize(<const char*>publish.subject, size)
            self.acks_alone = not self.connection.takes_acks(self.ack_front)
        if self.acks_alone:
            return False
        if self.ack_count == self.ack_capacity:
            told = <int64_t*>realloc(self.acks, (self.ack_capacity * 2 + 16) * ACK_NUMBERS * sizeof(int64_t))
            if told == NULL:
                raise MemoryError
            self.acks, self.ack_capacity = told, self.ack_capacity * 2 + 16
        told = self.acks + self.ack_count * ACK_NUMBERS
        for n in range(ACK_NUMBERS):
            number = long_number_of(dots[3 + n] + 1, dots[4 + n] - dots[3 + n] - 1)
            if number < 0:
                return False
            told[n] = number
        self.ack_count += 1
        if self.ack_count >= ACKS_MAX:
            self._settle_acks()
        return True

    cdef int _settle_acks(self) except -1:
        cdef Py_ssize_t n, count = self.ack_count
        cdef arrays.array offsets = arrays.clone(TEMPLATE, count, False)
        cdef arrays.array told = arrays.clone(TEMPLATE, count * ACK_NUMBERS, False)
        memcpy(told.data.as_voidptr, self.acks, count * ACK_NUMBERS * sizeof(int64_t))
        for n in range(count):
            (<int64_t*>offsets.data.as_voidptr)[n] = self.acks[n * ACK_NUMBERS + 1] - 1
        self.ack_count = 0
        if self.ack_capacity > ACKS_KEPT:
            free(self.acks)
            self.acks, self.ack_capacity = NULL, 0
        if self.connection is not None:
            self.connection.on_acks(self.ack_front, offsets, told)
        return 0

    cdef bint _is_plain(self, Publish* publish) except -1:
        """Whether a stream is asked for no more than to keep it."""
        if not self.last_gate.stream.takes_plain or publish.total > self.last_gate.bytes_max or \
                publish.total - publish.head > self.last_bytes_max or publish.head > STREAM_HEAD_MAX or \
                (publish.reply_size > 4 and memcmp(publish.reply + publish.reply_size - 4, b".$FI", 4) == 0):
            return False
        if publish.reply_size and publish.reply[0] != 95:  # no `_`, so no inbox: may it be answered there?
            return False
        return publish.head == 0 or not (
            says_more(publish.headers, publish.head) or asks_more(publish.headers, publish.head)
        )

    cdef int _append(self, Publish* publish) except -1:
        cdef Route route = self.last_route
        cdef Gather gather = route.gather(ORIGIN_NATS)
        cdef Py_ssize_t headers_size = 0
        cdef int header_count = 0
        cdef Gate gate = self.last_gate
        cdef const uint8_t* reply = publish.reply
        cdef Py_ssize_t reply_size = publish.reply_size
        cdef Ticket ticket = gather.ticket
        cdef int index
        if gate is not None:
            publish.reply_size = 0  # it is where the ack goes, and nobody else's
        if publish.head or publish.reply_size or self.identity:
            headers_size = self._headers(publish, &header_count)
        index = gather.put_routed(route, <const uint8_t*>PyBytes_AS_STRING(route.topic), PyBytes_GET_SIZE(route.topic),
                          publish.headers + publish.head, publish.total - publish.head,
                          self.scratch, headers_size, header_count, self.time_ms, FLAG_KEY_IS_TOPIC)
        if gate is not None:
            gate.stream.gathered += 1
            gate.stream.gathered_topics.add(route.topic)
            gate.stream.last_id = b""
            if reply_size:
                gate.acks_of(ticket).put(index, reply, reply_size, NULL, 0)
        self.published = True
        self.messages += 1
        return 0

    cdef Py_ssize_t _headers(self, Publish* publish, int* count) except -1:
        """The record's headers into `scratch`: the block as sent, the reply subject, the client."""
        cdef Py_ssize_t identity_size = PyBytes_GET_SIZE(self.identity)
        cdef Py_ssize_t need = publish.head + publish.reply_size + identity_size + 96
        cdef uint8_t* at
        if self.scratch_capacity < need or self.scratch_capacity > need + TAIL_BYTES_KEPT:
            free(self.scratch)
            self.scratch_capacity = 0
            self.scratch = <uint8_t*>malloc(need)
            if self.scratch == NULL:
                raise MemoryError
            self.scratch_capacity = need
        at = self.scratch
        if publish.head:
            at = put_header(at, "\x0ems-nats", 8, publish.headers, publish.head)
            count[0] += 1
        if publish.reply_size:
            at = put_header(at, "\x1ams-nats-reply", 14, publish.reply, publish.reply_size)
            count[0] += 1
        if identity_size:
            at = put_header(at, "\x12ms-client", 10, <const uint8_t*>PyBytes_AS_STRING(self.identity), identity_size)
            count[0] += 1
        return at - self.scratch
