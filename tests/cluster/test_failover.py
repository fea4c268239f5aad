"""Two brokers, one PostgreSQL, one object store: whatever happens to the owner, what was acknowledged is there."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.clocks import INSTALLED, JUMPS, READ_AGAIN_S, Clocks
from tests.cluster.kit import Cluster
from tests.cluster.load import start_all
from tests.cluster.reading import judge
from tests.contract.postgres_server import PostgresServer

pytestmark = pytest.mark.timeout(300)  # of a busy machine


@pytest.fixture
def cluster(tmp_path: Path, postgres: PostgresServer) -> Iterator[Cluster]:
    with Cluster(tmp_path, postgres, "a", "b") as started:
        yield started


def test_an_owner_that_is_killed_twice_in_a_row_loses_nothing_that_was_acknowledged(cluster: Cluster) -> None:
    publishers = start_all(cluster)
    for one in publishers:
        one.wait_acked(20)
    for _ in range(2):
        owner = cluster.wait_owner()
        cluster[owner].kill()
        cluster.wait_owner(other_than=owner)
        cluster[owner].start()
        for one in publishers:
            one.wait_acked(20)
    for one in publishers:
        one.stop()
    assert judge(publishers, cluster[cluster.wait_owner()].ports) == {}


@pytest.mark.slow
def test_an_owner_that_was_paused_acknowledges_nothing_when_it_goes_on(cluster: Cluster) -> None:
    publishers = start_all(cluster)
    for one in publishers:
        one.wait_acked(10)
    owner = cluster.wait_owner()
    cluster[owner].signal(signal.SIGSTOP)
    cluster.wait_owner(other_than=owner)
    for one in publishers:
        one.wait_acked(10)
    cluster[owner].signal(signal.SIGCONT)
    cluster.until(lambda: "It starts over" in cluster[owner].log())
    for one in publishers:
        one.wait_acked(10)
        one.stop()
    assert judge(publishers, cluster[cluster.wait_owner()].ports) == {}


@pytest.mark.slow
def test_a_drained_owner_hands_over_and_goes_on_relaying(cluster: Cluster) -> None:
    publishers = start_all(cluster)
    for one in publishers:
        one.wait_acked(10)
    command = [sys.executable, "-m", "mainstem", "cluster", "drain", "a", "--cluster", cluster.dsn]
    assert subprocess.run(command, check=False).returncode == 0
    assert cluster.wait_owner(other_than="a") == "b"
    for one in publishers:
        one.wait_acked(10)
        one.stop()
    cluster.until(lambda: cluster["a"].log().count("handed cell") == 1)
    assert judge(publishers, cluster["a"].ports) == {}, "read through the drained one"


@pytest.mark.slow
def test_postgresql_that_restarts_at_once_costs_no_acknowledged_message(cluster: Cluster) -> None:
    publishers = start_all(cluster)
    for one in publishers:
        one.wait_acked(10)
    cluster.postgres.stop("immediate")
    cluster.postgres.start()
    for one in publishers:
        one.wait_acked(20)
        one.stop()
    assert judge(publishers, cluster[cluster.wait_owner()].ports) == {}


@pytest.mark.slow
def test_postgresql_that_is_away_for_longer_than_a_lease_leaves_brokers_that_wait_for_it(cluster: Cluster) -> None:
    publishers = start_all(cluster)
    for one in publishers:
        one.wait_acked(10)
    owner = cluster.wait_owner()
    cluster.postgres.stop("immediate")
    try:
        cluster.until(lambda: "starting over, and waiting" in cluster[owner].log())
    finally:
        cluster.postgres.start()
    for one in publishers:
        one.wait_acked(10)
        one.stop()
    assert all(broker.running for broker in cluster.brokers.values())
    assert judge(publishers, cluster[cluster.wait_owner()].ports) == {}


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="apt install libfaketime")
def test_clocks_that_jump_by_an_hour_cost_nothing(tmp_path: Path, postgres: PostgresServer) -> None:
    names = "a", "b"
    clocks = Clocks(tmp_path, *names)
    environments = {name: clocks.environment(name) for name in names}
    with Cluster(tmp_path, postgres, *names, environments=environments) as cluster:
        publishers = start_all(cluster)
        for jump in JUMPS:
            for one in publishers:
                one.wait_acked(5)
            for name in names:
                clocks.set(name, jump)
            time.sleep(READ_AGAIN_S)
            for one in publishers:
                one.wait_acked(5)
        for one in publishers:
            one.stop()
        assert cluster.ask("SELECT epoch FROM cell")["epoch"] == 1, "nobody lost the cell by it"
        assert judge(publishers, cluster["b"].ports) == {}
