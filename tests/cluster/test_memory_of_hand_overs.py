"""The memory of two brokers that hand a cell to each other again and again, used by clients of every protocol.

What malloc and Python's objects use stays as it is; what grew, by 120 to 280 KiB each time, was freed memory between things
that stay, which `let_go_of` gives back, and rows that asyncpg kept for threads that had ended. Since then one broker grew by
0.6 MiB between 60 and 120 hand-overs, the other by nothing. A broker that is kept would be a megabyte each time.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from tests.cluster.kit import Cluster
from tests.cluster.test_letting_go import own_bytes, use_all
from tests.contract.postgres_server import PostgresServer

FIRST, LATER, USED_EACH = 60, 120, 3  # hand-overs; each broker takes part in all of them
MORE_BYTES_MAX = 3 << 20  # of one broker between the two
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
