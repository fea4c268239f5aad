"""Topics of the engine `object` rest in the store only: every protocol publishes and reads them, through every fault."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Producer

from mainstem.broker.upkeep.tiering import STALLED_S
from mainstem.storage.object.engine import ObjectEngine
from mainstem.storage.tier.store import ObjectStore
from mainstem.testing import Broker
from mainstem.testing.process import BrokerProcess
from tests.crossing import test_reading_from_far_away as far
from tests.crossing.test_faulty_object_storage import metric, reason
from tests.crossing.test_object_storage import VALUES, eventually, read_http, read_kafka, read_stream
from tests.crossing.test_object_storage_readers import find_by_time, read_view
from tests.protocol.mqtt.raw import Raw
from tests.s3_faults import FaultProxy, fault_proxy
from tests.s3_server import S3Server, s3_server

GET_S = 1.0


def test_every_protocol_reads_what_lies_in_a_slow_store_only_and_the_loop_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bucket").mkdir()
    settings = (f"tier.store=file://{tmp_path / 'bucket'}", "tier.bundle_ms=20ms")
    with Broker(*settings, engine="object", data=tmp_path / "data") as broker:
        values = far.publish_everything(broker)
    with Broker(*settings, engine="object", data=tmp_path / "data") as broker:
        assert broker.app is not None
        engines = [log.engine for log in broker.app.broker.logs.by_id.values()]
        assert sum(isinstance(engine, ObjectEngine) for engine in engines) >= 2
        tier = broker.app.broker.logs.tier
        assert tier is not None
        for chunk in list(tier.cache._sizes):  # what the start has read
            tier.cache._drop(chunk)
        get, gets = ObjectStore.get_view, list[str]()

        def slow(store: ObjectStore, key: str, start: int, length: int) -> memoryview:
            gets.append(key)
            time.sleep(GET_S)
            return get(store, key, start, length)

        monkeypatch.setattr(ObjectStore, "get_view", slow)
        heartbeat = far.Heartbeat(broker)
        with ThreadPoolExecutor(7) as threads:
            reading = {
                "Kafka": threads.submit(far.read_kafka, broker, "old-kafka"),
                "MQTT, an absent session": threads.submit(far.read_mqtt, broker, "absent"),
                "MQTT, a stream": threads.submit(far.read_stream, broker, "old/mqtt"),
                "AMQP": threads.submit(far.read_amqp, broker, "old-queue"),
                "HTTP": threads.submit(far.read_http, broker, "old/mqtt"),
                "a view": threads.submit(read_view, broker),
            }
            by_time = threads.submit(find_by_time, broker)
            found = {who: future.result(2 * far.DEADLINE_S) for who, future in reading.items()}
            assert by_time.result(far.DEADLINE_S) == 0
        assert found == dict.fromkeys(reading, values)
        assert gets, "nothing was read from the store"
        assert heartbeat.stop() < GET_S, "the loop waited for a GET"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("store")) as server:
        yield server


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def broker(server: S3Server, proxy: FaultProxy, tmp_path: Path) -> Iterator[BrokerProcess]:
    store = (f"tier.store=s3://bucket/{uuid.uuid4().hex}", f"tier.endpoint={proxy.endpoint}", "tier.timeout_ms=5s")
    policy = ("policies.o/#.engine=object", "policies.o/a.layout=dedicated")
    with BrokerProcess(tmp_path / "data", *store, *policy, environment=server.environment) as broker:
        yield broker


def test_a_store_that_loses_answers_cuts_them_off_and_throttles_loses_nothing_acked(
    broker: BrokerProcess, proxy: FaultProxy
) -> None:
    proxy.faults["PUT"] = "lost"
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.num.messages": 50})
    for value in VALUES:
        producer.produce("o.a", value)
    producer.poll(0)
    eventually(lambda: metric(broker, "mainstem_tier_fault") == 1, "the fault is told")
    proxy.faults["PUT"] = "503"
    time.sleep(0.5)  # whatever happens to be under way meets it
    proxy.faults.clear()
    assert producer.flush(60) == 0
    proxy.faults["GET"] = "cut"  # what is stored cannot be looked at, and so is not acked
    for value in VALUES:
        producer.produce("o.a", value)
    assert producer.flush(1) > 0
    proxy.faults.clear()
    assert producer.flush(60) == 0
    broker.kill()
    broker.start()
    found = read_kafka(broker, "o.a", 2 * len(VALUES))
    assert found == VALUES + VALUES
    assert read_stream(broker, "o/a") == VALUES
    assert read_http(broker, "o/a") == VALUES


@pytest.mark.slow
def test_while_the_store_takes_nothing_its_topics_refuse_others_do_not_and_a_stop_does_not_wait(
    broker: BrokerProcess, proxy: FaultProxy
) -> None:
    with Raw.connected(broker.mqtt_port, version=5) as client, Raw.connected(broker.mqtt_port, version=5) as other:
        client.socket.settimeout(60)
        assert reason(client, "o/shared", b"taken") < 0x80
        proxy.faults["*"] = "503"
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "message.timeout.ms": 300_000})
        producer.produce("o.shared", b"waits")
        producer.poll(0)
        eventually(lambda: metric(broker, "mainstem_tier_unstored_seconds") > STALLED_S + 2, "what came waits")
        assert reason(client, "o/shared", b"refused") >= 0x80, "told in MQTT's words"
        assert reason(other, "elsewhere", b"x") < 0x80, "other topics are not concerned"
        proxy.faults.clear()
        assert producer.flush(60) == 0
        eventually(lambda: reason(client, "o/shared", b"again") < 0x80, "taken again by itself")
        proxy.faults["PUT"] = "delay:60"
        producer.produce("o.shared", b"given up")
        producer.flush(1)
    began = time.monotonic()
    assert broker.stop() == 0
    assert time.monotonic() - began < 30
    proxy.faults.clear()
    broker.start()
    assert b"waits" in read_kafka(broker, "o.shared", 2)
