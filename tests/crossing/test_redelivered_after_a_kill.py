"""What a killed broker had delivered comes again with a sign of it, whoever gets it; what it never delivered after a clean
stop comes without."""

from __future__ import annotations

from pathlib import Path

import pika

from mainstem.testing import BrokerProcess
from tests.crossing.commands import eventually, http
from tests.crossing.test_one_queue import RECEIVE_MAXIMUM, AmqpWorker
from tests.protocol.kafka.share_member import Member
from tests.protocol.mqtt.raw import Raw


def fill(broker: BrokerProcess, first: int, count: int) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.amqp_port))
    channel = connection.channel()
    channel.confirm_delivery()
    for number in range(first, first + count):
        channel.basic_publish("amq.topic", "jobs.a", b"%d" % number, pika.BasicProperties(delivery_mode=2))
    connection.close()


def mqtt_member(broker: BrokerProcess, window: int) -> Raw:
    raw = Raw.connected(broker.mqtt_port, version=5, properties={RECEIVE_MAXIMUM: window})
    assert raw.subscribe(("$queue/jobs", 1)) == [1]
    return raw


class Takers:
    """One consumer of each protocol, that takes three messages and settles none."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._amqp = AmqpWorker(broker, "jobs", 3)  # type: ignore[arg-type]
        self.amqp = [bool(method.redelivered) for method, _ in self._amqp.take(3)]
        self._mqtt = mqtt_member(broker, 3)
        self.mqtt = [b"ms-delivery-count" in self._mqtt.message(ack=False).properties for _ in range(3)]
        self._kafka = Member(broker, "jobs", "jobs")  # type: ignore[arg-type]
        self.kafka = [count > 1 for _, _, count in self._kafka.take(3)]


def test_every_delivery_that_a_kill_may_have_repeated_says_so(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        http(broker, "POST", "/v1/queues", {"name": "jobs", "filter": "jobs/#"})
        fill(broker, 0, 9)
        before = Takers(broker)
        assert (before.amqp, before.mqtt, before.kafka) == ([False] * 3, [False] * 3, [False] * 3)
        broker.kill()  # the newest leases were not journaled
        broker.start()
        after = Takers(broker)
        assert (after.amqp, after.mqtt, after.kafka) == ([True] * 3, [True] * 3, [True] * 3)
        fill(broker, 9, 1)
        new = AmqpWorker(broker, "jobs", 1)  # type: ignore[arg-type]
        [(method, body)] = new.take(1)
        assert (body, method.redelivered) == (b"9", False)


def test_a_doubt_outlives_a_clean_stop_and_a_clean_stop_makes_none(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        http(broker, "POST", "/v1/queues", {"name": "jobs", "filter": "jobs/#"})
        fill(broker, 0, 3)
        holder = AmqpWorker(broker, "jobs", 3)  # type: ignore[arg-type]
        assert [m.redelivered for m, _ in holder.take(3)] == [False] * 3
        broker.kill()
        broker.start()
        fill(broker, 3, 3)
        broker.restart()
        flags = [bool(m.redelivered) for m, _ in AmqpWorker(broker, "jobs", 6).take(6)]  # type: ignore[arg-type]
        assert flags == [True] * 3 + [False] * 3


def test_what_a_clean_start_delivers_is_in_doubt_after_a_kill_although_nothing_was_written(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        http(broker, "POST", "/v1/queues", {"name": "jobs", "filter": "jobs/#"})
        fill(broker, 0, 3)
        broker.restart()
        holder = AmqpWorker(broker, "jobs", 3)  # type: ignore[arg-type]
        assert [m.redelivered for m, _ in holder.take(3)] == [False] * 3
        broker.kill()
        broker.start()
        broker.kill()  # twice in a row, with only recovery between
        broker.start()
        worker = AmqpWorker(broker, "jobs", 3)  # type: ignore[arg-type]
        eventually(lambda: http(broker, "GET", "/v1/queues/jobs")["unacked"] == 3, "all three are delivered")
        assert [m.redelivered for m, _ in worker.take(3)] == [True] * 3
