"""Quotas as real clients meet them: delayed and refused in their protocol's own words, and nobody beside them."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import paho.mqtt.client as paho
import pika
import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, ProbableAccessDeniedError

from mainstem.protocols.kafka import messages as wire
from mainstem.testing import Broker
from tests.cli.commands import run, said
from tests.protocol.mqtt.raw import Raw, connect_packet, publish_packet
from tests.protocol.nats.raw import Raw as NatsRaw
from tests.security.attempts import Client
from tests.users import ROOT

ANN, BOB = ("ann", "pass word"), ("bob", "pass word")  # of the namespace with quotas, and of another
EVERYTHING = ["publish", "consume", "create", "configure", "delete", "describe"]
QUOTA_EXCEEDED = 0x97
DEADLINE_S = 90


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as one, httpx.Client(base_url=one.http_url, timeout=30) as http:
        http.post("/v1/users", json={"name": ROOT[0], "password": ROOT[1], "admin": True}).raise_for_status()
        http.auth = httpx.BasicAuth(*ROOT)
        for (name, password), namespace in ((ANN, "left"), (BOB, "right")):
            http.put(f"/v1/namespaces/{namespace}").raise_for_status()
            user = {"name": name, "password": password, "namespace": namespace}
            http.post("/v1/users", json=user).raise_for_status()
            http.post(f"/v1/users/{name}/rules", json={"actions": EVERYTHING, "filter": "#"}).raise_for_status()
        yield one


@pytest.fixture
def root(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.http_url, timeout=30, auth=ROOT) as http:
        yield http
        http.put("/v1/namespaces/left", json={}).raise_for_status()
        nothing = dict.fromkeys(("publish_bytes_per_s", "consume_bytes_per_s", "connections_max", "over_rate"))
        http.patch(f"/v1/users/{ANN[0]}", json={"quota": nothing}).raise_for_status()


def give(root: httpx.Client, **quota: Any) -> None:
    root.put("/v1/namespaces/left", json={"quota": quota}).raise_for_status()


def counted(root: httpx.Client, name: str) -> float:
    text = root.get("/metrics/per-object").text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + "{"))


def amqp(broker: Broker, user: tuple[str, str], vhost: str) -> pika.BlockingConnection:
    login = pika.PlainCredentials(*user)
    where = pika.ConnectionParameters("127.0.0.1", broker.amqp_port, vhost, credentials=login)
    return pika.BlockingConnection(where)


def kafka(broker: Broker, user: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user[0],
        "sasl.password": user[1],
        **more,
    }


def nats(broker: Broker, user: tuple[str, str]) -> tuple[socket.socket, bytes]:
    """The socket, and what came until it answered or ended."""
    client = socket.create_connection(("127.0.0.1", broker.nats_port), timeout=DEADLINE_S)
    client.sendall(b'CONNECT {"user":"%s","pass":"%s"}\r\nPING\r\n' % (user[0].encode(), user[1].encode()))
    told = b""
    while b"PONG" not in told:
        data = client.recv(4096)
        if not data:
            break
        told += data
    return client, told


def test_paho_is_delayed_loses_nothing_and_its_neighbour_is_not(broker: Broker, root: httpx.Client) -> None:
    give(root, publish_messages_per_s=50)
    acked = threading.Semaphore(0)

    def client_of(user: tuple[str, str]) -> paho.Client:
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        client.username_pw_set(*user)
        client.on_publish = lambda *_: acked.release()
        client.connect("127.0.0.1", broker.mqtt_port)
        client.loop_start()
        return client

    ann, bob = client_of(ANN), client_of(BOB)
    began = time.monotonic()
    for _ in range(200):
        ann.publish("a/b", b"x", qos=1)
    for _ in range(200):
        assert acked.acquire(timeout=DEADLINE_S)
    assert time.monotonic() - began > 1.5  # 200 at 50 a second, one second's worth of them at once
    assert counted(root, "mainstem_quota_delays_total") > 0
    assert root.get("/v1/namespaces/left").json()["use"]["publish_messages_per_s"]["limit"] == 50
    before = counted(root, "mainstem_quota_delays_total")
    for _ in range(200):
        bob.publish("a/b", b"x", qos=1)
    for _ in range(200):
        assert acked.acquire(timeout=DEADLINE_S)
    assert counted(root, "mainstem_quota_delays_total") == before
    for client in (ann, bob):
        client.disconnect()
        client.loop_stop()


def test_librdkafka_calls_its_throttle_callback(broker: Broker, root: httpx.Client) -> None:
    root.patch(f"/v1/users/{ANN[0]}", json={"quota": {"publish_bytes_per_s": 100_000}}).raise_for_status()
    told: list[int] = []
    producer = Producer(
        kafka(broker, ANN, throttle_cb=lambda event: told.append(event.throttle_time), **{"batch.size": 50_000})
    )
    for _ in range(30):
        producer.produce("stream", bytes(10_000))
    assert producer.flush(DEADLINE_S) == 0
    deadline = time.monotonic() + DEADLINE_S
    while not any(told) and time.monotonic() < deadline:
        producer.poll(0.1)
    assert any(told)


def test_a_kafka_consumer_over_its_quota_is_throttled_and_gets_everything(broker: Broker, root: httpx.Client) -> None:
    producer = Producer(kafka(broker, ANN))
    for _ in range(20):
        producer.produce("large", bytes(20_000))
    assert producer.flush(DEADLINE_S) == 0
    give(root, consume_bytes_per_s=100_000)
    told: list[int] = []
    settings = {"group.id": "g", "auto.offset.reset": "earliest", "fetch.message.max.bytes": 50_000}
    consumer = Consumer(kafka(broker, ANN, throttle_cb=lambda event: told.append(event.throttle_time), **settings))
    consumer.subscribe(["large"])
    found, deadline = 0, time.monotonic() + DEADLINE_S
    while found < 20 and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        found += message is not None and message.error() is None
    assert found == 20
    assert counted(root, "mainstem_quota_delays_total") > 0
    consumer.close()


def test_pika_is_told_that_it_is_blocked_and_unblocked(broker: Broker, root: httpx.Client) -> None:
    give(root, publish_bytes_per_s=50_000)
    connection = amqp(broker, ANN, "left")
    told: list[str] = []
    connection.add_on_connection_blocked_callback(lambda _, frame: told.append(frame.method.reason))
    connection.add_on_connection_unblocked_callback(lambda *_: told.append("unblocked"))
    channel = connection.channel()
    channel.basic_publish("amq.topic", "a.b", bytes(100_000))
    deadline = time.monotonic() + DEADLINE_S
    while "unblocked" not in told and time.monotonic() < deadline:
        connection.process_data_events(0.1)
    assert told[:2] == ["over its quota of publishes", "unblocked"]
    connection.close()


def test_an_mqtt_subscriber_over_its_quota_gets_everything_later(broker: Broker, root: httpx.Client) -> None:
    give(root, consume_bytes_per_s=50_000)
    with Raw.connected(broker.mqtt_port, version=5, username=ANN[0], password=ANN[1].encode()) as client:
        client.subscribe(("slow/#", 1))
        with Raw.connected(broker.mqtt_port, version=5, username=ANN[0], password=ANN[1].encode()) as other:
            for number in range(10):
                other.publish("slow/a", b"%d" % number + bytes(20_000), qos=1)
        assert [int(client.message().payload[:1]) for _ in range(10)] == list(range(10))
    assert counted(root, "mainstem_quota_delays_total") > 0


def test_a_nats_publisher_over_its_quota_is_read_later_and_loses_nothing(broker: Broker, root: httpx.Client) -> None:
    give(root, publish_bytes_per_s=50_000)
    before = counted(root, "mainstem_quota_delays_total")
    with Raw.connected(broker.mqtt_port, version=5, username=ANN[0], password=ANN[1].encode()) as reader:
        reader.subscribe(("slow/nats", 0))
        client, _ = nats(broker, ANN)
        with client:
            for number in range(8):
                client.sendall(b"PUB slow.nats 20000\r\n%d" % number + bytes(19_999) + b"\r\n")
            assert [int(reader.message().payload[:1]) for _ in range(8)] == list(range(8))
    assert counted(root, "mainstem_quota_delays_total") > before


def test_a_websocket_client_is_counted_in_both_directions_and_gets_everything(
    broker: Broker, root: httpx.Client
) -> None:
    give(root, consume_bytes_per_s=50_000, publish_bytes_per_s=50_000)
    found: list[int] = []
    done, subscribed = threading.Event(), threading.Event()

    def on_message(_client: Any, _data: Any, message: Any) -> None:
        found.append(int(message.payload[:1]))
        if len(found) == 8:
            done.set()

    client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5, transport="websockets")
    client.username_pw_set(*ANN)
    client.on_message = on_message
    client.on_subscribe = lambda *_: subscribed.set()
    client.on_connect = lambda *_: client.subscribe("ws/#", 1)
    client.connect("127.0.0.1", broker.ws_port)
    client.loop_start()
    assert subscribed.wait(DEADLINE_S)
    before = counted(root, "mainstem_quota_delays_total")
    for number in range(8):
        client.publish("ws/a", b"%d" % number + bytes(15_000), qos=1)
    assert done.wait(DEADLINE_S)
    assert found == list(range(8))
    assert counted(root, "mainstem_quota_delays_total") > before
    client.disconnect()
    client.loop_stop()


def test_a_publish_beyond_the_bytes_that_may_be_stored_is_refused_in_each_protocols_words(
    broker: Broker, root: httpx.Client
) -> None:
    with Raw.connected(broker.mqtt_port, version=5, username=ANN[0], password=ANN[1].encode()) as client:
        client.publish("full/a", bytes(20_000), qos=1)
        give(root, stored_bytes_max=10_000)
        deadline = time.monotonic() + DEADLINE_S
        while True:
            client.send(publish_packet("full/a", b"x", qos=1, packet_id=7, version=5))
            body = client.packet()[1]
            if len(body) > 2 and body[2] == QUOTA_EXCEEDED:
                break
            assert time.monotonic() < deadline
            time.sleep(0.05)
    connection = amqp(broker, ANN, "left")
    channel = connection.channel()
    channel.confirm_delivery()
    with pytest.raises(ChannelClosedByBroker, match="stored_bytes_max of 10000") as closed:
        channel.basic_publish("amq.topic", "full.a", b"x")
    assert closed.value.reply_code == 406
    connection.close()
    failed: list[Any] = []
    producer = Producer(kafka(broker, ANN, **{"message.timeout.ms": 20_000}))
    producer.produce("stream", b"x", on_delivery=lambda error, _: failed.append(error))
    producer.flush(DEADLINE_S)
    assert [error.code() for error in failed] == [KafkaError.POLICY_VIOLATION]
    client_socket, _ = nats(broker, ANN)
    client_socket.sendall(b"PUB full.a 1\r\nx\r\n")
    assert b"-ERR 'Account Quota Exceeded'" in client_socket.recv(4096)
    client_socket.close()
    with Raw.connected(broker.mqtt_port, version=5, username=BOB[0], password=BOB[1].encode()) as neighbour:
        neighbour.publish("full/a", b"x", qos=1)


def test_jetstream_tells_the_quota_and_reserves_no_more_than_it(broker: Broker, root: httpx.Client) -> None:
    give(root, stored_bytes_max=10_000_000)
    client = NatsRaw(broker.nats_port, user=ANN[0], **{"pass": ANN[1]})
    client.send(b"SUB _INBOX.a 1\r\n")

    def asked(call: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        text = json.dumps(body).encode() if body else b""
        client.send(b"PUB $JS.API.%b _INBOX.a %d\r\n%b\r\n" % (call.encode(), len(text), text))
        size = int(next(line for line in iter(client.line, b"") if line.startswith(b"MSG")).rpartition(b" ")[2])
        answer: dict[str, Any] = json.loads(client.exactly(size + 2))
        return answer

    def create(name: str, word: str = "CREATE", **config: Any) -> int:
        answer = asked(f"STREAM.{word}.{name}", {"name": name, "subjects": [f"{name}.q"], **config})
        return int(answer.get("error", {}).get("err_code", 0))

    assert create("most", max_bytes=6_000_000) == 0
    assert create("more", max_bytes=6_000_000) == 10047
    assert create("more", max_bytes=6_000_000, storage="memory") == 10028
    assert create("more", max_bytes=4_000_000, storage="memory") == 0
    assert create("most", "UPDATE", max_bytes=6_000_001) == 10047
    assert create("free") == 0  # what it holds counts all the same
    found = asked("INFO")
    assert (found["limits"]["max_storage"], found["limits"]["max_memory"]) == (10_000_000, 10_000_000)
    assert (found["reserved_storage"], found["reserved_memory"]) == (6_000_000, 4_000_000)
    for name in ("most", "more", "free"):
        asked(f"STREAM.DELETE.{name}")
    client.socket.close()


def test_one_connection_too_many_is_refused_in_each_protocols_words(broker: Broker, root: httpx.Client) -> None:
    first = amqp(broker, ANN, "left")
    root.patch(f"/v1/users/{ANN[0]}", json={"quota": {"connections_max": 1}}).raise_for_status()
    client = Raw(broker.mqtt_port, version=5)
    client.send(connect_packet("one-more", version=5, username=ANN[0], password=ANN[1].encode()))
    kind, body = client.packet()
    assert (kind >> 4, body[1]) == (2, QUOTA_EXCEEDED)
    with pytest.raises((ConnectionClosedByBroker, ProbableAccessDeniedError)) as closed:
        amqp(broker, ANN, "left")
    assert "connection limit is reached" in str(closed.value) or "530" in repr(closed.value)
    client_socket, told = nats(broker, ANN)
    assert b"-ERR 'maximum account active connections exceeded'" in told
    client_socket.close()
    failed: list[str] = []
    producer = Producer(kafka(broker, ANN, error_cb=lambda error: failed.append(str(error))))
    deadline = time.monotonic() + DEADLINE_S
    while not any("connections_max" in one for one in failed) and time.monotonic() < deadline:
        producer.poll(0.2)
    assert any("has used up its connections_max of 1" in one for one in failed)
    first.close()
    del producer
    deadline = time.monotonic() + DEADLINE_S
    while root.get(f"/v1/users/{ANN[0]}").json()["use"]["connections_max"]["used"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    amqp(broker, ANN, "left").close()


def test_a_queue_too_many_is_refused_as_rabbitmq_does(broker: Broker, root: httpx.Client) -> None:
    give(root, queues_max=1)
    connection = amqp(broker, ANN, "left")
    connection.channel().queue_declare("first")
    with pytest.raises(ChannelClosedByBroker) as closed:
        connection.channel().queue_declare("second")
    assert closed.value.reply_code == 406 and "queues_max of 1" in closed.value.reply_text
    connection.close()


def test_a_hard_rate_of_a_user_ends_its_connection(broker: Broker, root: httpx.Client) -> None:
    quota = {"publish_bytes_per_s": 10_000, "over_rate": "refuse"}
    root.patch(f"/v1/users/{ANN[0]}", json={"quota": quota}).raise_for_status()
    with Raw.connected(broker.mqtt_port, version=5, username=ANN[0], password=ANN[1].encode()) as client:
        client.send(publish_packet("a", bytes(50_000), qos=0, version=5))
        kind, body = client.packet()
        assert (kind >> 4, body[0]) == (14, QUOTA_EXCEEDED)


def test_kafkas_quota_calls_are_those_of_users(broker: Broker, root: httpx.Client) -> None:
    with Client(broker, ROOT) as client:
        entity = [wire.AlterClientQuotasRequest.EntityData(entity_type="user", entity_name=ANN[0])]
        op = wire.AlterClientQuotasRequest.OpData(key="producer_byte_rate", value=12345.0, remove=False)
        entry = wire.AlterClientQuotasRequest.EntryData(entity=entity, ops=[op])
        answer = client.ask("AlterClientQuotas", 1, wire.AlterClientQuotasRequest(entries=[entry]))
        assert [one.error_code for one in answer.entries] == [0]
        assert root.get(f"/v1/users/{ANN[0]}").json()["quota"] == {"publish_bytes_per_s": 12345}
        asked = wire.DescribeClientQuotasRequest.ComponentData(entity_type="user", match_type=0, match=ANN[0])
        shown = client.ask("DescribeClientQuotas", 1, wire.DescribeClientQuotasRequest(components=[asked], strict=True))
        assert [(value.key, value.value) for value in shown.entries[0].values] == [("producer_byte_rate", 12345.0)]
        for kind, name, key in (
            ("client-id", "x", "producer_byte_rate"),
            ("user", None, "producer_byte_rate"),
            ("user", ANN[0], "request_percentage"),
            ("user", "nobody", "producer_byte_rate"),
        ):
            entity = [wire.AlterClientQuotasRequest.EntityData(entity_type=kind, entity_name=name)]
            op = wire.AlterClientQuotasRequest.OpData(key=key, value=1.0, remove=False)
            entry = wire.AlterClientQuotasRequest.EntryData(entity=entity, ops=[op])
            assert (
                client.ask("AlterClientQuotas", 1, wire.AlterClientQuotasRequest(entries=[entry])).entries[0].error_code
                != 0
            )


def test_the_command_line_sets_and_shows_quotas(
    broker: Broker, root: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSTEM_URL", broker.http_url.replace("//", f"//{ROOT[0]}:{ROOT[1]}@"))
    said("namespace", "alter", "left", "--quota", "publish_bytes_per_s=10MiB", "--quota", "topics_max=1000")
    said("user", "alter", ANN[0], "--quota", "connections_max=10")
    assert root.get("/v1/namespaces/left").json()["quota"] == {"publish_bytes_per_s": 10 << 20, "topics_max": 1000}
    assert "topics_max" in said("namespace", "describe", "left")
    assert "connections_max" in said("user", "describe", ANN[0])
    said("namespace", "alter", "left", "--quota", "topics_max=none")
    assert root.get("/v1/namespaces/left").json()["quota"] == {"publish_bytes_per_s": 10 << 20}


def test_the_command_line_says_which_rule_decides(
    broker: Broker, root: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSTEM_URL", broker.http_url.replace("//", f"//{ROOT[0]}:{ROOT[1]}@"))
    said("user", "allow", ANN[0], "consume", "why/#")
    said("user", "deny", ANN[0], "consume", "why/secret/#")
    assert "why/#" in said("user", "may", ANN[0], "consume", "why/open", "--why")
    refused = run("user", "may", ANN[0], "consume", "why/secret/1", "--why")
    assert refused.returncode == 1 and "why/secret/#" in refused.stdout + refused.stderr
