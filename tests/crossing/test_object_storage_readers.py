"""All that is sealed lies in a store whose GETs take a second: every kind of reader gets it, and the loop goes on."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition

from mainstem.storage.tier.engine import TieredEngine
from mainstem.storage.tier.store import ObjectStore
from mainstem.testing import Broker
from tests.crossing.test_reading_from_far_away import (
    DEADLINE_S,
    Heartbeat,
    publish_everything,
    read_amqp,
    read_http,
    read_kafka,
    read_mqtt,
    read_stream,
)

GET_S = 1.0


def settings_of(folder: Path) -> tuple[str, ...]:
    return f"tier.store=file://{folder / 'bucket'}", "topics.tier=s3", "topics.local_retention_bytes=0"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    (tmp_path / "bucket").mkdir()
    with Broker(*settings_of(tmp_path), engine="segment", data=tmp_path / "data") as broker:
        yield broker


def tiered(broker: Broker) -> list[TieredEngine]:
    assert broker.app is not None
    engines = [log.engine for log in broker.app.broker.logs.by_id.values()]
    return [engine for engine in engines if isinstance(engine, TieredEngine)]


def move_all_to_the_store(broker: Broker, logs: int = 1) -> None:
    """Of at least so many logs. What a start replays stays here, so the state's snapshot comes first."""
    assert broker.app is not None
    assert broker.loop is not None
    core = broker.app.broker

    async def seal() -> None:
        await core.snapshot()
        for log in core.logs.by_id.values():
            log.engine.roll()
            await asyncio.to_thread(log.engine.sync)
        await core.snapshot()

    asyncio.run_coroutine_threadsafe(seal(), broker.loop).result(DEADLINE_S)
    deadline = time.monotonic() + DEADLINE_S
    while len(tiered(broker)) < logs or any(
        segment.sealed for engine in tiered(broker) for segment in engine.local.segments
    ):
        assert time.monotonic() < deadline, "sealed segments are still here"
        time.sleep(0.1)


def find_by_time(broker: Broker) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": uuid.uuid4().hex})
    found = consumer.offsets_for_times([TopicPartition("old-kafka", 0, 1_000)], timeout=DEADLINE_S)
    consumer.close()
    return int(found[0].offset)


def read_view(broker: Broker) -> list[bytes]:
    made = httpx.post(f"{broker.http_url}/v1/views", json={"name": "olds", "filter": "old/#"}, timeout=DEADLINE_S)
    made.raise_for_status()
    return read_kafka(broker, "olds")


def test_every_kind_of_reader_gets_what_lies_in_a_slow_store_and_the_loop_goes_on(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = publish_everything(broker)
    move_all_to_the_store(broker)
    get, gets = ObjectStore.get_view, list[str]()

    def slow(store: ObjectStore, key: str, start: int, length: int) -> memoryview:
        gets.append(key)
        time.sleep(GET_S)
        return get(store, key, start, length)

    monkeypatch.setattr(ObjectStore, "get_view", slow)
    heartbeat = Heartbeat(broker)
    with ThreadPoolExecutor(7) as threads:
        reading = {
            "Kafka": threads.submit(read_kafka, broker, "old-kafka"),
            "MQTT, an absent session": threads.submit(read_mqtt, broker, "absent"),
            "MQTT, a stream": threads.submit(read_stream, broker, "old/mqtt"),
            "AMQP": threads.submit(read_amqp, broker, "old-queue"),
            "HTTP": threads.submit(read_http, broker, "old/mqtt"),
            "a view": threads.submit(read_view, broker),
        }
        by_time = threads.submit(find_by_time, broker)
        found = {who: future.result(2 * DEADLINE_S) for who, future in reading.items()}
        assert by_time.result(DEADLINE_S) == 0
    assert found == dict.fromkeys(reading, values)
    assert gets, "nothing was read from the store"
    assert heartbeat.stop() < GET_S, "the loop waited for a GET"


def test_maintenance_goes_on_though_an_absent_session_stands_at_what_lies_in_the_store(tmp_path: Path) -> None:
    """It asks how much the session holds back, and waits for no GET. Pages show it."""
    (tmp_path / "bucket").mkdir()
    with Broker(*settings_of(tmp_path), engine="segment", data=tmp_path / "data") as broker:
        values = publish_everything(broker)
        move_all_to_the_store(broker)
    with Broker(*settings_of(tmp_path), engine="segment", data=tmp_path / "data") as broker:
        assert broker.app is not None
        assert broker.loop is not None
        core = broker.app.broker
        tier = core.logs.tier
        assert tier is not None
        for chunk in list(tier.cache._sizes):
            tier.cache._drop(chunk)
        asyncio.run_coroutine_threadsafe(core.maintenance.round(), broker.loop).result(DEADLINE_S)
        for page in ("/", "/v1/sessions", "/v1/sessions/absent", "/metrics"):
            assert httpx.get(f"{broker.http_url}{page}", timeout=DEADLINE_S).status_code == 200, page
        lag = httpx.get(f"{broker.http_url}/v1/sessions/absent", timeout=DEADLINE_S).json()["lag"]
        assert lag >= len(values)
        assert read_mqtt(broker, "absent") == values
