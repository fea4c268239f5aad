"""A message on its way into a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mainstem.model.errors import InvalidName
from mainstem.model.topic import topic_of_nats
from mainstem.protocols.nats.jetstream import errors

if TYPE_CHECKING:
    from mainstem.broker.streams.stream import Stream


@dataclass(slots=True)
class Message:
    topic: bytes
    headers: bytes
    payload: bytes
    stored: list[Any]  # the record's headers
    key: bytes | None
    _values: dict[bytes, bytes] | None = None  # its headers, once somebody asked

    def value(self, name: bytes) -> bytes | None:
        """A header's, of the first line with exactly this name."""
        if self._values is None:
            lines = [line.partition(b":") for line in self.headers.split(b"\r\n")[1:] if line]
            self._values = {key: value.strip(b" \t") for key, _, value in reversed(lines)}
        return self._values.get(name)

    @property
    def size(self) -> int:
        """As stored, at most."""
        return 3 * len(self.topic) + len(self.headers) + len(self.payload) + 96

    def give_headers(self, headers: bytes) -> None:
        """Others than the client sent."""
        self.headers, self._values = headers, None
        self.stored = [(b"ms-nats", headers), *(one for one in self.stored if one[0] != b"ms-nats")]


def stored_topic(stream: Stream, topic: bytes) -> bytes:
    """Where a publish to one of the stream's subjects is stored, its transform applied."""
    if topic.startswith(stream.copies):
        raise errors.SOURCE_HEADER  # nobody but the stream itself writes copies
    if stream.settings.transform is not None:
        found = stream.settings.transform.match(stream.subject(topic).decode(errors="replace"))
        if found is not None:
            try:
                topic = topic_of_nats(found.encode())
            except InvalidName:
                return topic
    return stream.place(topic)
