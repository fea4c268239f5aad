"""What a stream stores is published again, under another subject, once it is durable: like a core publish, so at most once.

A message to a subject that is live only goes to who listens by NATS; any other is stored as its topic says.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from mainstem.broker.delivery.live import RecordRef
from mainstem.model.errors import MainstemError
from mainstem.model.origin import Origin
from mainstem.model.subject_transform import SubjectTransform
from mainstem.model.times import time_text
from mainstem.model.topic import topic_of_nats

if TYPE_CHECKING:
    from mainstem.broker.streams.stream import Stream

logger = logging.getLogger("mainstem.broker")


class Republishing:
    def __init__(self, stream: Stream, source: str, destination: str, *, headers_only: bool) -> None:
        self._stream = stream
        self._transform = SubjectTransform(source, destination)
        self._headers_only = headers_only
        self._waiting: deque[tuple[int, bytes, bytes, bytes]] = deque()  # offset, subject, headers, payload

    @classmethod
    def of(cls, stream: Stream) -> Republishing | None:
        given = stream.config.get("republish")
        if not given:
            return None
        return cls(stream, given.get("src", ""), given["dest"], headers_only=bool(given.get("headers_only")))

    def note(self, record: RecordRef, block: bytes) -> None:
        """A record was written; it is published when it is durable."""
        stream = self._stream
        subject = stream.subject(record.topic)
        to = self._transform.match(subject.decode(errors="replace"))
        if to is None:
            return
        before = stream.last_offsets(record.topic, 1, record.offset)
        lines = (
            f"Nats-Stream: {stream.name}\r\nNats-Subject: {subject.decode(errors='replace')}\r\n"
            f"Nats-Sequence: {record.offset + 1}\r\nNats-Time-Stamp: {time_text(record.stamp)}\r\n"
            f"Nats-Last-Sequence: {before[0] + 1 if before else 0}\r\n"
        )
        value = record.value or b""
        if self._headers_only:
            lines += f"Nats-Msg-Size: {len(value)}\r\n"
            value = b""
        headers = (block[:-2] if block else b"NATS/1.0\r\n") + lines.encode() + b"\r\n"
        self._waiting.append((record.offset, to.encode(), headers, value))

    def publish(self, stable: int) -> None:
        stream = self._stream
        streams = stream.service.of(stream.namespace)
        while self._waiting and self._waiting[0][0] < stable:
            _, subject, headers, value = self._waiting.popleft()
            if streams.send_live(subject, headers, value):
                continue
            try:
                topic = topic_of_nats(subject)
                stream.namespace.publish(topic, value, headers=[(b"ms-nats", headers)], origin=Origin.NATS)
            except MainstemError as error:  # at most once: nobody waits for it
                logger.warning("stream %r: a message is not published again to %r: %s", stream.name, subject, error)
