"""Dead letters through an exchange: a new record that says what happened to it, and the source leaves once it is durable.

`x-death` is an array of tables, the newest first, one per (queue, reason) with a growing count; `x-first-death-*` and
`x-last-death-*` name the ends of the story. The expiration is taken off on the way (else it would expire again at once)
and remembered as `original-expiration`. A record that would come back to a queue without anybody having rejected it on the
way goes round in a circle, and is dropped there.

A letter names its source, so that a crash between the two writes does not make a second one (see `dead_letter_marks.py`):

    header `ms-dead`:  u32 queue id, i64 stamp of the source, u32 attempts
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mainstem.broker.queues.exchanges import carbon_copies
from mainstem.broker.queues.queue_sink import Backlog
from mainstem.log.away import bring
from mainstem.model.amqp_content import Content, Value, encode_value, join_table, split_table, timestamp_value
from mainstem.model.record import Record
from mainstem.storage.engine import NotLocal

if TYPE_CHECKING:
    from mainstem.broker.queues.levels import Level
    from mainstem.broker.queues.queue import Queue
    from mainstem.broker.queues.registry import Queues
    from mainstem.log.gather import Ticket

logger = logging.getLogger("mainstem.broker")

SOURCE = b"ms-dead"
SOURCE_BODY = struct.Struct(">IqI")


class DeadLetters:
    def __init__(self, queues: Queues) -> None:
        self._queues = queues

    def send(self, queue: Queue, level: Level, positions: list[int], reason: str) -> None:
        """Publish the dead letters of the (leased) positions; each leaves the queue when its letter is durable.

        A durable queue's letters are written once the leases are durable: then a crash finds each letter's source
        among the leases, and the letter itself behind the queue's mark.
        """
        sending = _Sending(self, queue, level, positions, reason)
        if queue.settings.durable:
            queue.letters.waiting[sending] = None
            self._queues.journal_changes(queue)
            self._queues.service.dead_letter_marks.put(queue).wait(sending)
        else:
            sending.write()

    def write(self, queue: Queue, level: Level, positions: list[int], reason: str) -> None:
        """Write the letters; what has nowhere to go, or is no longer stored, leaves at once."""
        records = Backlog(queue.sink)
        try:
            level.plan_positions(records, sorted(positions))
        except NotLocal as missing:
            bring(missing, lambda: None if queue.deleted else self.write(queue, level, positions, reason))
            return
        gone = set(positions)
        while (record := records.first()) is not None:
            position = record.stamp
            before = self._queues.service.broker.stamps.next
            ticket = self._publish(queue, record.copy(), position, level.cursor.attempts(position), reason)
            if ticket is not None:
                gone.discard(position)
                queue.letters.sent[position] = before
                ticket.wait(_Leaving(queue, level, position))
            records.skip()
        queue.dead_lettered(level, sorted(gone))

    def _publish(self, queue: Queue, record: Record, position: int, attempts: int, reason: str) -> Ticket | None:
        exchanges = self._queues.exchanges
        name = queue.settings.dead_letter_exchange
        assert name is not None
        exchange, key = exchanges.origin_of(record)
        content = exchanges.content_of(record)
        keys = [key, *carbon_copies(content)]
        dead = record_death(content, queue.name, reason, exchange, keys, self._queues.now_ms() // 1000)
        keys = _keys_on(queue, content, keys)
        targets = exchanges.route(name, keys, content)
        if reason != "rejected":
            targets = [target for target in targets if not goes_round(dead, target.name)]
        if not targets:
            return None
        return exchanges.append(
            name,
            keys[0],
            content.encode(),
            record.value,
            record.time_ms,
            targets=targets,
            more=[(SOURCE, SOURCE_BODY.pack(queue.id, position, attempts))],
        )

    def send_refused(self, queue: Queue, exchange: str, key: str, content: Content, body: bytes | None) -> None:
        """A full queue refused a publish: its dead letter is all that is stored of it there."""
        name = queue.settings.dead_letter_exchange
        exchanges = self._queues.exchanges
        if name is None or exchanges.find(name) is None:
            return
        letter = Content.parse(content.encode())
        keys = [key, *carbon_copies(letter)]
        record_death(letter, queue.name, "maxlen", exchange, keys, self._queues.now_ms() // 1000)
        keys = _keys_on(queue, letter, keys)
        targets = exchanges.route(name, keys, letter)
        if targets:
            exchanges.append(name, keys[0], letter.encode(), body, targets=targets)


def _keys_on(queue: Queue, content: Content, keys: list[str]) -> list[str]:
    """What a letter is routed by: as its record was, or by the one key that its queue names; then no copies go with it."""
    if queue.settings.dead_letter_key is None:
        return keys
    content.remove_header("CC")
    return [queue.settings.dead_letter_key]


class LettersOnTheWay:
    """A queue's letters that are not yet settled at their source; at most as many as its leases."""

    __slots__ = ("sent", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[_Sending, None] = {}  # until the leases are durable
        self.sent: dict[int, int] = {}  # position → a stamp below its letter's, ascending; until the letter is durable

    def write_waiting(self) -> None:
        """The queue goes: nobody will look for them again."""
        for sending in list(self.waiting):
            sending.write()


class _Sending:
    """Waits until the sources' leases are durable, then writes their letters."""

    __slots__ = ("_letters", "_level", "_positions", "_queue", "_reason")

    def __init__(self, letters: DeadLetters, queue: Queue, level: Level, positions: list[int], reason: str) -> None:
        self._letters = letters
        self._queue = queue
        self._level = level
        self._positions = positions
        self._reason = reason

    def released(self, ticket: Ticket) -> None:
        if self not in self._queue.letters.waiting:  # written when the queue was deleted
            return
        if ticket.error is not None:
            logger.warning("dead letters of queue %s wait for ever: %s", self._queue.name, ticket.error)
        else:
            self.write()

    def write(self) -> None:
        self._queue.letters.waiting.pop(self, None)
        self._letters.write(self._queue, self._level, self._positions, self._reason)


class _Leaving:
    """Waits until the dead letter is durable, then takes the source off the queue."""

    __slots__ = ("_level", "_position", "_queue")

    def __init__(self, queue: Queue, level: Level, position: int) -> None:
        self._queue = queue
        self._level = level
        self._position = position

    def released(self, ticket: Ticket) -> None:
        self._queue.letters.sent.pop(self._position, None)
        if ticket.error is not None:
            logger.warning("a dead letter of queue %s was not stored: %s; it stays", self._queue.name, ticket.error)
        elif not self._queue.deleted:
            self._queue.dead_lettered(self._level, [self._position])


def record_death(
    content: Content, queue: str, reason: str, exchange: str, keys: list[str], time_s: int
) -> list[dict[str, Value]]:
    """Write the death into the headers; the story so far, newest first."""
    deaths = _deaths(content)
    for index, (_, fields) in enumerate(deaths):
        if fields.get("queue") == queue and fields.get("reason") == reason:
            raw, fields = deaths.pop(index)
            count = fields.get("count")
            fields["count"] = count + 1 if isinstance(count, int) else 1
            raw = [(name, encode_value(fields["count"]) if name == "count" else value) for name, value in raw]
            deaths.insert(0, (raw, fields))
            break
    else:
        deaths.insert(0, _new_death(content, queue, reason, exchange, keys, time_s))
    if content.header("x-first-death-reason") is None:
        _set_ends(content, "first", queue, reason, exchange)
    _set_ends(content, "last", queue, reason, exchange)
    content.remove_header("x-death")
    body = b"".join(b"F" + join_table(raw) for raw, _ in deaths)
    content.headers.append(("x-death", b"A" + len(body).to_bytes(4, "big") + body))
    content.fields.pop("expiration", None)
    return [fields for _, fields in deaths]


def _set_ends(content: Content, end: str, queue: str, reason: str, exchange: str) -> None:
    for name, value in (("reason", reason), ("queue", queue), ("exchange", exchange)):
        content.set_header(f"x-{end}-death-{name}", value)


_Death = tuple[list[tuple[str, bytes]], dict[str, Value]]


def _new_death(content: Content, queue: str, reason: str, exchange: str, keys: list[str], time_s: int) -> _Death:
    fields: dict[str, Value] = {
        "count": 1,
        "reason": reason,
        "queue": queue,
        "exchange": exchange,
        "routing-keys": list(keys),
    }
    expiration = content.text("expiration")
    if expiration is not None:
        fields["original-expiration"] = expiration
    raw = [(name, encode_value(value)) for name, value in fields.items()]
    raw.insert(3, ("time", timestamp_value(time_s)))
    return raw, fields


def _deaths(content: Content) -> list[_Death]:
    value = content.header("x-death")
    decoded = content.header_value("x-death")
    if value is None or value[:1] != b"A" or not isinstance(decoded, list):
        return []
    deaths, at = [], 5
    for fields in decoded:
        if not isinstance(fields, dict):  # a client's own idea of x-death: not ours to count
            return []
        size = int.from_bytes(value[at + 1 : at + 5], "big")
        deaths.append((split_table(value[at + 5 : at + 5 + size]), fields))
        at += 5 + size
    return deaths


def goes_round(deaths: list[dict[str, Value]], target: str) -> bool:
    """Whether the record was in `target` before, and nobody rejected it since."""
    for fields in deaths:
        if fields.get("reason") == "rejected":
            return False
        if fields.get("queue") == target:
            return True
    return False


def discard(queue: Queue, positions: Sequence[int] | None = None) -> int:
    """Dead letters that the queue keeps are settled for good; the records stay in the log. How many there were."""
    count = sum(len(level.cursor.drop_dead(positions)) for level in queue.levels)
    queue.queues.journal_changes(queue)
    return count
