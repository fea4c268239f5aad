"""Brokers with roles: a front-end takes clients of its protocols and owns nothing; an owner may listen for Kafka only."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from mainstem.model.errors import ConfigError
from mainstem.server.cluster_node import close_doors
from mainstem.server.config import load_config
from mainstem.server.listeners import LISTENERS
from tests.cluster.kit import Cluster
from tests.cluster.load import MqttPublisher
from tests.cluster.reading import read_topic
from tests.contract.postgres_server import PostgresServer


def test_a_role_that_does_not_exist_is_refused() -> None:
    config = load_config(None, {}, ["cluster.roles=mqtt, owner"])
    with pytest.raises(ConfigError, match="no role is called 'owner'"):
        close_doors(config)


def test_only_listeners_of_the_roles_stay_and_an_owner_keeps_kafkas() -> None:
    def open_doors(roles: str) -> set[str]:
        config = load_config(None, {}, [f"cluster.roles={roles}"])
        close_doors(config)
        return {name for name, setting in LISTENERS.items() if getattr(config.listeners, setting) is not None}

    assert open_doors("") == set(LISTENERS)
    assert open_doors("mqtt, http") == {"mqtt", "ws", "http"}
    assert open_doors("cells") == {"kafka"}
    assert open_doors("nats") == {"nats"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_devices_come_by_a_front_end_that_never_owns_the_cell(tmp_path: Path, postgres: PostgresServer) -> None:
    roles = {"a": ("cluster.roles=cells",), "b": ("cluster.roles=mqtt",), "c": ("cluster.roles=cells",)}
    with Cluster(tmp_path, postgres, "a", "b", "c", own=roles) as cluster:
        assert sorted(cluster["b"].ports) == ["mqtt", "ws"]
        assert sorted(cluster["a"].ports) == ["kafka"]
        brokers = cluster.brokers
        cluster.brokers = {"b": brokers["b"]}
        publisher = MqttPublisher(cluster, "mqtt")
        publisher.start()
        publisher.wait_acked(20)
        cluster.brokers = brokers
        cluster["a"].kill()
        assert cluster.wait_owner(other_than="a") == "c"
        publisher.wait_acked(20)
        publisher.stop()
        producer = Producer({"bootstrap.servers": f"127.0.0.1:{cluster['c'].ports['kafka']}", "acks": "all"})
        producer.produce("plain", b"1")
        assert producer.flush(30) == 0
        stored = [value for _, value in read_topic(cluster["c"].ports["kafka"], "plant.line")]
        assert publisher.ledger.judge(stored).problems(repeats_allowed=True) == {}
