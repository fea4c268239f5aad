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
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from mainstem.protocols.kafka.messages import (
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from mainstem.testing import Broker
from tests.protocol.kafka.raw import RawClient
from tests.protocol.mqtt.raw import Raw
from tests.users import ANN, ROOT, add_users, allow

CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST, POLICY_VIOLATION = 31, 42, 44
TOPIC_AUTHORIZATION_FAILED = 29
ALLOW, READ, ANY, LITERAL = 3, 3, 1, 3
ON_CLUSTER = {"resource_type": 4, "resource_name": "kafka-cluster", "operation": 5}
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


def acl(
    kind: Any,
    name: str,
    pattern: Any,
    operation: Any,
    permission: Any = AclPermissionType.ALLOW,
    *,
    user: str = "ann",
) -> AclBinding:
    return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, permission)


def as_admin(broker: Broker) -> RawClient:
    raw = RawClient(broker)
    raw.ask("SaslHandshake", 1, SaslHandshakeRequest(mechanism="PLAIN"))
    raw.ask("SaslAuthenticate", 2, SaslAuthenticateRequest(auth_bytes="\0{}\0{}".format(*ROOT).encode()))
    return raw


def creation(**changed: Any) -> Any:
    said = {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": LITERAL,
        "principal": "User:ann",
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
    }
    return CreateAclsRequest.AclCreation(**said | changed)


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
            acl(ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL, AclOperation.ALTER),
            INVALID_REQUEST,
            "what else concerns it is for admins",
        ),
        (
            acl(ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, AclOperation.READ, user="CN=bob, O=acme"),
            INVALID_REQUEST,
            "user name 'CN=bob, O=acme'",
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


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"resource_pattern_type": ANY}, "literal or prefixed"),
        ({"resource_pattern_type": 2}, "literal or prefixed"),
        ({"operation": ANY}, "operation 1"),
        ({"permission_type": ANY}, "allow or deny"),
        ({"resource_type": ANY}, "no rules on resources of type 1"),
        ({"resource_name": ""}, ""),
        ({"principal": "User:"}, "user name"),
        ({"resource_type": 4, "resource_name": "another", "operation": 5}, "only name is kafka-cluster"),
        (
            {"resource_type": 4, "resource_name": "kafka-cluster", "operation": 12, "permission_type": 2},
            "no right of its own",
        ),
        ({"operation": 12}, "operation 12 is of the cluster"),
        *(({**ON_CLUSTER, "operation": operation}, "is for admins") for operation in (2, 3, 4, 6, 7, 8, 9, 10, 11, 13)),
        ({"resource_type": 6, "operation": 8}, "no delegation tokens"),
        ({"resource_type": 7, "operation": 14}, "no delegation tokens"),
    ],
)
def test_what_no_rule_can_mean_is_an_invalid_request(broker: Broker, changed: dict[str, Any], why: str) -> None:
    """As Kafka checks it: a pattern that is only for filters was a prefix here, more than whoever asked meant."""
    with as_admin(broker) as raw:
        answer = raw.ask("CreateAcls", 3, CreateAclsRequest(creations=[creation(**changed)])).results[0]
    assert answer.error_code == INVALID_REQUEST
    assert why in answer.error_message
    assert httpx.get(f"{broker.http_url}/v1/users/ann", auth=ROOT).json()["rules"] == []


def test_rules_of_a_name_that_no_user_has_are_kept_and_become_the_users(broker: Broker) -> None:
    """As librdkafka's and confluent-kafka's own tests make them: for users that are not there."""
    root = admin(broker, ROOT)
    made = [
        acl(ResourceType.TOPIC, "t", ResourcePatternType.PREFIXED, AclOperation.READ, user="test-user-1"),
        acl(ResourceType.TOPIC, "t1", ResourcePatternType.LITERAL, AclOperation.WRITE, user="test-user-2"),
        acl(ResourceType.GROUP, "g", ResourcePatternType.PREFIXED, AclOperation.ALL, user="test-user-2"),
    ]
    for wanted in (made, made[:1]):  # a second time changes nothing
        for future in root.create_acls(wanted).values():
            assert future.result(10) is None
    assert sorted(root.describe_acls(EVERY).result(10)) == sorted(made)
    named = AclBindingFilter(
        ResourceType.TOPIC, "t1", ResourcePatternType.MATCH, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert set(root.describe_acls(named).result(10)) == set(made[:2])
    kept = httpx.get(f"{broker.http_url}/v1/kept-rules", auth=ROOT).json()["items"]
    assert [(one["user"], one["namespace"], len(one["rules"])) for one in kept] == [
        ("test-user-1", "/", 1),
        ("test-user-2", "/", 2),
    ]
    added = {"name": "test-user-1", "password": "secret"}
    answer = httpx.post(f"{broker.http_url}/v1/users", json=added, auth=ROOT).json()
    assert answer["rules"] == [{"allow": True, "actions": ["consume"], "filter": "t", "match": "prefix"}]
    with Raw.connected(broker.mqtt_port, version=5, username="test-user-1", password=b"secret") as client:
        assert client.subscribe(("other", 0)) == [0x87]
        assert client.subscribe(("t1", 0)) == [0]
    assert set(root.describe_acls(EVERY).result(10)) == set(made), "told all the same"
    assert set(root.delete_acls([EVERY])[EVERY].result(10)) == set(made)
    assert root.describe_acls(EVERY).result(10) == []
    assert httpx.get(f"{broker.http_url}/v1/kept-rules", auth=ROOT).json()["items"] == []


def test_rules_for_names_are_bounded(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainstem.broker.rights.access.KEPT_RULES_MAX", 2)
    wanted = [creation(principal=f"User:of-{number}") for number in range(3)]
    with as_admin(broker) as raw:
        answer = raw.ask("CreateAcls", 3, CreateAclsRequest(creations=wanted))
        assert [one.error_code for one in answer.results] == [0, 0, POLICY_VIOLATION]
        every = DeleteAclsRequest.DeleteAclsFilter(
            resource_type_filter=ANY,
            resource_name_filter=None,
            pattern_type_filter=ANY,
            principal_filter=None,
            host_filter=None,
            operation=ANY,
            permission_type=ANY,
        )
        gone = raw.ask("DeleteAcls", 3, DeleteAclsRequest(filters=[every])).filter_results[0]
    assert sorted(one.principal for one in gone.matching_acls) == ["User:of-0", "User:of-1"]


def may_create(client: AdminClient, topic: str) -> bool:
    failed = client.create_topics([NewTopic(topic, 1, 1)])[topic].exception(10)
    assert failed is None or failed.args[0].code() == TOPIC_AUTHORIZATION_FAILED
    return failed is None


def test_who_may_create_on_the_cluster_makes_any_topic_by_kafka_and_has_no_other_right(broker: Broker) -> None:
    """As Connect and Streams are set up. It is shown and taken away as what it was made as."""
    root, ann, cluster = admin(broker, ROOT), admin(broker, ANN), "kafka-cluster"
    wanted = acl(ResourceType.BROKER, cluster, ResourcePatternType.LITERAL, AclOperation.CREATE)
    secret = acl(
        ResourceType.TOPIC, "secret", ResourcePatternType.PREFIXED, AclOperation.CREATE, AclPermissionType.DENY
    )
    assert not may_create(ann, "first")
    for future in root.create_acls([wanted, secret]).values():
        future.result(10)
    assert may_create(ann, "first")
    assert not may_create(ann, "secret-plans")
    assert not may_create(ann, "_x24own"), "internal"
    with Raw.connected(broker.mqtt_port, version=5, username=ANN[0], password=ANN[1].encode()) as device:
        assert device.subscribe(("first", 0)) == [0x87]
    made = {"name": "by-http"}
    assert httpx.post(f"{broker.http_url}/v1/topics", json=made, auth=ANN).status_code == 403
    asked = AclBindingFilter(
        ResourceType.BROKER, cluster, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert root.describe_acls(asked).result(10) == [wanted]
    assert root.delete_acls([asked])[asked].result(10) == [wanted]
    assert not may_create(ann, "second")
    assert root.describe_acls(EVERY).result(10) == [secret]


def test_a_topic_is_made_by_asking_for_it_where_the_cluster_allows_it(broker: Broker) -> None:
    root = admin(broker, ROOT)
    wanted = [
        acl(ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL, AclOperation.CREATE),
        acl(ResourceType.TOPIC, "asked", ResourcePatternType.LITERAL, AclOperation.DESCRIBE),
    ]
    ann = admin(broker, ANN)
    for made in wanted:
        assert ann.list_topics("asked", timeout=10).topics["asked"].error is not None
        root.create_acls([made])[made].result(10)
    with RawClient(broker) as raw:
        raw.ask("SaslHandshake", 1, SaslHandshakeRequest(mechanism="PLAIN"))
        raw.ask("SaslAuthenticate", 2, SaslAuthenticateRequest(auth_bytes="\0{}\0{}".format(*ANN).encode()))
        line = MetadataRequest.MetadataRequestTopic(name="asked")
        answer = raw.ask("Metadata", 9, MetadataRequest(topics=[line], allow_auto_topic_creation=True))
    assert answer.topics[0].error_code == 0


def test_an_idempotent_write_may_be_allowed_and_needs_not_be(broker: Broker) -> None:
    """`kafka-acls --producer --idempotent` and older guides ask for it; Kafka itself needs it no more (KIP-679)."""
    allow(broker, "t", "publish", "create", "describe")
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    login |= {"sasl.username": ANN[0], "sasl.password": ANN[1], "bootstrap.servers": broker.bootstrap_servers}

    def write() -> None:
        told: list[Any] = []
        producer = confluent_kafka.Producer({**login, "enable.idempotence": True})
        producer.produce("t", b"x", on_delivery=lambda error, message: told.append(error))
        producer.flush(20)
        assert told == [None]

    write()
    root = admin(broker, ROOT)
    wanted = acl(ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL, AclOperation.IDEMPOTENT_WRITE)
    root.create_acls([wanted])[wanted].result(10)
    assert wanted in root.describe_acls(EVERY).result(10)
    write()


@pytest.mark.parametrize(
    ("rule", "status"),
    [
        ({"actions": ["create"], "filter": "kafka-cluster"}, 200),
        ({"actions": ["create"], "filter": "*"}, 400),
        ({"actions": ["manage"], "filter": "kafka-cluster"}, 400),
        ({"actions": ["publish"], "filter": "kafka-cluster", "allow": False}, 400),
    ],
)
def test_no_other_way_makes_a_rule_on_the_cluster_that_nobody_would_obey(
    broker: Broker, rule: dict[str, Any], status: int
) -> None:
    answer = httpx.post(f"{broker.http_url}/v1/users/ann/rules", json={**rule, "kind": "cluster"}, auth=ROOT)
    assert answer.status_code // 100 == status // 100
