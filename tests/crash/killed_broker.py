"""Runs the publishing broker, breaks it, opens what is left and holds it to what was told."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from mainstem.broker.broker import Broker
from mainstem.broker.queues.queue import Outcome, Taken
from mainstem.broker.topics.reading import PartitionReader
from mainstem.codec.batch import decode_frames
from mainstem.testing.ledger import OffsetMemory, unseal
from tests.crash.broker_publisher import QUEUE, QUEUE_TOPIC, REMOVED, RETAINED_TOPICS, TOPICS, State, opened

ROOT = Path(__file__).parents[2]


class KilledBroker:
    """One data directory through many incarnations of its broker."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.rng = random.Random(seed)
        self.memory = OffsetMemory()
        self.sent: dict[str, int] = {}  # payload → when, over all incarnations
        self.acked: dict[str, list[str]] = {topic.decode(): [] for topic in TOPICS}
        self.settling: set[str] = set()
        self.settled: set[str] = set()
        self.put: dict[str, int] = {}
        self.kept: dict[str, int] = {}
        self.retaining: dict[str, list[str]] = {topic.decode(): [REMOVED] for topic in RETAINED_TOPICS}
        self.retained: dict[str, int] = dict.fromkeys(self.retaining, 0)  # the last of them that is acked
        self.incarnation = 0
        self.dropped_by_retention = 0

    def cycle(self, kill: Callable[[int], None]) -> None:
        """Broken while it works, then up to twice with nothing but recovery between, then held to what was told."""
        self.incarnation += 1
        self._live(self.incarnation, kill)
        for _ in range(self.rng.choice((0, 1, 2))):
            self._live(0, kill)
        asyncio.run(self.check())

    def _live(self, incarnation: int, kill: Callable[[int], None]) -> None:
        command = [sys.executable, "-m", "tests.crash.broker_publisher", str(self.directory), str(incarnation)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
            assert process.stdout is not None
            pieces: list[bytes] = []
            stream = process.stdout
            assert stream.readline() == b"ready\n", "the broker did not start"
            reader = threading.Thread(target=lambda: pieces.extend(iter(lambda: stream.read(1 << 16), b"")))
            reader.start()
            rests = not incarnation and self.rng.random() < 0.3  # a checkpoint passes what recovery derived
            time.sleep(3 if rests else self.rng.uniform(0.1, 0.8))  # not a synchronisation: any moment will do
            kill(process.pid)
            process.wait()
            reader.join()
        self._take(b"".join(pieces).rpartition(b"\n")[0])

    def _take(self, output: bytes) -> None:
        seen: dict[str, dict[int, bytes]] = {}
        for line in output.decode().splitlines():
            word, what, *rest = line.split(" ")
            if word == "sent":
                self.sent[rest[0]] = len(self.sent)
            elif word == "seen":
                log, _, offset = what.partition("@")
                seen.setdefault(log, {})[int(offset)] = rest[0].encode()
            elif word == "ok":
                self.acked[what].append(rest[0])
            elif word == "put":
                self.put[what] = int(rest[0])
            elif word == "kept":
                self.kept[what] = int(rest[0])
            elif word == "retaining":
                self.retaining[what].append(rest[0])
            elif word == "retained":
                self.retained[what] = max(self.retained[what], self.retaining[what].index(rest[0]))
            elif word == "settling":
                self.settling.add(what)
            elif word == "settled":
                self.settled.add(what)
        for log, values in seen.items():
            self.memory.see(log, values)

    # -- what must hold ------------------------------------------------------------------------------------------------

    async def check(self) -> None:
        broker, state = await opened(self.directory)
        try:
            self._check_topics(broker)
            self._check_logs(broker)
            self._check_queue(broker)
            self._check_state(state)
            self._check_retained(broker)
        finally:
            await broker.close()

    def _check_topics(self, broker: Broker) -> None:
        """Nothing acked is lost, nothing comes twice, order is kept, offsets grow."""
        namespace = broker.namespace("/")
        for name, acked in self.acked.items():
            if name == QUEUE_TOPIC.decode():
                continue  # that one forgets; its queue must not
            topic = namespace.find_topic(name.encode())
            assert topic is not None or not acked, f"{name} is gone"
            if topic is None:
                continue
            reader = PartitionReader(topic.partitions[0], namespace.topic_of)
            found: list[str] = []
            offsets: list[int] = []
            offset = 0
            while offset < reader.stable_offset:
                records, offset = reader.records(offset, 1 << 20)
                found += [(record.value or b"").decode() for record in records]
                offsets += [record.offset for record in records]
            assert offsets == sorted(set(offsets))
            lost = set(acked) - set(found)
            assert not lost, f"{len(lost)} acked records of {name} are lost, for example {min(lost)[:40]}"
            assert len(set(found)) == len(found), "a record is there twice"
            assert all(one in self.sent for one in found), "something was never sent"
            order = [self.sent[one] for one in found]
            assert order == sorted(order), "a record overtook another"

    def _check_logs(self, broker: Broker) -> None:
        """No offset ever holds another record than the one somebody saw there; nothing torn is served."""
        for log in broker.logs.by_id.values():
            found: dict[int, bytes] = {}
            offset = 0
            while (piece := log.read_now(offset, 1 << 20)) is not None:
                records = decode_frames(piece.data, log.id, inflated_bytes_max=1 << 24)
                found |= {record.offset: record.value for record in records if record.value is not None}
                offset = piece.end_offset
            assert all(unseal(value) is not None for value in found.values()), "something torn was served"
            self.memory.see(str(log.id), found)
            if log.start_offset:
                self.dropped_by_retention += 1
        assert not self.memory.changed, self.memory.changed[:3]

    def _check_queue(self, broker: Broker) -> None:
        """What was acked into the queue and not settled is still owed, whatever retention did."""
        queue = broker.queues.of(broker.namespace("/")).get(QUEUE)
        taken: list[Taken] = []
        while more := queue.acquire(self, 1_000):
            taken += more
        queue.settle([one.position for one in taken], Outcome.RELEASE)
        owed = [(one.record.value or b"").decode() for one in taken]
        assert len(set(owed)) == len(owed)
        missing = set(self.acked[QUEUE_TOPIC.decode()]) - self.settling - set(owed)
        assert not missing, f"the queue lost {len(missing)} records it owed, for example {min(missing)[:40]}"
        again = self.settled & set(owed)
        assert not again, f"{len(again)} records came back after their settling was durable"

    def _check_retained(self, broker: Broker) -> None:
        """One of the values from the last acked on, or none where that was a removal."""
        retained = broker.session_keeper.retained(broker.namespace("/"))
        for topic, values in self.retaining.items():
            found = retained.current(topic.encode())
            record = retained.read_one(topic.encode(), found) if found is not None else None
            value = (record.value or b"").decode() if record is not None else REMOVED
            told = {REMOVED if one.startswith(REMOVED) else one for one in values[self.retained[topic] :]}
            assert value in told, f"retained on {topic}: {value}, expected one of {sorted(told)[:3]}"

    def _check_state(self, state: State) -> None:
        for key, number in self.kept.items():
            found = int(state.table.get(key.encode(), b"0"))
            assert number <= found <= self.put[key], f"{key} was kept as {number}, now it is {found}"
