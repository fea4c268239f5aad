"""Planned hand-overs of two cells while clients that reconnect publish and consume: nothing is lost, nobody sees errors."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cluster.kit import Cluster
from tests.cluster.reconnecting import AmqpClient, NatsClient, Reconnecting
from tests.contract.postgres_server import PostgresServer

pytestmark = pytest.mark.timeout(300)  # of a busy machine
NAMESPACE = "tenant"


def start_clients(cluster: Cluster) -> list[Reconnecting]:
    clients = [
        kind(cluster, broker, namespace)
        for kind in (AmqpClient, NatsClient)
        for broker in cluster.brokers
        for namespace in ("", NAMESPACE)
    ]
    for one in clients:
        one.start()
    return clients


@pytest.mark.slow
def test_cells_that_are_moved_and_drained_cost_clients_that_reconnect_no_message_and_no_error(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    steps = {
        ("move", NAMESPACE, "a"): ("a", "a"),
        ("move", "main", "b"): ("b", "a"),
        ("drain", "a"): ("b", "b"),
    }
    with Cluster(tmp_path, postgres, "a", "b", settings=("cluster.moves_per_hour=0",)) as cluster:
        cluster.run("namespace", "add", NAMESPACE, "--cell", "new")
        cluster.until(lambda: any("serving cell 2," in one.log() for one in cluster.brokers.values()))
        clients = start_clients(cluster)
        for one in clients:
            one.wait_acked(10)
        for words, owners in steps.items():
            began = time.monotonic()
            cluster.run_cluster(*words)
            cluster.until(lambda owners=owners: (cluster.owner(), cluster.owner_of(NAMESPACE)) == owners)
            for one in clients:
                one.wait_acked(20)
            waits = {one.name: round(one.longest_s(began), 2) for one in clients}
            print(" ".join(words), "longest waits for an ack, s:", waits)
        for one in clients:
            one.stop()
            print(one.name, one.acked, "acknowledged", len(one.doubts), "in doubt", one.doubts[:3], one.errors[:3])
        for name, broker in cluster.brokers.items():
            print(name, [line for line in broker.log().splitlines() if "handed cell" in line or "serving cell" in line])
        assert {one.name: one.errors for one in clients if one.errors} == {}
        judged = {one.name: one.judge() for one in clients}
        assert {name: found for name, found in judged.items() if found} == {}
