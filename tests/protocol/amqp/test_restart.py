"""What survives a restart, and a kill: declarations, messages, acks, counts."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pika
import pytest

from mainstem.testing import Broker, BrokerProcess
from tests.conftest import StartBroker
from tests.protocol.amqp.conftest import bodies, declared, parameters, ready

PERSISTENT = pika.BasicProperties(delivery_mode=2)
KILLS = 4


def opened(broker: BrokerProcess) -> pika.adapters.blocking_connection.BlockingChannel:
    return pika.BlockingConnection(parameters(broker)).channel()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_declarations_messages_and_counts_survive(start_broker: StartBroker, how: str) -> None:
    broker = start_broker()
    channel = opened(broker)
    channel.exchange_declare("x", "topic", durable=True)
    declared(channel, "kept", durable=True, arguments={"x-max-priority": 3})
    declared(channel, "plain", durable=True)
    declared(channel, "gone")
    declared(channel, "mine", exclusive=True)
    channel.queue_bind("plain", "x", "a.#")
    channel.confirm_delivery()
    for number in range(30):
        channel.basic_publish("x", f"a.{number}", b"%d" % number, PERSISTENT)
        channel.basic_publish("", "kept", b"%d" % number, pika.BasicProperties(delivery_mode=2, priority=number % 3))
    tags = [channel.basic_get("plain")[0].delivery_tag for _ in range(10)]
    for tag in tags[:6]:
        channel.basic_ack(tag)
    channel.queue_declare("plain", passive=True)  # the acks before it are synced
    getattr(broker, how)()
    broker.start()
    channel = opened(broker)
    assert ready(channel, "plain") == 24
    assert ready(channel, "kept") == 30
    for name in ("gone", "mine"):
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="404"):
            opened(broker).queue_declare(name, passive=True)
    got = [channel.basic_get("plain", auto_ack=True) for _ in range(24)]
    assert [body for _, _, body in got] == [b"%d" % n for n in range(6, 30)]
    in_doubt = 24 if how == "kill" else 4  # after a kill nobody knows what had been handed out
    assert [method.redelivered for method, _, _ in got] == [True] * in_doubt + [False] * (24 - in_doubt)
    by_priority = [n for priority in (2, 1, 0) for n in range(30) if n % 3 == priority]
    assert bodies(channel, "kept") == [b"%d" % n for n in by_priority]
    channel.basic_publish("x", "a.z", b"still bound", PERSISTENT)
    assert bodies(channel, "plain") == [b"still bound"]


def test_delayed_messages_and_dead_letters_survive(start_broker: StartBroker) -> None:
    broker = start_broker()
    channel = opened(broker)
    declared(channel, "dead", durable=True)
    declared(
        channel,
        "work",
        durable=True,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
    )
    declared(channel, "later", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "work", b"poison", PERSISTENT)
    channel.basic_reject(channel.basic_get("work")[0].delivery_tag, requeue=False)
    channel.basic_publish("", "later", b"later", pika.BasicProperties(delivery_mode=2, headers={"x-delay": 2000}))
    channel.queue_declare("work", passive=True)
    time.sleep(0.5)
    broker.kill()
    broker.start()
    channel = opened(broker)
    assert bodies(channel, "dead") == [b"poison"]
    assert bodies(channel, "work") == []
    deadline = time.monotonic() + 15
    taken: list[bytes] = []
    while not taken and time.monotonic() < deadline:
        taken = bodies(channel, "later")
        time.sleep(0.05)
    assert taken == [b"later"]


class Publisher(threading.Thread):
    """Publishes numbers with confirms, through any number of restarts; knows which were confirmed."""

    def __init__(self, broker: BrokerProcess, queue: str = "ledger") -> None:
        super().__init__(daemon=True)
        self.broker = broker
        self.queue = queue
        self.sent = 0
        self.confirmed: set[int] = set()
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                channel = opened(self.broker)
                channel.confirm_delivery()
                while not self.stopping.is_set():
                    number, self.sent = self.sent, self.sent + 1
                    channel.basic_publish("", self.queue, b"%d" % number, PERSISTENT)
                    self.confirmed.add(number)
            except (pika.exceptions.AMQPError, OSError):
                time.sleep(0.05)


class Consumer(threading.Thread):
    """Takes messages and acks them; an ack that a synchronous call followed was taken over by the broker."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__(daemon=True)
        self.broker = broker
        self.seen: set[int] = set()
        self.settled: set[int] = set()
        self.again: list[int] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self._take(opened(self.broker))
            except (pika.exceptions.AMQPError, OSError):
                time.sleep(0.05)

    def _take(self, channel: Any) -> None:
        while not self.stopping.is_set():
            batch = []
            for _ in range(20):
                method, _, body = channel.basic_get("ledger")
                if method is None:
                    break
                number = int(body)
                if number in self.settled:
                    self.again.append(number)
                self.seen.add(number)
                batch.append(number)
            if batch:
                channel.basic_ack(0, multiple=True)
                channel.confirm_delivery() if not channel._delivery_confirmation else None
                channel.basic_publish("", "mark", b"", PERSISTENT)  # its confirm is synced after the acks
                self.settled.update(batch)


@pytest.mark.timeout(180)
def test_killed_again_and_again_nothing_confirmed_is_lost_and_nothing_acked_comes_back(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    channel = opened(broker)
    for queue in ("ledger", "mark"):
        declared(channel, queue, durable=True)
    publisher, consumer = Publisher(broker), Consumer(broker)
    publisher.start()
    consumer.start()
    rng = random.Random(6)
    for _ in range(KILLS):
        time.sleep(rng.uniform(0.5, 1.5))
        broker.kill()
        broker.start()
    time.sleep(0.5)
    publisher.stopping.set()
    publisher.join(20)
    deadline = time.monotonic() + 30
    while not publisher.confirmed <= consumer.seen and time.monotonic() < deadline:
        time.sleep(0.1)
    consumer.stopping.set()
    consumer.join(20)
    assert len(publisher.confirmed) > 100
    assert publisher.confirmed - consumer.seen == set()
    assert consumer.again == []
    assert consumer.seen <= set(range(publisher.sent))


class Rejecter(threading.Thread):
    """Rejects whatever it gets, through any number of restarts."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__(daemon=True)
        self.broker = broker
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                channel = opened(self.broker)
                channel.basic_qos(prefetch_count=50)
                channel.basic_consume("work", lambda c, method, *_: c.basic_reject(method.delivery_tag, requeue=False))
                while not self.stopping.is_set():
                    channel.connection.process_data_events(0.05)
            except (pika.exceptions.AMQPError, OSError):
                time.sleep(0.05)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("reason", ["rejected", pytest.param("expired", marks=pytest.mark.slow)])
def test_killed_again_and_again_every_message_has_one_dead_letter(start_broker: StartBroker, reason: str) -> None:
    broker = start_broker()
    channel = opened(broker)
    declared(channel, "dead", durable=True)
    dead_letters: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    more = {"x-message-ttl": 30} if reason == "expired" else {}
    declared(channel, "work", durable=True, arguments={**dead_letters, **more})
    publisher = Publisher(broker, "work")
    publisher.start()
    rejecter = Rejecter(broker)
    if reason == "rejected":
        rejecter.start()
    rng = random.Random(7)
    for _ in range(KILLS):
        time.sleep(rng.uniform(0.4, 1.2))
        broker.kill()
        broker.start()
    publisher.stopping.set()
    publisher.join(20)
    channel = opened(broker)
    deadline = time.monotonic() + 30
    numbers: list[int] = []
    while not publisher.confirmed <= set(numbers) and time.monotonic() < deadline:
        numbers += map(int, bodies(channel, "dead"))
        time.sleep(0.05)
    rejecter.stopping.set()
    numbers += map(int, bodies(channel, "dead"))
    assert len(publisher.confirmed) > 100
    assert publisher.confirmed - set(numbers) == set()
    assert len(numbers) == len(set(numbers)), "a dead letter was written twice"


def test_what_cannot_be_kept_is_not_confirmed() -> None:
    with Broker() as broker, pika.BlockingConnection(parameters(broker)) as connection:
        assert broker.app is not None
        metadata = vars(broker.app.broker.store)["_connection"]
        metadata.execute("PRAGMA query_only = ON")
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="541"):
            connection.channel().queue_declare("kept", durable=True)
        metadata.execute("PRAGMA query_only = OFF")


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_stream_goes_on_counting_where_it_stopped(start_broker: StartBroker, how: str) -> None:
    broker = start_broker()
    channel = opened(broker)
    stream = {"x-queue-type": "stream", "x-max-length-bytes": 400}
    declared(channel, "counted", durable=True, arguments=stream)
    channel.confirm_delivery()
    for number in range(10):
        channel.basic_publish("", "counted", b"%d" % number + b"." * 99, PERSISTENT)
    for _ in range(2):  # a second end must not find less than the first
        getattr(broker, how)()
        broker.start()
    channel = opened(broker)
    channel.confirm_delivery()
    channel.basic_publish("", "counted", b"a" + b"." * 99, PERSISTENT)
    channel.basic_qos(prefetch_count=10)
    channel.basic_consume("counted", lambda *_: None, arguments={"x-stream-offset": 8}, consumer_tag="t")
    channel.basic_cancel("t")
    got = []
    for method, properties, body in channel.consume("counted", arguments={"x-stream-offset": 8}, inactivity_timeout=10):
        assert method is not None, f"only {got} came"
        got.append((body[:1], properties.headers["x-stream-offset"]))
        if len(got) == 3:
            break
    assert got == [(b"8", 8), (b"9", 9), (b"a", 10)]
