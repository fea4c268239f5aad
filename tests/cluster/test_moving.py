"""A broker's data into a cluster and out again: every record at its offset, groups and queues where they were."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pika
import pytest
from confluent_kafka import Producer

from mainstem.cluster.moving import export_directory
from mainstem.storage.tier.store import StoreSettings
from mainstem.testing.process import BrokerProcess
from tests.cluster.kit import Cluster
from tests.cluster.reading import read_topic
from tests.contract.postgres_server import PostgresServer

pytestmark = pytest.mark.timeout(300)  # of a busy machine


def publish(broker: BrokerProcess, first: int) -> None:
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{broker.ports['kafka']}", "acks": "all", "log_level": 0})
    for number in range(first, first + 50):
        producer.produce("moved", b"%d" % number)
    assert producer.flush(30) == 0
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.ports["amqp"]))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("kept", durable=True)
    channel.basic_publish("", "kept", b"%d" % first, pika.BasicProperties(delivery_mode=2))
    connection.close()


def take(broker: BrokerProcess) -> bytes:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.ports["amqp"]))
    body = connection.channel().basic_get("kept", auto_ack=True)[2]
    connection.close()
    return body or b""


def mainstem(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "mainstem", *arguments], check=False, capture_output=True, text=True)


@pytest.mark.slow
def test_data_moves_into_a_cluster_and_out_again(tmp_path: Path, postgres: PostgresServer) -> None:
    with BrokerProcess(tmp_path / "alone") as alone:
        publish(alone, 0)
        before = read_topic(alone.ports["kafka"], "moved")
    cluster = Cluster(tmp_path, postgres, "a")
    places = "--cluster", cluster.dsn, "--store", f"file://{cluster.store}"
    moved = mainstem("cluster", "import", str(tmp_path / "alone"), *places, "--single-postgres")
    assert moved.returncode == 0, moved.stderr
    assert "import: " in moved.stderr  # the summary of its progress
    again = mainstem("cluster", "import", str(tmp_path / "alone"), *places, "--single-postgres")
    assert "holds data already" in again.stderr
    with cluster:
        assert read_topic(cluster["a"].ports["kafka"], "moved") == before
        publish(cluster["a"], 50)
        assert take(cluster["a"]) == b"0"
        after = read_topic(cluster["a"].ports["kafka"], "moved")
        assert [value for _, value in after] == [b"%d" % number for number in range(100)]
        assert cluster["a"].stop() == 0
        out = mainstem("cluster", "export", str(tmp_path / "out"), *places)
        assert out.returncode == 0, out.stderr
        assert "export: " in out.stderr
        told = list[tuple[int, int]]()
        store = StoreSettings(f"file://{cluster.store}")
        export_directory(cluster.dsn, store, tmp_path / "again", lambda *at: told.append(at))
    dones, totals = [done for done, _ in told], {total for _, total in told}
    assert dones == sorted(dones) and totals == {dones[-1]}
    with BrokerProcess(tmp_path / "out") as alone:
        assert read_topic(alone.ports["kafka"], "moved") == after
        assert take(alone) == b"50"
