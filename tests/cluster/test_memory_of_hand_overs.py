"""The memory of two brokers that hand a cell to each other again and again, used by clients of every protocol: it grows by
far less than a broker that is kept, which would be a megabyte each time.

It does not stand still yet: between 60 and 120 hand-overs it grew by 120 to 150 KiB each. Without clients it grew by 50 to
100 KiB between 30 and 60, and less each time; objects are as many as before (`test_letting_go.py`).
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import psutil
import pytest

from tests.cluster.kit import Cluster
from tests.cluster.test_letting_go import use_all
from tests.contract.postgres_server import PostgresServer

FIRST, LATER, USED_EACH = 60, 120, 3  # hand-overs; each broker takes part in all of them
MORE_BYTES_MAX = 16 << 20  # of one broker between the two
LOOKED_EACH = 20
SETTLED_S = 12.0  # what was handed over is collected when no client waits for it


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of clients that were connected when their broker handed over
def test_memory_grows_little_with_hand_overs(tmp_path: Path, postgres: PostgresServer) -> None:
    with Cluster(tmp_path, postgres, "a", "b") as cluster:
        owner, used = cluster.wait_owner(), dict[int, dict[str, int]]()
        for number in range(1, LATER + 1):
            heir = "b" if owner == "a" else "a"
            with contextlib.ExitStack() as clients:
                if number % USED_EACH == 0:
                    use_all(dict(cluster[owner].ports), clients)
                cluster.run_cluster("move", "main", heir)
                assert cluster.wait_owner(other_than=owner) == heir
            owner = heir
            if number % LOOKED_EACH == 0:
                time.sleep(SETTLED_S)
                used[number] = {name: own_bytes(one.pid) for name, one in cluster.brokers.items()}
                print(number, {name: f"{size / 2**20:.1f} MiB" for name, size in used[number].items()}, flush=True)
        grown = {name: used[LATER][name] - before for name, before in used[FIRST].items()}
        assert {name: more for name, more in grown.items() if more > MORE_BYTES_MAX} == {}


def own_bytes(process: int) -> int:
    """What is this process's alone: files that several map do not count."""
    return int(psutil.Process(process).memory_full_info().uss)
