"""Ways to have something written where a user may not: by the broker's answers, or by binding somebody else's queue."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from mainstem.testing import Broker
from tests.protocol.mqtt.raw import Raw as MqttRaw
from tests.protocol.nats.raw import Raw
from tests.users import ANN, ROOT, add_users, allow

GOAL = b"theirs.x"  # where ann may neither publish nor consume
VIOLATION = b"-ERR 'Permissions Violation for Publish to \"theirs.x\"'"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as one:
        add_users(one)
        allow(one, "mine/#", "publish", "consume", "create", "describe")
        root_login = pika.PlainCredentials(*ROOT)
        with (
            Raw(one.nats_port, user=ROOT[0], **{"pass": ROOT[1]}) as root,
            pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", one.amqp_port, "/", root_login)) as theirs,
        ):
            stream = json.dumps({"name": "MINE", "subjects": ["mine.>"], "storage": "memory"}).encode()
            root.send(b"SUB in 1\r\nPUB $JS.API.STREAM.CREATE.MINE in %d\r\n%b\r\n" % (len(stream), stream))
            assert root.line().startswith(b"MSG in 1")
            theirs.channel().queue_declare("theirs", durable=True)
        yield one


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"PUB $JS.API.INFO %b 0\r\n\r\n", id="an answer"),
        pytest.param(b"PUB $JS.API.DIRECT.GET.MINE.mine.a %b 0\r\n\r\n", id="a message"),
        pytest.param(b"PUB $JS.API.CONSUMER.MSG.NEXT.MINE.c %b 0\r\n\r\n", id="a pull"),
        pytest.param(b"PUB mine.a %b 1\r\nx\r\n", id="an ack"),
        pytest.param(b"PUB $SYS.REQ.USER.INFO %b 0\r\n\r\n", id="who it is"),
    ],
)
def test_jetstream_answers_only_where_its_client_may_publish(broker: Broker, said: bytes) -> None:
    with (
        Raw(broker.nats_port, user=ROOT[0], **{"pass": ROOT[1]}) as root,
        Raw(broker.nats_port, user=ANN[0], **{"pass": ANN[1]}) as ann,
    ):
        root.send(b"SUB theirs.> 1\r\n")
        root.synced()
        ann.send(said % GOAL)
        assert VIOLATION in ann.synced()
        assert not any(line.startswith(b"MSG") for line in root.synced())
        ann.send(b"SUB _INBOX.ann.* 2\r\n" + said % b"_INBOX.ann.1")  # in an inbox it is welcome
        assert VIOLATION not in ann.synced()


def test_a_consumer_delivers_only_where_who_made_it_may_publish(broker: Broker) -> None:
    config = {"filter_subject": "mine.a", "deliver_subject": GOAL.decode(), "ack_policy": "none"}
    asked = json.dumps({"stream_name": "MINE", "config": config}).encode()
    with Raw(broker.nats_port, user=ANN[0], **{"pass": ANN[1]}) as ann:
        ann.send(b"SUB _INBOX.ann 1\r\nPUB $JS.API.CONSUMER.CREATE.MINE _INBOX.ann %d\r\n%b\r\n" % (len(asked), asked))
        while not (line := ann.line()).startswith(b"-ERR"):
            assert not line.startswith(b"MSG"), ann.exactly(int(line.split()[-1]))


def test_a_queue_is_bound_by_who_may_write_it(broker: Broker) -> None:
    login = pika.PlainCredentials(*ANN)
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port, "/", login)) as connection:
        for ask in ("queue_bind", "queue_unbind"):
            channel = connection.channel()
            with pytest.raises(ChannelClosedByBroker) as refused:
                getattr(channel, ask)("theirs", "amq.topic", "mine.a")
            assert refused.value.reply_code == 403
    with httpx.Client(base_url=broker.http_url, auth=ANN) as http:
        body = {"routing_key": "mine.a"}
        assert http.post("/api/bindings/%2F/e/amq.topic/q/theirs", json=body).status_code == 401
    allow(broker, "theirs", "publish")
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port, "/", login)) as connection:
        connection.channel().queue_bind("theirs", "amq.topic", "mine.a")


def test_a_queue_that_is_denied_is_not_shared_by_its_name_and_nothing_is_said_of_it(broker: Broker) -> None:
    """`$share/NAME/FILTER` joins the queue of that name and filter: what is denied of the queue is denied here, too."""
    with httpx.Client(base_url=broker.http_url, auth=ROOT) as root:
        root.post("/v1/queues", json={"name": "jobs", "filter": "mine/jobs/#"}).raise_for_status()
        rule = {"allow": False, "actions": ["consume"], "filter": "jobs", "kind": "queue"}
        root.post(f"/v1/users/{ANN[0]}/rules", json=rule).raise_for_status()
        with MqttRaw.connected(broker.mqtt_port, version=5, username=ANN[0], password=ANN[1].encode()) as ann:
            asked = ("$share/jobs/mine/jobs/#", "$queue/jobs", "$queue/jobs/mine/other/#", "$share/other/mine/jobs/#")
            assert [ann.subscribe((one, 1))[0] for one in asked] == [0x87, 0x87, 0x87, 1]
