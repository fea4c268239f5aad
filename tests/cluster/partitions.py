"""A cluster in a network of its own, cut here and there while every protocol publishes.

`unshare --net --mount python -m tests.cluster.partitions DIRECTORY CYCLES [SEED]`. One cycle is one fault; the first
cuts the owner off from PostgreSQL. With more than one the object store is S3, PostgreSQL has a synchronous standby, a
proxy stands before each of them, and brokers have clocks of their own. Prints "well" at the end, or what was lost, reused
or repeated.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from mainstem.testing.ledger import OffsetMemory
from tests.cluster.clocks import INSTALLED, JUMPS, Clocks
from tests.cluster.cutting import CuttingProxy
from tests.cluster.dealing import deal
from tests.cluster.load import KAFKA_TOPIC, MQTT_TOPIC, start_all
from tests.cluster.network import PORT, STANDBY_PORT, NetworkCluster, prepare_middle
from tests.cluster.reading import judge, read_topic
from tests.contract.postgres_server import PostgresServer
from tests.s3_faults import FaultProxy
from tests.s3_server import s3_server

NAMES = ("a", "b")
ACKED = 10  # of each publisher before a fault and after it
CUT_PORT, CUT_STANDBY_PORT, CUT_EVERY = 5442, 5443, 20


class Scene:
    def __init__(self, directory: Path, stack: ExitStack, *, whole: bool, seed: int) -> None:
        self.rng = random.Random(seed)
        self.postgres = PostgresServer(PORT)
        stack.callback(self.postgres.remove)
        self.standby: PostgresServer | None = None
        self.proxy: FaultProxy | None = None
        self.cutters: list[CuttingProxy] = []
        self.clocks = Clocks(directory, *NAMES) if whole and INSTALLED else None
        environment: dict[str, str] = {}
        if whole:
            self.standby = PostgresServer(STANDBY_PORT, standby_of=self.postgres)
            stack.callback(self.standby.remove)
            (directory / "s3").mkdir()
            s3 = stack.enter_context(s3_server(directory / "s3"))
            self.proxy = FaultProxy(s3.endpoint, "0.0.0.0")
            environment = {**s3.environment, "NO_PROXY": "*", "no_proxy": "*"}  # nothing leads out of here
            for at, behind in ((PORT, CUT_PORT), (STANDBY_PORT, CUT_STANDBY_PORT)):
                self.cutters.append(CuttingProxy(("127.0.0.1", at), seed, CUT_EVERY, behind))
                stack.callback(self.cutters[-1].close)
        port = self.proxy.port if self.proxy is not None else 0
        self.cluster = NetworkCluster(
            directory,
            self.postgres,
            *NAMES,
            s3_port=port,
            postgres_ports=(CUT_PORT, CUT_STANDBY_PORT) if whole else (PORT, STANDBY_PORT),
            environments={name: {**environment, **self.clock_of(name)} for name in NAMES},
        )
        stack.enter_context(self.cluster)

    def clock_of(self, name: str) -> dict[str, str]:
        return self.clocks.environment(name) if self.clocks is not None else {}

    def faults(self) -> list[Callable[[str, str], None]]:
        """Each gets the owner and the other one."""
        found = [self.cut_postgres, self.cut_brokers, self.pause, self.kill]
        if self.proxy is not None:
            found += [self.fail_over_postgres, self.cut_store, self.refuse_store, self.cut_commits]
        return [*found, self.jump_clock] if self.clocks is not None else found

    def cut_postgres(self, owner: str, other: str) -> None:
        self.cluster.network.cut(owner, "postgres")
        assert self.cluster.wait_owner(other_than=owner) == other
        self.cluster.network.heal(owner, "postgres")

    def cut_brokers(self, owner: str, other: str) -> None:
        """The other one's clients find no owner; nobody else notices, and nobody takes what is not free."""
        self.cluster.network.cut(other, "brokers")
        time.sleep(self.rng.uniform(2, 8))
        assert self.cluster.owner() == owner
        self.cluster.network.heal(other, "brokers")

    def cut_store(self, owner: str, other: str) -> None:
        self.cluster.network.cut(owner, "store")
        time.sleep(self.rng.uniform(1, 5))
        self.cluster.network.heal(owner, "store")

    def refuse_store(self, owner: str, other: str) -> None:
        assert self.proxy is not None
        self.proxy.faults["*"] = self.rng.choice(("503", "delay:1", "cut", "lost"))
        self.cluster[owner].kill()  # the taker needs the store meanwhile
        time.sleep(4)
        self.proxy.faults.clear()
        self.cluster[owner].start()

    def pause(self, owner: str, other: str) -> None:
        self.cluster[owner].signal(signal.SIGSTOP)
        time.sleep(
            self.rng.choice((self.rng.uniform(1, 4), self.rng.uniform(10, 30)))
        )  # shorter than a lease, or longer
        self.cluster[owner].signal(signal.SIGCONT)

    def kill(self, owner: str, other: str) -> None:
        self.cluster[owner].kill()
        self.cluster[owner].start()

    def cut_commits(self, owner: str, other: str) -> None:
        """Connections end after a statement was sent, before its answer: a COMMIT is done, or not."""
        for one in self.cutters:
            one.cutting.set()
        time.sleep(self.rng.uniform(2, 6))
        for one in self.cutters:
            one.cutting.clear()
        print(f"   {sum(one.cuts for one in self.cutters)} connections were cut so far", flush=True)

    def jump_clock(self, owner: str, other: str) -> None:
        assert self.clocks is not None
        name = self.rng.choice((owner, other))
        self.clocks.set(name, self.rng.choice(JUMPS))
        time.sleep(self.rng.uniform(2, 6))
        self.clocks.set(name, "+0s")

    def fail_over_postgres(self, owner: str, other: str) -> None:
        """Once; then it is restarted."""
        if self.standby is not None:
            self.postgres.stop("immediate")
            for one in self.cutters[:1]:
                one.close()  # nobody answers there any more
            self.standby.promote()
            self.cluster.postgres, self.postgres, self.standby = self.standby, self.standby, None
            self.cluster.dsn = self.postgres.dsn.replace(
                "/postgres?", f"/{self.cluster.dsn.split('/')[3].partition('?')[0]}?"
            )
        else:
            self.postgres.stop("immediate")
            time.sleep(self.rng.choice((0.0, 6.0)))
            self.postgres.start()


def run(directory: Path, cycles: int, seed: int) -> list[str]:
    memory, problems = OffsetMemory(), []
    with ExitStack() as stack:
        scene = Scene(directory, stack, whole=cycles > 1, seed=seed)
        cluster, publishers = scene.cluster, start_all(scene.cluster)
        faults, seen = deal(scene.faults(), scene.rng), Counter[str]()
        for cycle in range(cycles):
            for one in publishers:
                one.wait_acked(ACKED)
            owner = cluster.wait_owner()
            fault = next(faults)
            seen[fault.__name__] += 1
            print(f"{cycle}: {fault.__name__}, {owner} owns", flush=True)
            fault(owner, next(name for name in cluster.brokers if name != owner))
            for one in publishers:
                one.wait_acked(ACKED)
            broker = cluster[cluster.wait_owner()]
            for topic in (KAFKA_TOPIC, MQTT_TOPIC.replace("/", ".")):
                memory.see(topic, dict(read_topic(broker.ports["kafka"], topic, broker.host)))
        for one in publishers:
            one.stop()
        broker = cluster[cluster.wait_owner()]
        problems += [f"an offset came to hold another record: {one}" for one in memory.changed]
        problems += [f"{name}: {found}" for name, found in judge(publishers, broker.ports, broker.host).items()]
        print(f"{sum(one.acked for one in publishers)} messages were acknowledged; faults: {dict(seen)}", flush=True)
    return problems


def main() -> int:
    directory, cycles = Path(sys.argv[1]), int(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}", flush=True)
    os.environ["PYTHONUNBUFFERED"] = "1"
    prepare_middle()
    problems = run(directory, cycles, seed)
    print("\n".join(problems) or "well", flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
