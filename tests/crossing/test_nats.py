"""In by NATS, out by each other protocol, and back: the same bytes, the same headers, one append."""

from __future__ import annotations

import queue
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from confluent_kafka import Consumer, Producer

from mainstem.model.crossing_nats import header_lines
from mainstem.model.topic import nats_subject
from mainstem.testing import Broker
from tests.crossing.commands import eventually, http
from tests.crossing.message import Message, Speaker
from tests.crossing.speakers import speakers_of
from tests.protocol.nats.raw import Raw

WAIT_S = 15.0
BLOCK = b"NATS/1.0\r\nTrace: 1\r\nTrace: 2\r\nContent-Type: text/plain\r\nNats-Msg-Id: m-1\r\nNats-TTL: 60\r\n\r\n"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(scope="module")
def speakers(broker: Broker) -> Iterator[dict[str, Speaker]]:
    found = speakers_of(broker)
    yield found
    for one in found.values():
        one.close()


def unique() -> str:
    return f"x{uuid.uuid4().hex[:8]}/dev 1/a.b"


def publish(broker: Broker, topic: str) -> None:
    subject = nats_subject(topic.encode())
    with Raw(
        broker.nats_port, no_responders=False
    ) as one:  # else nobody who listens is an answer, and nothing is stored
        size = len(BLOCK)
        one.send(b"HPUB %b answers.here %d %d\r\n%b\x00\xffraw\r\n" % (subject, size, size + 5, BLOCK))
        one.synced()


@pytest.mark.parametrize("reader", ["mqtt", "kafka", "amqp"])
def test_in_by_nats_out_by_another(broker: Broker, speakers: dict[str, Speaker], reader: str) -> None:
    topic = unique()
    if reader == "kafka":  # its consumer needs a topic that is there
        publish(broker, topic)
        listened = speakers[reader].history(topic)
    else:
        listened = speakers[reader].listen(topic)
    with listened as ear:
        if reader != "kafka":
            publish(broker, topic)
        heard = ear.hear(topic)
    message = heard.message
    assert (message.topic, message.value) == (topic, b"\x00\xffraw")
    assert message.headers == [("Trace", b"1"), ("Trace", b"2")]
    assert (message.content_type, message.message_id, message.reply_to) == ("text/plain", "m-1", "answers/here")
    assert heard.origin == "nats"
    assert message.expires_s is not None
    assert 50 <= message.expires_s <= 60


@pytest.mark.parametrize("writer", ["mqtt", "kafka", "amqp"])
def test_in_by_another_out_by_nats(broker: Broker, speakers: dict[str, Speaker], writer: str) -> None:
    topic = unique()
    twice = [] if writer == "amqp" else [("a", b"2")]  # a table has each name once
    with Raw(broker.nats_port) as one:
        one.send(b"SUB %b 7\r\n" % nats_subject(topic.encode()))
        one.synced()
        speakers[writer].say(
            Message(
                topic,
                b"value",
                headers=[("a", b"1"), *twice, ("bin", b"\xff\r\n")],
                content_type="text/plain",
                message_id="m-2",
                correlation=b"c",
                reply_to="back/to",
            )
        )
        first = one.line()
        while not first.startswith(b"HMSG"):
            first = one.line()
        words = first.split()
        assert (words[1], words[2], words[3]) == (nats_subject(topic.encode()), b"7", b"back.to")
        lines = []
        while (line := one.line()) != b"":
            lines.append(line)
        assert one.line() == b"value"
    found = header_lines(b"\r\n".join(lines))
    assert [value for name, value in found if name == b"a"] == [b"1", *(value for _, value in twice)]
    told = dict(found)
    assert told[b"bin;b64"] == b"/w0K"
    assert told[b"Content-Type"] == b"text/plain"
    assert told[b"Nats-Msg-Id"] == b"m-2"
    assert told[b"Correlation-Id"] == b"c"
    assert told[b"Ms-Origin"] == writer.encode()


def test_back_to_nats_byte_for_byte_and_stored_once(broker: Broker) -> None:
    topic = unique()
    subject = nats_subject(topic.encode())
    with Raw(broker.nats_port) as one:
        one.send(b"SUB %b 1\r\n" % subject)
        one.synced()
        publish(broker, topic)
        size = len(BLOCK)
        assert one.line() == b"HMSG %b 1 answers.here %d %d" % (subject, size, size + 5)
        lines = [one.line() for _ in BLOCK.split(b"\r\n")[:-1]]
        assert lines == BLOCK.split(b"\r\n")[:-1]
        assert one.line() == b"\x00\xffraw"
    rows = http(broker, "GET", f"/v1/topics/{topic.replace('/', '%2F').replace(' ', '%20')}")
    assert rows["spellings"]["nats"] == subject.decode()
    path = f"/v1/messages?topic={topic.replace(' ', '%20')}&from=earliest"
    eventually(lambda: len(http(broker, "GET", path)["items"]) == 1, "it is stored, once")


def test_a_request_by_nats_is_answered_by_an_mqtt_device(broker: Broker, speakers: dict[str, Speaker]) -> None:
    """The reply subject is the Response Topic; what is published there reaches the inbox."""
    topic = f"req{uuid.uuid4().hex[:8]}/do"
    asked: queue.Queue[Any] = queue.Queue()
    with speakers["mqtt"].listen(topic) as ear:

        def respond() -> None:
            heard = ear.hear(topic)
            asked.put(heard.message)
            speakers["mqtt"].say(Message(heard.message.reply_to or "", b"done"))

        device = threading.Thread(target=respond, daemon=True)
        device.start()
        with Raw(broker.nats_port) as one:
            one.send(b"SUB _INBOX.abc.* 1\r\n")
            one.synced()
            one.send(b"PUB %b _INBOX.abc.1 2\r\ngo\r\n" % nats_subject(topic.encode()))
            while not (line := one.line()).startswith((b"MSG", b"HMSG")):
                pass
            words = line.split()
            answer = one.exactly(int(words[-1]))
        device.join(WAIT_S)
    assert words[1] == b"_INBOX.abc.1"
    assert answer[int(words[-2]) if words[0] == b"HMSG" else 0 :] == b"done"
    assert asked.get(timeout=WAIT_S).value == b"go"


def test_a_nats_message_waits_in_an_amqp_queue_and_a_kafka_topic(broker: Broker) -> None:
    name = f"w{uuid.uuid4().hex[:8]}"
    connection = pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.amqp_port, heartbeat=0))
    channel = connection.channel()
    channel.queue_declare(name, durable=True)
    channel.queue_bind(name, "amq.topic", f"{name}.#")
    with Raw(broker.nats_port) as one:
        one.send(b"PUB %b.a 1\r\n1\r\nPUB %b.b 1\r\n2\r\n" % (name.encode(), name.encode()))
        one.synced()
    eventually(lambda: http(broker, "GET", f"/v1/queues/{name}")["ready"] == 2, "both wait")
    assert [channel.basic_get(name, auto_ack=True)[2] for _ in range(2)] == [b"1", b"2"]
    connection.close()
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": name, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([f"{name}.a", f"{name}.b"])
    found: list[tuple[str, bytes]] = []

    def both() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append((message.topic(), message.value()))
        return len(found) == 2

    eventually(both, "both are read by Kafka")
    assert sorted(found) == [(f"{name}.a", b"1"), (f"{name}.b", b"2")]
    consumer.close()


def test_kafka_transactions_reach_nats_when_they_commit(broker: Broker) -> None:
    name = f"t{uuid.uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name, "log_level": 0})
    producer.init_transactions(WAIT_S)
    with Raw(broker.nats_port) as one:
        one.send(b"SUB %b 1\r\n" % name.encode())
        one.synced()
        for value, commit in ((b"aborted", False), (b"committed", True)):
            producer.begin_transaction()
            producer.produce(name, value)
            assert producer.flush(WAIT_S) == 0
            assert one.synced() == [], "while it is open nobody hears of it"
            (producer.commit_transaction if commit else producer.abort_transaction)(WAIT_S)
        got: list[bytes] = []
        while b"committed" not in got:  # behind the headers
            got.append(one.line())
        got += one.synced()
    assert (got.count(b"committed"), got.count(b"aborted")) == (1, 0)
