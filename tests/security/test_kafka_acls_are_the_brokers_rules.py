"""Rules made, shown and deleted by Kafka's own tools hold for every protocol."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import confluent_kafka
import httpx
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from mainstem.protocols.kafka.messages import DescribeAclsRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from mainstem.testing import Broker
from tests.protocol.kafka.raw import RawClient
from tests.protocol.mqtt.raw import Raw
from tests.users import ANN, ROOT, add_users, allow

CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST, RESOURCE_NOT_FOUND = 31, 42, 91
EVERY = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as one:
        add_users(one)
        yield one


def admin(broker: Broker, user: tuple[str, str]) -> AdminClient:
    return AdminClient(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user[0],
            "sasl.password": user[1],
        }
    )


def acl(kind: Any, name: str, pattern: Any, operation: Any, permission: Any = AclPermissionType.ALLOW) -> AclBinding:
    return AclBinding(kind, name, pattern, "User:ann", "*", operation, permission)


def test_what_kafkas_tools_make_holds_for_mqtt_and_is_deleted_again(broker: Broker) -> None:
    root = admin(broker, ROOT)
    made = [
        acl(ResourceType.TOPIC, "a.", ResourcePatternType.PREFIXED, AclOperation.ALL),
        acl(ResourceType.TOPIC, "a.secret", ResourcePatternType.LITERAL, AclOperation.READ, AclPermissionType.DENY),
        acl(ResourceType.GROUP, "team-", ResourcePatternType.PREFIXED, AclOperation.READ),
        acl(
            ResourceType.TRANSACTIONAL_ID, "*", ResourcePatternType.LITERAL, AclOperation.WRITE, AclPermissionType.DENY
        ),
    ]
    for future in root.create_acls(made).values():
        assert future.result(10) is None
    assert set(root.describe_acls(EVERY).result(10)) == set(made)
    with Raw.connected(broker.mqtt_port, version=5, username=ANN[0], password=ANN[1].encode()) as ann:
        assert ann.subscribe(("a/open", 0)) == [0]
        assert ann.subscribe(("a/secret", 0)) == [0x87]
        assert ann.subscribe(("b/open", 0)) == [0x87]
    told = httpx.get(f"{broker.http_url}/v1/users/ann", auth=ROOT).json()["rules"]
    assert {"allow": True, "actions": ["consume"], "filter": "team-", "kind": "group", "match": "prefix"} in told
    deleted = root.delete_acls([EVERY])[EVERY].result(10)
    assert set(deleted) == set(made)
    assert root.describe_acls(EVERY).result(10) == []
    assert httpx.get(f"{broker.http_url}/v1/users/ann", auth=ROOT).json()["rules"] == []


def test_a_rule_kafka_has_no_words_for_is_shown_all_the_same(broker: Broker) -> None:
    allow(broker, "sensors/+/temp", "consume")
    root = admin(broker, ROOT)
    (shown,) = root.describe_acls(EVERY).result(10)
    assert (shown.name, shown.operation) == ("sensors/+/temp", AclOperation.READ)


def test_only_an_admin_sees_or_makes_them(broker: Broker) -> None:
    allow(broker, "seen/#", "consume")
    ann = admin(broker, ANN)
    with RawClient(broker) as raw:
        raw.ask("SaslHandshake", 1, SaslHandshakeRequest(mechanism="PLAIN"))
        raw.ask("SaslAuthenticate", 2, SaslAuthenticateRequest(auth_bytes="\0{}\0{}".format(*ANN).encode()))
        every = DescribeAclsRequest(resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1)
        answer = raw.ask("DescribeAcls", 3, every)
    assert (answer.error_code, answer.resources) == (CLUSTER_AUTHORIZATION_FAILED, [])
    wanted = acl(ResourceType.TOPIC, "*", ResourcePatternType.LITERAL, AclOperation.ALL)
    with pytest.raises(confluent_kafka.KafkaException, match=r"(?i)not an admin"):
        ann.create_acls([wanted])[wanted].result(10)


def test_everybody_is_a_role(broker: Broker) -> None:
    root = admin(broker, ROOT)
    wanted = AclBinding(
        ResourceType.TOPIC,
        "public",
        ResourcePatternType.LITERAL,
        "User:*",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    root.create_acls([wanted])[wanted].result(10)
    with Raw.connected(broker.mqtt_port, version=5, username=ANN[0], password=ANN[1].encode()) as ann:
        assert ann.subscribe(("public", 0)) == [0]
    assert root.describe_acls(EVERY).result(10) == [wanted]


@pytest.mark.parametrize(
    ("wanted", "code", "why"),
    [
        (
            AclBinding(
                ResourceType.TOPIC,
                "t",
                ResourcePatternType.LITERAL,
                "User:nobody",
                "*",
                AclOperation.READ,
                AclPermissionType.ALLOW,
            ),
            RESOURCE_NOT_FOUND,
            "there is no user nobody",
        ),
        (
            acl(ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL, AclOperation.ALTER),
            INVALID_REQUEST,
            "what concerns the cluster is for admins",
        ),
    ],
)
def test_a_rule_that_cannot_be_is_refused_for_what_it_is_and_not_for_a_topic(
    broker: Broker, wanted: AclBinding, code: int, why: str
) -> None:
    root = admin(broker, ROOT)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        root.create_acls([wanted])[wanted].result(10)
    error = refused.value.args[0]
    assert error.code() == code
    assert why in error.str()
