"""The memory of two brokers that hand a cell to each other again and again, used by clients of every protocol: it reaches
what it needs and stays there."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import psutil
import pytest

from tests.cluster.kit import Cluster
from tests.cluster.test_letting_go import use_all
from tests.contract.postgres_server import PostgresServer

FIRST, LATER = 20, 60  # hand-overs; each broker takes part in all of them
MORE_BYTES_MAX = (
    4 << 20
)  # of one broker between the two: less than 100 KiB each; a broker that is kept has many times that
SETTLED_S = 12.0  # what was handed over is collected when no client waits for it


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of clients that were connected when their broker handed over
def test_memory_does_not_grow_with_hand_overs(tmp_path: Path, postgres: PostgresServer) -> None:
    with Cluster(tmp_path, postgres, "a", "b") as cluster:
        owner, used = cluster.wait_owner(), list[dict[str, int]]()
        for number in range(1, LATER + 1):
            heir = "b" if owner == "a" else "a"
            with contextlib.ExitStack() as clients:
                use_all(dict(cluster[owner].ports), clients)
                cluster.run_cluster("move", "main", heir)
                assert cluster.wait_owner(other_than=owner) == heir
            owner = heir
            if number % 10 == 0:
                time.sleep(SETTLED_S)
                used.append({name: own_bytes(cluster[name].pid) for name in cluster.brokers})
                print(number, {name: f"{size / 2**20:.1f} MiB" for name, size in used[-1].items()}, flush=True)
        before, after = used[FIRST // 10 - 1], used[LATER // 10 - 1]
        assert {name: more for name in before if (more := after[name] - before[name]) > MORE_BYTES_MAX} == {}


def own_bytes(process: int) -> int:
    """What is this process's alone: files that several map do not count."""
    return int(psutil.Process(process).memory_full_info().uss)
