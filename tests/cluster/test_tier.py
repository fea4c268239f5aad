"""Sealed segments and bundles in the object store: the next owner knows where they lie, and fetches what is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.kit import Cluster
from tests.cluster.reading import read_topic
from tests.contract.postgres_server import PostgresServer

RECORD = b"x" * 1000

pytestmark = pytest.mark.timeout(300)  # of a busy machine


@pytest.mark.slow
def test_a_taker_reads_what_only_the_store_has_and_bulk_topics_go_on(tmp_path: Path, postgres: PostgresServer) -> None:
    settings = ("policies.cold.tier=s3", "policies.cold.segment_bytes=64KiB", "policies.cold.local_retention_ms=0")
    bulk = ("policies.bulk.engine=object",)
    with Cluster(tmp_path, postgres, "a", "b", settings=(*settings, *bulk)) as cluster:
        servers = {"bootstrap.servers": f"127.0.0.1:{cluster['a'].ports['kafka']}", "log_level": 0}
        admin = AdminClient(servers)
        for one in admin.create_topics([NewTopic("cold", 1), NewTopic("bulk", 1)]).values():
            one.result(20)
        acked: dict[str, list[bytes]] = {"cold": [], "bulk": []}
        publish(servers, acked, 0)
        parts, logs = cluster.store / "cells/1/tier/parts", tmp_path / "a/cell-1/logs"
        # All but the end is uploaded, and dropped here. Logs of other topics come when the broker has something to write.
        cluster.until(lambda: [len(list((logs / one.name).glob("*.log"))) for one in parts.glob("*")] == [1])
        cluster["a"].kill()
        assert cluster.wait_owner(other_than="a") == "b"
        servers["bootstrap.servers"] = f"127.0.0.1:{cluster['b'].ports['kafka']}"
        publish(servers, acked, 400)
        for topic, values in acked.items():
            assert [value for _, value in read_topic(cluster["b"].ports["kafka"], topic)] == values


def publish(servers: dict[str, object], acked: dict[str, list[bytes]], first: int) -> None:
    producer = Producer({**servers, "acks": "all", "enable.idempotence": True, "linger.ms": 5})
    for topic, values in acked.items():
        for number in range(first, first + 400):
            value = b"%06d" % number + RECORD
            producer.produce(
                topic, value, on_delivery=lambda error, message, values=values: values.append(message.value())
            )
            if number % 20 == 0:
                producer.flush(20)
    assert producer.flush(30) == 0
