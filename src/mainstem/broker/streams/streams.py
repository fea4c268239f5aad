"""The streams of one namespace: by name, and by what they capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mainstem.broker.streams.stream import Stream
from mainstem.log.live_log import not_stored
from mainstem.model.errors import InvalidArgument
from mainstem.model.topic_filter import filter_levels, overlap
from mainstem.model.topic_tries import FilterTrie

if TYPE_CHECKING:
    from mainstem.broker.namespaces.namespace import Namespace
    from mainstem.broker.streams.registry import StreamService

FOUND_MAX = 65_536  # topics whose stream is remembered


def _to_nobody(subject: bytes, headers: bytes, payload: bytes) -> bool:
    """Without a NATS listener nobody hears what is live only."""
    return subject.startswith((b"$", b"_INBOX", b"_R_", b"_GR_"))


class Streams:
    """Of one namespace."""

    def __init__(self, service: StreamService, namespace: Namespace) -> None:
        self.service = service
        self.namespace = namespace
        self.by_name: dict[str, Stream] = {}
        self._by_filter = FilterTrie()
        self._found: dict[bytes, Stream | None] = {}
        self.send_live: Callable[[bytes, bytes, bytes], bool] = _to_nobody  # subject, headers, payload

    def capture(self, topic: bytes) -> Stream | None:
        """The stream that the topic belongs to."""
        if not self.by_name:
            return None
        if topic in self._found:
            return self._found[topic]
        found = self._by_filter.match(topic)
        stream = found[0] if found else None
        assert stream is None or isinstance(stream, Stream)
        if len(self._found) >= FOUND_MAX:
            self._found.clear()
        self._found[topic] = stream
        return stream

    def add(self, stream: Stream) -> None:
        self.by_name[stream.name] = stream
        for topic_filter in stream.settings.captured:
            self._by_filter.add(topic_filter, stream)
        stream.attach()
        self._changed()

    def remove(self, stream: Stream) -> None:
        stream.sourcing.stop()
        stream.detach()
        for topic_filter in stream.settings.captured:
            self._by_filter.remove(topic_filter, stream)
        del self.by_name[stream.name]
        self._changed()

    def change(self, stream: Stream, config: dict[str, Any]) -> None:
        for topic_filter in stream.settings.captured:
            self._by_filter.remove(topic_filter, stream)
        stream.change(config)
        for topic_filter in stream.settings.captured:
            self._by_filter.add(topic_filter, stream)
        self._changed()
        stream.sourcing.change()

    def run_sources(self, name: str) -> None:
        """A stream was made: perhaps others wait to copy from it."""
        for stream in list(self.by_name.values()):
            for source in stream.sourcing.sources:
                if name in (stream.name, source.name):
                    source.run()

    def _changed(self) -> None:
        self._found.clear()
        self.namespace.routes.clear()
        self.namespace.route_clears += 1

    def overlapping(self, filters: tuple[bytes, ...], other_than: str = "") -> Stream | None:
        for stream in self.by_name.values():
            if stream.name != other_than and any(
                overlap(filter_levels(one), filter_levels(other))
                for one in filters
                for other in stream.settings.filters
            ):
                return stream
        return None

    def check_topics(self, filters: tuple[bytes, ...]) -> None:
        """Topics that were declared have logs, partitions or a policy of their own."""
        for topic_filter in filters:
            declared = next(iter(self.namespace.declared(topic_filter)), None)
            if declared is not None:
                name = declared.name.decode(errors="replace")
                raise InvalidArgument(
                    f"topic {name!r} was declared and has a layout of its own; a stream keeps its subjects in its own log",
                    fix=f"mainstem topic rm {name}, or leave it out of the stream's subjects",
                )
            for rule, changes in self.namespace.rules.items():
                if not changes.get("store", True) and overlap(filter_levels(rule), filter_levels(topic_filter)):
                    raise not_stored(rule)

    def begin_offset(self, filters: tuple[bytes, ...]) -> int:
        """Past everything that the stream's topics ever had: their history stays where it is."""
        begin = 0
        for stem in self.namespace.stems.values():
            assert stem.bitmaps is not None and stem.index is not None
            if any(stem.index.count(stem.bitmaps.of(f), stem.start_offset, stem.written) for f in filters):
                begin = max(begin, stem.next_offset)
        return begin
