"""Retained messages on their way to a new subscriber: read from the log as the client takes them.

A few are read on the spot; many are read in a thread, a chunk at a time, so that a million of them stall nobody and cost no
more memory than their pointers. They go out in the order of their stamps, so that what a session is still owed when its
client leaves is a range of stamps (`rest`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from mainstem.broker.sessions.retained import Pointer
from mainstem.model.record import Record
from mainstem.protocols.mqtt.outgoing.outbound import Grant, ref_of
from mainstem.storage.engine import NotLocal

if TYPE_CHECKING:
    from mainstem.protocols.mqtt.adapter import MqttConnection

READ_AT_ONCE_MAX = 16
CHUNK = 256


class Owed(NamedTuple):
    topic: bytes
    pointer: Pointer
    grant: Grant
    filter: bytes  # as the client wrote it


class RetainedDelivery:
    __slots__ = ("_connection", "_pending", "_reading", "_ready")

    def __init__(self, connection: MqttConnection) -> None:
        self._connection = connection
        self._pending: deque[Owed] = deque()
        self._ready: deque[tuple[Record, Owed]] = deque()
        self._reading: list[Owed] = []  # in a thread

    def add(self, found: list[tuple[bytes, Pointer]], grant: Grant, topic_filter: bytes) -> None:
        self._pending.extend(Owed(topic, pointer, grant, topic_filter) for topic, pointer in found)
        self.go_on()

    def rest(self) -> dict[bytes, tuple[int, int]]:
        """By filter, the stamps of what was not sent: the first, and the one behind the last."""
        left: dict[bytes, tuple[int, int]] = {}
        for owed in (*(owed for _, owed in self._ready), *self._reading, *self._pending):
            stamp = owed.pointer.stamp
            first, last = left.get(owed.filter, (stamp, stamp))
            left[owed.filter] = min(first, stamp), max(last, stamp + 1)
        return left

    def go_on(self) -> bool:
        """Send what there is room for; True when nothing is left."""
        connection = self._connection
        assert connection.namespace is not None
        retained = connection.service.retained(connection.namespace)
        connection.service.encoder.now_ns = connection.service.broker.clock.now_ns()
        while not connection.closing:
            if not self._send_ready():
                return False
            if self._reading or not self._pending:
                return not self._reading
            if len(self._pending) > READ_AT_ONCE_MAX:
                self._read_chunk()
                return False
            owed = self._pending[0]
            try:
                record = retained.read_one(owed.topic, owed.pointer)
            except NotLocal:
                self._read_chunk()
                return False
            self._pending.popleft()
            if record is not None:
                self._ready.append((record, owed))
        return True

    def _send_ready(self) -> bool:
        outbound = self._connection.outbound
        while self._ready:
            record, owed = self._ready[0]
            if outbound.allows is not None and not outbound.allows(record.topic):
                self._ready.popleft()
                continue
            if not outbound.room or not outbound.offer(ref_of(record), owed.grant, True):
                return False
            self._ready.popleft()
        return True

    def _read_chunk(self) -> None:
        chunk = self._reading = [self._pending.popleft() for _ in range(min(CHUNK, len(self._pending)))]
        asyncio.get_running_loop().create_task(self._read_in_thread(chunk))

    async def _read_in_thread(self, chunk: list[Owed]) -> None:
        connection = self._connection
        assert connection.namespace is not None
        retained = connection.service.retained(connection.namespace)

        def read() -> list[tuple[Record, Owed]]:
            records = ((retained.read_one(owed.topic, owed.pointer), owed) for owed in chunk)
            return [(record, owed) for record, owed in records if record is not None]

        self._ready.extend(await asyncio.get_running_loop().run_in_executor(None, read))
        self._reading = []
        self.go_on()
