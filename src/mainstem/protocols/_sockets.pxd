# cython: language_level=3
"""The operating system's calls that a loop over many sockets makes, for the modules that have one.

Elsewhere than on Linux epoll fails with ENOSYS and nobody calls it: the event loop's own transports serve (`reactor.py`).
That way is tested on Linux; on macOS it is untried. `-DMAINSTEM_PORTABLE` compiles it here.
"""

from libc.stdint cimport int64_t, uint32_t
from posix.time cimport CLOCK_THREAD_CPUTIME_ID, clock_gettime, timespec

cdef extern from "sys/uio.h" nogil:
    cdef struct iovec:
        void* iov_base
        size_t iov_len

cdef extern from "sys/socket.h" nogil:
    cdef struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
    ssize_t recv(int fd, void* buffer, size_t size, int flags)
    ssize_t send(int fd, const void* buffer, size_t size, int flags)
    ssize_t sendmsg(int fd, const msghdr* message, int flags)
    int shutdown(int fd, int how)
    int SHUT_WR, MSG_DONTWAIT, MSG_MORE, MSG_NOSIGNAL

cdef extern from *:
    """
    #if defined(__linux__) && !defined(MAINSTEM_PORTABLE)
    #include <sys/epoll.h>
    #else
    #include <errno.h>
    #include <stdint.h>
    typedef union epoll_data { uint32_t u32; } epoll_data_t;
    struct epoll_event { uint32_t events; epoll_data_t data; };
    enum { EPOLL_CLOEXEC = 0, EPOLL_CTL_ADD = 1, EPOLL_CTL_DEL = 2, EPOLL_CTL_MOD = 3, EPOLLIN = 1, EPOLLOUT = 4,
           EPOLLRDHUP = 0x2000, EPOLLHUP = 16, EPOLLERR = 8 };
    static inline int epoll_create1(int flags) { errno = ENOSYS; return -1; }
    static inline int epoll_ctl(int epoll, int op, int fd, struct epoll_event* event) { errno = ENOSYS; return -1; }
    static inline int epoll_wait(int epoll, struct epoll_event* events, int count, int timeout) { errno = ENOSYS; return -1; }
    #endif
    #ifndef MSG_NOSIGNAL
    #define MSG_NOSIGNAL 0  /* the interpreter ignores SIGPIPE */
    #endif
    #ifndef MSG_MORE
    #define MSG_MORE 0
    #endif
    """

cdef extern from * nogil:
    ctypedef union epoll_data_t:
        uint32_t u32
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epoll, int op, int fd, epoll_event* event)
    int epoll_wait(int epoll, epoll_event* events, int count, int timeout)
    int EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD
    uint32_t EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLHUP, EPOLLERR

cdef extern from "unistd.h" nogil:
    int close_fd "close" (int fd)


cdef inline int64_t processor_ns() noexcept nogil:
    """That this thread had so far: a turn's price is what it costs, not how long others kept the processor."""
    cdef timespec now
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec
