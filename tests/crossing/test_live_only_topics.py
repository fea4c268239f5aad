"""`store = false`: a topic's messages go to who listens now and are kept nowhere; what needs them kept is refused."""

from __future__ import annotations

import contextlib
import threading
import urllib.error
import uuid
from collections.abc import Iterator

import nats
import nats.js.errors
import pika
import pika.exceptions
import pytest
from confluent_kafka import KafkaError, Producer

from mainstem.testing import Broker
from mainstem.testing.process import BrokerProcess
from tests.crossing.commands import eventually, http, mainstem
from tests.protocol.mqtt.raw import Raw as Mqtt
from tests.protocol.mqtt.raw import connect_packet, publish_packet
from tests.protocol.nats.raw import Raw as Nats

WAIT_S = 15.0
IMPLEMENTATION_SPECIFIC = 0x83
TRANSIENT, PERSISTENT = (pika.BasicProperties(delivery_mode=mode) for mode in (1, 2))


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"live/{uuid.uuid4().hex[:8]}"
    mainstem(broker, "topic", "create", name, "--store", "false")
    return name


@contextlib.contextmanager
def channel(broker: Broker) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port))
    try:
        yield connection.channel()
    finally:
        if connection.is_open:
            connection.close()


def subject(topic: str) -> bytes:
    return topic.replace("/", ".").encode()


def publish_by_each(broker: Broker, topic: str) -> list[bytes]:
    with Nats(broker.nats_port) as one:
        one.send(b"PUB %b 4\r\nnats\r\n" % subject(topic))
        one.synced()
    with Mqtt.connected(broker.mqtt_port) as two:
        two.publish(topic, b"mqtt")
        two.ping()
    with channel(broker) as three:
        three.confirm_delivery()
        three.basic_publish("amq.topic", topic.replace("/", "."), b"amqp", TRANSIENT)
    return [b"nats", b"mqtt", b"amqp"]


def test_who_listens_gets_it_by_each_protocol_and_nothing_is_stored(broker: Broker, topic: str) -> None:
    with (
        Nats(broker.nats_port) as by_nats,
        Nats(broker.nats_port) as first,
        Nats(broker.nats_port) as second,
        Mqtt.connected(broker.mqtt_port) as by_mqtt,
        Mqtt.connected(broker.mqtt_port, version=5) as by_wildcard,
    ):
        by_nats.send(b"SUB %b 1\r\n" % subject(topic))
        by_nats.synced()
        for member in (first, second):
            member.send(b"SUB live.* group 7\r\n")
            member.synced()
        assert by_mqtt.subscribe((topic, 1)) == [1]
        assert by_wildcard.subscribe(("live/#", 2)) == [2]
        said = publish_by_each(broker, topic)
        for ear in (by_mqtt, by_wildcard):
            messages = [ear.message() for _ in said]
            assert [one.payload for one in messages] == said
            assert {one.qos for one in messages} == {0} and {one.topic for one in messages} == {topic}
        heard = [line for line in by_nats.synced() if line in said]
        assert heard == said
        shared = [line for member in (first, second) for line in member.synced() if line in said]
        assert sorted(shared) == sorted(said)
    facts = http(broker, "GET", f"/v1/topics/{topic}")
    assert facts["settings"]["store"] == {"value": False, "source": "topic"}
    assert (facts["records"], facts["end_offset"]) == (0, 0)
    with Mqtt.connected(broker.mqtt_port) as late:
        late.subscribe((topic, 0))
        late.nothing_more()


def test_a_request_finds_its_responder_or_hears_that_there_is_none(broker: Broker, topic: str) -> None:
    with Nats(broker.nats_port) as asking, Nats(broker.nats_port) as answering:
        asking.send(b"SUB _INBOX.me 1\r\nPUB %b _INBOX.me 1\r\n?\r\n" % subject(topic))
        assert b"NATS/1.0 503" in asking.synced()
        answering.send(b"SUB %b 9\r\n" % subject(topic))
        answering.synced()
        asking.send(b"PUB %b _INBOX.me 1\r\n?\r\n" % subject(topic))
        assert not asking.synced()
        assert answering.until(b"?") == [b"MSG %b 9 _INBOX.me 1" % subject(topic)]


@pytest.mark.parametrize(("qos", "retain"), [(1, False), (2, False), (1, True)])
def test_mqtt_that_must_be_kept_is_refused_with_a_reason(broker: Broker, topic: str, qos: int, retain: bool) -> None:
    with Mqtt.connected(broker.mqtt_port, version=5) as one:
        one.send(publish_packet(topic, b"x", qos=qos, retain=retain, version=5, packet_id=9))
        first, body = one.packet()
        assert (first >> 4, body[2]) == (4 if qos == 1 else 5, IMPLEMENTATION_SPECIFIC)
        assert b"live only" in body
        one.ping()
    with Mqtt.connected(broker.mqtt_port) as old:  # 3.1.1 has no words for it
        old.send(publish_packet(topic, b"x", qos=qos, retain=retain, packet_id=9))
        assert old.closed() == b""


def test_retained_at_qos_0_and_wills_are_refused(broker: Broker, topic: str) -> None:
    with Mqtt.connected(broker.mqtt_port, version=5) as one:
        one.send(publish_packet(topic, b"x", retain=True, version=5))
        said = one.closed()
        assert said[0] == 0xE0 and IMPLEMENTATION_SPECIFIC in said[2:4] and b"live only" in said
    with Mqtt(broker.mqtt_port, version=5) as two:
        two.send(connect_packet("w", version=5, will=(topic, b"gone", 1, False)))
        first, body = two.packet()
        assert (first, body[1]) == (0x20, IMPLEMENTATION_SPECIFIC)


@pytest.mark.parametrize("asked", ["$share/g/{}", "$queue/q/{}", "$stream/{}"])
def test_subscriptions_that_read_what_is_stored_are_refused(broker: Broker, topic: str, asked: str) -> None:
    with Mqtt.connected(broker.mqtt_port, version=5) as one:
        assert one.subscribe((asked.format(topic), 1)) == [IMPLEMENTATION_SPECIFIC]


def test_amqp_refuses_persistent_messages_and_bindings(broker: Broker, topic: str) -> None:
    key = topic.replace("/", ".")
    with channel(broker) as one:
        one.confirm_delivery()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="live only") as refused:
            one.basic_publish("amq.topic", key, b"x", PERSISTENT)
    assert refused.value.reply_code == 406
    with channel(broker) as two:
        two.queue_declare("elsewhere")
        two.queue_bind("elsewhere", "amq.topic", "live.#")  # may mean others, too
        publish_by_each(broker, topic)
        assert two.queue_declare("elsewhere", passive=True).method.message_count == 0
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="live only"):
            two.queue_bind("elsewhere", "amq.topic", key)
    with channel(broker) as three:
        three.queue_declare(key)
        three.confirm_delivery()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="live only"):
            three.basic_publish("", key, b"x", TRANSIENT)


def test_kafka_http_spark_and_views_are_refused(broker: Broker, topic: str) -> None:
    told: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{broker.kafka_port}"})
    producer.produce(topic.replace("/", "."), b"x", on_delivery=lambda error, _: told.append(error))
    producer.flush(WAIT_S)
    assert [one.code() for one in told] == [KafkaError.TOPIC_EXCEPTION]
    calls = [
        ("POST", "/v1/messages", {"topic": topic, "value": "x"}),
        ("POST", "/v1/stage/topics", {"topics": [topic]}),
        ("POST", "/v1/views", {"name": f"view-of-{topic.replace('/', '-')}", "filter": topic}),
    ]
    for method, path, body in calls:
        with pytest.raises(urllib.error.HTTPError) as refused:
            http(broker, method, path, body)
        assert refused.value.code == 409 and b"MS-1011" in refused.value.read(), path


async def test_jetstream_keeps_no_subject_of_a_live_only_rule() -> None:
    with Broker("policies.fast/#.store=false") as broker:
        client = await nats.connect(broker.nats_url)
        with pytest.raises(nats.js.errors.APIError, match="live only"):
            await client.jetstream().add_stream(name="s", subjects=["fast.cars"])
        listener = await client.subscribe("fast.*")
        await client.publish("fast.cars", b"zoom")
        assert (await listener.next_msg(WAIT_S)).data == b"zoom"
        assert not http(broker, "GET", "/v1/topics?filter=fast/%23")["items"]
        await client.close()
        with Mqtt.connected(broker.mqtt_port, version=5) as one:  # refused where nothing else can be meant
            assert one.subscribe(("$share/g/fast/+", 1), ("$share/g/#", 1)) == [IMPLEMENTATION_SPECIFIC, 1]


async def test_a_namespace_that_stores_nothing_by_default_is_a_nats_server() -> None:
    """Core is live, streams keep, and the broker's own topics are kept, too."""
    with Broker("topics.store=false") as broker:
        client = await nats.connect(broker.nats_url)
        js = client.jetstream()
        await js.add_stream(name="s", subjects=["kept.>"])
        assert (await js.publish("kept.1", b"a")).seq == 1
        await client.publish("passing", b"b")
        await client.flush()
        assert (await js.get_msg("s", 1)).data == b"a"
        names = [one["name"] for one in http(broker, "GET", "/v1/topics")["items"]]
        assert "passing" not in names and "kept/1" in names
        with Mqtt.connected(broker.mqtt_port, version=5) as one:
            one.send(publish_packet("passing", b"x", qos=1, version=5, packet_id=3))
            assert one.packet()[1][2] == IMPLEMENTATION_SPECIFIC
        await client.close()


def test_a_namespace_has_a_default_of_its_own(broker: Broker) -> None:
    mainstem(broker, "namespace", "add", "shop")
    message = {"topic": "t", "value": "x"}
    assert http(broker, "POST", "/v1/messages?namespace=shop", message)["durable"]
    mainstem(broker, "namespace", "alter", "shop", "--set", "store=false")
    with pytest.raises(urllib.error.HTTPError) as refused:
        http(broker, "POST", "/v1/messages?namespace=shop", message)
    assert refused.value.code == 409 and b"MS-1011" in refused.value.read()
    assert http(broker, "POST", "/v1/messages", message)["durable"]


def test_a_topic_turns_live_only_and_back_and_its_history_stays(tmp_path_factory: pytest.TempPathFactory) -> None:
    with BrokerProcess(tmp_path_factory.mktemp("live") / "data") as broker:
        with Mqtt.connected(broker.mqtt_port) as one:
            one.publish("t/1", b"before", qos=1)
        mainstem(broker, "topic", "alter", "t/1", "--store", "false")
        broker.kill()
        broker.start()
        with Mqtt.connected(broker.mqtt_port) as two, Mqtt.connected(broker.mqtt_port) as ear:
            ear.subscribe(("t/1", 1))
            two.publish("t/1", b"between")
            assert ear.message().payload == b"between"
            mainstem(broker, "topic", "alter", "t/1", "--store", "true")
            two.publish("t/1", b"after", qos=1)
            assert ear.message().payload == b"after"
        shown = mainstem(
            broker, "sub", f"kafka://127.0.0.1:{broker.kafka_port}/t.1", "--from", "earliest", "--count", "2"
        )
        assert "before" in shown and "after" in shown and "between" not in shown


def test_a_queue_of_many_topics_sees_one_of_them_while_it_is_stored(broker: Broker) -> None:
    root = f"many{uuid.uuid4().hex[:8]}"
    http(broker, "POST", "/v1/topics", {"name": f"{root}/1"})
    with channel(broker) as one, Mqtt.connected(broker.mqtt_port) as two, Mqtt.connected(broker.mqtt_port) as ear:
        one.queue_declare(root)
        one.queue_bind(root, "amq.topic", f"{root}.#")
        ear.subscribe((f"{root}/1", 0))
        for store, value in ((True, b"a"), (False, b"b"), (True, b"c"), (False, b"d")):
            http(broker, "PATCH", f"/v1/topics/{root}/1", {"settings": {"store": store}})
            two.publish(f"{root}/1", value)
            assert ear.message().payload == value
        taken = [one.basic_get(root, auto_ack=True)[2] for _ in range(3)]
        assert taken == [b"a", b"c", None]


def test_a_topic_that_a_queue_reads_cannot_become_live_only(broker: Broker) -> None:
    name = f"read/{uuid.uuid4().hex[:8]}"
    http(broker, "POST", "/v1/topics", {"name": name})
    with channel(broker) as one:
        one.queue_declare("reader")
        one.queue_bind("reader", "amq.topic", name.replace("/", "."))
        with pytest.raises(urllib.error.HTTPError) as refused:
            http(broker, "PATCH", f"/v1/topics/{name}", {"settings": {"store": False}})
        assert refused.value.code == 400 and b"queue" in refused.value.read()


def test_who_does_not_read_is_cut_off_by_nats_and_others_get_everything(broker: Broker, topic: str) -> None:
    """As by nats-server: no log brings it back, so 64 MiB wait at most."""
    size, count = 1 << 20, 90
    message = b"PUB %b %d\r\n%b\r\n" % (subject(topic), size, b"x" * size)
    heard = 0

    def hear(ear: Nats) -> None:
        nonlocal heard
        for _ in range(count):
            assert ear.line().startswith(b"MSG ")
            ear.exactly(size + 2)
            heard += 1

    with Nats(broker.nats_port) as slow, Nats(broker.nats_port) as ear, Nats(broker.nats_port) as publisher:
        for one in (slow, ear):
            one.send(b"SUB %b 1\r\n" % subject(topic))
            one.synced()
        reader = threading.Thread(target=hear, args=(ear,))
        reader.start()
        for _ in range(count):
            publisher.send(message)
        reader.join(4 * WAIT_S)
        assert heard == count
        eventually(lambda: http(broker, "GET", "/varz")["slow_consumers"] >= 1, "the slow one is cut off")
        assert len(slow.rest()) < count * size
