# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Who sends when, for load generators of any protocol: clients in one thread on epoll, closed windows or open rates.

Every message begins with who sent it, its number and when it was meant to be sent:

    message := u32 publisher · u64 number · i64 intended time, ns (CLOCK_MONOTONIC) · filler      (little-endian)

so that a receiver knows without any table outside this file whether one is missing, repeated or out of order.
A protocol subclasses `Schedule`: `put` writes one message to a peer's output, `seal` ends what is sent at once, `parse`
reads what came. Latency is counted up to the read that brought a message: one look at the clock for all of them.
"""

import errno

from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove, memset

from mainstem.protocols._sockets cimport (
    EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT, MSG_DONTWAIT, MSG_NOSIGNAL,
    close_fd, epoll_create1, epoll_ctl, epoll_event, epoll_wait, recv, send,
)

cdef extern from "errno.h" nogil:
    int errno_now "errno"

cdef extern from "time.h" nogil:
    cdef struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec* time)
    int CLOCK_MONOTONIC

cdef extern from *:
    int leading_zeros "__builtin_clzll" (unsigned long long value) noexcept nogil

cdef enum:
    READ_BYTES = 262144
    EVENTS = 512
    WAIT_MS = 100
    TELL_NS = 100000000  # between two reports of progress
    BUCKETS = 64 * 64  # of the latency histogram: 64 steps in each power of two of nanoseconds


cdef int64_t now_ns() noexcept nogil:
    cdef timespec time
    clock_gettime(CLOCK_MONOTONIC, &time)
    return <int64_t>time.tv_sec * 1000000000 + time.tv_nsec


cdef inline int bucket_of(int64_t ns) noexcept nogil:
    cdef int power
    if ns < 64:
        return <int>ns if ns > 0 else 0
    power = 57 - leading_zeros(<unsigned long long>ns)  # six bits below the highest remain
    return (power + 1) * 64 + <int>((ns >> power) - 64)


cdef class Schedule:
    """Peers are connected elsewhere and handed over as file descriptors, publishers first; then `run`."""

    def __init__(self, *, Py_ssize_t size, uint64_t window, uint64_t receivers, Py_ssize_t send_bytes, double rate,
                 bint acks_wanted, bint in_order=True, uint64_t step=1):
        """`receivers` of each message; a receiver gets every `step`th of a publisher's messages, `in_order` or not."""
        if size < HEAD:
            raise ValueError(f"a message needs {HEAD} bytes to be told from others")
        self.size, self.window, self.receivers, self.send_bytes = size, window, receivers, send_bytes
        self.acks_wanted, self.in_order, self.step = acks_wanted, in_order, step
        self.interval_ns = <int64_t>(1e9 / rate) if rate else 0
        self.read_buffer = <uint8_t*>PyMem_Malloc(READ_BYTES)
        self.epoll = epoll_create1(0)
        memset(&self.histogram[0], 0, sizeof(self.histogram))

    def __dealloc__(self):
        cdef int n
        for n in range(self.count):
            PyMem_Free(self.peers[n].out)
            PyMem_Free(self.peers[n].tail)
            PyMem_Free(self.peers[n].front)
            PyMem_Free(self.peers[n].expected)
        PyMem_Free(self.peers)
        PyMem_Free(self.read_buffer)
        if self.epoll > 0:
            close_fd(self.epoll)

    cdef int put(self, Peer* peer, int64_t intended) except -1:
        """Write one message to the peer's output (`reserve`, `write_head`)."""
        raise NotImplementedError

    cdef Py_ssize_t parse(self, Peer* peer, uint8_t* data, Py_ssize_t size) except -1:
        """Handle the whole packets of `data` (`receive` for each message); returns how much of it was used."""
        raise NotImplementedError

    cdef int seal(self, Peer* peer) except -1:
        """What was put is sent now."""
        return 0

    cdef int after_read(self, Peer* peer) except -1:
        """Everything that one read brought was parsed."""
        return 0

    # -- peers

    cdef Peer* add(self, int fd) except NULL:
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
        event.events = EPOLLIN
        event.data.u32 = self.count
        if epoll_ctl(self.epoll, EPOLL_CTL_ADD, fd, &event):
            raise OSError(errno_now, "epoll_ctl")
        self.count += 1
        return peer

    def add_publisher(self, int fd, bytes front=b""):
        """`front` is for protocols that write the same before each message."""
        assert self.publishers == self.count, "publishers come before receivers"
        cdef Peer* peer = self.add(fd)
        peer.is_publisher = 1
        self.set_front(peer, front)
        self.publishers += 1

    cdef int set_front(self, Peer* peer, bytes front) except -1:
        peer.front_size = len(front)
        peer.front = <uint8_t*>PyMem_Malloc(max(1, peer.front_size))
        if peer.front == NULL:
            raise MemoryError
        memcpy(peer.front, <char*>front, peer.front_size)
        return 0

    cdef Peer* add_receiver(self, int fd, uint64_t first) except NULL:
        """`first` is the number it gets first of each publisher."""
        cdef Peer* peer = self.add(fd)
        cdef int n
        peer.expected = <uint64_t*>PyMem_Calloc(self.publishers, sizeof(uint64_t))
        for n in range(self.publishers):
            peer.expected[n] = first
        return peer

    # -- the loop

    def run(self, double seconds, double drain_seconds=5.0, double warm_seconds=0.0, uint64_t messages=0,
            tell=None):
        """Send for `seconds` (or `messages` in all), then wait until everything arrived; returns what happened.

        `tell` is called ten times a second with the seconds since the start and what was done until then.
        """
        cdef int64_t start, stop, end, now, measured_from, measured_to = 0, told
        cdef uint64_t before = 0, after = 0
        cdef int n
        self.sending = True
        self.failure = None
        start = measured_from = told = now_ns()
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
            if self.sending and (now >= stop or (messages and self.sent_total() >= messages)):
                self.sending = False
                measured_to, after = now, self._progress()
            if not self.sending and (now >= end or self._done()):
                break
            if tell is not None and now - told >= TELL_NS:
                told = now
                tell((now - start) / 1e9, self._progress())
            PyErr_CheckSignals()
            self._turn(now)
            if self.failure is not None:
                raise ConnectionError(self.failure)
        return {
            "seconds": (measured_to - measured_from) / 1e9,
            "whole_seconds": (now_ns() - start) / 1e9,
            "received": after - before,
            "sent_total": self.sent_total(),
            "received_total": self.total_received,
            "lost": <int64_t>(self.sent_total() * self.receivers) - <int64_t>(self.total_received - self.duplicated)
            if self.receivers else 0,
            "duplicated": self.duplicated,
            "reordered": self.reordered,
        }

    cdef uint64_t sent_total(self) noexcept:
        cdef int n
        cdef uint64_t total = 0
        for n in range(self.publishers):
            total += self.peers[n].sent
        return total

    cdef uint64_t _progress(self) noexcept:
        """What the rate counts: deliveries; where nobody receives, acknowledgements or what was sent."""
        cdef int n
        cdef uint64_t total = 0
        if self.receivers:
            return self.total_received
        for n in range(self.publishers):
            total += self.peers[n].acked if self.acks_wanted else self.peers[n].sent
        return total

    cdef bint _done(self) noexcept:
        cdef int n
        for n in range(self.publishers):
            if self.peers[n].out_size or (self.acks_wanted and self.peers[n].acked < self.peers[n].sent):
                return False
        return self.total_received - self.duplicated >= self.sent_total() * self.receivers

    cdef int _turn(self, int64_t now) except -1:
        cdef epoll_event[EVENTS] events
        cdef int n, ready, timeout = WAIT_MS
        cdef Peer* peer
        if self.sending:
            for n in range(self.publishers):
                if self._publish(&self.peers[n], now):
                    timeout = 0
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

    cdef bint _publish(self, Peer* peer, int64_t now) except -1:
        """One send of what its window or its rate allows; True if it could go on at once: the window is still open."""
        cdef uint64_t done
        cdef Py_ssize_t limit = self.send_bytes if self.send_bytes else 1
        cdef bint full = False
        if peer.out_size:
            return False
        while peer.out_size < limit:
            if self.interval_ns:
                if peer.due_ns > now:
                    full = True
                    break
            else:
                done = peer.received // self.receivers if self.receivers else \
                    peer.acked if self.acks_wanted else peer.sent
                if self.acks_wanted and peer.acked < done:
                    done = peer.acked
                if peer.sent - done >= self.window:
                    full = True
                    break
            self.put(peer, peer.due_ns if self.interval_ns else now)
            peer.sent += 1
            if self.interval_ns:
                peer.due_ns += self.interval_ns * self.publishers
        if peer.out_size:
            self.seal(peer)
            self._flush(peer)
        return not full and peer.out_size == 0

    cdef void write_head(self, uint8_t* at, Peer* peer, int64_t intended) noexcept:
        """The message itself: who, which, when, and filler up to its size."""
        cdef uint32_t index = <uint32_t>(peer - self.peers)
        memcpy(at, &index, 4)
        memcpy(at + 4, &peer.sent, 8)
        memcpy(at + 12, &intended, 8)
        if self.size > HEAD:
            memset(at + HEAD, 0x2E, self.size - HEAD)

    cdef uint8_t* reserve(self, Peer* peer, Py_ssize_t size) except NULL:
        """Room for `size` more bytes of output; the caller adds what it wrote to `out_size`."""
        cdef void* grown
        cdef Py_ssize_t capacity
        if peer.out_size + size > peer.out_capacity:
            capacity = max((peer.out_size + size) * 2, self.send_bytes + size)
            grown = PyMem_Realloc(peer.out, capacity)
            if grown == NULL:
                raise MemoryError
            peer.out, peer.out_capacity = <uint8_t*>grown, capacity
        return peer.out + peer.out_size

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
        with nogil:
            size = recv(peer.fd, self.read_buffer, READ_BYTES, MSG_DONTWAIT)
        if size <= 0:
            if size < 0 and errno_now == errno.EAGAIN:
                return 0
            self.failure = f"the broker closed connection {peer - self.peers}"
            return 0
        self.read_ns = now_ns()
        if peer.tail_size:
            self._keep(peer, self.read_buffer, size)
            used = self.parse(peer, peer.tail, peer.tail_size)
            memmove(peer.tail, peer.tail + used, peer.tail_size - used)
            peer.tail_size -= used
        else:
            used = self.parse(peer, self.read_buffer, size)
            if used < size:
                self._keep(peer, self.read_buffer + used, size - used)
        self.after_read(peer)
        if peer.out_size:
            self._flush(peer)
        return 0

    cdef int _keep(self, Peer* peer, const uint8_t* data, Py_ssize_t size) except -1:
        """The packet that a read cut off waits for its rest."""
        cdef void* grown
        cdef Py_ssize_t capacity
        if peer.tail_size + size > peer.tail_capacity:
            capacity = max(peer.tail_size + size, 2 * peer.tail_capacity)
            grown = PyMem_Realloc(peer.tail, capacity)
            if grown == NULL:
                raise MemoryError
            peer.tail, peer.tail_capacity = <uint8_t*>grown, capacity
        memcpy(peer.tail + peer.tail_size, data, size)
        peer.tail_size += size
        return 0

    cdef int receive(self, Peer* peer, const uint8_t* at, bint repeated) except -1:
        """A message arrived; `at` is its first byte, `repeated` what the broker says of it."""
        cdef uint32_t publisher
        cdef uint64_t number
        cdef int64_t intended
        memcpy(&publisher, at, 4)
        memcpy(&number, at + 4, 8)
        memcpy(&intended, at + 12, 8)
        if publisher >= <uint32_t>self.publishers:
            return 0  # not ours
        self.total_received += 1
        if number == peer.expected[publisher]:
            peer.expected[publisher] += self.step
        elif repeated:
            self.duplicated += 1
            return 0
        elif number > peer.expected[publisher] or not self.in_order:
            peer.expected[publisher] = number + self.step
        else:
            self.reordered += 1
        self.peers[publisher].received += 1
        if self.measuring:
            self.histogram[min(bucket_of(self.read_ns - intended), BUCKETS - 1)] += 1
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
