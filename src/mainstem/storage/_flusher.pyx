# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Threads that sync descriptors and never wait for the interpreter. See `flusher.py`."""

import os
import threading

from libc.errno cimport errno
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from mainstem.storage.scheduling import come_first

cdef extern from *:
    """
    #include <errno.h>
    #include <fcntl.h>
    #include <pthread.h>
    #include <stdint.h>
    #include <time.h>
    #include <unistd.h>

    static int sync_descriptor(int fd) {
        int failed;
        do {
    #if defined(F_FULLFSYNC)
            failed = fcntl(fd, F_FULLFSYNC);
    #elif defined(__linux__)
            failed = fdatasync(fd);
    #else
            failed = fsync(fd);
    #endif
        } while (failed && errno == EINTR);
        return failed ? errno : 0;
    }

    static int sync_whole(int fd) {  /* with what fdatasync may leave out: the names in a directory */
        int failed;
        do {
    #if defined(F_FULLFSYNC)
            failed = fcntl(fd, F_FULLFSYNC);
    #else
            failed = fsync(fd);
    #endif
        } while (failed && errno == EINTR);
        return failed ? errno : 0;
    }

    static int64_t monotonic_ns(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }
    """
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_mutex_init(pthread_mutex_t*, void*) nogil
    int pthread_mutex_destroy(pthread_mutex_t*) nogil
    int pthread_mutex_lock(pthread_mutex_t*) nogil
    int pthread_mutex_unlock(pthread_mutex_t*) nogil
    int pthread_cond_init(pthread_cond_t*, void*) nogil
    int pthread_cond_destroy(pthread_cond_t*) nogil
    int pthread_cond_wait(pthread_cond_t*, pthread_mutex_t*) nogil
    int pthread_cond_signal(pthread_cond_t*) nogil
    int pthread_cond_broadcast(pthread_cond_t*) nogil
    int sync_descriptor(int fd) nogil
    int sync_whole(int fd) nogil
    int64_t monotonic_ns() nogil
    ssize_t write(int fd, const void* data, size_t size) nogil


cdef enum:
    PLACES_MAX = 8


cdef struct Handle:
    int places[PLACES_MAX]  # that the next sync does, in this order: descriptors, or ~descriptor where `sync_whole` does it
    int count
    int error
    bint running
    bint queued  # waits for a thread
    bint told  # among the news
    int64_t requested
    int64_t completed
    int64_t syncs  # since they were last taken, and how long they took together
    int64_t sync_ns
    Handle* next_queued
    Handle* next_news
    void* owner  # the FlushHandle, kept alive by its flusher while anything is under way


cdef struct Shared:
    pthread_mutex_t lock
    pthread_cond_t wake
    pthread_cond_t done
    Handle* queue_first
    Handle* queue_last
    Handle* news
    int waiting
    bint stopping
    int notice_fd


cdef void _enqueue(Shared* shared, Handle* handle) noexcept nogil:
    handle.queued = True
    handle.next_queued = NULL
    if shared.queue_last == NULL:
        shared.queue_first = handle
    else:
        shared.queue_last.next_queued = handle
    shared.queue_last = handle


cdef bint _finish(Shared* shared, Handle* handle, int64_t target, int failed, int64_t took_ns) noexcept nogil:
    """Whether the loop must be told: it was not yet of anything else."""
    cdef bint quiet = shared.news == NULL
    handle.running = False
    handle.syncs += 1
    handle.sync_ns += took_ns
    handle.error = failed
    handle.completed = handle.requested if failed else target  # what was asked for since is not tried: see `flusher.py`
    if handle.requested > handle.completed:
        _enqueue(shared, handle)
    if not handle.told:
        handle.told = True
        handle.next_news = shared.news
        shared.news = handle
    if shared.waiting:
        pthread_cond_broadcast(&shared.done)
    return quiet


cdef bint _add(Handle* handle, int place) noexcept nogil:
    """Whether there was room for it. What is there already stays where it is."""
    cdef int at
    for at in range(handle.count):
        if handle.places[at] == place:
            return True
    if handle.count == PLACES_MAX:
        return False
    handle.places[handle.count] = place
    handle.count += 1
    return True


cdef int _sync_all(const int* places, int count) noexcept nogil:
    """The errno of the first that failed."""
    cdef int at, failed = 0
    for at in range(count):
        failed = sync_descriptor(places[at]) if places[at] >= 0 else sync_whole(~places[at])
        if failed:
            break
    return failed


cdef void _work(Shared* shared) noexcept nogil:
    cdef Handle* handle
    cdef int64_t target, began_ns
    cdef uint64_t one = 1
    cdef int places[PLACES_MAX]
    cdef int count, failed
    pthread_mutex_lock(&shared.lock)
    while True:
        while shared.queue_first == NULL and not shared.stopping:
            pthread_cond_wait(&shared.wake, &shared.lock)
        handle = shared.queue_first
        if handle == NULL:
            break
        shared.queue_first = handle.next_queued
        if shared.queue_first == NULL:
            shared.queue_last = NULL
        handle.queued, handle.running = False, True
        target, count = handle.requested, handle.count
        memcpy(places, handle.places, count * sizeof(int))
        handle.count = 0
        pthread_mutex_unlock(&shared.lock)
        began_ns = monotonic_ns()
        failed = _sync_all(places, count)
        began_ns = monotonic_ns() - began_ns
        pthread_mutex_lock(&shared.lock)
        if _finish(shared, handle, target, failed, began_ns):
            pthread_mutex_unlock(&shared.lock)  # whom this wakes would only wait for the lock
            write(shared.notice_fd, &one, sizeof(one))
            pthread_mutex_lock(&shared.lock)
    pthread_mutex_unlock(&shared.lock)


cdef class FlushHandle:
    cdef Handle handle
    cdef readonly Flusher flusher
    cdef readonly object owner

    def __cinit__(self, Flusher flusher, owner):
        self.flusher = flusher
        self.owner = owner
        self.handle.owner = <void*>self

    def outcome(self):
        cdef Shared* shared = self.flusher.shared
        cdef int64_t completed
        cdef int error
        pthread_mutex_lock(&shared.lock)  # a sync that ends just now is seen with its error or not at all
        completed, error = self.handle.completed, self.handle.error
        pthread_mutex_unlock(&shared.lock)
        return completed, error

    def request(self, *places):
        cdef Shared* shared = self.flusher.shared
        cdef Handle* handle = &self.handle
        cdef bint wake = False, taken = True
        cdef int64_t number = 0
        cdef int asked[PLACES_MAX]
        cdef int count = len(places), at, before
        if not 0 < count <= PLACES_MAX:
            return 0
        for at in range(count):
            asked[at] = places[at]
        self.flusher.busy.add(self)  # nothing of the interpreter's runs while the lock is held
        pthread_mutex_lock(&shared.lock)
        if not handle.error and not shared.stopping:
            before = handle.count
            for at in range(count):
                taken = taken and _add(handle, asked[at])
            if taken:
                handle.requested += 1
                number = handle.requested
                wake = not handle.queued and not handle.running
                if wake:
                    _enqueue(shared, handle)
            else:
                handle.count = before
        pthread_mutex_unlock(&shared.lock)
        if wake:
            pthread_cond_signal(&shared.wake)
        elif not number and handle.requested == handle.completed:
            self.flusher.busy.discard(self)
        return number

    def wait(self):
        cdef Shared* shared = self.flusher.shared
        cdef Handle* handle = &self.handle
        cdef int error
        with nogil:
            pthread_mutex_lock(&shared.lock)
            shared.waiting += 1
            while handle.completed < handle.requested:
                pthread_cond_wait(&shared.done, &shared.lock)
            shared.waiting -= 1
            error = handle.error
            pthread_mutex_unlock(&shared.lock)
        return error

    def take_times(self):
        cdef Shared* shared = self.flusher.shared
        cdef int64_t syncs, sync_ns
        pthread_mutex_lock(&shared.lock)
        syncs, sync_ns = self.handle.syncs, self.handle.sync_ns
        self.handle.syncs = self.handle.sync_ns = 0
        pthread_mutex_unlock(&shared.lock)
        return syncs, sync_ns


cdef class Flusher:
    cdef Shared* shared
    cdef set busy
    cdef list _threads
    cdef int _reading_fd

    def __cinit__(self, int threads):
        self.shared = <Shared*>calloc(1, sizeof(Shared))
        if self.shared == NULL:
            raise MemoryError
        pthread_mutex_init(&self.shared.lock, NULL)
        pthread_cond_init(&self.shared.wake, NULL)
        pthread_cond_init(&self.shared.done, NULL)
        self.busy = set()
        if hasattr(os, "eventfd"):
            self._reading_fd = self.shared.notice_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._reading_fd, self.shared.notice_fd = os.pipe()
            os.set_blocking(self._reading_fd, False)
        self._threads = [
            threading.Thread(target=self._run, name=f"flusher-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def __dealloc__(self):
        if self.shared != NULL:
            pthread_cond_destroy(&self.shared.wake)
            pthread_cond_destroy(&self.shared.done)
            pthread_mutex_destroy(&self.shared.lock)
            free(self.shared)

    def _run(self):
        come_first()
        with nogil:
            _work(self.shared)

    def fileno(self):
        return self._reading_fd

    def handle(self, owner):
        return FlushHandle(self, owner)

    @property
    def has_news(self):
        return self.shared.news != NULL

    def finished(self):
        cdef Shared* shared = self.shared
        cdef Handle* handle
        cdef list found = []
        if self._threads:
            try:
                os.read(self._reading_fd, 8)
            except BlockingIOError:
                pass
        pthread_mutex_lock(&shared.lock)
        handle, shared.news = shared.news, NULL
        while handle != NULL:
            handle.told = False
            owner = <object>handle.owner
            found.append(owner)
            if handle.requested == handle.completed:
                self.busy.discard(owner)
            handle = handle.next_news
        pthread_mutex_unlock(&shared.lock)
        found.reverse()
        return found

    def close(self):
        pthread_mutex_lock(&self.shared.lock)
        self.shared.stopping = True
        pthread_cond_broadcast(&self.shared.wake)
        pthread_mutex_unlock(&self.shared.lock)
        for thread in self._threads:
            thread.join()
        if self._threads:
            self._threads = []
            for fd in {self._reading_fd, self.shared.notice_fd}:
                os.close(fd)
