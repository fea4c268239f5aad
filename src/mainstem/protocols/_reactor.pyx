# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Sockets of one listener, read and written without an object or a Python call for each. See `reactor.py`."""

import logging
import os
import socket
from collections import deque

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM
from libc.errno cimport EAGAIN, EINTR, errno as errno_now
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from mainstem.broker.delivery._live cimport now_ns
from mainstem.protocols._lent cimport piece_at, piece_size
from mainstem.protocols._sockets cimport (
    EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP, MSG_DONTWAIT,
    MSG_NOSIGNAL, SHUT_WR, epoll_create1, epoll_ctl, epoll_event, epoll_wait, iovec, msghdr, processor_ns, recv, send, sendmsg,
    shutdown,
)

from mainstem.broker.delivery import ticker as ticking
from mainstem.broker.delivery import turns
from mainstem.protocols._accepting import Accepting
from mainstem.protocols.loopback import stop_pacing

logger = logging.getLogger("mainstem.connection")

cdef int64_t COMPANY_NS = turns.COMPANY_NS

cdef enum:
    READ_BYTES = 256 * 1024  # by one system call
    SLICE_BYTES_MIN = 1024  # of one socket in one turn, however many wait
    EVENTS_MAX = 512  # sockets served in one round; the others come next
    CROWD_MAX = 2048  # looked through for those who stay, when most who are ready leave
    EVENTS_MIN = 16  # however small the share
    ROUNDS_MAX = 4  # in one turn: a tick costs as much as several reads, and is shared by who came meanwhile
    ROUNDS_BYTES_MAX = 64 * 1024  # read in one turn: beyond it there is enough to share
    PIECES_MAX = 64  # of waiting output, in one system call
    PUSH_BYTES_MAX = 1 << 20  # of one write that a socket is given at once
    DRAIN_BYTES_MAX = 256 << 10  # of what waits to one socket in one turn
    DRAINED_BYTES_MAX = 1 << 20  # to all of a poll set: a thousand that begin to read at once take turns
    SERVE_NS = 1000000  # with a poll set's sockets in one turn: a CONNECT costs as much as a thousand publishes
    SLICE_NS = 500000  # with those who leave
    COMPANY_SHARE = 2  # these are so much shorter while clients are about that need short turns
    SERVED_UNCLOCKED = 2
    SHARED_TURN_NS = 1000000  # of the processor, for reading and the tick, while others are served, too
    SHARED_TURN_BYTES_MIN = 16 * 1024
    TURN_READS_MAX = 64  # that anyone asks for: 16 MiB
    QUIET_MS = 8  # SHARE_BYTES in each of these, to it and from it, are not little
    QUIET_SETS_MAX = 16  # looked at between others' turns: each costs a system call
    HALVINGS_MAX = 3  # by one read: a flood that paused goes on as one, who has become quiet is known a few messages later

cdef Py_ssize_t SHARE_BYTES = ticking.SHARE_BYTES
cdef int64_t _company_until_ns = 0  # of all listeners: until then clients are about that need short turns
cdef int64_t _sharing_until_ns = 0  # the same: until then more than one poll set is about
cdef uint64_t _poll_sets = 0  # ever
cdef uint64_t _latest = 0  # the number of the poll set that had the last turn


cdef inline int64_t _short(int64_t span_ns, int64_t at_ns) noexcept:
    return span_ns // COMPANY_SHARE if at_ns < _company_until_ns else span_ns


cdef class Intake:
    """Takes a socket's bytes where they lie: the base of a protocol's incoming half."""

    cdef int take(self, const uint8_t* data, Py_ssize_t size, int64_t time_ms) except -1:
        """They are gone when this returns. Returns how many messages it took and did not count elsewhere."""
        raise NotImplementedError


cdef class SocketTransport:
    """One socket: what asyncio calls a transport. Its protocol hears of its end once, in a turn of its own."""

    def __init__(self, PollSet poll_set, int fd, peer, protocol):
        self.poll_set, self.reactor, self.fd, self.peer = poll_set, poll_set.reactor, fd, peer
        poll_set.sockets += 1
        self.high, self.low = 64 * 1024, 16 * 1024
        self.reading = True
        self.set_protocol(protocol)

    def set_protocol(self, protocol):
        """Who hears from now on."""
        inbound = getattr(protocol, "inbound", None)
        self.protocol = protocol
        self.intake = inbound if isinstance(inbound, Intake) else None

    def set_tenant(self, str tenant):
        """Whose share of the turns it is read in from now on. Without a file descriptor for that it stays where it is."""
        cdef PollSet poll_set
        if self.lost or tenant == self.poll_set.tenant:
            return
        try:
            poll_set = self.reactor._poll_set(tenant)
        except OSError as error:
            logger.warning("connections of namespace %s share the turns of others: %s", tenant, error)
            return
        epoll_ctl(self.poll_set.epoll, EPOLL_CTL_DEL, self.fd, NULL)
        self.poll_set.leave()
        self.poll_set, self.watched = poll_set, 0
        poll_set.sockets += 1
        self._watch()

    # -- output

    cdef Py_ssize_t push(self, const uint8_t* data, Py_ssize_t size) except -1:
        """How much the socket took at once; the rest is to be kept (`keep`)."""
        cdef ssize_t done
        if self.lost or self.closing or self.ending:
            return size
        if self.waiting_size:
            return 0
        while True:
            done = send(self.fd, data, min(size, PUSH_BYTES_MAX), MSG_DONTWAIT | MSG_NOSIGNAL)
            if done >= 0:
                self.wrote += done
                if self.protocol.meter is not None:
                    self.protocol.meter.wrote(done)
                return done
            if errno_now == EAGAIN:
                return 0
            if errno_now != EINTR:
                self._lose(OSError(errno_now, os.strerror(errno_now)))
                return size

    cdef int keep(self, bytes data, Py_ssize_t at) except -1:
        """What the socket did not take leaves as soon as it does. `at` is not 0 only if nothing else waits."""
        if self.waiting is None:
            self.waiting = deque()
        if not self.waiting_size:
            self.waiting_at = at
        self.waiting.append(data)
        self.waiting_size += PyBytes_GET_SIZE(data) - at
        self._watch()
        self.protocol.note_unsent()
        self._measure()
        return 0

    cdef int keep_all(self, list pieces) except -1:
        """Bytes and Lents leave behind what waits, from the next turn on."""
        if self.lost or self.closing or self.ending:
            return 0
        if self.waiting is None:
            self.waiting = deque()
        if not self.waiting_size:
            self.waiting_at = 0
        for piece in pieces:
            self.waiting.append(piece)
            self.waiting_size += piece_size(piece)
        self._watch()
        self.protocol.note_unsent()
        self._measure()
        return 0

    cdef int _measure(self) except -1:
        """Tell the protocol when too much waits, and when little does again."""
        if self.waiting_size > self.high and not self.full:
            self.full = True
            self.protocol.pause_writing()
        elif self.full and self.waiting_size <= self.low:
            self.full = False
            self.protocol.resume_writing()
        return 0

    def write(self, bytes data):
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data), done
        if size:
            done = self.push(<const uint8_t*>PyBytes_AS_STRING(data), size)
            if done < size:
                self.keep(data, done)

    def writelines(self, pieces):
        self.write(b"".join(pieces))

    cdef int _drain(self) except -1:
        """The socket takes bytes again: one system call, the rest is another turn's."""
        cdef iovec[PIECES_MAX] parts
        cdef msghdr message
        cdef ssize_t done
        cdef int n = 0
        cdef Py_ssize_t at = self.waiting_at, size = 0
        for piece in self.waiting:
            parts[n].iov_base = <void*>(piece_at(piece) + at)
            parts[n].iov_len = min(piece_size(piece) - at, DRAIN_BYTES_MAX - size)
            size += parts[n].iov_len
            at, n = 0, n + 1
            if n == PIECES_MAX or size == DRAIN_BYTES_MAX:
                break
        memset(&message, 0, sizeof(message))
        message.msg_iov, message.msg_iovlen = parts, n
        done = sendmsg(self.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
        if done < 0:
            if errno_now != EAGAIN and errno_now != EINTR:
                self._lose(OSError(errno_now, os.strerror(errno_now)))
            return 0
        self.waiting_size -= done
        self.wrote += done
        self.reactor.drained += done
        if self.protocol.meter is not None:
            self.protocol.meter.wrote(done)
        done += self.waiting_at
        while self.waiting and done >= piece_size(self.waiting[0]):
            done -= piece_size(self.waiting.popleft())
        self.waiting_at = done
        if self.waiting_size == 0:
            self.waiting = None
            if self.closing:
                self._lose(None)
                return 0
            if self.ending:
                shutdown(self.fd, SHUT_WR)
            self._watch()
        self.protocol.note_unsent()
        self._measure()
        return 0

    # -- input

    cdef int _serve(self, uint32_t events, Py_ssize_t bytes_max) except -1:
        """True: it has brought so much, and may have more."""
        if self.lost:
            return 0
        if events & EPOLLOUT and self.waiting_size and self.reactor.drained < DRAINED_BYTES_MAX:
            self._drain()
        if events & ~EPOLLOUT and not self.lost:
            if self.reading:
                while self._read(min(bytes_max, READ_BYTES)) and self.reading:
                    bytes_max -= READ_BYTES
                    if bytes_max <= 0:
                        return 1
            elif not self.waiting_size:  # gone while nobody reads: it is found out when somebody does
                self._mute()
            elif not events & EPOLLOUT:
                self._drain()
        return 0

    cdef int _read(self, Py_ssize_t bytes_max) except -1:
        """True: that many came, so there may be more."""
        cdef Reactor reactor = self.reactor
        cdef ssize_t size = recv(self.fd, reactor.buffer, bytes_max, MSG_DONTWAIT)
        if size > 0:
            if self.deaf:
                return 0
            reactor.bytes_in += size
            if self.heard != reactor.second:
                self.heard = self.protocol.heard_second = reactor.second
            protocol = self.protocol
            if self.intake is not None:
                reactor.messages_in += self.intake.take(reactor.buffer, size, reactor.time_ms)
            else:
                protocol.on_data(PyBytes_FromStringAndSize(<const char*>reactor.buffer, size))
            if protocol.meter is not None:
                protocol.meter.read(size)
            return size == bytes_max
        elif size == 0:
            self.protocol.eof_received()
            self.close()
        elif errno_now != EAGAIN and errno_now != EINTR:
            self._lose(OSError(errno_now, os.strerror(errno_now)))
        return 0

    cdef bint _is_quiet(self, Py_ssize_t size, int64_t now_ms) noexcept:
        """After a read: it has said and heard little lately, so it needs short turns. A flood in small pieces does not, nor does
        whoever acks one."""
        cdef int64_t halvings = (now_ms - self.said_ms) // QUIET_MS
        if halvings:
            self.said, self.said_ms = self.said >> (halvings if 0 < halvings < HALVINGS_MAX else HALVINGS_MAX), now_ms
        self.said, self.wrote = self.said + size + self.wrote, 0
        return self.said < 2 * SHARE_BYTES

    def pause_reading(self):
        self.reading = False
        self._watch()

    def resume_reading(self):
        self.reading = not self.closing
        self._watch()

    cdef int _watch(self) except -1:
        """Tell the kernel what we wait for, if that changed."""
        cdef uint32_t wanted = (EPOLLIN | EPOLLRDHUP if self.reading else 0) | (EPOLLOUT if self.waiting_size else 0)
        cdef epoll_event event
        if self.lost or wanted == self.watched:
            return 0
        event.events, event.data.u32 = wanted, <uint32_t>self.fd
        if epoll_ctl(self.poll_set.epoll, EPOLL_CTL_MOD, self.fd, &event):
            if epoll_ctl(self.poll_set.epoll, EPOLL_CTL_ADD, self.fd, &event):
                raise OSError(errno_now, "epoll_ctl")
        self.watched = wanted
        return 0

    def _mute(self):
        """A socket that was reset is told of again and again, whatever is asked for: ask for nothing at all."""
        epoll_ctl(self.poll_set.epoll, EPOLL_CTL_DEL, self.fd, NULL)
        self.watched = 0

    # -- the end

    def can_write_eof(self):
        return True

    def write_eof(self):
        """End our side behind what waits; what the peer still sends is read and not heard."""
        if self.lost or self.closing or self.ending:
            return
        self.ending = self.deaf = True
        if not self.waiting_size:
            shutdown(self.fd, SHUT_WR)

    def stop_hearing(self):
        """What the peer still sends is read and not heard."""
        self.deaf = True

    def close(self):
        """Send what waits, then close."""
        if self.closing or self.lost:
            return
        self.closing = self.deaf = True
        self.reading = False
        if self.waiting_size:
            self._watch()
        else:
            self._lose(None)

    def abort(self):
        self._lose(None)

    cdef int _lose(self, object error) except -1:
        if self.lost:
            return 0
        self.lost = self.closing = self.deaf = True
        self.reading = False
        self.waiting, self.waiting_size = None, 0
        epoll_ctl(self.poll_set.epoll, EPOLL_CTL_DEL, self.fd, NULL)
        self.reactor.leaving.append((self, error))
        if not self.reactor.parting:
            self.reactor.parting = True
            self.reactor.loop.call_soon(self.reactor._let_leave)
        return 0

    def _leave(self, error):
        """In a turn of its own: only now may another socket get the same number."""
        if self.fd < 0:
            return
        self.reactor._forget(self.fd)
        self.poll_set.leave()
        self.fd = -1
        protocol, self.protocol, self.intake = self.protocol, None, None
        protocol.connection_lost(error)

    def is_closing(self):
        return self.closing

    # -- what is told of it

    def set_write_buffer_limits(self, high=None, low=None):
        self.high = 64 * 1024 if high is None else high
        self.low = self.high // 4 if low is None else low
        self._measure()

    def get_write_buffer_size(self):
        return self.waiting_size

    def get_extra_info(self, name, default=None):
        if name == "peername":
            return self.peer
        if name == "sockname" and self.fd >= 0:
            with socket.socket(fileno=os.dup(self.fd)) as same:
                return same.getsockname()
        return default


cdef class PollSet:
    """A namespace's sockets of one listener, behind one file descriptor of the loop's: so the loop serves poll sets by turns."""

    def __init__(self, Reactor reactor, str tenant):
        global _poll_sets
        _poll_sets += 1
        self.reactor, self.tenant, self.number = reactor, tenant, _poll_sets
        self.events_max = EVENTS_MAX
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll < 0:
            raise OSError(errno_now, "epoll_create1")
        reactor.loop.add_reader(self.epoll, self._turn)

    def close(self):
        self.reactor.loop.remove_reader(self.epoll)
        os.close(self.epoll)
        self.epoll = -1

    cdef int leave(self) except -1:
        self.sockets -= 1
        if not self.sockets and self.tenant:
            self.reactor.loop.call_soon(self.reactor._close_poll_set, self)
        return 0

    cdef double _part(self, double share):
        """Of a whole turn: the largest share of those who wait has all of it, the others in proportion.

        Who waits is known of the round before. A round ends when a poll set comes that had its turn in it.
        """
        cdef Reactor reactor = self.reactor
        if self.round == reactor.round:
            reactor.round += 1
            reactor.largest, reactor.largest_next = reactor.largest_next, 0
        self.round = reactor.round
        return share / max(share, reactor.largest)

    cdef int _stayers_first(self, epoll_event* events, int ready) noexcept:
        """Those who have closed their side go behind the others, who would wait until thousands have left. How many stay."""
        cdef epoll_event stayer
        cdef int n, stayers = 0
        for n in range(ready):
            if not events[n].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR):
                stayer = events[n]
                events[n], events[stayers] = events[stayers], stayer
                stayers += 1
        return stayers

    cdef bint _is_alone(self, int64_t at_ns, ticker) except -1:
        """No other namespace is about, no socket of the loop's, and nobody who needs short turns: each that is ready is read as
        if it were the only one, for each piece costs a tick, a write and a sync."""
        global _latest, _sharing_until_ns
        if self.number != _latest or ticker.loop_read:
            _latest, _sharing_until_ns, ticker.loop_read = self.number, at_ns + COMPANY_NS, False
        ticker.alone = at_ns > max(_company_until_ns, _sharing_until_ns) and self.reactor.server.alone_bytes > 0
        return ticker.alone

    cdef Py_ssize_t _affordable(self, int64_t at_ns) noexcept:
        """How many bytes a turn may have: whatever it likes while nobody else is about, then what takes a millisecond."""
        if at_ns > _company_until_ns or self.ns_per_byte * READ_BYTES * TURN_READS_MAX <= SHARED_TURN_NS:
            return READ_BYTES * TURN_READS_MAX
        return max(SHARED_TURN_BYTES_MIN, <Py_ssize_t>(SHARED_TURN_NS / self.ns_per_byte))

    cdef void _price(self, uint64_t size, int64_t took_ns) noexcept:
        """What a byte costs at present, with its share of writing and delivering."""
        cdef double price = <double>took_ns / size
        self.ns_per_byte = price if self.ns_per_byte == 0 else 0.75 * self.ns_per_byte + 0.25 * price

    def _turn(self):
        """Read what is there and what came while it was read, then tick once for all of it."""
        global _company_until_ns
        cdef epoll_event[CROWD_MAX] events
        cdef Reactor reactor = self.reactor
        if self.priced or not self.tenant:  # it is a long one, or of thousands who come at once
            reactor.server.turns.let_in()
        cdef double share = reactor.server.turns.share_of(self.tenant) or 1, part = self._part(share)
        cdef int n, rounds = 1, events_max = min(self.events_max, max(EVENTS_MIN, <int>(EVENTS_MAX * part)))
        cdef int seen = epoll_wait(self.epoll, events, CROWD_MAX if self.crowd else events_max, 0)
        if seen <= 0:
            return
        cdef int stayers = self._stayers_first(events, seen), ready = min(seen, max(stayers, events_max))
        self.crowd = 2 * stayers < seen and seen >= events_max
        cdef SocketTransport transport
        cdef bint more = False, waits = seen > ready or ready == events_max, quiet = False
        cdef int64_t at_ns = now_ns(), serve_ns = _short(SERVE_NS, at_ns), until_ns = at_ns + serve_ns
        cdef int64_t began_ns = processor_ns() if self.priced else 0
        cdef uint64_t before
        cdef Py_ssize_t size, slice_bytes, turn_bytes = <Py_ssize_t>(part * <Py_ssize_t>reactor.server.turn_bytes)
        cdef Py_ssize_t whole_bytes = max(<Py_ssize_t>READ_BYTES, turn_bytes)  # of a socket, where the turn is not divided
        cdef object ticker = reactor.server.ticker, counters = reactor.server.counters
        cdef bint alone = self._is_alone(at_ns, ticker)
        if alone:
            turn_bytes = reactor.server.alone_bytes
        turn_bytes = min(turn_bytes, <Py_ssize_t>ticker.ahead_bytes, self._affordable(at_ns))
        cdef bint ticks = ticker.begin_turn()
        reactor.second = reactor.server.deadlines.second
        reactor.time_ms = <int64_t>reactor.now_ns() // 1000000
        while ready > 0:
            slice_bytes = max(SLICE_BYTES_MIN, (turn_bytes - <Py_ssize_t>reactor.bytes_in) // ready)
            for n in range(ready):
                transport = <SocketTransport>PyList_GET_ITEM(reactor.transports, events[n].data.u32)
                if alone:
                    slice_bytes = max(SLICE_BYTES_MIN, min(whole_bytes, turn_bytes - <Py_ssize_t>reactor.bytes_in))
                try:
                    before = reactor.bytes_in
                    more |= transport._serve(events[n].events, slice_bytes)
                    size = reactor.bytes_in - before
                    if size and transport._is_quiet(size, reactor.time_ms):
                        quiet = True
                    if size >= SHARE_BYTES and transport.reading and ticker.behind:
                        ticker.outrun(transport.protocol)
                except Exception:
                    logger.exception("a connection failed and is closed")
                    transport._lose(None)
                if n + 1 < ready and ((n % SERVED_UNCLOCKED == SERVED_UNCLOCKED - 1 and now_ns() > until_ns)
                                      or (alone and <Py_ssize_t>reactor.bytes_in >= turn_bytes)):
                    # Only so many are asked for next time: the kernel tells of each once before it tells of one again.
                    self.events_max = n + 1
                    self.crowd = self.crowd and n >= stayers
                    more = waits = True
                    break
            if (more or ready == 1 or self.crowd or rounds == ROUNDS_MAX or reactor.bytes_in >= ROUNDS_BYTES_MAX
                    or now_ns() > until_ns):
                break
            ready = epoll_wait(self.epoll, events, events_max, 0)
            rounds += 1
        if waits or more:
            reactor.largest_next = max(reactor.largest_next, share)
            if self.events_max < EVENTS_MAX and now_ns() < until_ns - serve_ns // 2:
                self.events_max = min(2 * self.events_max, EVENTS_MAX)
        counters.bytes_in += reactor.bytes_in
        counters.messages_in += reactor.messages_in
        cdef uint64_t bytes_in = reactor.bytes_in
        reactor.bytes_in = reactor.messages_in = reactor.drained = 0
        if ticks:
            ticker.end_turn()
        if quiet:
            reactor._note_quiet(self, at_ns + COMPANY_NS)
        if self.priced and bytes_in >= SHARED_TURN_BYTES_MIN:
            self._price(bytes_in, processor_ns() - began_ns)
        self.priced = bytes_in >= SHARED_TURN_BYTES_MIN


cdef class Reactor:
    """One listener and its sockets, in a poll set for each namespace."""

    def __init__(self, loop, server, now_ns, listener, int backlog):
        self.loop, self.server, self.now_ns = loop, server, now_ns
        self.transports = []
        self.leaving = deque()
        self.buffer = <uint8_t*>malloc(READ_BYTES)
        if self.buffer == NULL:
            raise MemoryError
        self.poll_sets, self.quiet = {}, []
        self._poll_set("")
        server.turns.quick.append(self._serve_quiet)
        listener.setblocking(False)
        listener.listen(backlog)
        self.accepting = Accepting(loop, server, listener, self._open)

    def __dealloc__(self):
        free(self.buffer)

    def close(self):
        """Take no one new."""
        self.accepting.close()

    def finish(self):
        """The loop ends: let go of everything, whoever still waits."""
        self.close()
        for transport in [one for one in self.transports if one is not None]:
            transport.abort()
            transport._leave(None)
        for poll_set in self.poll_sets.values():
            poll_set.close()
        self.poll_sets, self.quiet = {}, []
        if self._serve_quiet in self.server.turns.quick:
            self.server.turns.quick.remove(self._serve_quiet)

    cdef PollSet _poll_set(self, str tenant):
        """Of those who are not logged in: ""."""
        poll_set = self.poll_sets.get(tenant)
        if poll_set is None:
            poll_set = self.poll_sets[tenant] = PollSet(self, tenant)
        return poll_set

    cdef int _note_quiet(self, PollSet poll_set, int64_t until_ns) except -1:
        global _company_until_ns
        _company_until_ns = self.server.turns.company_until_ns = until_ns
        if poll_set.quiet_until_ns == 0:
            if len(self.quiet) == QUIET_SETS_MAX:
                return 0
            self.quiet.append(poll_set)
        poll_set.quiet_until_ns = until_ns
        return 0

    def _serve_quiet(self):
        """Others are about to have a long turn. Who floods beside them in the same poll set waits for its own."""
        cdef int64_t at_ns = now_ns()
        cdef PollSet poll_set
        for poll_set in self.quiet[:]:
            if poll_set.quiet_until_ns < at_ns or poll_set.epoll < 0:
                poll_set.quiet_until_ns = 0
                self.quiet.remove(poll_set)
            elif not poll_set.priced:
                poll_set._turn()

    def _close_poll_set(self, PollSet poll_set):
        """In a turn of its own, which is not the poll set's."""
        if not poll_set.sockets and self.poll_sets.get(poll_set.tenant) is poll_set:
            del self.poll_sets[poll_set.tenant]
            poll_set.close()

    def _let_leave(self):
        """A thousand that go at once are not one turn."""
        self.server.turns.let_in()
        cdef int64_t at_ns = now_ns(), until_ns = at_ns + _short(SLICE_NS, at_ns)
        cdef SocketTransport transport
        while self.leaving:
            transport, error = self.leaving.popleft()
            try:
                transport._leave(error)
            except Exception:
                logger.exception("a connection's end could not be handled")
            if self.leaving and now_ns() > until_ns:
                break
        self.parting = len(self.leaving) > 0
        if self.parting:
            self.loop.call_soon(self._let_leave)

    def _open(self, taken, peer):
        taken.setblocking(False)
        try:
            taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:  # not TCP, or gone already
            pass
        cdef SocketTransport transport = SocketTransport(
            self._poll_set(""), taken.fileno(), peer, self.server.make_connection()
        )
        stop_pacing(transport, taken)
        taken.detach()  # the transport closes it
        while len(self.transports) <= transport.fd:
            self.transports.append(None)
        self.transports[transport.fd] = transport
        transport._watch()
        transport.protocol.connection_made(transport)

    def _forget(self, int fd):
        self.transports[fd] = None
        os.close(fd)
