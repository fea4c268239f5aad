# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""AMQP clients without a client library in the way. See `amqp.py` for what it measures, `_schedule.pyx` for when it sends."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from mainstem.codec._batch cimport get_u32, get_u64, put_u32, put_u64
from mainstem.server.load._schedule cimport HEAD, Peer, Schedule

cdef enum:
    DELIVER = 0x003C003C
    ACK = 0x003C0050
    NACK = 0x003C0078
    FRAME_END = 0xCE
    ACK_BYTES = 21


cdef class Load(Schedule):
    """A publisher's `front`: basic.publish, its content header and the head of its body frame."""

    def __init__(self, *, bint confirms, **schedule):
        super().__init__(acks_wanted=confirms, **schedule)

    def add_consumer(self, int fd):
        self.add_receiver(fd, 0)

    cdef int put(self, Peer* peer, int64_t intended) except -1:
        cdef uint8_t* at = self.reserve(peer, peer.front_size + self.size + 1)
        memcpy(at, peer.front, peer.front_size)
        self.write_head(at + peer.front_size, peer, intended)
        at[peer.front_size + self.size] = FRAME_END
        peer.out_size += peer.front_size + self.size + 1
        return 0

    cdef int after_read(self, Peer* peer) except -1:
        """Acknowledge everything delivered so far, at once."""
        cdef uint8_t* at
        if peer.last_tag > peer.acked_tag:
            at = self.reserve(peer, ACK_BYTES)
            at[0], at[1], at[2] = 1, 0, 1
            put_u32(at + 3, 13)
            put_u32(at + 7, ACK)
            put_u64(at + 11, peer.last_tag)
            at[19], at[20] = 1, FRAME_END
            peer.out_size += ACK_BYTES
            peer.acked_tag = peer.last_tag
        return 0

    cdef Py_ssize_t parse(self, Peer* peer, uint8_t* data, Py_ssize_t size) except -1:
        cdef Py_ssize_t at = 0, length
        cdef uint8_t* payload
        cdef uint32_t method
        while size - at >= 8:
            length = get_u32(data + at + 3)
            if size - at < length + 8:
                break
            payload = data + at + 7
            if data[at] == 3:
                if length >= HEAD and peer.expected != NULL:
                    self.receive(peer, payload, peer.repeated)
            elif data[at] == 1:
                method = get_u32(payload)
                if method == DELIVER:
                    peer.last_tag = get_u64(payload + 5 + payload[4])
                    peer.repeated = payload[13 + payload[4]] & 1
                elif method == ACK:
                    peer.acked = get_u64(payload + 4) if payload[12] & 1 else peer.acked + 1
                elif method == NACK:
                    self.failure = "the broker refused a publish"
                else:
                    self.failure = f"the broker sent method {method >> 16}.{method & 0xFFFF}"
            at += length + 8
        return at
