"""The testing kit itself: three ways to have a broker."""

from __future__ import annotations

import httpx

from mainstem.testing import Broker, BrokerProcess


def is_ready(url: str) -> bool:
    return httpx.get(f"{url}/readyz").status_code == 200


def test_the_fixture_is_a_ready_broker(mainstem: Broker) -> None:
    assert set(mainstem.ports) == {"mqtt", "ws", "kafka", "amqp", "nats", "http"}
    assert is_ready(mainstem.http_url)


async def test_a_broker_runs_on_the_tests_own_loop() -> None:
    async with Broker("topics.durability=os") as broker, httpx.AsyncClient() as client:
        assert (await client.get(f"{broker.http_url}/readyz")).status_code == 200
        assert broker.app is not None
        assert broker.app.config.topics.durability == "os"


def test_a_broker_process_is_the_same_again_after_a_kill(broker_process: BrokerProcess) -> None:
    assert is_ready(broker_process.http_url)
    ports = broker_process.ports
    broker_process.kill()
    assert not broker_process.running
    broker_process.start()
    assert broker_process.ports == ports
    assert is_ready(broker_process.http_url)


def test_a_broker_process_stops_cleanly(broker_process: BrokerProcess) -> None:
    assert broker_process.stop() == 0
    assert "stopped cleanly" in broker_process.log()
