# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Who comes to a listener of a reactor: some in each turn of the loop, for as long as there is time and room."""

import errno
import logging

from libc.stdint cimport int64_t

from mainstem.broker.delivery._live cimport now_ns

logger = logging.getLogger("mainstem.connection")

cdef int64_t SLICE_NS = 500_000  # half of it while clients are about that say little

ACCEPTS_MAX = 128  # in one turn, if there is time
AGAIN_S = 1.0  # when there are no file descriptors left
FULL_AGAIN_S = 0.02  # when there are as many connections as may be: some may have ended, and we have not read it
NO_ROOM = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


cdef class Accepting:
    """`take` gets the socket and address of each."""

    cdef object loop, server, listener, take
    cdef bint waited  # with the next one, as there are as many connections as may be

    def __init__(self, loop, server, listener, take):
        self.loop, self.server, self.listener, self.take = loop, server, listener, take
        loop.add_reader(listener.fileno(), self._accept)

    def close(self):
        listener, self.listener = self.listener, None
        if listener is not None:
            self.loop.remove_reader(listener.fileno())
            listener.close()

    def _accept(self):
        """Whoever is one too many waits once, for those who left before it came: then it is refused."""
        self.server.turns.let_in()
        cdef int64_t at_ns = now_ns(), company_until_ns = self.server.turns.company_until_ns
        cdef int64_t until_ns = at_ns + (SLICE_NS // 2 if at_ns < company_until_ns else SLICE_NS)
        cdef bint waited = self.waited
        self.waited = False
        for _ in range(ACCEPTS_MAX):
            if now_ns() > until_ns:
                return
            if not waited and len(self.server.connections) >= self.server.connections_max:
                self.waited = True
                return self._accept_later(FULL_AGAIN_S)
            try:
                taken, peer = self.listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                logger.error("no connection can be accepted for %s s: %s", AGAIN_S, error.strerror)
                return self._accept_later(AGAIN_S)
            self.take(taken, peer)

    def _accept_later(self, double seconds):
        self.loop.remove_reader(self.listener.fileno())
        self.loop.call_later(seconds, self._accept_again)

    def _accept_again(self):
        if self.listener is not None:
            self.loop.add_reader(self.listener.fileno(), self._accept)
