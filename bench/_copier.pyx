# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The bound of a broker that must move each message by itself: it only copies bytes from a publisher to its subscriber.

It understands so much MQTT 3.1.1 that the load generator takes it for a broker: CONNECT and SUBSCRIBE are answered without
a look, and the first PUBLISH of a connection says by its topic where all of that connection's bytes go. Nothing is
parsed, stored or routed after that: one read and one send for each message, which is what the operating system costs.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memset

from mainstem.protocols._sockets cimport (
    EPOLL_CTL_ADD, EPOLLIN, MSG_NOSIGNAL, close_fd, epoll_create1, epoll_ctl, epoll_event, epoll_wait, recv, send,
)

cdef extern from "sys/socket.h" nogil:
    int accept(int fd, void* address, void* size)

cdef extern from "netinet/in.h" nogil:
    int IPPROTO_TCP

cdef extern from "netinet/tcp.h" nogil:
    int TCP_NODELAY
    int setsockopt(int fd, int level, int option, const void* value, uint32_t size)

cdef enum:
    FDS_MAX = 4096
    READ_BYTES = 65536
    EVENTS = 512


def copy_forever(listener):
    """Serve a listening socket until the process is killed. For one process of its own."""
    cdef int epoll = epoll_create1(0), server = listener.fileno(), n, ready, fd, taken, one = 1
    cdef epoll_event event
    cdef epoll_event[EVENTS] events
    cdef uint8_t[READ_BYTES] data
    cdef int[FDS_MAX] targets
    cdef ssize_t size
    subscribers = {}
    memset(&targets[0], 0, sizeof(targets))
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
                    setsockopt(taken, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one))
                    targets[taken] = 0
                    event.events, event.data.u32 = EPOLLIN, <uint32_t>taken
                    epoll_ctl(epoll, EPOLL_CTL_ADD, taken, &event)
                continue
            size = recv(fd, data, READ_BYTES, 0)
            if size <= 0:
                close_fd(fd)
            elif targets[fd]:
                send(targets[fd], data, size, MSG_NOSIGNAL)
            else:
                targets[fd] = greet(fd, bytes(data[:size]), subscribers)


cdef int greet(int fd, bytes packet, dict subscribers) except -1:
    """Answer what comes before the load; returns where a publisher's bytes go from now on."""
    cdef int kind = packet[0] >> 4
    if kind == 1:
        send(fd, b"\x20\x02\x00\x00", 4, MSG_NOSIGNAL)
    elif kind == 8:  # one filter, and it is a topic
        subscribers[packet[6:6 + packet[5]]] = fd
        send(fd, b"\x90\x03\x00\x01\x00", 5, MSG_NOSIGNAL)
    elif kind == 3:
        target = subscribers[packet[4:4 + packet[3]]]
        send(target, <char*>packet, len(packet), MSG_NOSIGNAL)
        return target
    return 0
