# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A large file written or read piece by piece, by a thread that never waits for the interpreter. See `steady.py`."""

import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EINTR, EIO, errno
from libc.stdint cimport int64_t, uint8_t

cdef extern from *:
    """
    #include <errno.h>
    #include <fcntl.h>
    #include <stdint.h>
    #include <unistd.h>

    // Where the system cannot say it, the sync at the end writes everything.
    static int write_back(int fd, int64_t from, int64_t size, int waits) {
    #if defined(__linux__)
        unsigned int how = SYNC_FILE_RANGE_WRITE;
        if (waits) how |= SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WAIT_AFTER;
        if (sync_file_range(fd, from, size, how) && errno != ENOSYS && errno != EINVAL && errno != ESPIPE) return errno;
    #endif
        return 0;
    }

    static int sync_data(int fd) {
    #if defined(__linux__)
        if (fdatasync(fd)) return errno;
    #endif
        return 0;
    }
    """
    int write_back(int fd, int64_t begin, int64_t size, int waits) nogil
    int sync_data(int fd) nogil
    ssize_t pread(int fd, void* data, size_t size, int64_t position) nogil
    ssize_t pwrite(int fd, const void* data, size_t size, int64_t position) nogil

cdef enum:
    PIECE_BYTES = 256 << 10
    SYNCED_BYTES = 4 << 20  # at the most are in the disk's own cache, where a small sync would wait for them


cdef int _write(
    int fd, const uint8_t* data, Py_ssize_t size, int64_t* position, int64_t* begun, int64_t* synced
) noexcept nogil:
    """Returns errno, or 0. `begun`: what lies before it is on its way to the disk; `synced`: it is there for good."""
    cdef ssize_t done
    cdef int failed
    while size:
        done = pwrite(fd, data, min(size, PIECE_BYTES), position[0])
        if done < 0 and errno == EINTR:
            continue
        if done <= 0:
            return errno if done else EIO
        data, size, position[0] = data + done, size - done, position[0] + done
        if position[0] - begun[0] >= PIECE_BYTES:
            failed = write_back(fd, begun[0], position[0] - begun[0], 0)
            if not failed and begun[0]:
                failed = write_back(fd, max(0, begun[0] - PIECE_BYTES), min(begun[0], PIECE_BYTES), 1)
            if failed:
                return failed
            begun[0] = position[0]
        if begun[0] - synced[0] >= SYNCED_BYTES:
            failed = sync_data(fd)
            if failed:
                return failed
            synced[0] = begun[0]
    return 0


def write_steadily(int fd, buffers):
    cdef Py_buffer buffer
    cdef int64_t position = 0, begun = 0, synced = 0
    cdef int failed = 0
    for one in buffers:
        PyObject_GetBuffer(one, &buffer, PyBUF_SIMPLE)
        try:
            with nogil:
                failed = _write(fd, <const uint8_t*>buffer.buf, buffer.len, &position, &begun, &synced)
        finally:
            PyBuffer_Release(&buffer)
        if failed:
            raise OSError(failed, os.strerror(failed))


cdef int _read(int fd, uint8_t* data, Py_ssize_t size, int64_t position, Py_ssize_t* came) noexcept nogil:
    """Returns errno, or 0. `came`: less than `size` where the file ends."""
    cdef ssize_t done
    while came[0] < size:
        done = pread(fd, data + came[0], min(size - came[0], PIECE_BYTES), position + came[0])
        if done < 0 and errno == EINTR:
            continue
        if done < 0:
            return errno
        if done == 0:
            return 0
        came[0] += done
    return 0


def read_steadily(int fd, Py_ssize_t size, int64_t position):
    cdef bytes data = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t* at = <uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t came = 0
    cdef int failed
    with nogil:
        failed = _read(fd, at, size, position, &came)
    if failed:
        raise OSError(failed, os.strerror(failed))
    return data if came == size else data[:came]


def read_steadily_into(int fd, buffer, int64_t position):
    cdef Py_buffer view
    cdef Py_ssize_t came = 0
    cdef int failed
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    try:
        with nogil:
            failed = _read(fd, <uint8_t*>view.buf, view.len, position, &came)
    finally:
        PyBuffer_Release(&view)
    if failed:
        raise OSError(failed, os.strerror(failed))
    return came
