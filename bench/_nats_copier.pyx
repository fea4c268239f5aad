# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The bound of any NATS server: it reads what a publisher sends, and writes it to each subscriber behind a line of MSG.

It understands so much NATS that the load generator takes it for a server. A publisher's first line says how long all its
messages are; nothing is parsed, matched or stored after that. One read, one send for each subscriber, and a copy of the bytes
between: what the operating system and the memory cost.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport malloc
from libc.string cimport memcpy, memmove, memset

from mainstem.protocols._sockets cimport (
    EPOLL_CTL_ADD, EPOLLIN, MSG_NOSIGNAL, close_fd, epoll_create1, epoll_ctl, epoll_event, epoll_wait, recv, send,
)

cdef extern from "sys/socket.h" nogil:
    int accept(int fd, void* address, void* size)

cdef enum:
    FDS_MAX = 1024
    EVENTS = 256
    READ_BYTES = 262144
    LINE_MAX = 128
    WRITE_BYTES = 2097152

cdef bytes INFO = b'INFO {"server_id":"COPY","version":"2.10.0","go":"","host":"","port":0,"headers":true,"max_payload":1048576,"proto":1}\r\n'

cdef struct Peer:
    uint8_t* data  # of a publisher: what is not a whole message yet
    Py_ssize_t size
    Py_ssize_t line  # bytes before each payload; 0: it is none yet
    Py_ssize_t whole  # of a message: line, payload and its end
    uint8_t front[LINE_MAX]  # the line of MSG that replaces it
    Py_ssize_t front_size

cdef Peer peers[FDS_MAX]
cdef int subscribers[FDS_MAX]
cdef int subscriber_count = 0


def copy_forever(listener):
    """Serve a listening socket until the process is killed. For one process of its own."""
    cdef int epoll = epoll_create1(0), server = listener.fileno(), n, ready, fd, taken
    cdef epoll_event event
    cdef epoll_event[EVENTS] events
    cdef uint8_t* out = <uint8_t*>malloc(WRITE_BYTES)
    cdef ssize_t size
    memset(&peers[0], 0, sizeof(peers))
    event.events, event.data.u32 = EPOLLIN, server
    epoll_ctl(epoll, EPOLL_CTL_ADD, server, &event)
    while True:
        with nogil:
            ready = epoll_wait(epoll, events, EVENTS, -1)
        for n in range(ready):
            fd = <int>events[n].data.u32
            if fd == server:
                taken = accept(server, NULL, NULL)
                if 0 < taken < FDS_MAX:
                    if peers[taken].data == NULL:
                        peers[taken].data = <uint8_t*>malloc(READ_BYTES)
                    peers[taken].size = peers[taken].line = 0
                    event.events, event.data.u32 = EPOLLIN, <uint32_t>taken
                    epoll_ctl(epoll, EPOLL_CTL_ADD, taken, &event)
                    send(taken, <const char*>INFO, len(INFO), MSG_NOSIGNAL)
                continue
            size = recv(fd, peers[fd].data + peers[fd].size, READ_BYTES - peers[fd].size, 0)
            if size <= 0:
                leave(fd)
                close_fd(fd)
                continue
            peers[fd].size += size
            if peers[fd].line == 0:
                greet(fd)
            if peers[fd].line:
                copy(&peers[fd], out)


cdef void leave(int fd) noexcept:
    global subscriber_count
    cdef int n
    for n in range(subscriber_count):
        if subscribers[n] == fd:
            subscriber_count -= 1
            subscribers[n] = subscribers[subscriber_count]
            return


cdef int greet(int fd) except -1:
    """Answer the lines before the load; the first publish says what all others are like."""
    global subscriber_count
    cdef Peer* peer = &peers[fd]
    data = bytes(peer.data[:peer.size])
    while data:
        line, end, rest = data.partition(b"\r\n")
        if not end:
            break
        words = line.split()
        if words[0] == b"PUB":
            front = b"MSG %b 1 %b\r\n" % (words[1], words[2])
            peer.line, peer.whole = len(line) + 2, len(line) + 2 + int(words[2]) + 2
            memcpy(peer.front, <const char*>front, len(front))
            peer.front_size = len(front)
            break
        if words[0] == b"SUB":
            subscribers[subscriber_count] = fd
            subscriber_count += 1
        elif words[0] == b"PING":
            send(fd, b"PONG\r\n", 6, MSG_NOSIGNAL)
        data = rest
    memcpy(peer.data, <const char*>data, len(data))
    peer.size = len(data)
    return 0


cdef void copy(Peer* peer, uint8_t* out) noexcept:
    cdef Py_ssize_t count = peer.size // peer.whole, n, body = peer.whole - peer.line, done
    cdef uint8_t* at = out
    cdef const uint8_t* start = peer.data + peer.line
    cdef int one
    if subscriber_count:
        for n in range(count):
            memcpy(at, peer.front, peer.front_size)
            memcpy(at + peer.front_size, start + n * peer.whole, body)
            at += peer.front_size + body
    for one in range(subscriber_count):
        done = 0
        while done < at - out:
            n = send(subscribers[one], out + done, at - out - done, MSG_NOSIGNAL)
            if n <= 0:
                break
            done += n
    peer.size -= count * peer.whole
    memmove(peer.data, peer.data + count * peer.whole, peer.size)
