"""A view made today reads yesterday's messages, by every protocol, and costs nothing to make or to drop."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pika
import pytest

from mainstem.testing import BrokerProcess
from tests.crossing.amqp_speaker import AmqpSpeaker
from tests.crossing.commands import eventually, http, mainstem
from tests.crossing.message import HEAR_S_MAX, Ear, Message, Speaker
from tests.crossing.speakers import speakers_of
from tests.protocol.mqtt.raw import Raw


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("views") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def speakers(broker: BrokerProcess) -> Iterator[dict[str, Speaker]]:
    made = speakers_of(broker)
    yield made
    for speaker in made.values():
        speaker.close()


@pytest.fixture
def fleet(speakers: dict[str, Speaker]) -> str:
    """Yesterday: three trucks, one per protocol, and what does not belong to any view of temperatures."""
    name = f"fleet{uuid.uuid4().hex[:8]}"
    for n, (protocol, region) in enumerate([("mqtt", b"eu"), ("kafka", b"us"), ("amqp", b"eu")]):
        headers = [("region", region)]
        speakers[protocol].say(Message(f"{name}/{n}/temp", b"old-%d" % n, key=b"truck-%d" % n, headers=list(headers)))
        speakers[protocol].say(Message(f"{name}/{n}/speed", b"80"))
    return name


OLD = [b"old-0", b"old-1", b"old-2"]


def group_consumer(broker: BrokerProcess, group: str) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )


def take(consumer: confluent_kafka.Consumer, count: int) -> list[confluent_kafka.Message]:
    found: list[confluent_kafka.Message] = []

    def enough() -> bool:
        got = consumer.poll(0.05)
        if got is not None and got.error() is None:
            found.append(got)
        return len(found) >= count

    eventually(enough, f"{count} records of the view")
    return found


def values(ear: Ear, count: int) -> list[bytes | None]:
    return sorted((heard.message.value for heard in ear.hear_any(count)), key=lambda value: value or b"")


@pytest.mark.parametrize("by", ["command", "http"])
def test_as_a_kafka_topic_with_a_group_whose_lag_counts_matching_records(
    broker: BrokerProcess, speakers: dict[str, Speaker], fleet: str, by: str
) -> None:
    view = f"v{fleet}"
    if by == "command":
        assert "created view" in mainstem(broker, "view", "create", view, f"{fleet}/+/temp")
    else:
        assert http(broker, "POST", "/v1/views", {"name": view, "filter": f"{fleet}/+/temp"})["name"] == view
    consumer = group_consumer(broker, f"g-{view}")
    consumer.subscribe([view])
    found = take(consumer, 3)
    assert sorted(m.value() for m in found) == OLD
    topics = {dict(m.headers())["ms-topic"].decode() for m in found}
    assert topics == {f"{fleet}/{n}/temp" for n in range(3)}
    assert len({m.partition() for m in found}) == 2  # the shared log, and the log that Kafka's topic has of its own
    consumer.commit(asynchronous=False)
    consumer.close()
    for n in range(30):
        speakers["mqtt"].say(Message(f"{fleet}/9/speed", b"noise"))
        if n % 10 == 0:
            speakers["mqtt"].say(Message(f"{fleet}/9/temp", b"new"))
    rows = [json.loads(line) for line in mainstem(broker, "group", "lag", f"g-{view}", "--json").splitlines()]
    assert sum(row["lag"] for row in rows) == 3
    again = group_consumer(broker, f"g-{view}")
    again.subscribe([view])
    assert [m.value() for m in take(again, 3)] == [b"new"] * 3
    again.close()


def test_partitions_of_a_view_are_shared_by_the_members_of_a_group(broker: BrokerProcess, fleet: str) -> None:
    view = f"v{fleet}"
    mainstem(broker, "view", "create", view, f"{fleet}/+/temp")
    members = [group_consumer(broker, f"g-{view}") for _ in range(2)]
    for member in members:
        member.subscribe([view])
    found: list[confluent_kafka.Message] = []

    def all_assigned() -> bool:
        for member in members:
            got = member.poll(0.05)
            if got is not None and got.error() is None:
                found.append(got)
        owned = [{(t.topic, t.partition) for t in member.assignment()} for member in members]
        return all(owned) and not owned[0] & owned[1]

    eventually(all_assigned, "each member has partitions of its own")
    for member in members:
        member.close()


def queue_of(broker: BrokerProcess, name: str, **arguments: Any) -> tuple[Any, Any]:
    connection = pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.amqp_port, heartbeat=0))
    channel = connection.channel()
    channel.queue_declare(name, durable=True, arguments=arguments)
    return connection, channel


def got(channel: Any, queue: str, count: int) -> list[bytes]:
    found: list[bytes] = []

    def enough() -> bool:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is not None:
            found.append(body)
        return len(found) >= count

    eventually(enough, f"{count} messages in {queue}")
    return found


def test_as_an_amqp_queue_from_now_or_from_the_beginning(
    broker: BrokerProcess, speakers: dict[str, Speaker], fleet: str
) -> None:
    view = f"v{fleet}"
    mainstem(broker, "view", "create", view, f"{fleet}/+/temp")
    all_name, new_name = f"all-{view}", f"new-{view}"
    connection, channel = queue_of(broker, all_name, **{"x-view": view, "x-from": "earliest"})
    channel.queue_declare(new_name, durable=True, arguments={"x-view": view})
    speakers["mqtt"].say(Message(f"{fleet}/3/temp", b"new"))
    assert got(channel, all_name, 4) == [*OLD, b"new"]
    assert got(channel, new_name, 1) == [b"new"]
    assert channel.basic_get(all_name)[0] is None
    connection.close()


def test_as_an_amqp_stream_by_its_own_name(broker: BrokerProcess, speakers: dict[str, Speaker], fleet: str) -> None:
    view = f"v{fleet}"
    mainstem(broker, "view", "create", view, f"{fleet}/+/temp")
    with AmqpSpeaker(broker).history(view) as ear:
        assert values(ear, 3) == OLD
        speakers["kafka"].say(Message(f"{fleet}/1/temp", b"new"))
        assert ear.hear(f"{fleet}/1/temp").message.value == b"new"


@pytest.mark.parametrize("by", ["filter", "name"])
def test_as_an_mqtt_stream(broker: BrokerProcess, speakers: dict[str, Speaker], fleet: str, by: str) -> None:
    view = f"v{fleet}"
    mainstem(broker, "view", "create", view, f"{fleet}/+/temp")
    with speakers["mqtt"].history(view if by == "name" else f"{fleet}/+/temp") as ear:
        assert values(ear, 3) == OLD
        speakers["amqp"].say(Message(f"{fleet}/2/temp", b"new"))
        heard = ear.hear(f"{fleet}/2/temp")
        assert heard.message.value == b"new"
        assert {"ms-offset", "ms-append-ts"} <= set(heard.meta)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("header.region = 'eu'", [b"old-0", b"old-2"]),
        ("header.region != 'eu'", [b"old-1"]),
        ("key ^= 'truck-' and header.region exists", OLD),
        ("key = 'truck-2'", [b"old-2"]),
    ],
)
def test_a_condition_holds_for_every_reader(
    broker: BrokerProcess, speakers: dict[str, Speaker], fleet: str, where: str, expected: list[bytes]
) -> None:
    view = f"v{fleet}"
    mainstem(broker, "view", "create", view, f"{fleet}/+/temp", "--where", where)
    consumer = group_consumer(broker, f"g-{view}")
    consumer.subscribe([view])
    assert sorted(m.value() for m in take(consumer, len(expected))) == expected
    consumer.close()
    for reader in ("mqtt", "amqp"):
        with speakers[reader].history(view) as ear:
            assert values(ear, len(expected)) == expected, reader
    connection, channel = queue_of(broker, f"q-{view}", **{"x-view": view, "x-from": "earliest"})
    assert got(channel, f"q-{view}", len(expected)) == expected
    assert channel.basic_get(f"q-{view}")[0] is None
    connection.close()


def test_making_and_dropping_views_changes_no_stored_byte(
    broker: BrokerProcess, speakers: dict[str, Speaker], fleet: str
) -> None:
    names = [f"v{fleet}-{n}" for n in range(20)]
    for _ in range(
        5
    ):  # sessions of other tests may journal their end meanwhile; a view that wrote would do so each time
        seen = [ends(broker)]
        for name in names:
            http(broker, "POST", "/v1/views", {"name": name, "filter": f"{fleet}/+/temp"})
        seen.append(ends(broker))
        for name in names:
            http(broker, "DELETE", f"/v1/views/{name}")
        seen.append(ends(broker))
        if seen[0] == seen[1] == seen[2]:
            break
    assert seen[0] == seen[1] == seen[2]
    with speakers["mqtt"].history(f"{fleet}/+/temp") as ear:
        assert values(ear, 3) == OLD
    mainstem(broker, "view", "create", names[0], f"{fleet}/+/temp")
    consumer = group_consumer(broker, f"g-{fleet}")
    consumer.subscribe([names[0]])
    assert sorted(m.value() for m in take(consumer, 3)) == OLD
    consumer.close()


def ends(broker: BrokerProcess) -> list[tuple[int, int]]:
    """Where each log ends: nothing was appended if it stays there."""
    name = f"all-{uuid.uuid4().hex[:6]}"
    parts = http(broker, "POST", "/v1/views", {"name": name, "filter": "#"})["partitions"]
    http(broker, "DELETE", f"/v1/views/{name}")
    return [(part["log"], part["end_offset"]) for part in parts]


def test_a_view_survives_a_restart_with_its_partitions(start_broker: Any) -> None:
    broker = start_broker()
    speakers = speakers_of(broker)
    speakers["mqtt"].say(Message("r/1/temp", b"stem"))
    speakers["kafka"].say(Message("r/2/temp", b"own log"))
    before = http(broker, "POST", "/v1/views", {"name": "rv", "filter": "r/+/temp"})["partitions"]
    broker.restart()
    after = http(broker, "GET", "/v1/views/rv")["partitions"]
    assert [part["log"] for part in after] == [part["log"] for part in before]
    consumer = group_consumer(broker, "g")
    consumer.subscribe(["rv"])
    assert {m.partition(): m.value() for m in take(consumer, 2)} == {0: b"stem", 1: b"own log"}
    consumer.close()


def test_a_table_answers_the_newest_record_per_key(
    broker: BrokerProcess, speakers: dict[str, Speaker], fleet: str
) -> None:
    view = f"t{fleet}"
    mainstem(broker, "view", "create", view, f"{fleet}/+/temp", "--last-by", "topic")
    speakers["amqp"].say(Message(f"{fleet}/0/temp", b"newest"))
    speakers["kafka"].say(Message(f"{fleet}/1/temp", None))  # deleted
    one = json.loads(mainstem(broker, "view", "get", view, f"{fleet}/0/temp", "--json"))
    assert one["value"] == "newest"
    rows = http(broker, "GET", f"/v1/tables/{view}")["items"]
    assert {row["topic"]: row["value"] for row in rows} == {f"{fleet}/0/temp": "newest", f"{fleet}/2/temp": "old-2"}
    consumer = group_consumer(broker, f"g-{view}")
    consumer.subscribe([view])
    found = {dict(m.headers())["ms-topic"].decode(): m.value() for m in take(consumer, 3)}
    assert found == {f"{fleet}/0/temp": b"newest", f"{fleet}/1/temp": None, f"{fleet}/2/temp": b"old-2"}
    consumer.close()


@pytest.mark.parametrize("reader", ["mqtt", "amqp"])
def test_a_table_is_one_for_every_reader(
    broker: BrokerProcess, speakers: dict[str, Speaker], fleet: str, reader: str
) -> None:
    view = f"t{fleet}"
    mainstem(broker, "view", "create", view, f"{fleet}/+/temp", "--last-by", "topic")
    for number in range(20):
        speakers["amqp"].say(Message(f"{fleet}/{number % 2}/temp", b"%d" % number))
    with speakers[reader].history(view) as ear:
        assert values(ear, 3) == [b"18", b"19", b"old-2"]
        speakers["kafka"].say(Message(f"{fleet}/2/temp", b"new"))
        assert ear.hear(f"{fleet}/2/temp").message.value == b"new"
        assert ear.hear_any(0) == []
    with speakers[reader].history(view) as ear:
        assert values(ear, 3) == [b"18", b"19", b"new"]


@pytest.mark.parametrize("reader", ["mqtt", "amqp"])
def test_a_condition_holds_for_what_comes(
    broker: BrokerProcess, speakers: dict[str, Speaker], fleet: str, reader: str
) -> None:
    view = f"v{fleet}"
    mainstem(broker, "view", "create", view, f"{fleet}/+/temp", "--where", "key = 'truck-2'")
    with speakers[reader].history(view) as ear:
        assert values(ear, 1) == [b"old-2"]
        for number in (1, 2):
            speakers["kafka"].say(Message(f"{fleet}/{number}/temp", b"new-%d" % number, key=b"truck-%d" % number))
        assert ear.hear(f"{fleet}/2/temp").message.value == b"new-2"
        assert ear.hear_any(0) == []


def test_a_view_s_name_is_taken_for_queues_and_a_queue_s_for_views(broker: BrokerProcess, fleet: str) -> None:
    view, queue = f"v{fleet}", f"q{fleet}"
    mainstem(broker, "view", "create", view, f"{fleet}/#")
    mainstem(broker, "queue", "create", queue, f"{fleet}/#")
    with pytest.raises(AssertionError, match="is a queue; a view needs a name of its own"):
        mainstem(broker, "view", "create", queue, f"{fleet}/#")
    with pytest.raises(AssertionError, match="is a view; a queue needs a name of its own"):
        mainstem(broker, "queue", "create", view, f"{fleet}/#")
    connection = pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.amqp_port))
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="is a view; a queue needs a name of its own"):
        connection.channel().queue_declare(view)
    assert connection.channel().queue_declare(view, passive=True).method.message_count == 2 * len(OLD)
    connection.close()
    member = Raw.connected(broker.mqtt_port, version=5)
    assert member.subscribe((f"$queue/{view}/{fleet}/#", 1)) == [0x83]
    member.socket.close()


def test_names_of_views_and_topics_do_not_collide(
    broker: BrokerProcess, speakers: dict[str, Speaker], fleet: str
) -> None:
    with pytest.raises(AssertionError, match="is a topic"):
        mainstem(broker, "view", "create", f"{fleet}/0/temp", "#")
    view = f"v{fleet}"
    mainstem(broker, "view", "create", view, f"{fleet}/#")
    with pytest.raises(AssertionError, match="already exists"):
        mainstem(broker, "view", "create", view, f"{fleet}/#")
    failures: list[Any] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    producer.produce(view, b"x", on_delivery=lambda error, _: failures.append(error))
    producer.flush(HEAR_S_MAX)
    assert failures[0].code() == confluent_kafka.KafkaError.TOPIC_EXCEPTION
