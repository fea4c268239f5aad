"""What was meant, whichever protocol says it, and what was heard: the same, with where the reader found each part."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, Self

HEAR_S_MAX = 20.0

EXACT, MAPPED, NOT_EXPRESSIBLE = "exact", "mapped", "not expressible"

Headers = list[tuple[str, bytes | None]]


class CannotSay(Exception):
    """The protocol has no word for it."""


@dataclass(slots=True)
class Message:
    """None: not said. Times are µs since 1970; expiry is in seconds from now."""

    topic: str = ""  # canonical
    value: bytes | None = b"v"
    key: bytes | None = None
    headers: Headers = field(default_factory=list)
    content_type: str | None = None
    content_encoding: str | None = None
    reply_to: str | None = None  # canonical
    correlation: bytes | None = None
    message_id: str | None = None
    expires_s: int | None = None
    deliver_at_ms: int | None = None
    priority: int | None = None
    event_time_us: int | None = None
    is_text: bool | None = None  # MQTT's payload format
    retain: bool | None = None
    transient: bool | None = None  # QoS 0, delivery mode 1
    amqp: dict[str, str] = field(default_factory=dict)  # type, app_id, user_id, cluster_id
    typed: dict[str, Any] = field(default_factory=dict)  # AMQP's typed headers
    cloud_event: dict[str, str] = field(default_factory=dict)  # attributes by CloudEvents' own names


FIELDS = [f.name for f in fields(Message)]


@dataclass(slots=True)
class Heard:
    """`places` says of each part that was found how: in the protocol's own place and form, or mapped."""

    message: Message
    raw: Any  # comparable with what `Speaker.raw_of` says of a message that was said
    places: dict[str, str] = field(default_factory=dict)
    origin: str | None = None
    left_out: list[str] = field(default_factory=list)
    full_topic: str | None = None  # ms-topic
    amqp_headers: bytes | None = None  # the table as sent
    meta: dict[str, Any] = field(default_factory=dict)  # offset and the like, where it was told
    handle: Any = None  # the library's own message

    def found(self, name: str, value: Any, place: str) -> None:
        setattr(self.message, name, value)
        self.places[name] = place

    def add_header(self, name: str, value: bytes | None, place: str = EXACT) -> None:
        if name.startswith("client."):
            name, place = name.removeprefix("client."), MAPPED
        self.message.headers.append((name, value))
        if self.places.get("headers") != MAPPED:
            self.places["headers"] = place


class Ear:
    """What one or many subscriptions heard, by topic, in order."""

    def __init__(self, close: Callable[[], None] = lambda: None) -> None:
        self._heard: dict[str, deque[Heard]] = {}
        self._news = threading.Condition()
        self._failure: BaseException | None = None
        self.close = close
        self.count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, heard: Heard) -> None:
        with self._news:
            self._heard.setdefault(heard.message.topic, deque()).append(heard)
            self.count += 1
            self._news.notify_all()

    def fail(self, failure: BaseException) -> None:
        with self._news:
            self._failure = failure
            self._news.notify_all()

    def hear(self, topic: str, timeout_s: float = HEAR_S_MAX) -> Heard:
        deadline = time.monotonic() + timeout_s
        with self._news:
            while not self._heard.get(topic):
                if self._failure is not None:
                    raise self._failure
                if not self._news.wait(deadline - time.monotonic()):
                    others = ", ".join(sorted(self._heard)[:5])
                    raise AssertionError(f"nothing was heard on {topic} within {timeout_s:.0f} s (but on: {others})")
            return self._heard[topic].popleft()

    def hear_any(self, count: int, timeout_s: float = HEAR_S_MAX) -> list[Heard]:
        """`count` messages of any topic, in no order."""
        deadline = time.monotonic() + timeout_s
        with self._news:
            while sum(map(len, self._heard.values())) < count:
                if self._failure is not None:
                    raise self._failure
                if not self._news.wait(deadline - time.monotonic()):
                    waiting = sum(map(len, self._heard.values()))
                    raise AssertionError(f"{waiting} of {count} messages were heard within {timeout_s:.0f} s")
            return [heard for waiting in self._heard.values() for heard in _drained(waiting)]

    def hear_until(self, topic: str, last: bytes) -> list[Heard]:
        """All that is heard there before a message of that value, which was said behind all others: nothing comes late."""
        found: list[Heard] = []
        while (heard := self.hear(topic)).message.value != last:
            found.append(heard)
        return found

    def waiting(self) -> list[Heard]:
        """What was heard and not asked for."""
        with self._news:
            return [heard for waiting in self._heard.values() for heard in waiting]


def _drained(waiting: deque[Heard]) -> list[Heard]:
    heard = list(waiting)
    waiting.clear()
    return heard


class Speaker(Protocol):
    name: str

    def say(self, message: Message) -> None:
        """As a user of the protocol would; raises CannotSay. Returns once it is acknowledged."""

    def raw_of(self, message: Message) -> Any:
        """What `Heard.raw` must be when the protocol reads its own message."""

    def listen(self, *topics: str) -> Ear:
        """From now on."""

    def history(self, *topics: str) -> Ear:
        """From the beginning, then live."""

    def close(self) -> None: ...


def blank(message: Message) -> Message:
    """Nothing but topic and value."""
    return Message(message.topic, message.value)


def parts_of(message: Message) -> list[str]:
    """The fields that are said beyond topic and value."""
    plain = Message(message.topic, message.value)
    return [name for name in FIELDS if getattr(message, name) != getattr(plain, name)]


def with_topic(message: Message, topic: str) -> Message:
    return replace(message, topic=topic)
