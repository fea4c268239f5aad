# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What the incoming half of an MQTT connection owes its publisher: acknowledgements that wait for the log, QoS 2 identifiers.

Its oracle is `tests/oracles/mqtt_wire.py`, in one class with the parser.
"""

from collections import deque

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free, realloc

from mainstem.codec._batch cimport get_u16
from mainstem.log._gather cimport Ticket
from mainstem.protocols._reactor cimport Intake
from mainstem.protocols.mqtt.outgoing._outbound cimport Outbound
from mainstem.protocols.mqtt.wire._codes cimport (
    MALFORMED,
    PACKET_ID_NOT_FOUND,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    QUOTA_EXCEEDED,
)

from mainstem.protocols.mqtt.wire.packets import check_ack
from mainstem.protocols.mqtt.wire.reasons import Violation

cdef enum:
    REPEATED = 1 << 24
    RECEIVED_BYTES = 8192  # one bit for each packet identifier


cdef class AckRun:
    """Acks that wait for one ticket: each is kind (4 bits), repeated (4), reason (8), packet identifier (16).

    The answer to a repeated publish waits here for its turn only: its record came with another ticket, or long ago. So does
    that to a PUBREL of which nothing is known, or whose first answer waits.
    """

    def __cinit__(self, Ticket ticket):
        self.ticket = ticket

    def __dealloc__(self):
        free(self.acks)

    cdef int add(self, uint32_t ack) except -1:
        cdef int capacity
        cdef uint32_t* grown
        if self.count == self.capacity:
            capacity = self.capacity * 2 if self.capacity else 16
            grown = <uint32_t*>realloc(self.acks, capacity * sizeof(uint32_t))
            if grown == NULL:
                raise MemoryError
            self.acks, self.capacity = grown, capacity
        self.acks[self.count] = ack
        self.count += 1
        return 0


cdef class Receipts(Intake):
    """Acks leave in the order of their publishes, each when its record is durable."""

    def __dealloc__(self):
        free(self.received)

    cdef int _ack(self, int kind, int flags, const uint8_t* at, Py_ssize_t size) except -1:
        cdef int packet_id, reason = 0, bit
        if flags != (2 if kind == PUBREL else 0) and not (self.version == 3 and kind == PUBREL and flags == 10):
            raise Violation(MALFORMED, f"flags {flags:#06b} on an acknowledgement")
        if size < 2 or (self.version != 5 and size != 2):
            raise Violation(MALFORMED, f"an acknowledgement of {size} bytes")
        packet_id = get_u16(at)
        if packet_id == 0:
            raise Violation(MALFORMED, "packet identifier 0")
        if size > 2:
            reason = at[2]
            if reason or size > 4 or (size == 4 and at[3]):
                check_ack(kind, PyBytes_FromStringAndSize(<const char*>at, size), self.limits)
        if kind != PUBREL:
            self.outbound.acknowledge(kind, packet_id, reason)
            return 0
        bit = 1 << (packet_id & 7)
        if self.received == NULL or not self.received[packet_id >> 3] & bit:
            self._complete_again(packet_id)
            return 0
        self.received[packet_id >> 3] &= ~bit
        self.received_count -= 1
        if self.durable:
            if self.completions is None:
                self.completions = AckRun(None)
            self.completions.add(<uint32_t>(PUBCOMP << 28) | packet_id)
            self.waiting = True
        else:
            self.unacked -= 1
            self.outbound.write_ack(PUBCOMP << 4, packet_id, 0)
        return 0

    cdef int _complete_again(self, int packet_id) except -1:
        """Nothing is known of it, or it is being released: then the first answer must not be overtaken."""
        cdef int reason = PACKET_ID_NOT_FOUND if self.version == 5 else 0
        cdef AckRun run = self.completions if self.waiting else self.last_run
        if run is None:
            self.outbound.write_ack(PUBCOMP << 4, packet_id, reason)
        else:
            run.add(<uint32_t>(PUBCOMP << 28) | <uint32_t>REPEATED | <uint32_t>(reason << 16) | packet_id)
            self.unacked += 1  # which sending it takes back
        return 0

    def complete(self, Ticket ticket):
        """The PUBCOMPs of the releases since the last call leave when `ticket` is stable."""
        cdef AckRun run = self.completions
        self.completions = None
        self.waiting = False
        if run is not None:
            run.ticket = ticket
            self._queue(run)

    def answer(self, ticket, int qos, int packet_id, int reason=0):
        """Acknowledge a publish that came as an event, after `ticket` if there is one, in its turn."""
        if qos:
            self._answer(ticket, qos, packet_id, reason)

    cdef int _answer(self, Ticket ticket, int qos, int packet_id, int reason) except -1:
        cdef int kind = PUBACK if qos == 1 else PUBREC
        cdef AckRun run = self.last_run
        cdef bint fresh
        if qos == 2 and reason < 0x80 and not self.received[packet_id >> 3] & (1 << (packet_id & 7)):
            self.received[packet_id >> 3] |= 1 << (packet_id & 7)
            self.received_count += 1
        if ticket is None:
            if run is None:
                if qos == 1 or reason >= 0x80:
                    self.unacked -= 1
                self.outbound.write_ack(kind << 4, packet_id, reason)
                return 0
            if qos == 2 and reason < 0x80:
                run.add(<uint32_t>(kind << 28) | <uint32_t>REPEATED | <uint32_t>(reason << 16) | packet_id)
                return 0
        elif run is None or run.ticket is not ticket:
            run = AckRun(ticket)
            run.add(<uint32_t>(kind << 28) | <uint32_t>(reason << 16) | packet_id)
            self._queue(run)
            return 0
        run.add(<uint32_t>(kind << 28) | <uint32_t>(reason << 16) | packet_id)
        return 0

    def _queue(self, AckRun run):
        if self.runs is None:
            self.runs = deque()
        self.runs.append(run)
        self.last_run = run
        run.ticket.wait(self)

    def released(self, Ticket ticket):
        """A ticket was released: send the acks at the front whose tickets are, in publish order."""
        cdef AckRun run
        while self.runs:
            run = self.runs[0]
            if not run.ticket.stable and run.ticket.error is None:
                return
            self.runs.popleft()
            if run is self.last_run:
                self.last_run = None
            self._send(run)

    cdef int _send(self, AckRun run) except -1:
        cdef int n, packet_id, kind, reason
        if run.ticket.error is not None and self._undo(run):
            self.outbound.fail(run.ticket.error)
            return 0
        for n in range(run.count):
            packet_id = run.acks[n] & 0xFFFF
            kind = run.acks[n] >> 28
            reason = run.acks[n] >> 16 & 0xFF
            if kind != PUBREC or reason >= 0x80:
                self.unacked -= 1
            self.outbound.write_ack(kind << 4, packet_id, reason if self.version == 5 else 0)
        return 0

    cdef bint _undo(self, AckRun run) except -1:
        """What the run answers was not written: nothing of it counts. True: no answer can say so."""
        cdef bint untold = self.version != 5, known
        cdef int n, packet_id, kind, bit
        for n in range(run.count):
            packet_id = run.acks[n] & 0xFFFF
            kind = run.acks[n] >> 28
            bit = 1 << (packet_id & 7)
            known = self.received != NULL and self.received[packet_id >> 3] & bit
            if kind == PUBCOMP:
                if not run.acks[n] & REPEATED:  # it is not released
                    untold = True
                    if not known:
                        self.received[packet_id >> 3] |= bit
                        self.received_count += 1
                continue
            if not run.acks[n] & REPEATED or not known:
                run.acks[n] = (run.acks[n] & <uint32_t>0xFF00FFFF) | <uint32_t>(QUOTA_EXCEEDED << 16)
                if kind == PUBREC and known:
                    self.received[packet_id >> 3] &= ~bit
                    self.received_count -= 1
        return untold

    # -- QoS 2 identifiers, for the session that keeps them

    cdef int _begin_received(self) except -1:
        """Most publishers never send QoS 2: the table is made for the first that does."""
        if self.received == NULL:
            self.received = <uint8_t*>calloc(1, RECEIVED_BYTES)
            if self.received == NULL:
                raise MemoryError
        return 0

    def received_ids(self, bint stable=False):
        """Packet identifiers between PUBLISH and PUBREL, ascending; `stable`: only those whose records are."""
        cdef int n, byte
        if self.received == NULL or self.received_count == 0:
            return []
        found = [byte * 8 + n for byte in range(RECEIVED_BYTES) if self.received[byte]
                 for n in range(8) if self.received[byte] & (1 << n)]
        if stable and self.runs:
            unstable = {packet_id for _, ids in self.unstable() for packet_id in ids}
            found = [packet_id for packet_id in found if packet_id not in unstable]
        return found

    def unstable(self):
        """(ticket, packet identifiers) of QoS 2 publishes whose records are not durable yet."""
        cdef int n
        cdef AckRun run
        found = []
        for run in self.runs or ():
            ids = [run.acks[n] & 0xFFFF for n in range(run.count)
                   if run.acks[n] >> 28 == PUBREC and run.acks[n] >> 16 & 0xFF < 0x80
                   and not run.acks[n] & REPEATED]
            if ids:
                found.append((run.ticket, ids))
        return found

    def released_ids(self):
        """Packet identifiers whose PUBREL came since the last `complete`."""
        cdef int n
        if self.completions is None:
            return []
        return [self.completions.acks[n] & 0xFFFF for n in range(self.completions.count)]

    def restore_received(self, ids):
        """A session goes on: these were received and not yet released."""
        cdef int n
        self._begin_received()
        for n in ids:
            if not self.received[n >> 3] & (1 << (n & 7)):
                self.received[n >> 3] |= 1 << (n & 7)
                self.received_count += 1
                self.unacked += 1
