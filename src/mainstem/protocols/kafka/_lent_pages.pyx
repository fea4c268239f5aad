# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Sending memory without copying it; `lent_pages.py` says what that means.

    memory --vmsplice--> pipe --splice--> socket

One pipe serves all connections: what a socket does not take leaves it before the call ends, into nowhere. The interpreter's
lock is kept meanwhile, as another thread may have a loop of its own. Elsewhere than on Linux nothing is lent: everything
is copied by the transport that writes the rest.
"""

import fcntl
import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

from mainstem.protocols._sockets cimport MSG_DONTWAIT, MSG_MORE, MSG_NOSIGNAL, iovec, send

from mainstem.protocols.kafka.answer_buffers import Memory

cdef extern from *:
    """
    #include <fcntl.h>
    #include <sys/uio.h>
    #if defined(__linux__) && !defined(MAINSTEM_PORTABLE)
    #define lend_pages vmsplice
    #define move_pages splice
    enum { AT_ONCE = SPLICE_F_NONBLOCK, MORE_COMES = SPLICE_F_MORE };
    #else
    enum { AT_ONCE = 0, MORE_COMES = 0 };
    static inline ssize_t lend_pages(int fd, const struct iovec* parts, size_t count, unsigned int flags) { return -1; }
    static inline ssize_t move_pages(int from, void* a, int to, void* b, size_t size, unsigned int flags) { return -1; }
    #endif
    """

cdef extern from * nogil:
    ssize_t vmsplice "lend_pages" (int fd, const iovec* vectors, size_t count, unsigned int flags)
    ssize_t splice "move_pages" (int source, void* source_at, int target, void* target_at, size_t size, unsigned int flags)
    int SPLICE_F_NONBLOCK "AT_ONCE", SPLICE_F_MORE "MORE_COMES"

cdef enum:
    PIPE_BYTES = 1 << 20  # what everyone may have
    UNTRIED = 0
    OPEN = 1
    REFUSED = 2

cdef int _state = UNTRIED
cdef int _read_end = -1, _write_end = -1, _nowhere = -1


def send_lent(int fd, list parts):
    """How many bytes of the parts, one after the other, the socket took at once. Memory that is asked for again is lent."""
    cdef Py_buffer view
    cdef Py_ssize_t total = 0, taken, left = len(parts)
    if _state != OPEN and not _is_opened():
        return 0
    for part in parts:
        left -= 1
        memory = part.obj if type(part) is memoryview else None
        PyObject_GetBuffer(part, &view, PyBUF_SIMPLE)
        try:
            if type(memory) is Memory and memory.asked_again:
                memory.lent = True
                taken = _lend(fd, <char*>view.buf, view.len, left > 0)
            else:
                taken = send(fd, view.buf, view.len, MSG_DONTWAIT | MSG_NOSIGNAL | (MSG_MORE if left else 0))
        finally:
            PyBuffer_Release(&view)
        if taken > 0:
            total += taken
        if taken < view.len:  # no room, or an error: who writes the rest is told
            break
    return total


cdef Py_ssize_t _lend(int fd, char* at, Py_ssize_t size, bint more) noexcept:
    cdef iovec piece
    cdef Py_ssize_t done = 0, waiting, moved
    while done < size:
        piece.iov_base, piece.iov_len = at + done, size - done
        waiting = vmsplice(_write_end, &piece, 1, SPLICE_F_NONBLOCK)
        if waiting <= 0:
            break
        while waiting > 0:
            moved = splice(
                _read_end, NULL, fd, NULL, waiting,
                SPLICE_F_NONBLOCK | (SPLICE_F_MORE if more or done + waiting < size else 0),
            )
            if moved <= 0:
                break
            waiting -= moved
            done += moved
        if waiting > 0:
            while waiting > 0:
                moved = splice(_read_end, NULL, _nowhere, NULL, waiting, 0)
                if moved <= 0:
                    _give_up()
                    return done
                waiting -= moved
            break
    return done


cdef void _give_up() noexcept:
    """What is left in the pipe would go to another client: it is not used any more."""
    global _state
    _state = REFUSED


cdef bint _is_opened() except -1:
    global _state, _read_end, _write_end, _nowhere
    if _state == UNTRIED:
        if not hasattr(fcntl, "F_SETPIPE_SZ"):
            _state = REFUSED
            return False
        try:
            _read_end, _write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.fcntl(_write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            _nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            _state = OPEN
        except OSError:  # too many files, or pipes: it goes on by copying
            _state = REFUSED
    return _state == OPEN
