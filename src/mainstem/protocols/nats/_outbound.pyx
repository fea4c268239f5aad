# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Deliveries on their way out, without an object for each. See `outbound.py`, which draws the bytes."""

import os

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from mainstem.broker.delivery._live cimport RecordRef, Sink
from mainstem.protocols._outgoing cimport Outgoing
from mainstem.protocols._lent cimport lend
from mainstem.protocols._reactor cimport SocketTransport

from mainstem.model.topic import nats_subject
from mainstem.model.topic_filter import matches

cdef enum:
    ORIGIN_NATS = 4
    SUBJECTS_KNOWN_MAX = 65536
    LENT_BYTES_MIN = 256 << 10  # a payload of so much is not copied: it leaves from where it lies, in turns


cdef int digits_of(Py_ssize_t value) noexcept nogil:
    cdef int count = 1
    while value >= 10:
        value //= 10
        count += 1
    return count


cdef inline uint8_t* put_text(uint8_t* at, const uint8_t* text, Py_ssize_t size) noexcept nogil:
    memcpy(at, text, size)
    at[size] = 32
    return at + size + 1


cdef uint8_t* put_number(uint8_t* at, Py_ssize_t value, int digits) noexcept nogil:
    cdef int n
    for n in range(digits - 1, -1, -1):
        at[n] = <uint8_t>(48 + value % 10)
        value //= 10
    return at + digits


cdef class Subscription:
    """One SUB. `limit` counts from SUB on, as UNSUB's maximum does."""

    def __init__(self, owner, Outbound outbound, bytes sid, bytes topic_filter, bytes queue=b"",
                 bytes subject=b""):
        self.owner, self.outbound = owner, outbound
        self.sid, self.filter, self.queue, self.subject = sid, topic_filter, queue, subject


cdef class Encoder:
    """What is worked out once per record, however many subscriptions it has. One for all connections of a server."""

    def __init__(self, translate):
        """`translate` gives another protocol's record as (headers, reply), or None where it has expired."""
        self.translate = translate
        self.subjects = {}

    cdef int load(self, RecordRef record) except -1:
        if record is self.record and record.serial == self.serial:
            return 0
        self.record, self.serial = record, record.serial
        self.expired = False
        self.headers = self.reply = NULL
        self.headers_size = self.reply_size = 0
        self.payload, self.payload_size = record.value_at, record.value_len if record.value_len > 0 else 0
        if record.topic is not self.topic:
            self.subject = self._subject(record.topic)
            self.topic = record.topic
        if record.origin == ORIGIN_NATS:
            if record.header_count:
                if not record.find_header("ms-nats", 7, &self.headers, &self.headers_size) or self.headers_size < 0:
                    self.headers_size = 0
                if not record.find_header("ms-nats-reply", 13, &self.reply, &self.reply_size) or self.reply_size < 0:
                    self.reply_size = 0
            return 0
        found = self.translate(record)
        if found is None:
            self.expired = True
            return 0
        self.kept, self.kept_reply = found
        self.headers = <const uint8_t*>PyBytes_AS_STRING(self.kept)
        self.headers_size = PyBytes_GET_SIZE(self.kept)
        self.reply = <const uint8_t*>PyBytes_AS_STRING(self.kept_reply)
        self.reply_size = PyBytes_GET_SIZE(self.kept_reply)
        return 0

    def _subject(self, bytes topic):
        found = self.subjects.get(topic)
        if found is None:
            if len(self.subjects) >= SUBJECTS_KNOWN_MAX:
                self.subjects.clear()
            found = self.subjects[topic] = nats_subject(topic)
        return found


cdef class Outbound(Outgoing):
    """One connection's output."""

    def __init__(self, connection, ticker, Encoder encoder):
        super().__init__(ticker)
        self.connection = connection
        self.encoder = encoder
        self.identity = b""

    def flush(self):
        """One write of all that was written since the last; the ticker calls it. Who waited for room is served then."""
        cdef object connection = self.connection, transport = connection.transport
        if self.size and transport is not None and not connection.closing:
            self.send_all(transport, connection)
        else:
            self.take()
        if self.waiting and not self.blocked and not connection.closing:
            self.waiting = False
            connection.resume()

    cdef bint is_full(self) noexcept:
        return self.blocked or self.size > self.bytes_max

    @property
    def full(self):
        return self.is_full()

    cdef bint is_own(self, RecordRef record) noexcept:
        cdef const uint8_t* client = NULL
        cdef Py_ssize_t size = 0
        if record.origin != ORIGIN_NATS or not record.find_header("ms-client", 9, &client, &size):
            return False
        return size == PyBytes_GET_SIZE(self.identity) and memcmp(client, PyBytes_AS_STRING(self.identity), size) == 0

    cdef bint deliver(self, Subscription one, RecordRef record) except -1:
        """A stored record; False where this subscription is not to have it."""
        cdef Encoder encoder = self.encoder
        if one.closed or record.stamp < one.start:
            return False
        if self.identity and self.is_own(record):
            return False
        if self.allows is not None and not self.allows(record.topic):
            return False
        encoder.load(record)
        if encoder.expired:
            return False
        self.put(one, encoder.subject, encoder.reply, encoder.reply_size, encoder.headers, encoder.headers_size,
                 encoder.payload, encoder.payload_size, record.owner)
        return True

    def write_message(self, Subscription one, bytes subject, bytes reply, bytes headers, bytes payload):
        """A message that lies in no log."""
        self.put(one, subject, <const uint8_t*>PyBytes_AS_STRING(reply), PyBytes_GET_SIZE(reply),
                 <const uint8_t*>PyBytes_AS_STRING(headers), PyBytes_GET_SIZE(headers),
                 <const uint8_t*>PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload), payload)

    cdef int put(self, Subscription one, bytes subject, const uint8_t* reply, Py_ssize_t reply_size,
                 const uint8_t* headers, Py_ssize_t headers_size,
                 const uint8_t* payload, Py_ssize_t payload_size, object owner) except -1:
        """`owner` keeps the payload where it lies; None: it is gone when this returns."""
        cdef Py_ssize_t head = headers_size if self.headers else 0, total = head + payload_size, size
        cdef bint lent = payload_size >= LENT_BYTES_MIN and owner is not None and \
            type(self.connection.transport) is SocketTransport
        cdef Py_ssize_t copied = head if lent else total + 2
        cdef uint8_t* at
        if self.front_one is one and self.front_subject is subject and self.front_total == total and \
                reply_size == 0 and head == 0:
            at = self.room(self.front_size + copied)
            memcpy(at, self.front, self.front_size)
            at += self.front_size
        else:
            size = 4 + PyBytes_GET_SIZE(subject) + 1 + PyBytes_GET_SIZE(one.sid) + 1 + digits_of(total) + 2
            if reply_size:
                size += reply_size + 1
            if head:
                size += 1 + digits_of(head) + 1
            at = self._put_line(self.room(size + copied), one, subject, reply, reply_size, head, total)
            if size <= FRONT_KEPT and reply_size == 0 and head == 0:
                memcpy(self.front, at - size, size)
                self.front_one, self.front_subject, self.front_size, self.front_total = one, subject, size, total
        if head:
            memcpy(at, headers, head)
            at += head
        if lent:
            self._lend(owner, payload, payload_size)
            at = self.room(2)
        elif payload_size:
            memcpy(at, payload, payload_size)
            at += payload_size
        at[0], at[1] = 13, 10
        self.messages += 1
        self.bytes_out += total
        one.delivered += 1
        if one.limit and one.delivered >= one.limit:
            one.owner.drop(one)
        return 0

    cdef int _lend(self, object owner, const uint8_t* payload, Py_ssize_t size) except -1:
        """Behind what was written so far."""
        cdef object connection = self.connection
        self.send_all(connection.transport, connection)
        (<SocketTransport>connection.transport).keep_all([lend(owner, payload, size)])
        connection.server.counters.bytes_out += size
        return 0

    cdef uint8_t* _put_line(self, uint8_t* at, Subscription one, bytes subject, const uint8_t* reply,
                            Py_ssize_t reply_size, Py_ssize_t head, Py_ssize_t total) noexcept:
        if head:
            at[0] = 72  # H
            at += 1
        memcpy(at, <const char*>"MSG ", 4)
        at = put_text(at + 4, <const uint8_t*>PyBytes_AS_STRING(subject), PyBytes_GET_SIZE(subject))
        at = put_text(at, <const uint8_t*>PyBytes_AS_STRING(one.sid), PyBytes_GET_SIZE(one.sid))
        if reply_size:
            at = put_text(at, reply, reply_size)
        if head:
            at = put_number(at, head, digits_of(head))
            at[0] = 32
            at += 1
        at = put_number(at, total, digits_of(total))
        at[0], at[1] = 13, 10
        return at + 2


cdef class PlainSink(Sink):
    """The subscriptions of one connection that are in no queue group."""

    def __init__(self, connection, namespace):
        super().__init__(namespace)
        self.takes_unstored = True
        self.connection = connection
        self.outbound = connection.outbound

    cpdef bint push(self, RecordRef record, object options) except -1:
        cdef Outbound outbound = self.outbound
        if outbound.is_full():
            outbound.waiting = True
            return self.connection.closing
        for one in <tuple>options:
            outbound.deliver(<Subscription>one, record)
        return True

    cpdef bint push_unstored(self, RecordRef record, object options) except -1:
        cdef Outbound outbound = self.outbound
        if outbound.is_full() and not self.connection.takes_live():
            return False
        for one in <tuple>options:
            outbound.deliver(<Subscription>one, record)
        return True

    cpdef object choose(self, RecordRef record):
        plain = self.connection.subscriptions.plain
        found = [one for topic_filter, held in plain.items() if matches(topic_filter, record.topic) for one in held]
        return tuple(found) if found else None

    def merge(self, options):
        return tuple([one for held in options for one in held])

    def filters(self):
        return list(self.connection.subscriptions.plain)


cdef class GroupSink(Sink):
    """A queue group: each record goes to one member, at random among those that have room."""

    def __init__(self, namespace):
        super().__init__(namespace)
        self.takes_unstored = True
        self.members = {}
        self.random = int.from_bytes(os.urandom(4), "little") | 1

    cpdef bint push(self, RecordRef record, object options) except -1:
        cdef tuple members = options
        cdef Py_ssize_t count = len(members), n, first
        cdef Subscription one
        cdef bint waits = False
        if count == 0:
            return True
        self.random = self.random * 1664525 + 1013904223
        first = <Py_ssize_t>((<uint64_t>self.random * <uint64_t>count) >> 32)
        for n in range(count):
            one = members[(first + n) % count]
            if one.closed or one.owner.closing:
                continue
            if one.outbound.is_full():
                waits = True
            elif one.outbound.deliver(one, record):
                return True
        if waits:
            for member in members:
                (<Subscription>member).outbound.waiting = True
        return not waits

    cpdef bint push_unstored(self, RecordRef record, object options) except -1:
        """To a member with room, else to one that may still leave more unread."""
        cdef Py_ssize_t n, first, count = len(<tuple>options)
        cdef Subscription one
        cdef bint patient
        self.random = self.random * 1664525 + 1013904223
        first = <Py_ssize_t>((<uint64_t>self.random * <uint64_t>count) >> 32)
        for patient in (False, True):
            for n in range(count):
                one = (<tuple>options)[(first + n) % count]
                if one.closed or one.owner.closing or one.outbound.is_full() != patient:
                    continue
                if (not patient or one.owner.takes_live()) and one.outbound.deliver(one, record):
                    return True
        return False

    cpdef object choose(self, RecordRef record):
        found = [one for topic_filter, held in self.members.items() if matches(topic_filter, record.topic) for one in held]
        return tuple(found) if found else None

    def merge(self, options):
        return tuple([one for held in options for one in held])

    def filters(self):
        return list(self.members)
