"""One history, decided by its seed: three clients and a worker against a broker that is killed and loses power.

A history is at least OPERATIONS steps of its clients with crashes at any moment: between two steps, in the middle of a write
or a sync, while the broker recovers, or twice in a row with only recovery between. Then everything heals: all clients
connect, finish what they began, and what they got is held against what was acknowledged.

    expected of it    every acknowledged message reaches every session and the queue
                      exactly once at QoS 2; an acknowledged ack of the queue stays
                      in the order of each publisher
                      the retained message of a topic is one of those from the last acknowledged on
                      counts of the queue end at nothing, the lag of a group is what it has not read
                      of a transaction all is seen or nothing, as it was answered
                      a group stands at the last commit that was kept, or a later one; no offset holds two records
                      retention takes nothing that a session, the queue or a retained message still needs
"""

from __future__ import annotations

import contextlib
import gc
import logging
import signal
import time
import traceback
from collections.abc import Callable, Iterator

from mainstem.testing.faulty_disk import PowerCut
from tests.simulation.group_reader import GroupReader
from tests.simulation.machine import Machine
from tests.simulation.mqtt_client import MqttClient, Series
from tests.simulation.queue_worker import QueueWorker
from tests.simulation.transaction_writer import TransactionWriter

OPERATIONS = 50
HEAL_ROUNDS = 1600  # of a client that takes one message at a time: four for each of the hundreds it is owed
BURST = 60  # messages at once: a client's first 31 identifiers are then given out twice, and more
BURST_ROUNDS = 40
HISTORY_S_MAX = 90  # a long one takes two of a quiet core
RETAINED_TOPICS = ("r/1", "own/r2")


class History:
    def __init__(self, seed: int, *, calm: bool = False) -> None:
        """`calm`: without what came later, as the seeds that failed before."""
        self.seed = seed
        self.machine = Machine(seed)
        self.rng = self.machine.rng
        topics = [("a/1", 2), ("a/2", 1), ("own/3", 2)]
        qos = self.rng.choice((1, 2))
        self.clients = [
            MqttClient(self.machine, "one", self.rng, [("a/#", 2), ("own/+", 2)]),
            MqttClient(self.machine, "two", self.rng, [("a/+", qos), ("own/#", 2)]),
            MqttClient(self.machine, "three", self.rng, []),
        ]
        self.series = [Series(topic, qos) for topic, qos in topics]
        self.retained = [Series(topic, 1, retain=True) for topic in RETAINED_TOPICS]
        for n, series in enumerate((*self.series, *self.retained)):
            self.clients[n % 3].series.append(series)
        self.worker = QueueWorker(self.machine, self.rng, b"a/#")
        self.reader = GroupReader(self.machine, self.rng, b"a/1")
        self.writer = TransactionWriter(self.machine, self.rng)
        self.crashes_left = self.rng.randint(1, 3)
        self.operations = self.snapshots = 0
        self.snapshotting = False
        hurrying = self.machine.hurrying
        self.burst_at = hurrying.randint(5, OPERATIONS) if not calm and hurrying.random() < 0.5 else 0
        self.twice_at = hurrying.randint(5, OPERATIONS) if not calm and hurrying.random() < 0.4 else 0
        forgets = self.machine.policy.retention_ms > 0 and hurrying.random() < 0.7
        self.forget_at = hurrying.randint(5, OPERATIONS) if forgets and not calm else 0
        for client in self.clients[:2]:
            client.receive_maximum = hurrying.choice((0, 0, 1, 3, 20)) if not calm else 0

    # -- the whole of it

    def run(self) -> None:
        try:
            self.prepare()
            while self.operations < OPERATIONS or self.crashes_left:
                self.step()
            self.heal()
            self.check()
        finally:
            self.machine.close()

    def prepare(self) -> None:
        """Sessions and the queue are there before anything is published: what they are owed is then everything."""
        assert self.machine.start()
        self.worker.declare()
        self.writer.declare()
        for client in self.clients:
            client.connect()
        self.until(lambda: all(client.connected and client.subscribed for client in self.clients))

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(HEAL_ROUNDS):
            if condition():
                return
            for client in self.clients:
                client.act(eager=True)
            self.machine.rest()
        raise AssertionError("the history did not come to rest: " + self.describe())

    def describe(self) -> str:
        return ", ".join(
            f"{c.name}: {'on' if c.connected else 'off'} {c._out} {len(c._queue)}, came again: {c.repeats[:5]}"
            for c in self.clients
        )

    # -- steps

    def step(self) -> None:
        self.operations += 1
        if self.rng.random() < 0.03:
            self.machine.disk.cut_power_after(self.rng.randint(0, 12))
        if self.machine.slicing.random() < 0.1 and not self.snapshotting:
            self.snapshotting = True
            self.machine.loop.create_task(self.snapshot())
        with contextlib.suppress(PowerCut):
            self._step()
        if self.machine.is_cut:
            self.crash()

    def _step(self) -> None:
        if self.operations == self.burst_at:
            self.burst()
            return
        if self.operations == self.twice_at:
            self.crash_twice()
            return
        if self.operations == self.forget_at:
            self.forget()
            return
        client = self.rng.choice(self.clients)
        action = self.rng.random()
        if action < 0.45:
            series = self.rng.choice(client.series)
            for _ in range(self.rng.choice((1, 1, 3, 10))):
                client.publish(series, removes=series.retain and self.rng.random() < 0.3)
            client.connect()
            client.act()
        elif action < 0.70:
            client.connect()
            client.act()
        elif action < 0.80:
            self.worker.act()
        elif action < 0.83:
            self.reader.act()
        elif action < 0.87:
            for _ in range(self.rng.randint(1, 4)):
                self.writer.act()
                self.machine.breathe()
        elif action < 0.90:
            client.drop()
        elif action < 0.92:
            self.maintain()
        elif action < 0.94 and self.crashes_left:
            self.stop()
            return
        elif action < 0.98 and self.crashes_left and self.operations > 5:
            self.crash()
            return
        self.machine.breathe()

    def burst(self) -> None:
        """Quick clients while the clock stands: identifiers are given out again before a position is written."""
        rng = self.machine.hurrying
        publisher = self.clients[0]
        for client in self.clients:
            client.connect()
        for _ in range(rng.choice((BURST // 2, BURST, 2 * BURST))):
            publisher.publish(publisher.series[0])
        for _ in range(rng.randint(1, BURST_ROUNDS)):
            for client in self.clients:
                client.act(eager=True)
            self.machine.hurry()
            if self.machine.is_cut:
                return
        if self.crashes_left and rng.random() < 0.7:
            self.crash()

    def crash_twice(self) -> None:
        """While all publish, and again when a checkpoint has passed what the recovery in between derived."""
        for client in self.clients:
            client.connect()
            client.publish(client.series[0])
        for _ in range(2):
            for client in self.clients:
                client.act(eager=True)
            self.machine.hurry()
        if self.machine.hurrying.random() < 0.7:
            self.commit()
        self.crash()
        for _ in range(4):
            self.machine.loop.advance(1.1)
            self.machine.hurry()
        self.crash()

    def forget(self) -> None:
        """Retention comes when all parts are old; perhaps a subscriber is away."""
        absent = self.machine.hurrying.choice((*self.clients[:2], None))
        if absent is not None:
            absent.drop()
        for client in self.clients:
            for series in client.series if client is not absent else ():
                client.publish(series)
                client.connect()
        for _ in range(10):
            for client in self.clients:
                if client is not absent:
                    client.act(eager=True)
            self.machine.hurry()
        broker = self.machine.broker
        assert broker is not None
        for log in broker.logs.by_id.values():
            log.engine.roll()
        self.machine.loop.advance(1.1)
        self.machine.loop.create_task(broker.maintenance.round())
        self.machine.hurry()
        if not self.machine.is_cut:
            self.check_retained()

    def commit(self) -> None:
        """A transaction, until its commit was just answered: its markers need not be durable."""
        ending = False
        for _ in range(HEAL_ROUNDS):
            if not self.writer.asking:
                if ending:
                    return
                ending = self.writer.commit()
            self.machine.hurry(syncs=1)
            if self.machine.is_cut:
                return

    def maintain(self) -> None:
        broker = self.machine.broker
        assert broker is not None
        action = self.rng.random()
        if action < 0.4:
            for log in broker.logs.by_id.values():
                log.engine.roll()
        elif action < 0.7:
            self.machine.loop.create_task(broker.snapshot())
        else:  # retention takes what is old and held by nobody
            self.machine.loop.create_task(broker.maintenance.round())

    async def snapshot(self) -> None:
        """In slices, with whatever happens between two of them."""
        broker = self.machine.broker
        assert broker is not None
        try:
            await broker.snapshot()
            self.snapshots += 1
        finally:
            self.snapshotting = False

    def stop(self) -> None:
        for client in self.clients:
            client.drop()
        self.machine.loop.settle(lambda: self.machine.is_cut)
        if self.machine.is_cut:
            self.crash()
            return
        if not self.machine.stop():
            self.crash()
            return
        self.leave()
        self.start()

    def crash(self) -> None:
        """A kill or a power cut, sometimes again while recovering, or right after it."""
        self.crashes_left = max(0, self.crashes_left - 1)
        for client in self.clients:
            client.forget_wire()
        self.leave()
        if self.machine.is_cut or self.rng.random() < 0.6:
            self.cut_power()
        else:
            self.machine.kill()
        self.start()
        while self.crashes_left and self.rng.random() < 0.4:
            self.crashes_left -= 1
            for _ in range(self.rng.choice((0, 0, 1, 5))):
                self.machine.breathe()
            self.cut_power()
            self.start()

    def cut_power(self) -> None:
        """Deliveries leave when a record is written: what was not yet durable is lost, published again, and comes again."""
        for series in self.series:
            unsure = set(range(series.sent)) - series.kept
            self.worker.excused.update(map(series.payload, unsure))
            for client in self.clients:
                client.excused.update((series.topic, number) for number in unsure)
        self.machine.cut_power()

    def leave(self) -> None:
        self.worker.lose()
        self.writer.lose()
        for client in self.clients:
            client.wire, client.connected = None, False

    def start(self) -> None:
        if self.rng.random() < 0.2:
            self.machine.disk.cut_power_after(self.rng.randint(0, 60))
        while not self.machine.start():
            self.cut_power()
        self.machine.disk.cut_power_after(-1)
        self.reader.restarted()
        self.check_retained()

    # -- the end

    def heal(self) -> None:
        self.machine.disk.cut_power_after(-1)
        for client in self.clients:
            client.connect()
        self.worker.act(eager=True)  # what it holds would go back meanwhile: that takes long
        self.until(lambda: all(client.idle for client in self.clients))
        self.until(lambda: not self.writer.asking)
        self.writer.lose()
        self.writer.begin_session()
        self.until(lambda: not self.writer.asking)
        for _ in range(3):  # what is owed and not yet sent shows itself
            self.machine.loop.advance(1.1)
            for client in self.clients:
                client.act(eager=True)
            self.machine.rest()
        self.until(lambda: all(client.idle for client in self.clients))
        expected = {value for series in self.series[:2] for value in map(series.payload, range(series.sent))}
        for _ in range(100):
            self.worker.act(eager=True)
            self.machine.rest()
            if expected <= self.worker.settled and not self.worker.queue.ready:
                break

    def check(self) -> None:
        for series in (*self.series, *self.retained):
            assert len(series.acked) == series.sent, (
                f"{series.topic}: {series.sent} sent, {len(series.acked)} acknowledged"
            )
        expected = {series.topic: series.sent for series in self.series}
        for client in self.clients[:2]:
            client.check(expected)
        values = {value for series in self.series[:2] for value in map(series.payload, range(series.sent))}
        self.worker.check(values)
        self.reader.check()
        self.writer.check()
        self.check_retained()

    def check_retained(self) -> None:
        """One of the values from the last acknowledged on, or none where that was a removal."""
        broker = self.machine.broker
        assert broker is not None
        retained = broker.session_keeper.retained(broker.namespace("/"))
        for series in self.retained:
            floor = max(series.acked, default=-1)
            allowed = {series.payload(number) for number in range(max(floor, 0), series.sent)}
            if floor < 0:
                allowed.add(b"")
            found = retained.find(series.topic.encode())
            record = retained.read_one(*found[0]) if found else None
            value = (record.value or b"") if record is not None else b""
            assert value in allowed, f"retained on {series.topic}: {value!r}, expected one of {sorted(allowed)[:5]}"


def run_seed(seed: int, *, calm: bool = False) -> History:
    history = History(seed, calm=calm)
    try:
        with _ending():
            history.run()
    except BaseException as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
    return history


@contextlib.contextmanager
def _ending() -> Iterator[None]:
    """A history that does not end fails where it is."""

    def end(number: int, frame: object) -> None:
        raise TimeoutError(f"the history did not end within {HISTORY_S_MAX} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, HISTORY_S_MAX, 1.0)  # again and again: a loop may catch the first
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_for(seconds: float, first: int, failures_max: int) -> tuple[int, list[str]]:
    """How many histories were run from a seed on, and what failed."""
    logging.disable(logging.CRITICAL)
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    began, seed, failed = time.monotonic(), first, list[str]()
    while time.monotonic() - began < seconds and len(failed) < failures_max:
        try:
            run_seed(seed)
        except AssertionError as error:
            failed.append("".join(traceback.format_exception(error)))
        seed += 1
    return seed - first, failed
