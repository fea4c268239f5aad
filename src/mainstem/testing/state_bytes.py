"""How much the journal writes for an ack: frames and all, measured on a broker inside the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mainstem.broker.broker import Broker, BrokerOptions
from mainstem.broker.groups.registry import Commit
from mainstem.broker.queues.bindings import ANYTHING, Reach
from mainstem.broker.queues.queue import Outcome, Taken
from mainstem.broker.queues.settings import QueueSettings
from mainstem.broker.sessions.sessions import Flight, Session
from mainstem.broker.transactions.transactions import PARTITIONS_MAX
from mainstem.codec.batch import KIND_STATE, FrameHead, frame_heads
from mainstem.log.log import Log

READ_BYTES = 4 << 20
FULL_TICK = 16


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Of one kind of cursor with so much in flight: bytes an ack, alone and with others in the same tick."""

    kind: str
    in_flight: int
    alone: float
    together: float


class _Client:
    """A connected client as its session sees it: identifiers in flight, acknowledged one after the other."""

    def __init__(self, in_flight: int) -> None:
        self._flight: list[Flight] = [(n % 65_535 + 1, 1, 1_000 + n) for n in range(in_flight)]
        self._ended: list[int] = []
        self._begun: list[tuple[int, int]] = []
        self._stamp = 1_000 + in_flight

    def acknowledge(self, count: int) -> None:
        """These, and as many new ones take their identifiers."""
        for packet_id, _, _ in self._flight[:count]:
            self._begun.append((packet_id, self._stamp))
            self._flight.append((packet_id, 1, self._stamp))
            self._stamp += 1
        del self._flight[:count]

    def place(self) -> tuple[int, list[Flight]]:
        return self._stamp, self._flight

    def moves(self) -> tuple[int, list[int], list[tuple[int, int]]]:
        ended, begun, self._ended, self._begun = self._ended, self._begun, [], []
        return self._stamp, ended, begun


async def measure(directory: Path, in_flight: Sequence[int]) -> list[StateBytes]:
    """On a new data directory."""
    broker = Broker(BrokerOptions(directory))
    await broker.open()
    broker.recover_journal()
    found: list[StateBytes] = []
    kinds = {"session": _session, "queue": _queue, "group": _group, "transaction": _transaction}
    for count in in_flight:
        for kind, prepared in kinds.items():
            acknowledge = await prepared(broker, count)
            alone = await _written(broker, acknowledge, 1)
            together = await _written(broker, acknowledge, FULL_TICK) / FULL_TICK
            found.append(StateBytes(kind, count, alone, together))
    await broker.close()
    return found


async def journal_share(directory: Path, messages: int) -> tuple[int, int]:
    """(bytes of the journal, of all frames) once a queue's messages of 100 bytes were published, delivered and acked."""
    broker = Broker(BrokerOptions(directory))
    await broker.open()
    broker.recover_journal()
    acknowledge = await _queue(broker, messages, b"x" * 100)
    for _ in range(messages // FULL_TICK):
        acknowledge(FULL_TICK)
        broker.ticker.drain()
    stem = broker.journal.stem
    heads = list(_heads(stem, 0))
    await broker.close()
    return sum(head.size for head in heads if head.kind == KIND_STATE), sum(head.size for head in heads)


def _heads(stem: Log, begin: int) -> Iterator[FrameHead]:
    offset = begin
    while (piece := stem.read_now(offset, READ_BYTES)) is not None:
        yield from (head for head in frame_heads(piece.data, stem.id) if head.base_offset >= begin)
        offset = piece.end_offset


async def _written(broker: Broker, acknowledge: Callable[[int], None], count: int) -> float:
    """Bytes of the state frames of one tick."""
    stem = broker.journal.stem
    broker.ticker.drain()
    begin = stem.written
    acknowledge(count)
    broker.ticker.drain()
    total = sum(head.size for head in _heads(stem, begin) if head.kind == KIND_STATE)
    await asyncio.sleep(0)
    return total


async def _session(broker: Broker, in_flight: int) -> Callable[[int], None]:
    sessions = broker.session_keeper.sessions
    session: Session = sessions.begin(b"/\0client-%d" % in_flight, 3600, 1_000)
    client = _Client(in_flight)
    session.here = client
    sessions.save(session)

    def acknowledge(count: int) -> None:
        client.acknowledge(count)
        sessions.mark_moved(session)
        sessions.save_places()

    return acknowledge


async def _queue(broker: Broker, in_flight: int, value: bytes = b"x") -> Callable[[int], None]:
    namespace = broker.namespace("/")
    name = f"queue-{in_flight}"
    queue, written = broker.queues.of(namespace).declare(
        name, QueueSettings(), reaches=[Reach(ANYTHING, name.encode())]
    )
    if written is not None:
        await written
    for n in range(in_flight + 2 * FULL_TICK):
        namespace.publish(name.encode(), value)
        if n % 1_000 == 999:
            broker.ticker.drain()
            await asyncio.sleep(0)
    broker.ticker.drain()
    held: list[Taken] = []
    while len(held) < in_flight + 2 * FULL_TICK and (taken := queue.acquire(queue, 1_000)):
        held += taken
    broker.queues.journal_changes(queue)

    def acknowledge(count: int) -> None:
        for _ in range(count):  # every other one, so that they are no run
            queue.settle([held.pop(len(held) // 2).position], Outcome.ACK)

    return acknowledge


async def _group(broker: Broker, in_flight: int) -> Callable[[int], None]:
    groups = broker.coordinator.groups
    topics = [("orders", n) for n in range(max(FULL_TICK, min(in_flight, 1_000)))]
    groups.commit("readers", {at: Commit(0) for at in topics})
    offset = 0

    def acknowledge(count: int) -> None:
        nonlocal offset
        offset += 1
        groups.commit("readers", {at: Commit(offset) for at in topics[:count]})

    return acknowledge


async def _transaction(broker: Broker, in_flight: int) -> Callable[[int], None]:
    """So many partitions take part; others join."""
    transactions, name = broker.coordinator.transactions, f"transaction-{in_flight}"
    answers: list[tuple[int, int]] = []
    transactions.initialise(name, 60_000, -1, -1, 0, lambda fault, *answer: answers.append((answer[0], answer[1])))
    (producer_id, epoch) = answers[0]
    joined = min(in_flight, PARTITIONS_MAX - 2 * FULL_TICK)
    transactions.add(name, producer_id, epoch, 0, partitions=[("orders", n) for n in range(joined)])

    def acknowledge(count: int) -> None:
        nonlocal joined
        transactions.add(name, producer_id, epoch, 0, partitions=[("orders", joined + n) for n in range(count)])
        joined += count

    return acknowledge
