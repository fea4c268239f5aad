"""How each operation of the table is asked for by each protocol: an attempt says whether it was done or refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from mainstem.protocols.kafka import messages as wire
from mainstem.testing import Broker
from tests.protocol.kafka.raw import RawClient, batch_of
from tests.protocol.kafka.share_member import Member
from tests.protocol.mqtt.raw import Raw, publish_packet
from tests.protocol.nats.raw import Raw as NatsRaw

User = tuple[str, str]
Attempt = Callable[[Broker, User, str], bool]
GROUP_REFUSED, TOPIC_REFUSED, ID_REFUSED, CLUSTER_REFUSED = 30, 29, 53, 31
REFUSALS = (GROUP_REFUSED, TOPIC_REFUSED, ID_REFUSED, CLUSTER_REFUSED)
ATTEMPTS: dict[tuple[str, str], Attempt] = {}
OBJECTS = {  # operation → what it is tried on
    "topic": "obj",
    "view": "objview",
    "queue": "objqueue",
    "stream": "objstream",
    "exchange": "objexchange",
    "group": "objgroup",
    "transaction": "objid",
}


def name_of(operation: str) -> str:
    kind, _, verb = operation.partition(".")
    return f"new{kind}" if verb == "create" else OBJECTS.get(kind, "none")


def attempt(operation: str, protocol: str) -> Callable[[Attempt], Attempt]:
    def keep(call: Attempt) -> Attempt:
        ATTEMPTS[operation, protocol] = call
        return call

    return keep


# -- MQTT


@contextmanager
def mqtt(broker: Broker, user: User) -> Iterator[Raw]:
    with Raw.connected(broker.mqtt_port, version=5, username=user[0], password=user[1].encode()) as client:
        yield client


@attempt("topic.publish", "mqtt")
def _(broker: Broker, user: User, name: str) -> bool:
    with mqtt(broker, user) as client:
        client.send(publish_packet(name, b"x", qos=1, version=5))
        _, body = client.packet()
        return len(body) == 2 or body[2] < 0x80


def subscribes(spelled: str) -> Attempt:
    def call(broker: Broker, user: User, name: str) -> bool:
        with mqtt(broker, user) as client:
            return client.subscribe((spelled.format(name), 1))[0] < 0x80

    return call


attempt("topic.consume", "mqtt")(subscribes("{}"))
attempt("view.consume", "mqtt")(subscribes("$stream/{}"))
attempt("queue.create", "mqtt")(subscribes("$queue/{}/q/#"))
attempt("queue.consume", "mqtt")(subscribes("$queue/{}"))


# -- NATS


@contextmanager
def nats(broker: Broker, user: User) -> Iterator[NatsRaw]:
    with NatsRaw(broker.nats_port, user=user[0], **{"pass": user[1]}) as client:
        yield client


def nats_says(*lines: str) -> Attempt:
    def ask(broker: Broker, user: User, name: str) -> bool:
        with nats(broker, user) as client:
            for line in lines:
                client.send(line.format(name).encode() + b"\r\n")
            return not any(b"Permissions Violation" in line for line in client.synced())

    return ask


attempt("topic.publish", "nats")(nats_says("PUB {} 1\r\nx"))
attempt("topic.consume", "nats")(nats_says("SUB {} 1"))


def asks_jetstream(call: str, document: Any = None) -> Attempt:
    """Who may not is told that he may not publish there; what is not there is not found."""

    def ask(broker: Broker, user: User, name: str) -> bool:
        body = json.dumps(document(name)).encode() if document is not None else b""
        with nats(broker, user) as client:
            client.send(b"SUB _INBOX.me 1\r\n")
            client.send(f"PUB $JS.API.{call.format(name)} _INBOX.me {len(body)}\r\n".encode() + body + b"\r\n")
            while True:
                line = client.line()
                if line.startswith(b"-ERR"):
                    return False
                if line.startswith(b"MSG _INBOX.me"):
                    answer = json.loads(client.exactly(int(line.split()[-1])))
                    assert answer.get("error", {}).get("code") in (None, 404), answer
                    return "error" not in answer

    return ask


def stream_of(name: str) -> dict[str, Any]:
    return {"name": name, "subjects": [name], "storage": "memory"}


attempt("stream.create", "nats")(asks_jetstream("STREAM.CREATE.{}", stream_of))
attempt("stream.delete", "nats")(asks_jetstream("STREAM.DELETE.{}"))
attempt("stream.purge", "nats")(asks_jetstream("STREAM.PURGE.{}"))
attempt("stream.describe", "nats")(asks_jetstream("STREAM.INFO.{}"))
attempt("stream.consume", "nats")(
    asks_jetstream("CONSUMER.CREATE.{}", lambda name: {"stream_name": name, "config": {"ack_policy": "explicit"}})
)


def make_stream(broker: Broker, namespace: str, name: str) -> None:
    admin = f"{namespace}/root", "secret"
    asks_jetstream("STREAM.DELETE.newstream")(broker, admin, name)
    assert asks_jetstream("STREAM.CREATE.{}", stream_of)(broker, admin, name)


# -- AMQP


@contextmanager
def amqp(broker: Broker, user: User, vhost: str = "t1") -> Iterator[BlockingChannel]:
    login = pika.PlainCredentials(*user)
    where = pika.ConnectionParameters("127.0.0.1", broker.amqp_port, vhost, credentials=login, connection_attempts=1)
    with pika.BlockingConnection(where) as connection:
        yield connection.channel()


def says(call: Callable[[BlockingChannel, str], Any]) -> Attempt:
    def ask(broker: Broker, user: User, name: str) -> bool:
        with amqp(broker, user) as channel:
            try:
                channel.confirm_delivery()
                channel.basic_qos(prefetch_count=1)
                call(channel, name)
            except ChannelClosedByBroker as closed:
                if closed.reply_code != 403:
                    raise
                return False
            return True

    return ask


def ignore(*_: Any) -> None:
    """What is delivered does not matter."""


STREAM = {"x-stream-offset": "first"}
attempt("topic.publish", "amqp")(says(lambda c, n: c.basic_publish("amq.topic", n, b"x")))
attempt("topic.consume", "amqp")(says(lambda c, n: c.basic_consume(n, ignore, arguments=STREAM)))
attempt("view.consume", "amqp")(says(lambda c, n: c.basic_consume(n, ignore)))
attempt("queue.create", "amqp")(says(lambda c, n: c.queue_declare(n)))
attempt("queue.consume", "amqp")(says(lambda c, n: c.basic_consume(n, ignore)))
attempt("queue.purge", "amqp")(says(lambda c, n: c.queue_purge(n)))
attempt("queue.delete", "amqp")(says(lambda c, n: c.queue_delete(n)))
attempt("queue.describe", "amqp")(says(lambda c, n: c.queue_declare(n, passive=True)))
attempt("exchange.create", "amqp")(says(lambda c, n: c.exchange_declare(n)))
attempt("exchange.publish", "amqp")(says(lambda c, n: c.basic_publish(n, "k", b"x")))
attempt("exchange.delete", "amqp")(says(lambda c, n: c.exchange_delete(n)))
attempt("exchange.describe", "amqp")(says(lambda c, n: c.exchange_declare(n, passive=True)))
attempt("exchange.bind", "amqp")(says(lambda c, n: c.queue_bind("bound", n, "k")))


# -- Kafka


class Client(RawClient):
    def __init__(self, broker: Broker, user: User) -> None:
        super().__init__(broker)
        self.ask("SaslHandshake", 1, wire.SaslHandshakeRequest(mechanism="PLAIN"))
        login = "\0{}\0{}".format(*user).encode()
        assert self.ask("SaslAuthenticate", 2, wire.SaslAuthenticateRequest(auth_bytes=login)).error_code == 0


def asks(call: Callable[[Client, str], int]) -> Attempt:
    """The call answers an error code; only what means "not authorised" is a refusal."""

    def ask(broker: Broker, user: User, name: str) -> bool:
        with Client(broker, user) as client:
            return call(client, name) not in REFUSALS

    return ask


def request(api: str, version: int, make: Callable[[str], Any], code: Callable[[Any], int]) -> Attempt:
    return asks(lambda client, name: code(client.ask(api, version, make(name))))


attempt("topic.publish", "kafka")(asks(lambda c, n: c.produce(n, batch_of([b"x"])).error_code))
for operation in ("topic.consume", "view.consume"):
    attempt(operation, "kafka")(asks(lambda c, n: c.fetch(n, 0).responses[0].partitions[0].error_code))
attempt("topic.create", "kafka")(
    request(
        "CreateTopics",
        5,
        lambda n: wire.CreateTopicsRequest(
            topics=[wire.CreateTopicsRequest.CreatableTopic(name=n, num_partitions=1, replication_factor=1)],
            timeout_ms=5_000,
        ),
        lambda a: a.topics[0].error_code,
    )
)
attempt("topic.configure", "kafka")(
    request(
        "CreatePartitions",
        2,
        lambda n: wire.CreatePartitionsRequest(
            topics=[wire.CreatePartitionsRequest.CreatePartitionsTopic(name=n, count=1)], timeout_ms=5_000
        ),
        lambda a: a.results[0].error_code,
    )
)
attempt("topic.delete", "kafka")(
    request(
        "DeleteTopics",
        4,
        lambda n: wire.DeleteTopicsRequest(topic_names=[n], timeout_ms=5_000),
        lambda a: a.responses[0].error_code,
    )
)
attempt("topic.describe", "kafka")(
    request(
        "Metadata",
        12,
        lambda n: wire.MetadataRequest(topics=[wire.MetadataRequest.MetadataRequestTopic(name=n)]),
        lambda a: a.topics[0].error_code,
    )
)
attempt("topic.list", "kafka")(
    asks(
        lambda c, n: (
            0
            if n in [t.name for t in c.ask("Metadata", 12, wire.MetadataRequest(topics=None)).topics]
            else TOPIC_REFUSED
        )
    )
)


@attempt("queue.consume", "kafka")
def _(broker: Broker, user: User, name: str) -> bool:
    class Taker(Member):
        _logged_in = False

        def ask(self, api: str, version: int, value: Any) -> Any:
            if not self._logged_in:
                self._logged_in = True
                super().ask("SaslHandshake", 1, wire.SaslHandshakeRequest(mechanism="PLAIN"))
                login = "\0{}\0{}".format(*user).encode()
                super().ask("SaslAuthenticate", 2, wire.SaslAuthenticateRequest(auth_bytes=login))
            return super().ask(api, version, value)

    with Taker(broker, name, name) as taker:
        return bool(taker.take(1, wait_ms=500))


def commit(client: Client, name: str) -> int:
    part = wire.OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    topic = wire.OffsetCommitRequest.OffsetCommitRequestTopic(name="obj", partitions=[part])
    answer = client.ask("OffsetCommit", 8, wire.OffsetCommitRequest(group_id=name, topics=[topic]))
    return int(answer.topics[0].partitions[0].error_code)


attempt("group.consume", "kafka")(asks(commit))
attempt("group.reset", "kafka")(
    request(
        "AlterShareGroupOffsets", 0, lambda n: wire.AlterShareGroupOffsetsRequest(group_id=n), lambda a: a.error_code
    )
)
attempt("group.delete", "kafka")(
    request("DeleteGroups", 2, lambda n: wire.DeleteGroupsRequest(groups_names=[n]), lambda a: a.results[0].error_code)
)
attempt("group.describe", "kafka")(
    request("DescribeGroups", 5, lambda n: wire.DescribeGroupsRequest(groups=[n]), lambda a: a.groups[0].error_code)
)
attempt("group.list", "kafka")(
    asks(
        lambda c, n: (
            0 if n in [g.group_id for g in c.ask("ListGroups", 4, wire.ListGroupsRequest()).groups] else GROUP_REFUSED
        )
    )
)
attempt("transaction.publish", "kafka")(
    request(
        "InitProducerId",
        4,
        lambda n: wire.InitProducerIdRequest(transactional_id=n, transaction_timeout_ms=5_000),
        lambda a: a.error_code,
    )
)
attempt("transaction.describe", "kafka")(
    request(
        "DescribeTransactions",
        0,
        lambda n: wire.DescribeTransactionsRequest(transactional_ids=[n]),
        lambda a: a.transaction_states[0].error_code,
    )
)


@attempt("transaction.list", "kafka")
def _(broker: Broker, user: User, name: str) -> bool:
    with Client(broker, user) as client:
        listed = client.ask("ListTransactions", 0, wire.ListTransactionsRequest()).transaction_states
        return name in [one.transactional_id for one in listed]


attempt("rule.list", "kafka")(
    request(
        "DescribeAcls",
        3,
        lambda n: wire.DescribeAclsRequest(
            resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
        ),
        lambda a: a.error_code,
    )
)
attempt("quota.list", "kafka")(
    request(
        "DescribeClientQuotas",
        1,
        lambda n: wire.DescribeClientQuotasRequest(components=[], strict=False),
        lambda a: a.error_code,
    )
)


def alter_quota(name: str) -> Any:
    entity = [wire.AlterClientQuotasRequest.EntityData(entity_type="user", entity_name="nobody")]
    op = wire.AlterClientQuotasRequest.OpData(key="producer_byte_rate", value=1.0, remove=False)
    entry = wire.AlterClientQuotasRequest.EntryData(entity=entity, ops=[op])
    return wire.AlterClientQuotasRequest(entries=[entry], validate_only=True)


attempt("quota.alter", "kafka")(request("AlterClientQuotas", 1, alter_quota, lambda a: a.entries[0].error_code))
attempt("rule.add", "kafka")(
    request(
        "CreateAcls",
        3,
        lambda n: wire.CreateAclsRequest(
            creations=[
                wire.CreateAclsRequest.AclCreation(
                    resource_type=2,
                    resource_name="none",
                    principal="User:root",
                    host="*",
                    operation=3,
                    permission_type=3,
                )
            ]
        ),
        lambda a: a.results[0].error_code,
    )
)
attempt("rule.remove", "kafka")(
    request(
        "DeleteAcls",
        3,
        lambda n: wire.DeleteAclsRequest(
            filters=[
                wire.DeleteAclsRequest.DeleteAclsFilter(
                    resource_type_filter=2,
                    resource_name_filter="none",
                    pattern_type_filter=1,
                    operation=1,
                    permission_type=1,
                )
            ]
        ),
        lambda a: a.filter_results[0].error_code,
    )
)
