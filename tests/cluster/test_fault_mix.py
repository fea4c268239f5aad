"""Fault after fault under the load of every protocol in two cells, as at random: kills, pauses, restarts, hand-overs, and
clocks that jump where libfaketime is installed. Partitions have a network of their own (`partitions.py`)."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from mainstem.testing.ledger import OffsetMemory
from tests.cluster.clocks import INSTALLED, JUMPS, Clocks
from tests.cluster.dealing import deal
from tests.cluster.kit import Cluster
from tests.cluster.load import start_all
from tests.cluster.reading import judge, read_topic, topic_of
from tests.contract.postgres_server import PostgresServer

CYCLES = int(os.environ.get("MAINSTEM_CLUSTER_CYCLES", "20"))
NAMESPACE = "tenant"
NAMES = ("a", "b")


def kill_owner(cluster: Cluster, owner: str, rng: random.Random) -> None:
    cluster[owner].kill()
    if rng.random() < 0.5:
        cluster.wait_owner(other_than=owner)
    cluster[owner].start()


def pause_owner(cluster: Cluster, owner: str, rng: random.Random) -> None:
    cluster[owner].signal(signal.SIGSTOP)
    time.sleep(rng.uniform(0.5, 9))  # shorter than a lease, or longer
    cluster[owner].signal(signal.SIGCONT)


def kill_other(cluster: Cluster, owner: str, rng: random.Random) -> None:
    other = next(name for name in cluster.brokers if name != owner)
    cluster[other].kill()
    cluster[other].start()


def restart_postgres(cluster: Cluster, owner: str, rng: random.Random) -> None:
    cluster.postgres.stop("immediate")
    time.sleep(rng.choice((0.0, 6.0)))
    cluster.postgres.start()


def stop_owner(cluster: Cluster, owner: str, rng: random.Random) -> None:
    assert cluster[owner].stop() == 0
    cluster[owner].start()


def kill_cell(cluster: Cluster, owner: str, rng: random.Random) -> None:
    """The process of the cell that is not the first; its broker goes on."""
    process = cluster.until(lambda: cluster.process_of(2))
    os.kill(process, rng.choice((signal.SIGKILL, signal.SIGTERM)))


def pause_cell(cluster: Cluster, owner: str, rng: random.Random) -> None:
    """It goes on as a zombie where another process took the cell meanwhile; its broker may have ended it by then."""
    process = cluster.until(lambda: cluster.process_of(2))
    os.kill(process, signal.SIGSTOP)
    time.sleep(rng.uniform(0.5, 12))
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGCONT)


def move_cell(cluster: Cluster, owner: str, rng: random.Random) -> None:
    target = rng.choice(sorted(cluster.brokers))
    command = [sys.executable, "-m", "mainstem", "cluster", "move", NAMESPACE, target, "--cluster", cluster.dsn]
    subprocess.run(command, check=False, capture_output=True, timeout=60)  # it may be there already


def jump_clock(clocks: Clocks, cluster: Cluster, owner: str, rng: random.Random) -> None:
    name = rng.choice(NAMES)
    clocks.set(name, rng.choice(JUMPS))
    time.sleep(rng.uniform(2, 6))
    clocks.set(name, "+0s")


FAULTS: list[Callable[[Cluster, str, random.Random], None]] = [
    kill_owner, pause_owner, kill_cell, pause_cell, kill_other, restart_postgres, stop_owner, move_cell,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(180 + 60 * CYCLES)
def test_what_was_acknowledged_outlives_any_mix_of_faults(tmp_path: Path, postgres: PostgresServer) -> None:
    seed = int(os.environ.get("MAINSTEM_CLUSTER_SEED", "1"))
    rng, memory, seen = random.Random(seed), OffsetMemory(), Counter[str]()
    print(f"seed {seed}")
    kinds, environments = {one.__name__: one for one in FAULTS}, {}
    if INSTALLED:
        clocks = Clocks(tmp_path, *NAMES)
        kinds["jump_clock"] = partial(jump_clock, clocks)
        environments = {name: clocks.environment(name) for name in NAMES}
    dealt = deal(list(kinds), rng)
    with Cluster(tmp_path, postgres, *NAMES, environments=environments) as cluster:
        cluster.run("namespace", "add", NAMESPACE, "--cell", "new")
        publishers = [*start_all(cluster), *start_all(cluster, NAMESPACE)]
        for cycle in range(CYCLES):
            for one in publishers:
                one.wait_acked(10)
            kind, owner = next(dealt), cluster.wait_owner()
            seen[kind] += 1
            print(f"{cycle}: {kind}, {owner} owns the first cell, {cluster.owner_of(NAMESPACE)} the other", flush=True)
            kinds[kind](cluster, owner, rng)
            for one in publishers:
                one.wait_acked(10)
            ports = cluster[cluster.wait_owner()].ports
            for one in (one for one in publishers if topic_of(one)):
                memory.see(one.name, dict(read_topic(ports["kafka"], topic_of(one), by=one)))
        for one in publishers:
            one.stop()
        assert memory.changed == [], "an offset came to hold another record"
        assert judge(publishers, cluster[cluster.wait_owner()].ports) == {}
    print(f"{sum(one.acked for one in publishers)} messages were acknowledged; faults: {dict(seen)}")
