# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""NATS clients without a client library in the way. See `nats.py` for what it measures, `_schedule.pyx` for when it sends."""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcmp, memcpy

from mainstem.server.load._schedule cimport HEAD, Peer, Schedule

cdef enum:
    WORDS_MAX = 6  # of HMSG subject sid reply header-size size


cdef class Load(Schedule):
    """Publisher n's fronts, `topics_each` of them, begin at place n * topics_each: `PUB subject [reply] size` CR LF."""

    cdef list fronts
    cdef uint32_t topics_each
    cdef Py_ssize_t batch  # messages that a consumer asks for at once; 0: they come unasked

    def __init__(self, *, list fronts, uint32_t topics_each, bint acks, Py_ssize_t batch=0, **schedule):
        super().__init__(acks_wanted=acks, **schedule)
        self.fronts, self.topics_each, self.batch = fronts, topics_each, batch

    def add_subscriber(self, int fd):
        self.add_receiver(fd, 0)

    def add_consumer(self, int fd, bytes pull):
        """`pull` asks for the next `batch` messages; the first was sent already."""
        self.set_front(self.add_receiver(fd, 0), pull)

    cdef int put(self, Peer* peer, int64_t intended) except -1:
        cdef uint32_t index = <uint32_t>(peer - self.peers)
        cdef bytes front = self.fronts[index * self.topics_each + <uint32_t>(peer.sent % self.topics_each)]
        cdef Py_ssize_t size = len(front)
        cdef uint8_t* at = self.reserve(peer, size + self.size + 2)
        memcpy(at, <const char*>front, size)
        self.write_head(at + size, peer, intended)
        at[size + self.size], at[size + self.size + 1] = 13, 10
        peer.out_size += size + self.size + 2
        return 0

    cdef int _say(self, Peer* peer, const char* before, Py_ssize_t before_size, const uint8_t* word, Py_ssize_t size,
                  const char* behind, Py_ssize_t behind_size) except -1:
        cdef uint8_t* at = self.reserve(peer, before_size + size + behind_size)
        memcpy(at, before, before_size)
        memcpy(at + before_size, word, size)
        memcpy(at + before_size + size, behind, behind_size)
        peer.out_size += before_size + size + behind_size
        return 0

    cdef int after_read(self, Peer* peer) except -1:
        """Half of what was asked for came: ask for as much again."""
        if self.batch and peer.expected != NULL and <Py_ssize_t>(peer.last_tag - peer.acked_tag) >= self.batch // 2:
            peer.acked_tag += self.batch // 2
            self._say(peer, "", 0, peer.front, peer.front_size, "", 0)
        return 0

    cdef Py_ssize_t parse(self, Peer* peer, uint8_t* data, Py_ssize_t size) except -1:
        cdef const uint8_t* words[WORDS_MAX]
        cdef Py_ssize_t sizes[WORDS_MAX]
        cdef const uint8_t* end
        cdef Py_ssize_t at = 0, line, total, head
        cdef int count
        cdef bint headed
        while at < size:
            end = <const uint8_t*>memchr(data + at, 10, size - at)
            if end == NULL:
                break
            line = end - (data + at) + 1
            headed = data[at] == 72
            if line < 7 or memcmp(data + at + headed, "MSG ", 4) != 0:
                if line >= 6 and memcmp(data + at, "PING", 4) == 0:
                    self._say(peer, "PONG\r\n", 6, NULL, 0, "", 0)
                elif data[at] == 45:
                    self.failure = f"the broker says {(<bytes>data[at:at + line]).decode(errors='replace').strip()}"
                at += line
                continue
            count = split(data + at, line - 2, words, sizes)
            total = number_of(words[count - 1], sizes[count - 1])
            head = number_of(words[count - 2], sizes[count - 2]) if headed else 0
            if at + line + total + 2 > size:
                break
            if peer.is_publisher:
                self._take_ack(peer, data + at + line, total)
            elif total - head >= HEAD:
                if self.batch:  # by a consumer: the reply is its ack subject
                    peer.last_tag += 1
                    self._say(peer, "PUB ", 4, words[3], sizes[3], " 4\r\n+ACK\r\n", 10)
                self.receive(peer, data + at + line + head, False)
            at += line + total + 2
        return at

    cdef int _take_ack(self, Peer* peer, const uint8_t* payload, Py_ssize_t size) except -1:
        peer.acked += 1
        if size >= 8 and memcmp(payload, '{"error"', 8) == 0:
            self.failure = f"the broker refused a publish: {(<bytes>payload[:size]).decode(errors='replace')}"
        return 0


cdef int split(const uint8_t* at, Py_ssize_t size, const uint8_t** words, Py_ssize_t* sizes) noexcept nogil:
    """Words of a line that the broker wrote: one space between two."""
    cdef const uint8_t* end = at + size
    cdef int count = 0
    while count < WORDS_MAX and at < end:
        words[count] = at
        while at < end and at[0] != 32:
            at += 1
        sizes[count] = at - words[count]
        count += 1
        at += 1
    return count


cdef Py_ssize_t number_of(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t value = 0, n
    for n in range(size):
        value = value * 10 + (at[n] & 15)
    return value
