# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""MQTT clients in one thread on epoll, without a client library in the way. See `mqtt.py` for what it measures.

Every message carries who sent it, its number and when it was meant to be sent:

    payload := u32 publisher · u64 number · i64 intended time, ns (CLOCK_MONOTONIC) · filler      (little-endian)

so that a receiver knows without any table outside this file whether one is missing, repeated or out of order.
"""

import errno

from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove, memset

from mainstem.protocols.mqtt._fields cimport get_length, length_size, put_length

cdef extern from "errno.h" nogil:
    int errno_now "errno"

cdef extern from "sys/socket.h" nogil:
    ssize_t recv(int fd, void* buffer, size_t size, int flags)
    ssize_t send(int fd, const void* buffer, size_t size, int flags)
    int MSG_DONTWAIT
    int MSG_NOSIGNAL

cdef extern from "sys/epoll.h" nogil:
    ctypedef union epoll_data_t:
        uint32_t u32
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epoll, int op, int fd, epoll_event* event)
    int epoll_wait(int epoll, epoll_event* events, int count, int timeout)
    int EPOLL_CTL_ADD
    int EPOLL_CTL_MOD
    uint32_t EPOLLIN
    uint32_t EPOLLOUT

cdef extern from "unistd.h" nogil:
    int close_fd "close" (int fd)

cdef extern from "time.h" nogil:
    cdef struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec* time)
    int CLOCK_MONOTONIC

cdef enum:
    HEAD = 20  # of a payload
    READ_BYTES = 262144
    EVENTS = 512
    BUCKETS = 64 * 64  # of the latency histogram: 64 steps in each power of two of nanoseconds

cdef inline int64_t now_ns() noexcept nogil:
    cdef timespec time
    clock_gettime(CLOCK_MONOTONIC, &time)
    return <int64_t>time.tv_sec * 1000000000 + time.tv_nsec


cdef inline int bucket_of(int64_t ns) noexcept nogil:
    cdef int power = 0
    if ns < 64:
        return <int>ns if ns > 0 else 0
    while ns >> (power + 1) >= 64:
        power += 1
    return (power + 1) * 64 + <int>((ns >> power) - 64 if (ns >> power) >= 64 else 0)


cdef struct Peer:
    int fd
    int is_publisher
    uint8_t* out
    Py_ssize_t out_at, out_size, out_capacity
    uint8_t* tail
    Py_ssize_t tail_size, tail_capacity
    int wants_write
    # a publisher
    uint64_t sent, acked, received  # receptions of its messages, by all receivers together
    uint64_t topic_at
    int64_t due_ns
    # a subscriber: what it expects next of each publisher
    uint64_t* expected


cdef class Load:
    """Add peers (connected, subscribed, handed over as file descriptors), then `run`."""

    cdef Peer* peers
    cdef int count, capacity, publishers
    cdef int qos, version, epoll
    cdef Py_ssize_t size
    cdef list topic_lists
    cdef uint8_t* read_buffer
    cdef uint64_t window, receivers, step
    cdef Py_ssize_t send_bytes
    cdef int64_t interval_ns
    cdef uint8_t** topics
    cdef uint16_t* topic_sizes
    cdef uint32_t topic_count
    cdef uint32_t topics_each
    cdef uint64_t[4096] histogram
    cdef uint64_t latencies
    cdef readonly uint64_t duplicated, reordered, lost_seen, total_received
    cdef bint sending, measuring
    cdef str failure
    cdef list keep

    def __init__(self, *, int qos, int version, Py_ssize_t size, uint64_t window, uint64_t receivers, uint64_t step,
                 Py_ssize_t send_bytes, double rate, list topics, uint32_t topics_each):
        cdef Py_ssize_t n
        if size < HEAD:
            raise ValueError(f"a message needs {HEAD} bytes to be told from others")
        self.qos, self.version, self.size = qos, version, size
        self.window, self.receivers, self.step = window, receivers, step
        self.send_bytes = send_bytes
        self.interval_ns = <int64_t>(1e9 / rate) if rate else 0
        self.keep = [bytes(topic) for topic in topics]
        self.topic_count = len(topics)
        self.topics_each = topics_each
        self.topics = <uint8_t**>PyMem_Malloc(self.topic_count * sizeof(uint8_t*))
        self.topic_sizes = <uint16_t*>PyMem_Malloc(self.topic_count * sizeof(uint16_t))
        for n in range(self.topic_count):
            self.topics[n] = <uint8_t*><char*>(<bytes>self.keep[n])
            self.topic_sizes[n] = len(<bytes>self.keep[n])
        self.read_buffer = <uint8_t*>PyMem_Malloc(READ_BYTES)
        self.epoll = epoll_create1(0)
        memset(&self.histogram[0], 0, sizeof(self.histogram))

    def __dealloc__(self):
        cdef int n
        for n in range(self.count):
            PyMem_Free(self.peers[n].out)
            PyMem_Free(self.peers[n].tail)
            PyMem_Free(self.peers[n].expected)
        PyMem_Free(self.peers)
        PyMem_Free(self.topics)
        PyMem_Free(self.topic_sizes)
        PyMem_Free(self.read_buffer)
        if self.epoll > 0:
            close_fd(self.epoll)

    cdef Peer* _add(self, int fd) except NULL:
        cdef epoll_event event
        cdef void* grown
        cdef Peer* peer
        if self.count == self.capacity:
            self.capacity = self.capacity * 2 if self.capacity else 64
            grown = PyMem_Realloc(self.peers, self.capacity * sizeof(Peer))
            if grown == NULL:
                raise MemoryError
            self.peers = <Peer*>grown
        peer = &self.peers[self.count]
        memset(peer, 0, sizeof(Peer))
        peer.fd = fd
        peer.out_capacity = self.send_bytes + self.size + 4096
        peer.out = <uint8_t*>PyMem_Malloc(peer.out_capacity)
        event.events = EPOLLIN
        event.data.u32 = self.count
        if epoll_ctl(self.epoll, EPOLL_CTL_ADD, fd, &event):
            raise OSError(errno_now, "epoll_ctl")
        self.count += 1
        return peer

    def add_publisher(self, int fd):
        """All publishers come first. Publisher n takes its topics, `topics_each` of them, from place n * topics_each on."""
        assert self.publishers == self.count, "publishers come before subscribers"
        cdef Peer* peer = self._add(fd)
        peer.is_publisher = 1
        self.publishers += 1

    def add_subscriber(self, int fd, uint64_t first=0):
        """`first` is the number it gets first of each publisher; then every `step`th."""
        cdef Peer* peer = self._add(fd)
        cdef int n
        peer.expected = <uint64_t*>PyMem_Calloc(self.publishers, sizeof(uint64_t))
        for n in range(self.publishers):
            peer.expected[n] = first

    # -- the loop

    def run(self, double seconds, double drain_seconds=5.0, double warm_seconds=0.0):
        """Send for `seconds`, then wait until everything arrived; returns what happened."""
        cdef int64_t start, stop, end, now, measured_from = 0, measured_to = 0
        cdef uint64_t before = 0, after = 0
        cdef int n
        self.sending = True
        self.failure = None
        start = now_ns()
        self.measuring = warm_seconds == 0
        measured_from = start
        stop = start + <int64_t>((warm_seconds + seconds) * 1e9)
        end = stop + <int64_t>(drain_seconds * 1e9)
        for n in range(self.publishers):
            self.peers[n].due_ns = start + (self.interval_ns * n) // max(1, self.publishers)
        while True:
            now = now_ns()
            if not self.measuring and now >= start + <int64_t>(warm_seconds * 1e9):
                self.measuring = True
                measured_from, before = now, self.total_received
            if self.sending and now >= stop:
                self.sending = False
                measured_to, after = now, self.total_received
            if not self.sending and (now >= end or self._done()):
                break
            self._turn(now)
            if self.failure is not None:
                raise ConnectionError(self.failure)
            if now & 0xFFFFF == 0:
                pass
        return {
            "seconds": (measured_to - measured_from) / 1e9,
            "received": after - before,
            "sent_total": sum([self.peers[n].sent for n in range(self.publishers)]),
            "received_total": self.total_received,
            "expected_total": sum([self.peers[n].sent for n in range(self.publishers)]) * self.receivers,
            "lost": sum([self.peers[n].sent for n in range(self.publishers)]) * self.receivers
            - (self.total_received - self.duplicated),
            "duplicated": self.duplicated,
            "reordered": self.reordered,
        }

    cdef bint _done(self) noexcept:
        cdef int n
        for n in range(self.publishers):
            if self.peers[n].received < self.peers[n].sent * self.receivers:
                return False
            if self.qos and self.peers[n].acked < self.peers[n].sent:
                return False
        return True

    cdef int _turn(self, int64_t now) except -1:
        cdef epoll_event[EVENTS] events
        cdef int n, ready, timeout = 100
        cdef Peer* peer
        if self.sending:
            for n in range(self.publishers):
                self._publish(&self.peers[n], now)
            if self.interval_ns:
                timeout = 0  # an open loop must not oversleep
        with nogil:
            ready = epoll_wait(self.epoll, events, EVENTS, timeout)
        for n in range(ready):
            peer = &self.peers[events[n].data.u32]
            if events[n].events & EPOLLOUT:
                self._flush(peer)
            if events[n].events & ~EPOLLOUT:
                self._read(peer)
        return 0

    # -- sending

    cdef int _publish(self, Peer* peer, int64_t now) except -1:
        cdef uint64_t done
        cdef Py_ssize_t limit = self.send_bytes if self.send_bytes else 1
        if peer.out_size:
            return 0
        while peer.out_size < limit:
            if self.interval_ns:
                if peer.due_ns > now:
                    break
            else:
                done = peer.received // self.receivers if self.receivers else peer.acked
                if self.qos and peer.acked < done:
                    done = peer.acked
                if peer.sent - done >= self.window:
                    break
            self._put(peer, peer.due_ns if self.interval_ns else now)
            if self.interval_ns:
                peer.due_ns += self.interval_ns * self.publishers
        if peer.out_size:
            self._flush(peer)
        return 0

    cdef int _put(self, Peer* peer, int64_t intended) except -1:
        cdef uint32_t index = <uint32_t>(peer - self.peers)
        cdef uint32_t topic = (index * self.topics_each + <uint32_t>(peer.sent % self.topics_each)) % self.topic_count
        cdef Py_ssize_t size = 2 + self.topic_sizes[topic] + self.size
        cdef uint8_t* at = peer.out + peer.out_size
        cdef uint16_t packet_id = <uint16_t>(peer.sent % 65535 + 1)
        if self.qos:
            size += 2
        if self.version == 5:
            size += 1
        at[0] = <uint8_t>(0x30 | self.qos << 1)
        at = put_length(at + 1, size)
        at[0], at[1] = <uint8_t>(self.topic_sizes[topic] >> 8), <uint8_t>self.topic_sizes[topic]
        memcpy(at + 2, self.topics[topic], self.topic_sizes[topic])
        at += 2 + self.topic_sizes[topic]
        if self.qos:
            at[0], at[1] = <uint8_t>(packet_id >> 8), <uint8_t>packet_id
            at += 2
        if self.version == 5:
            at[0] = 0
            at += 1
        memcpy(at, &index, 4)
        memcpy(at + 4, &peer.sent, 8)
        memcpy(at + 12, &intended, 8)
        if self.size > HEAD:
            memset(at + HEAD, 0x2E, self.size - HEAD)
        peer.out_size = at + self.size - peer.out
        peer.sent += 1
        return 0

    cdef int _reserve(self, Peer* peer, Py_ssize_t size) except -1:
        cdef void* grown
        if peer.out_size + size > peer.out_capacity:
            grown = PyMem_Realloc(peer.out, (peer.out_size + size) * 2)
            if grown == NULL:
                raise MemoryError
            peer.out, peer.out_capacity = <uint8_t*>grown, (peer.out_size + size) * 2
        return 0

    cdef int _ack(self, Peer* peer, int first, int packet_id) except -1:
        self._reserve(peer, 4)
        cdef uint8_t* at = peer.out + peer.out_size
        at[0], at[1], at[2], at[3] = <uint8_t>first, 2, <uint8_t>(packet_id >> 8), <uint8_t>packet_id
        peer.out_size += 4
        return 0

    cdef int _flush(self, Peer* peer) except -1:
        cdef ssize_t done
        cdef epoll_event event
        while peer.out_at < peer.out_size:
            done = send(peer.fd, peer.out + peer.out_at, peer.out_size - peer.out_at, MSG_DONTWAIT | MSG_NOSIGNAL)
            if done < 0:
                if errno_now != errno.EAGAIN:
                    self.failure = f"send failed with errno {errno_now}"
                    return 0
                break
            peer.out_at += done
        if peer.out_at == peer.out_size:
            peer.out_at = peer.out_size = 0
        if peer.wants_write != (peer.out_size > 0):
            peer.wants_write = peer.out_size > 0
            event.events = EPOLLIN | (EPOLLOUT if peer.wants_write else 0)
            event.data.u32 = <uint32_t>(peer - self.peers)
            epoll_ctl(self.epoll, EPOLL_CTL_MOD, peer.fd, &event)
        return 0

    # -- receiving

    cdef int _read(self, Peer* peer) except -1:
        cdef ssize_t size
        cdef Py_ssize_t used
        cdef void* grown
        with nogil:
            size = recv(peer.fd, self.read_buffer, READ_BYTES, MSG_DONTWAIT)
        if size <= 0:
            if size < 0 and errno_now == errno.EAGAIN:
                return 0
            self.failure = f"the broker closed connection {peer - self.peers}"
            return 0
        if peer.tail_size:
            if peer.tail_size + size > peer.tail_capacity:
                grown = PyMem_Realloc(peer.tail, peer.tail_size + size)
                if grown == NULL:
                    raise MemoryError
                peer.tail, peer.tail_capacity = <uint8_t*>grown, peer.tail_size + size
            memcpy(peer.tail + peer.tail_size, self.read_buffer, size)
            peer.tail_size += size
            used = self._parse(peer, peer.tail, peer.tail_size)
            memmove(peer.tail, peer.tail + used, peer.tail_size - used)
            peer.tail_size -= used
        else:
            used = self._parse(peer, self.read_buffer, size)
            if used < size:
                if peer.tail_capacity < size - used:
                    grown = PyMem_Realloc(peer.tail, size - used)
                    if grown == NULL:
                        raise MemoryError
                    peer.tail, peer.tail_capacity = <uint8_t*>grown, size - used
                memcpy(peer.tail, self.read_buffer + used, size - used)
                peer.tail_size = size - used
        if peer.out_size:
            self._flush(peer)
        return 0

    cdef Py_ssize_t _parse(self, Peer* peer, uint8_t* data, Py_ssize_t size) except -1:
        cdef Py_ssize_t at = 0, body = 0
        cdef int digits, kind
        while size - at >= 2:
            digits = get_length(data + at + 1, data + size, &body)
            if digits <= 0 or at + 1 + digits + body > size:
                break
            kind = data[at] >> 4
            if kind == 3:
                self._receive(peer, data[at] & 15, data + at + 1 + digits, body)
            elif kind == 4 or kind == 7:
                peer.acked += 1
            elif kind == 5:
                self._ack(peer, 0x62, data[at + 1 + digits] << 8 | data[at + 2 + digits])
            elif kind == 6:
                self._ack(peer, 0x70, data[at + 1 + digits] << 8 | data[at + 2 + digits])
            elif kind == 14:
                self.failure = f"the broker sent DISCONNECT to connection {peer - self.peers}"
            at += 1 + digits + body
        return at

    cdef int _receive(self, Peer* peer, int flags, uint8_t* at, Py_ssize_t size) except -1:
        cdef uint8_t* end = at + size
        cdef int qos = flags >> 1 & 3
        cdef Py_ssize_t properties = 0
        cdef uint32_t publisher
        cdef uint64_t number
        cdef int64_t intended, passed
        at += 2 + (at[0] << 8 | at[1])
        if qos:
            self._ack(peer, 0x40 if qos == 1 else 0x50, at[0] << 8 | at[1])
            at += 2
        if self.version == 5:
            at += get_length(at, end, &properties)
            at += properties
        if end - at < HEAD or peer.is_publisher:
            return 0  # not ours
        memcpy(&publisher, at, 4)
        memcpy(&number, at + 4, 8)
        memcpy(&intended, at + 12, 8)
        if publisher >= <uint32_t>self.publishers:
            return 0
        self.total_received += 1
        if number == peer.expected[publisher]:
            peer.expected[publisher] += self.step
        elif number > peer.expected[publisher]:
            self.lost_seen += (number - peer.expected[publisher]) // self.step
            peer.expected[publisher] = number + self.step
        elif flags & 8:
            self.duplicated += 1
            return 0
        else:
            self.reordered += 1
        self.peers[publisher].received += 1
        if self.measuring and self.interval_ns:
            passed = now_ns() - intended
            self.histogram[min(bucket_of(passed), BUCKETS - 1)] += 1
            self.latencies += 1
        return 0

    def percentile_us(self, double share):
        """Latency below which this share of the messages stayed, counted from the intended time."""
        cdef uint64_t wanted = <uint64_t>(share * self.latencies), seen = 0
        cdef int n
        if self.latencies == 0:
            return None
        for n in range(BUCKETS):
            seen += self.histogram[n]
            if seen > wanted or seen == self.latencies:
                return (n if n < 64 else (64 + n % 64) << (n // 64 - 1)) / 1000.0
        return None
