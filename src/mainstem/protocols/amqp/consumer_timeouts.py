"""`x-consumer-timeout`: who leaves a delivery unacknowledged for longer loses its channel, and what it held goes back.

Deliveries do not carry their time. Once a second the next delivery tag of each channel with such a consumer is noted: a
tag below the one that was noted a timeout ago was delivered before that. So an age is known to the second, at no cost for
each message. Notes are kept for as long as the longest timeout, at most NOTES_MAX of them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from mainstem.broker.queues.declaring import type_name
from mainstem.protocols.amqp.faults import Fault

if TYPE_CHECKING:
    from mainstem.protocols.amqp.channel import Channel
    from mainstem.protocols.amqp.wire import Consumer

ARGUMENT = "x-consumer-timeout"
NOTES_MAX = 7_200  # then every second one is given up


def timeout_ms(consumer: dict[str, Any], queue: dict[str, Any], named: str) -> int:
    """What the consumer asks for, or else its queue; 0: for ever."""
    asked = consumer.get(ARGUMENT, queue.get(ARGUMENT, 0))
    if isinstance(asked, bool) or not isinstance(asked, int):
        raise Fault(406, f"invalid arg '{ARGUMENT}' for {named}: \"expected integer, got {type_name(asked)}\"")
    if asked < 0:
        raise Fault(406, f"invalid arg '{ARGUMENT}' for {named}: {{value_negative,{asked}}}")
    return asked


class Watched:
    """One channel with consumers that have a timeout."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.consumers: dict[Consumer, int] = {}  # timeouts, ms
        self._notes: deque[tuple[int, int]] = deque()  # (second, next tag), oldest first

    def late(self, second: int) -> tuple[Consumer, int] | None:
        """A consumer that holds a delivery for longer than it may, with its timeout."""
        wire = self.channel.wire
        longest_s = -(-max(self.consumers.values()) // 1000)
        while len(self._notes) > 1 and self._notes[1][0] <= second - longest_s:
            self._notes.popleft()
        if not self._notes or self._notes[-1][1] != wire.next_tag:
            self._notes.append((second, wire.next_tag))
            if len(self._notes) > NOTES_MAX:
                self._notes = deque(list(self._notes)[::2])
        for consumer, after_ms in self.consumers.items():
            oldest = wire.oldest_tag(consumer) if wire.unacked else 0
            if oldest and oldest < self._next_tag_at(second - -(-after_ms // 1000)):
                return consumer, after_ms
        return None

    def _next_tag_at(self, second: int) -> int:
        found = 0
        for noted, tag in self._notes:
            if noted > second:
                break
            found = tag
        return found


class ConsumerTimeouts:
    """Of all connections."""

    def __init__(self) -> None:
        self._watched: dict[Channel, Watched] = {}

    def watch(self, channel: Channel, consumer: Consumer, after_ms: int) -> None:
        self._watched.setdefault(channel, Watched(channel)).consumers[consumer] = after_ms

    def look(self, second: int) -> None:
        """Once a second."""
        for channel, watched in list(self._watched.items()):
            connection = channel.connection
            if connection.channels.get(channel.number) is not channel:
                del self._watched[channel]
                continue
            late = watched.late(second)
            if late is not None:
                del self._watched[channel]
                connection.fail_channel(
                    channel.number,
                    Fault(
                        406,
                        f"delivery acknowledgement on channel {channel.number} timed out. Timeout value used: {late[1]} ms. "
                        "This timeout value can be configured, see consumers doc guide to learn more",
                    ),
                )
