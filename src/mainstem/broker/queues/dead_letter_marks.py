"""Which dead letters a crash may have left half done: written, but their source not yet settled.

While letters of a durable queue are on the way the journal holds a mark for it: no letter whose source is unsettled lies
before that stamp. A start reads on from the mark, a second or two of records, and settles the sources whose letters it
finds. The mark is durable before the first letter is written, moves on once a second, and goes when none is on the way.

    journal kind "dead letters": key = u32 queue id; value = i64 stamp, big-endian (null: none on the way)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mainstem.broker.delivery.catch_up import CatchUp
from mainstem.broker.delivery.live import RecordRef
from mainstem.broker.queues.dead_letters import SOURCE, SOURCE_BODY
from mainstem.broker.queues.exchange_names import DEFAULT, TOPIC, all_of, topic_of
from mainstem.broker.queues.queue_sink import Backlog
from mainstem.model.origin import Origin
from mainstem.model.topic_filter import literal_filter

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker
    from mainstem.broker.queues.queue import Queue
    from mainstem.log.gather import Ticket

JOURNAL_KIND = "dead letters"
EVERYTHING = b"#"


class DeadLetterMarks:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._marks: dict[int, int] = {}
        broker.journal.register(JOURNAL_KIND, self._apply, self._dump, lambda key: broker.queues.namespace_of(key))

    def put(self, queue: Queue) -> Ticket:
        """Letters of the queue are about to be written; the ticket covers everything journaled before, too."""
        stamp = self._marks.setdefault(queue.id, self._broker.stamps.next)
        return self._broker.journal.put(JOURNAL_KIND, queue.id.to_bytes(4, "big"), stamp.to_bytes(8, "big"))

    def move(self, queues: dict[int, Queue]) -> None:
        """Once a second: marks follow the oldest letter on the way. What was settled is journaled already."""
        for queue_id, stamp in list(self._marks.items()):
            queue = queues.get(queue_id)
            if queue is None or not (queue.letters.waiting or queue.letters.sent):
                del self._marks[queue_id]
                self._broker.journal.put(JOURNAL_KIND, queue_id.to_bytes(4, "big"), None)
                continue
            oldest = next(iter(queue.letters.sent.values()), self._broker.stamps.next)
            if oldest > stamp:
                self._marks[queue_id] = oldest
                self.put(queue)

    def written_of(self, queue: Queue) -> set[int]:
        """After a crash: the positions whose letters are in the log, of those that may be unsettled."""
        position = self._marks.get(queue.id)
        name = queue.settings.dead_letter_exchange
        written: set[int] = set()
        if position is None or name is None:
            return written

        def note(record: RecordRef) -> bool:
            source = record.header(SOURCE) if record.origin == Origin.AMQP else None
            if source is not None and len(source) == SOURCE_BODY.size:
                queue_id, stamp, _ = SOURCE_BODY.unpack(source)
                if queue_id == queue.id:
                    written.add(stamp)
            return False

        head = queue.head_stamp
        while position < head:
            pieces, complete = CatchUp(queue.namespace, [_filter_of(queue, name)], position).read(head)
            for piece in pieces:
                Backlog(queue.sink).plan(
                    piece.log, piece.data, piece.offsets, position, complete, queue.namespace.topic_of, note
                )
            position = complete
        return written

    def _apply(self, key: bytes, value: bytes | None) -> None:
        queue_id = int.from_bytes(key, "big")
        if value is None:
            self._marks.pop(queue_id, None)
        else:
            self._marks[queue_id] = int.from_bytes(value, "big")

    def _dump(self) -> Iterator[tuple[bytes, bytes]]:
        for queue_id, stamp in list(self._marks.items()):
            yield queue_id.to_bytes(4, "big"), stamp.to_bytes(8, "big")


def _filter_of(queue: Queue, exchange: str) -> bytes:
    """Where its letters lie."""
    if exchange not in (DEFAULT, TOPIC):
        return all_of(exchange)
    key = queue.settings.dead_letter_key
    return literal_filter(topic_of(exchange, key)) if key else EVERYTHING
