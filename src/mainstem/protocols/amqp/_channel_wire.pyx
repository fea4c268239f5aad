# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What a channel has open: deliveries that wait for an ack, publishes that wait for a confirm. See `wire.py`."""

from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memmove

from mainstem.broker.delivery._live cimport RecordRef
from mainstem.broker.queues._queue_sink cimport Taker
from mainstem.codec._large_memory cimport release
from mainstem.log._gather cimport Ticket
from mainstem.protocols.amqp._outbound cimport Outbound

from mainstem.protocols.amqp.faults import Fault

cdef enum:
    SPAN_MAX = 65536  # unsettled deliveries kept in a row before stragglers are put aside
    DURABLE = -1  # in place of the tick that a confirm waits for
    REFUSED = -2


cdef class ChannelWire:
    def __cinit__(self):
        self.held = NULL
        self.properties = self.body = NULL
        self.head = self.tail = self.capacity = 0
        self.properties_capacity = self.body_size = self.body_capacity = 0

    def __init__(self, int number, Outbound out, owner):
        self.number = number
        self.out = out
        self.owner = owner
        self.next_tag = 1
        self.stragglers = {}
        self.waiting = []

    def __dealloc__(self):
        cdef Py_ssize_t n
        for n in range(self.head, self.tail):
            if self.held[n].consumer != NULL:
                Py_DECREF(<object>self.held[n].consumer)
        PyMem_Free(self.held)
        PyMem_Free(self.properties)
        release(self.body, self.body_capacity, False)

    # deliveries that wait for an ack, by tag: held[head] is tag next_tag - (tail - head)

    cdef uint64_t hold(self, object consumer, int64_t position) except 0:
        cdef Py_ssize_t capacity
        cdef void* grown
        if self.tail == self.capacity:
            if self.head > self.capacity // 2:
                memmove(self.held, self.held + self.head, (self.tail - self.head) * sizeof(Held))
                self.tail -= self.head
                self.head = 0
            else:
                capacity = self.capacity * 2 if self.capacity else 16
                grown = PyMem_Realloc(self.held, capacity * sizeof(Held))
                if grown == NULL:
                    raise MemoryError
                self.held = <Held*>grown
                self.capacity = capacity
        self.held[self.tail].position = position
        self.held[self.tail].consumer = <PyObject*>consumer
        Py_INCREF(consumer)
        self.tail += 1
        self.unacked += 1
        self.next_tag += 1
        if self.tail - self.head > SPAN_MAX:
            self.compact()
        return self.next_tag - 1

    def skip_tag(self):
        """A delivery that nobody acks has a tag all the same."""
        self.put_gap()
        return self.next_tag - 1

    cdef int put_gap(self) except -1:
        if self.head == self.tail:
            self.next_tag += 1
            return 0
        self.hold(None, 0)  # keeps tags and places in step
        self.unacked -= 1
        if self.tail == self.head:  # all places were given up meanwhile
            self.stragglers.pop(self.next_tag - 1, None)
        else:
            Py_DECREF(None)
            self.held[self.tail - 1].consumer = NULL
        return 0

    cdef int compact(self) except -1:
        """One message held for hours must not keep the places of all that came after it."""
        cdef Py_ssize_t n
        cdef uint64_t base = self.next_tag - (self.tail - self.head)
        if self.unacked - len(self.stragglers) > (self.tail - self.head) // 8:
            return 0
        for n in range(self.head, self.tail):
            if self.held[n].consumer != NULL:
                self.stragglers[base + n - self.head] = (<object>self.held[n].consumer, self.held[n].position)
                Py_DECREF(<object>self.held[n].consumer)
        self.head = self.tail = 0
        return 0

    cdef int settle(self, object consumer, int64_t position) except -1:
        """Tell the queue's sink; the reference held for it is given back by the caller."""
        cdef Consumer one
        self.unacked -= 1
        self.settled = True
        if isinstance(consumer, Consumer):
            one = <Consumer>consumer
            one.credit += 1
            if one.sink.ack(position):
                one.queue.queues.touch(one.queue)
        else:
            consumer.acked(position)
        return 0

    cpdef acknowledge(self, uint64_t tag, bint multiple):
        cdef uint64_t base = self.next_tag - (self.tail - self.head)
        cdef Py_ssize_t at, last
        cdef PyObject* consumer
        if multiple and tag == 0:
            if self.unacked == 0:
                return
            last = self.tail - 1
        elif tag >= base and tag < self.next_tag:
            last = self.head + <Py_ssize_t>(tag - base)
            if self.held[last].consumer == NULL:
                raise Fault(406, f"unknown delivery tag {tag}")
        elif tag in self.stragglers:
            last = self.head - 1
        else:
            raise Fault(406, f"unknown delivery tag {tag}")
        if not multiple:
            if last < self.head:
                holder, position = self.stragglers.pop(tag)
                self.settle(holder, position)
                return
            consumer = self.held[last].consumer
            self.held[last].consumer = NULL
            self.settle(<object>consumer, self.held[last].position)
            Py_DECREF(<object>consumer)
        else:
            if self.stragglers:
                for old in sorted(self.stragglers):
                    if tag == 0 or old <= tag:
                        holder, position = self.stragglers.pop(old)
                        self.settle(holder, position)
            for at in range(self.head, last + 1):
                consumer = self.held[at].consumer
                if consumer != NULL:
                    self.held[at].consumer = NULL
                    self.settle(<object>consumer, self.held[at].position)
                    Py_DECREF(<object>consumer)
        while self.head < self.tail and self.held[self.head].consumer == NULL:
            self.head += 1
        if self.head == self.tail:
            self.head = self.tail = 0

    def holds(self, uint64_t tag):
        """Whether the delivery waits for an ack."""
        cdef uint64_t base = self.next_tag - (self.tail - self.head)
        if base <= tag < self.next_tag:
            return self.held[self.head + <Py_ssize_t>(tag - base)].consumer != NULL
        return tag in self.stragglers

    def oldest_tag(self, holder):
        """Of what the holder was given and has not settled; 0: nothing."""
        cdef Py_ssize_t n
        cdef uint64_t base = self.next_tag - (self.tail - self.head)
        for tag in sorted(self.stragglers):
            if self.stragglers[tag][0] is holder:
                return tag
        for n in range(self.head, self.tail):
            if self.held[n].consumer == <PyObject*>holder:
                return base + n - self.head
        return 0

    def count_held(self, holder):
        """How many deliveries the holder was given and has not settled."""
        cdef Py_ssize_t n, count = 0
        for n in range(self.head, self.tail):
            count += self.held[n].consumer == <PyObject*>holder
        return count + sum(1 for one, _ in self.stragglers.values() if one is holder)

    def take_held(self, uint64_t tag, bint multiple):
        """End deliveries in another way than by an ack: [(tag, consumer, position)], oldest first."""
        cdef uint64_t base = self.next_tag - (self.tail - self.head)
        cdef uint64_t last = tag if tag else self.next_tag - 1
        cdef Py_ssize_t n
        taken = []
        if not multiple:
            if tag in self.stragglers:
                taken = [(tag, *self.stragglers.pop(tag))]
            elif base <= tag < self.next_tag and self.held[self.head + <Py_ssize_t>(tag - base)].consumer != NULL:
                n = self.head + <Py_ssize_t>(tag - base)
                taken = [(tag, self._release(n), self.held[n].position)]
            else:
                raise Fault(406, f"unknown delivery tag {tag}")
        else:
            if tag and tag not in self.stragglers and not (
                base <= tag < self.next_tag and self.held[self.head + <Py_ssize_t>(tag - base)].consumer != NULL
            ):
                raise Fault(406, f"unknown delivery tag {tag}")
            for old in sorted(self.stragglers):
                if old <= last:
                    taken.append((old, *self.stragglers.pop(old)))
            for n in range(self.head, self.tail):
                if base + n - self.head > last:
                    break
                if self.held[n].consumer != NULL:
                    taken.append((base + n - self.head, self._release(n), self.held[n].position))
        self.unacked -= len(taken)
        self.settled = True
        while self.head < self.tail and self.held[self.head].consumer == NULL:
            self.head += 1
        if self.head == self.tail:
            self.head = self.tail = 0
        return taken

    def _release(self, Py_ssize_t at):
        consumer = <object>self.held[at].consumer
        Py_DECREF(consumer)
        self.held[at].consumer = NULL
        return consumer

    def write_deliver(self, bytes head, RecordRef record, holder, decorator):
        """A delivery by a consumer that is not a queue's (`head` as in put_record); `holder` None: no ack is expected."""
        self.out.put_record(self.number, head, self._tag_for(holder, record), False, b"", record, 0, decorator)

    def write_get_ok(self, RecordRef record, bint redelivered, int attempts, bytes tail, holder, decorator):
        """The answer to basic.get; `holder` None: no ack is expected."""
        self.out.put_record(self.number, b"\0\x3c\0\x47", self._tag_for(holder, record), redelivered, tail, record,
                            attempts, decorator)

    cdef uint64_t _tag_for(self, object holder, RecordRef record) except 0:
        if holder is not None:
            return self.hold(holder, record.stamp)
        self.put_gap()
        return self.next_tag - 1

    # publishes that wait for a confirm

    def note_published(self, ticket, bint persistent):
        """One more publish on a confirming channel, stored under `ticket` (None: nothing to wait for). A transient one waits
        until it is written, or refused."""
        self.published += 1
        if ticket is not None:
            self.join_ticket(ticket, persistent)

    cdef int join_ticket(self, Ticket ticket, bint persistent) except -1:
        if ticket is not self.ticket:
            self._close_ticket(self.published - 1)
            self.ticket, self.persistent = ticket, False
        self.persistent |= persistent
        return 0

    def _close_ticket(self, uint64_t until):
        cdef Ticket ticket = self.ticket
        if ticket is None:
            return
        self.ticket = None
        if self.persistent:
            self.waiting.append((until, ticket, DURABLE))
            ticket.wait(self)
        else:
            self.waiting.append((until, ticket, self.out.ticker.ticks))

    def close(self):
        """What is not confirmed by now never is, as in RabbitMQ: the next channel of this number counts from 1 again."""
        self.closed = True
        self.waiting.clear()
        self.ticket = None

    def after_read(self):
        """The read is done: what was published in it is confirmed together."""
        self.touched = False
        if self.closed:
            return
        if self.ticket is not None:
            self._close_ticket(self.published)
        else:  # nothing to wait for but this tick's write
            self.waiting.append((self.published, None, self.out.ticker.ticks))

    def refuse_next(self):
        """One more publish, which was not stored."""
        self.after_read()
        self.published += 1
        self.waiting.append((self.published, None, REFUSED))

    def released(self, ticket):
        """A ticket is due, or a tick is over; answers leave in publish order."""
        cdef uint64_t until = 0
        while self.waiting:
            end, ticket, tick = self.waiting[0]
            refused = tick == REFUSED or (ticket is not None and (<Ticket>ticket).error is not None)
            if not refused and (not (<Ticket>ticket).stable if tick == DURABLE else tick >= self.out.ticker.ticks):
                break
            del self.waiting[0]
            if not refused:
                until = end
                continue
            if until:
                self.owner.confirmed(until)
                until = 0
            self.owner.refused(end)
        if until:
            self.owner.confirmed(until)


cdef class Consumer(Taker):
    def __init__(self, ChannelWire channel, queue, tag, *, int priority=0, int64_t credit=0, bint no_ack=False,
                 decorator=None):
        super().__init__(priority=priority, credit=credit, no_ack=no_ack)
        self.channel = channel
        self.queue = queue
        self.sink = queue.sink
        self.tag = tag
        self.decorator = decorator
        name = tag.encode("utf-8", "surrogateescape")
        self.head = b"\0\x3c\0\x3c" + bytes((len(name),)) + name

    cpdef bint take(self, RecordRef record, bint redelivered, int attempts) except -1:
        cdef ChannelWire channel = self.channel
        cdef Outbound out = channel.out
        cdef uint64_t tag
        if out.blocked or out.size > out.bytes_max or \
                (channel.unacked_max and not self.no_ack and channel.unacked >= channel.unacked_max):
            if not self.stalled:
                self.stalled = True
                out.stalled.append(self)
            return False
        if self.no_ack:
            tag = channel.next_tag
            channel.put_gap()
            self.credit += 1
        else:
            tag = channel.hold(self, record.stamp)
        out.put_record(channel.number, self.head, tag, redelivered, b"", record, attempts,
                       self.decorator if attempts else None)
        return True

    def on_queue_deleted(self):
        self.channel.owner.consumer_lost(self)

    @property
    def unacked(self):
        return self.channel.count_held(self)
