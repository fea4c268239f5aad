"""Traces as records of the log itself, so that a restart keeps them: a topic that nobody else writes.

    $traces   one trace as JSON: when its record is durable, and again when it was followed to the end

`durability = os`: a trace is worth no sync, and a killed process loses none that was written. The later record of a stamp
counts. The topic lies in the namespace `/`, in a log of its own; lists of topics leave out what begins with `$`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from mainstem.broker.topics.reading import PartitionReader
from mainstem.broker.tracing.traces import TRACES_MAX, Trace
from mainstem.model.errors import MainstemError
from mainstem.model.origin import Origin

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker

logger = logging.getLogger("mainstem.trace")

TOPIC = b"$traces"
NAMESPACE = "/"
KEPT_MS = 7 * 86_400_000
KEPT_BYTES, SEGMENT_BYTES = 32 << 20, 4 << 20
RECORDS_A_TRACE = 2
PENDING_MAX = 1_000  # to be written; beyond it the oldest are not kept
RESTORE_RECORDS, RESTORE_BYTES = 50, 1 << 20  # at once


class KeptTraces:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._pending: deque[bytes] = deque(maxlen=PENDING_MAX)
        self._wake = asyncio.Event()
        self._decode = msgspec.json.Decoder(Trace).decode

    def write(self, trace: Trace) -> None:
        """Soon: who follows a message stands in the middle of a tick."""
        self._pending.append(msgspec.json.encode(trace))
        self._wake.set()

    async def run(self) -> None:
        """Until it is cancelled: then what is pending is written as well."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                try:
                    await self._declare()
                    self._publish()
                except MainstemError as error:  # no room, or a quota: it is known until the next start
                    self._pending.clear()
                    logger.debug("traces were not kept: %s", error)
        finally:
            if TOPIC in self._broker.namespace(NAMESPACE).topics:
                self._publish()

    def _publish(self) -> None:
        namespace = self._broker.namespace(NAMESPACE)
        while self._pending:
            namespace.publish(TOPIC, self._pending.popleft())

    async def _declare(self) -> None:
        namespace = self._broker.namespace(NAMESPACE)
        if TOPIC in namespace.topics:
            return
        policy = namespace.defaults.with_changes(
            {
                "durability": "os",
                "layout": "dedicated",
                "partitions": 1,
                "cleanup": "delete",
                "retention_ms": KEPT_MS,
                "retention_bytes": KEPT_BYTES,
                "segment_bytes": SEGMENT_BYTES,
                "tier": "none",
                "trace": "",
                "keep_until_archived": False,
            }
        )
        await self._broker.begin_topic(namespace, TOPIC, policy)

    async def restored(self) -> list[Trace]:
        """Those of the namespaces that are still there, oldest first."""
        namespace = self._broker.namespace(NAMESPACE)
        topic = namespace.topics.get(TOPIC)
        found: dict[int, Trace] = {}
        if topic is None:
            return []
        reader = PartitionReader(topic.partitions[0], namespace.topic_of)
        at = max(reader.start_offset, reader.stable_offset - RECORDS_A_TRACE * TRACES_MAX)
        while at < reader.stable_offset:
            records, after = reader.records(at, RESTORE_BYTES, count_max=RESTORE_RECORDS)
            for record in records:
                trace = self._read(record.value) if record.origin == Origin.BROKER else None
                if trace is not None:
                    found[trace.stamp] = trace
            if after <= at:
                break
            at = after
            await asyncio.sleep(0)
        return [found[stamp] for stamp in sorted(found)]

    def _read(self, value: bytes | None) -> Trace | None:
        try:
            trace = self._decode(value or b"")
        except msgspec.DecodeError:  # cut, or somebody else's
            return None
        trace.open = False
        return trace if trace.namespace in self._broker.namespaces else None
