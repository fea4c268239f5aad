"""Java's kafka-clients 3.9 and 4.3, and Kafka's own command-line tools. Skipped where Maven Central cannot be reached."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest

from mainstem.testing import Broker
from tests.protocol.kafka.clients import create_topic, read_all, send, unique
from tests.protocol.kafka.java_clients import BROKER_4, CLIENTS_3, CLIENTS_4, Unavailable, classpath, run_java
from tests.protocol.kafka.raw import RawClient, batch_of
from tests.protocol.kafka.share_member import configure
from tests.protocol.kafka.test_views import stretch

SCENARIO = str(Path(__file__).parent / "java" / "Scenario.java")
TOPIC_ID_SCENARIO = str(Path(__file__).parent / "java" / "TopicIdScenario.java")
SHARE_SCENARIO = str(Path(__file__).parent / "java" / "ShareScenario.java")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(params=[CLIENTS_3, CLIENTS_4], ids=["3.9", "4.3"])
def clients(request: pytest.FixtureRequest) -> tuple[str, ...]:
    coordinates: tuple[str, ...] = request.param
    available(coordinates)
    return coordinates


def available(coordinates: tuple[str, ...]) -> None:
    try:
        classpath(*coordinates)
    except Unavailable as reason:
        pytest.skip(str(reason))


def scenario(clients: tuple[str, ...], broker: Broker, *arguments: str) -> None:
    done = run_java(clients, SCENARIO, broker.bootstrap_servers, *arguments)
    assert done.stdout.strip().endswith("OK"), done.stdout + done.stderr


def test_records_with_every_compression(broker: Broker, clients: tuple[str, ...]) -> None:
    scenario(clients, broker, "records", create_topic(broker, unique("java")))


def test_transactions(broker: Broker, clients: tuple[str, ...]) -> None:
    scenario(clients, broker, "transactions", create_topic(broker, unique("java-txn")))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups(broker: Broker, clients: tuple[str, ...], protocol: str) -> None:
    scenario(clients, broker, "group", create_topic(broker, unique("java-group"), 4), protocol)


def test_administration(broker: Broker, clients: tuple[str, ...]) -> None:
    scenario(clients, broker, "admin", unique("java-admin"))


@pytest.fixture
def device(broker: Broker) -> Iterator[mqtt.Client]:
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.connect(broker.host, broker.mqtt_port)
    client.loop_start()
    yield client
    client.disconnect()
    client.loop_stop()


def test_a_view_with_stretches_without_a_match(broker: Broker, clients: tuple[str, ...], device: mqtt.Client) -> None:
    view, _ = stretch(broker, device)
    scenario(clients, broker, "view", view, "250")


@pytest.mark.parametrize("mode", ["batch_optimized", "record_limit"])
def test_javas_share_consumer(broker: Broker, mode: str) -> None:
    """In two batches of ten; at most three at once only where a limit of records is asked for."""
    available(CLIENTS_4)
    topic, group = create_topic(broker, unique("java-share"), 2), unique("sg")
    configure(broker, group, share_auto_offset_reset="earliest")
    with RawClient(broker) as raw:
        for partition in range(2):
            values = [b"%d" % n for n in range(partition, 20, 2)]
            raw.produce(topic, batch_of(values), partition=partition)
    done = run_java(CLIENTS_4, SHARE_SCENARIO, broker.bootstrap_servers, topic, group, mode, "3")
    assert done.stdout.strip().endswith("OK"), done.stdout + done.stderr


@pytest.mark.parametrize("what", ["described", "pattern"])
def test_java_4_names_topics_by_their_ids(broker: Broker, what: str) -> None:
    topic_ids(broker, what, create_topic(broker, unique("java-id"), 3))


def test_java_4_writes_to_a_topic_that_nobody_made(broker: Broker) -> None:
    topic_ids(broker, "missing", unique("java-missing"))


def test_java_4_writes_to_a_topic_of_devices_while_it_reads_it(broker: Broker, device: mqtt.Client) -> None:
    topic = unique("java-shared")
    device.publish(topic, b"from a device", qos=1).wait_for_publish(10)
    topic_ids(broker, "shared", topic)


def topic_ids(broker: Broker, *arguments: str) -> None:
    available(CLIENTS_4)
    done = run_java(CLIENTS_4, TOPIC_ID_SCENARIO, broker.bootstrap_servers, *arguments)
    assert done.stdout.strip().endswith("OK"), done.stdout + done.stderr


def tool(broker: Broker, name: str, *arguments: str) -> str:
    available(BROKER_4)
    done = run_java(BROKER_4, name, "--bootstrap-server", broker.bootstrap_servers, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_kafkas_own_tools(broker: Broker) -> None:
    topic, group = unique("tools"), unique("g")
    tools = "org.apache.kafka.tools"
    tool(broker, f"{tools}.TopicCommand", "--create", "--topic", topic, "--partitions", "2")
    assert topic in tool(broker, f"{tools}.TopicCommand", "--list")
    assert "PartitionCount: 2" in tool(broker, f"{tools}.TopicCommand", "--describe", "--topic", topic)
    config = ("--entity-type", "topics", "--entity-name", topic)
    tool(broker, "kafka.admin.ConfigCommand", "--alter", *config, "--add-config", "retention.ms=12345")
    assert "retention.ms=12345" in tool(broker, "kafka.admin.ConfigCommand", "--describe", *config)
    send(broker, topic, [b"a", b"b", b"c"], partition=0)
    assert f"{topic}:0:3" in tool(broker, f"{tools}.GetOffsetShell", "--topic", topic)
    consume = ("--topic", topic, "--group", group, "--from-beginning", "--max-messages", "3", "--timeout-ms", "20000")
    out = tool(broker, f"{tools}.consumer.ConsoleConsumer", *consume)
    assert out.split() == ["a", "b", "c"]
    groups = f"{tools}.consumer.group.ConsumerGroupCommand"
    described = tool(broker, groups, "--describe", "--group", group)
    assert topic in described
    reset = ("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute")
    assert topic in tool(broker, groups, *reset)
    assert group in tool(broker, groups, "--list")
    tool(broker, groups, "--delete", "--group", group)
    tool(broker, f"{tools}.TopicCommand", "--delete", "--topic", topic)


def test_the_producer_performance_tool_makes_its_topic(broker: Broker) -> None:
    topic = unique("perf")
    available(BROKER_4)
    arguments = ("--topic", topic, "--num-records", "2000", "--record-size", "100", "--throughput", "-1")
    properties = ("--producer-props", f"bootstrap.servers={broker.bootstrap_servers}")
    done = run_java(BROKER_4, "org.apache.kafka.tools.ProducerPerformance", *arguments, *properties)
    assert "2000 records sent" in done.stdout, done.stderr
    assert len(read_all(broker, topic, 2_000)) == 2_000


def test_the_verifiable_producer_makes_its_topic(broker: Broker) -> None:
    available(BROKER_4)
    topic = unique("verifiable")
    arguments = ("--bootstrap-server", broker.bootstrap_servers, "--topic", topic, "--max-messages", "100")
    done = run_java(BROKER_4, "org.apache.kafka.tools.VerifiableProducer", *arguments, timeout_s=60)
    assert '"acked":100' in done.stdout, done.stdout[-2000:] + done.stderr
    assert len(read_all(broker, topic, 100)) == 100
