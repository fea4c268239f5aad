# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""MQTT clients without a client library in the way. See `mqtt.py` for what it measures, `_schedule.pyx` for when it sends."""

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from mainstem.protocols.mqtt.wire._fields cimport get_length, put_length
from mainstem.server.load._schedule cimport HEAD, Peer, Schedule

cdef enum:
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    DISCONNECT = 14
    ROOM = 16  # of a PUBLISH, besides topic and payload


cdef class Load(Schedule):
    """Publisher n takes its topics, `topics_each` of them, from place n * topics_each on."""

    cdef int qos, version
    cdef uint8_t** topics
    cdef uint16_t* topic_sizes
    cdef uint32_t topic_count, topics_each
    cdef list keep

    def __init__(self, *, int qos, int version, list topics, uint32_t topics_each, **schedule):
        cdef uint32_t n
        super().__init__(acks_wanted=qos > 0, **schedule)
        self.qos, self.version = qos, version
        self.keep = [bytes(topic) for topic in topics]
        self.topic_count = len(topics)
        self.topics_each = topics_each
        self.topics = <uint8_t**>PyMem_Malloc(self.topic_count * sizeof(uint8_t*))
        self.topic_sizes = <uint16_t*>PyMem_Malloc(self.topic_count * sizeof(uint16_t))
        for n in range(self.topic_count):
            self.topics[n] = <uint8_t*><char*>(<bytes>self.keep[n])
            self.topic_sizes[n] = len(<bytes>self.keep[n])

    def __dealloc__(self):
        PyMem_Free(self.topics)
        PyMem_Free(self.topic_sizes)

    def add_subscriber(self, int fd, uint64_t first=0):
        """`first` is the number it gets first of each publisher; then every `step`th."""
        self.add_receiver(fd, first)

    cdef int put(self, Peer* peer, int64_t intended) except -1:
        cdef uint32_t index = <uint32_t>(peer - self.peers)
        cdef uint32_t topic = (index * self.topics_each + <uint32_t>(peer.sent % self.topics_each)) % self.topic_count
        cdef Py_ssize_t topic_size = self.topic_sizes[topic], size = 2 + topic_size + self.size
        cdef uint16_t packet_id = <uint16_t>(peer.sent % 65535 + 1)
        cdef uint8_t* at = self.reserve(peer, size + ROOM)
        if self.qos:
            size += 2
        if self.version == 5:
            size += 1
        at[0] = <uint8_t>(PUBLISH << 4 | self.qos << 1)
        at = put_length(at + 1, size)
        at[0], at[1] = <uint8_t>(topic_size >> 8), <uint8_t>topic_size
        memcpy(at + 2, self.topics[topic], topic_size)
        at += 2 + topic_size
        if self.qos:
            at[0], at[1] = <uint8_t>(packet_id >> 8), <uint8_t>packet_id
            at += 2
        if self.version == 5:
            at[0] = 0
            at += 1
        self.write_head(at, peer, intended)
        peer.out_size = at + self.size - peer.out
        return 0

    cdef int _ack(self, Peer* peer, int first, const uint8_t* packet_id) except -1:
        cdef uint8_t* at = self.reserve(peer, 4)
        at[0], at[1], at[2], at[3] = <uint8_t>first, 2, packet_id[0], packet_id[1]
        peer.out_size += 4
        return 0

    cdef Py_ssize_t parse(self, Peer* peer, uint8_t* data, Py_ssize_t size) except -1:
        cdef Py_ssize_t at = 0, body = 0
        cdef int digits, kind
        while size - at >= 2:
            digits = get_length(data + at + 1, data + size, &body)
            if digits <= 0 or at + 1 + digits + body > size:
                break
            kind = data[at] >> 4
            if kind == PUBLISH:
                self._deliver(peer, data[at] & 15, data + at + 1 + digits, body)
            elif kind == PUBACK or kind == PUBCOMP:
                peer.acked += 1
            elif kind == PUBREC:
                self._ack(peer, PUBREL << 4 | 2, data + at + 1 + digits)
            elif kind == PUBREL:
                self._ack(peer, PUBCOMP << 4, data + at + 1 + digits)
            elif kind == DISCONNECT:
                self.failure = f"the broker sent DISCONNECT to connection {peer - self.peers}"
            at += 1 + digits + body
        return at

    cdef int _deliver(self, Peer* peer, int flags, uint8_t* at, Py_ssize_t size) except -1:
        cdef uint8_t* end = at + size
        cdef int qos = flags >> 1 & 3
        cdef Py_ssize_t properties = 0
        at += 2 + (at[0] << 8 | at[1])
        if qos:
            self._ack(peer, (PUBACK if qos == 1 else PUBREC) << 4, at)
            at += 2
        if self.version == 5:
            at += get_length(at, end, &properties)
            at += properties
        if end - at >= HEAD and not peer.is_publisher:
            self.receive(peer, at, flags & 8 != 0)
        return 0
