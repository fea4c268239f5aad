# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""AMQP clients in one thread on epoll, without a client library in the way. See `amqp.py` for what it measures.

Every message carries who sent it, its number and when it was meant to be sent:

    body := u32 publisher · u64 number · i64 intended time, ns (CLOCK_MONOTONIC) · filler      (little-endian)
"""

import errno

from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove, memset

from mainstem.codec._batch cimport get_u16, get_u32, get_u64, put_u32, put_u64

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
    HEAD = 20  # of a body
    READ_BYTES = 262144
    EVENTS = 512
    BUCKETS = 64 * 64  # of the latency histogram: 64 steps in each power of two of nanoseconds
    DELIVER = 0x003C003C
    ACK = 0x003C0050
    NACK = 0x003C0078
    FRAME_END = 0xCE


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
    uint8_t* out
    Py_ssize_t out_at, out_size, out_capacity
    uint8_t* tail
    Py_ssize_t tail_size, tail_capacity
    int wants_write
    # a publisher
    uint64_t sent, acked, received
    int64_t due_ns
    uint8_t* frames  # method, header and head of the body frame, ready to be copied
    Py_ssize_t frames_size
    # a consumer: what it expects next of each publisher, and the last delivery
    uint64_t* expected
    uint64_t last_tag, acked_tag


cdef class Load:
    """Add peers (connected, consuming, handed over as file descriptors), then `run`."""

    cdef Peer* peers
    cdef int count, capacity, publishers, epoll
    cdef bint confirms, in_order
    cdef Py_ssize_t size, send_bytes
    cdef uint8_t* read_buffer
    cdef uint64_t window, receivers
    cdef int64_t interval_ns
    cdef uint64_t[4096] histogram
    cdef uint64_t latencies
    cdef readonly uint64_t reordered, total_received, redelivered
    cdef bint sending, measuring, consuming
    cdef str failure

    def __init__(self, *, Py_ssize_t size, uint64_t window, uint64_t receivers, Py_ssize_t send_bytes, double rate,
                 bint confirms, bint in_order):
        if size < HEAD:
            raise ValueError(f"a message needs {HEAD} bytes to be told from others")
        self.size, self.window, self.receivers, self.send_bytes = size, window, receivers, send_bytes
        self.confirms, self.in_order = confirms, in_order
        self.consuming = receivers > 0
        self.interval_ns = <int64_t>(1e9 / rate) if rate else 0
        self.read_buffer = <uint8_t*>PyMem_Malloc(READ_BYTES)
        self.epoll = epoll_create1(0)
        memset(&self.histogram[0], 0, sizeof(self.histogram))

    def __dealloc__(self):
        cdef int n
        for n in range(self.count):
            PyMem_Free(self.peers[n].out)
            PyMem_Free(self.peers[n].tail)
            PyMem_Free(self.peers[n].expected)
            PyMem_Free(self.peers[n].frames)
        PyMem_Free(self.peers)
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
        peer.out_capacity = self.send_bytes + self.size + 8192
        peer.out = <uint8_t*>PyMem_Malloc(peer.out_capacity)
        event.events = EPOLLIN
        event.data.u32 = self.count
        if epoll_ctl(self.epoll, EPOLL_CTL_ADD, fd, &event):
            raise OSError(errno_now, "epoll_ctl")
        self.count += 1
        return peer

    def add_publisher(self, int fd, bytes frames):
        """`frames`: basic.publish, its content header and the head of its body frame. Publishers come first."""
        assert self.publishers == self.count, "publishers come before consumers"
        cdef Peer* peer = self._add(fd)
        peer.frames_size = len(frames)
        peer.frames = <uint8_t*>PyMem_Malloc(peer.frames_size)
        memcpy(peer.frames, <char*>frames, peer.frames_size)
        self.publishers += 1

    def add_consumer(self, int fd):
        cdef Peer* peer = self._add(fd)
        peer.expected = <uint64_t*>PyMem_Calloc(self.publishers, sizeof(uint64_t))

    # -- the loop

    def run(self, double seconds, double drain_seconds=20.0, double warm_seconds=0.0, uint64_t messages=0):
        """Send for `seconds` (or `messages` in all), then wait until everything arrived; returns what happened."""
        cdef int64_t start, stop, end, now, measured_from, measured_to = 0
        cdef uint64_t before = 0, after = 0, sent = 0
        cdef int n
        self.sending = True
        self.failure = None
        start = measured_from = now_ns()
        self.measuring = warm_seconds == 0
        stop = start + <int64_t>((warm_seconds + seconds) * 1e9)
        end = stop + <int64_t>(drain_seconds * 1e9)
        for n in range(self.publishers):
            self.peers[n].due_ns = start + (self.interval_ns * n) // max(1, self.publishers)
        while True:
            now = now_ns()
            if not self.measuring and now >= start + <int64_t>(warm_seconds * 1e9):
                self.measuring = True
                measured_from, before = now, self._progress()
            if messages:
                sent = sum([self.peers[n].sent for n in range(self.publishers)])
            if self.sending and (now >= stop or (messages and sent >= messages)):
                self.sending = False
                measured_to, after = now, self._progress()
            if not self.sending and (now >= end or self._done()):
                break
            self._turn(now)
            if self.failure is not None:
                raise ConnectionError(self.failure)
        sent = sum([self.peers[n].sent for n in range(self.publishers)])
        return {
            "seconds": (measured_to - measured_from) / 1e9,
            "received": after - before,
            "sent_total": sent,
            "received_total": self.total_received,
            "lost": <int64_t>(sent * self.receivers) - <int64_t>self.total_received if self.consuming else 0,
            "duplicated": self.redelivered,
            "reordered": self.reordered,
            "whole_seconds": (now_ns() - start) / 1e9,
        }

    cdef uint64_t _progress(self):
        cdef int n
        if self.consuming:
            return self.total_received
        return sum([self.peers[n].acked if self.confirms else self.peers[n].sent for n in range(self.publishers)])

    cdef bint _done(self) noexcept:
        cdef int n
        cdef uint64_t sent = 0
        for n in range(self.publishers):
            if self.peers[n].out_size or (self.confirms and self.peers[n].acked < self.peers[n].sent):
                return False
            sent += self.peers[n].sent
        return self.total_received >= sent * self.receivers

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
                done = peer.received // self.receivers if self.receivers else peer.acked if self.confirms else peer.sent
                if self.confirms and peer.acked < done:
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
        cdef uint8_t* at = peer.out + peer.out_size
        memcpy(at, peer.frames, peer.frames_size)
        at += peer.frames_size
        memcpy(at, &index, 4)
        memcpy(at + 4, &peer.sent, 8)
        memcpy(at + 12, &intended, 8)
        if self.size > HEAD:
            memset(at + HEAD, 0x2E, self.size - HEAD)
        at[self.size] = FRAME_END
        peer.out_size = at + self.size + 1 - peer.out
        peer.sent += 1
        return 0

    cdef int _ack(self, Peer* peer) except -1:
        """Everything delivered so far, at once."""
        cdef uint8_t* at = peer.out + peer.out_size
        if peer.out_size + 21 > peer.out_capacity:
            return 0  # later; the server is not reading
        at[0], at[1], at[2] = 1, 0, 1
        put_u32(at + 3, 13)
        put_u32(at + 7, ACK)
        put_u64(at + 11, peer.last_tag)
        at[19], at[20] = 1, FRAME_END
        peer.out_size += 21
        peer.acked_tag = peer.last_tag
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
        if peer.tail_size + size > peer.tail_capacity:
            grown = PyMem_Realloc(peer.tail, peer.tail_size + size)
            if grown == NULL:
                raise MemoryError
            peer.tail, peer.tail_capacity = <uint8_t*>grown, peer.tail_size + size
        if peer.tail_size:
            memcpy(peer.tail + peer.tail_size, self.read_buffer, size)
            peer.tail_size += size
            used = self._parse(peer, peer.tail, peer.tail_size)
            memmove(peer.tail, peer.tail + used, peer.tail_size - used)
            peer.tail_size -= used
        else:
            used = self._parse(peer, self.read_buffer, size)
            peer.tail_size = size - used
            memcpy(peer.tail, self.read_buffer + used, peer.tail_size)
        if peer.last_tag > peer.acked_tag:
            self._ack(peer)
        if peer.out_size:
            self._flush(peer)
        return 0

    cdef Py_ssize_t _parse(self, Peer* peer, uint8_t* data, Py_ssize_t size) except -1:
        cdef Py_ssize_t at = 0, length
        cdef uint8_t* payload
        cdef uint32_t method
        while size - at >= 8:
            length = get_u32(data + at + 3)
            if size - at < length + 8:
                break
            payload = data + at + 7
            if data[at] == 3:
                self._receive(peer, payload, length)
            elif data[at] == 1:
                method = get_u32(payload)
                if method == DELIVER:
                    peer.last_tag = get_u64(payload + 5 + payload[4])
                    self.redelivered += payload[13 + payload[4]] & 1
                elif method == ACK:
                    peer.acked = get_u64(payload + 4) if payload[12] & 1 else peer.acked + 1
                elif method == NACK:
                    self.failure = "the broker refused a publish"
                else:
                    self.failure = f"the broker sent method {method >> 16}.{method & 0xFFFF}"
            at += length + 8
        return at

    cdef int _receive(self, Peer* peer, uint8_t* at, Py_ssize_t size) except -1:
        cdef uint32_t publisher
        cdef uint64_t number
        cdef int64_t intended, passed
        if size < HEAD or peer.expected == NULL:
            return 0
        memcpy(&publisher, at, 4)
        memcpy(&number, at + 4, 8)
        memcpy(&intended, at + 12, 8)
        if publisher >= <uint32_t>self.publishers:
            return 0
        self.total_received += 1
        if self.in_order and number != peer.expected[publisher]:
            self.reordered += 1
        peer.expected[publisher] = number + 1
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
