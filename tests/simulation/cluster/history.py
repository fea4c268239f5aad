"""One history of a cluster, decided by its seed: whole brokers, clients that find the next owner, and owners of the past.

As `tests/simulation/history.py`, whose clients and judgements these are. Instead of power cuts the cell changes hands:

    kill         the owner is gone at once; what it had sent to PostgreSQL may still arrive
    pause        it stops, another takes the cell, and some clients stay with it. It goes on later, knowing nothing
    partition    it goes on, but PostgreSQL does not hear it
    hand over    an heir makes the files, the owner commits everything and ends

All the while statements and answers of PostgreSQL get lost, and the object store refuses, loses answers and cuts them off.
Whatever a zombie acknowledges counts: it must be found in the end.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from mainstem.model.errors import Overloaded
from mainstem.testing.faulty_disk import PowerCut
from tests.protocol.mqtt.raw import connect_packet
from tests.simulation.cluster.machines import IMAGE_CHANCE, CellMachine, Cluster
from tests.simulation.group_reader import GroupReader
from tests.simulation.history import OPERATIONS, RETAINED_TOPICS, History
from tests.simulation.mqtt_client import MqttClient, Series
from tests.simulation.network import Wire
from tests.simulation.queue_worker import QueueWorker
from tests.simulation.transaction_writer import TransactionWriter

ZOMBIE_TURNS = 12  # at most until its own clock tells it that its lease is over


class Roaming(MqttClient):
    """It connects to whoever owns the cell, and stays there until it hears otherwise."""

    at: CellMachine | None = None

    def connect(self) -> None:
        if self.wire is not None and not self.wire.closed:
            return
        cluster: Any = self.machine
        self.at = owner = cluster.owner
        self.connected = False
        self._acks.clear()
        self.wire = Wire(owner.mqtt.make_connection(), lambda: owner.gone)
        self._send(connect_packet(self.name, clean=False, keep_alive=0))

    def forget_wire(self) -> None:
        super().forget_wire()
        self.at = None


class ClusterHistory(History):
    def __init__(self, seed: int, *, fences: bool = True) -> None:
        self.seed = seed
        self.machine: Any = Cluster(seed, fences=fences)
        self.rng = self.machine.rng
        self.machine.world.rng.seed(seed + 1)
        qos = self.rng.choice((1, 2))
        self.clients = [
            Roaming(self.machine, "one", self.rng, [("a/#", 2), ("own/+", 2)]),
            Roaming(self.machine, "two", self.rng, [("a/+", qos), ("own/#", 2)]),
            Roaming(self.machine, "three", self.rng, []),
        ]
        self.series = [Series(topic, qos) for topic, qos in (("a/1", 2), ("a/2", 1), ("own/3", 2))]
        self.retained = [Series(topic, 1, retain=True) for topic in RETAINED_TOPICS]
        for n, series in enumerate((*self.series, *self.retained)):
            self.clients[n % 3].series.append(series)
        self.worker = QueueWorker(self.machine, self.rng, b"a/#")
        self.reader = GroupReader(self.machine, self.rng, b"a/1")
        self.writer = TransactionWriter(self.machine, self.rng)
        self.crashes_left = self.rng.randint(2, 4)
        self.operations = self.snapshots = self.woken = self.handed_over = 0
        self.burst_at = self.twice_at = self.forget_at = 0  # scripts of a broker by itself
        self.snapshotting = False

    def run(self) -> None:
        with self.machine.simulated():
            super().run()

    # -- steps

    def step(self) -> None:
        self.operations += 1
        cluster: Cluster = self.machine
        cluster.server.trouble = self.rng.choice((0.0, 0.0, 0.02, 0.1))
        cluster.objects.trouble = self.rng.choice((0.0, 0.0, 0.3))
        cluster.world.run(self.rng.choice((0.0, 0.05, 1.0)))
        if self.machine.slicing.random() < 0.1 and not self.snapshotting:
            self.snapshotting = True
            self.machine.loop.create_task(self.snapshot_of(cluster.owner))
        with suppress(PowerCut):
            self._step()
            if self.rng.random() < IMAGE_CHANCE:
                self.machine.make_image()
        assert not self.machine.is_cut, "the owner was fenced although nobody took its cell"
        for zombie in list(cluster.zombies):
            self.wake(zombie)

    async def snapshot_of(self, one: CellMachine) -> None:
        """Whoever owns the cell when it ends."""
        assert one.broker is not None
        await one.broker.snapshot()
        if one is self.machine.owner:
            self.snapshotting = False
            self.snapshots += 1

    def stop(self) -> None:
        """A planned hand-over."""
        cluster: Cluster = self.machine
        heir = cluster.next_owner()
        heir.prepare()
        for _ in range(self.rng.choice((0, 1, 3))):
            self.machine.breathe()
        self.leave_owner(stay=0.0)
        self.machine.loop.settle()
        self.snapshotting = False
        self.crashes_left = max(0, self.crashes_left - 1)
        cluster.owner.hand_over()
        self.handed_over += 1
        cluster.replace_by(heir, zombie=False)
        self.found_again()

    def crash(self) -> None:
        cluster: Cluster = self.machine
        self.crashes_left = max(0, self.crashes_left - 1)
        kind = self.rng.choice(("kill", "pause", "pause", "partition"))
        old = cluster.owner
        self.excuse_unsure()
        self.leave_owner(stay=0.0 if kind == "kill" else 0.6)
        self.snapshotting = False
        heir = cluster.next_owner()
        if self.rng.random() < 0.3:
            heir.prepare()
        old.wal.reachable = kind != "partition"
        cluster.replace_by(heir, zombie=kind != "kill")
        self.found_again()

    def leave_owner(self, *, stay: float) -> None:
        """Most clients notice that it is gone; of one that is not, some do not."""
        self.worker.lose()
        self.writer.lose()
        for client in self.clients:
            if client.at is self.machine.owner and self.rng.random() >= stay:  # type: ignore[attr-defined]
                client.forget_wire()

    def found_again(self) -> None:
        self.machine.server.trouble = self.machine.objects.trouble = 0.0
        self.reader.restarted()
        self.check_retained()

    # -- zombies

    def wake(self, zombie: CellMachine) -> None:
        """It goes on for a moment: it serves whoever stayed, until a commit or its clock tells it better."""
        cluster: Cluster = self.machine
        if self.rng.random() < 0.5:
            return
        self.woken += 1
        stayed = [one for one in self.clients if one.at is zombie]  # type: ignore[attr-defined]
        with cluster.entered(zombie), suppress(PowerCut, Overloaded):
            for client in stayed:
                if client.series and self.rng.random() < 0.7:
                    client.publish(self.rng.choice(client.series))
                client.act(eager=self.rng.random() < 0.5)
                self.excuse_flights(client)
            self.breathe(zombie)
            for client in stayed:
                client.act()
                self.excuse_flights(client)
        zombie.crashes += 1
        if zombie.gone or zombie.crashes >= ZOMBIE_TURNS:
            cluster.end_zombie(zombie)
            for client in stayed:
                client.forget_wire()

    def breathe(self, zombie: CellMachine) -> None:
        """Its committers wait for ever where PostgreSQL does not hear it."""
        if zombie.wal.reachable:
            zombie.breathe()
        else:
            zombie.loop.advance(0.002)
            zombie.loop.settle(lambda: zombie.gone)

    def excuse_unsure(self) -> None:
        """Deliveries leave when a record is written: what was not yet durable may come again."""
        for series in self.series:
            for number in set(range(series.sent)) - series.kept:
                self.excuse(series, number)

    def excuse_flights(self, client: MqttClient) -> None:
        for series, number, _ in client._out.values():
            self.excuse(series, number)

    def excuse(self, series: Series, number: int) -> None:
        self.worker.excused.add(series.payload(number))
        for client in self.clients:
            client.excused.add((series.topic, number))

    # -- the end

    def heal(self) -> None:
        cluster: Cluster = self.machine
        cluster.server.trouble = cluster.objects.trouble = 0.0
        for zombie in list(cluster.zombies):
            while zombie in cluster.zombies:
                self.wake(zombie)
        for client in self.clients:
            if client.at is not cluster.owner:  # type: ignore[attr-defined]
                client.forget_wire()
            client.connect()
        self.until(lambda: all(client.idle for client in self.clients))
        self.until(lambda: not self.writer.asking)
        super().heal()


def run_seed(seed: int) -> ClusterHistory:
    history = ClusterHistory(seed)
    try:
        history.run()
    except BaseException as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    assert history.operations >= OPERATIONS
    return history
