"""Every call of Kafka's protocol by a user with no right to a topic: it hears the same whether there is one or not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from mainstem.protocols.kafka import messages as wire
from mainstem.protocols.kafka.schema import APIS, Api, Field
from mainstem.testing import Broker
from tests.protocol.kafka.raw import batch_of
from tests.security.attempts import Client
from tests.users import ANN, ROOT, add_users

THERE, NOWHERE, OWN = "hidden.there", "hidden.nowhere", "own"
LOGIN = ("SaslHandshake", "SaslAuthenticate", "ApiVersions")
NUMBERS = {"replica_id": -1, "replication_factor": 1, "count": 4, "num_partitions": 1, "acks": -1, "timestamp": -1}
NUMBERS |= {"resource_type": 2, "resource_type_filter": 2, "pattern_type": 3, "pattern_type_filter": 3, "operation": 3}
NUMBERS |= {"permission_type": 3, "timeout_ms": 2_000, "session_timeout_ms": 6_000, "rebalance_timeout_ms": 6_000}
NUMBERS |= {"max_bytes": 100_000, "partition_max_bytes": 100_000, "max_wait_ms": 1, "session_epoch": -1}
CALLS = [
    pytest.param(api, version, id=f"{api.name}-{version}")
    for api in APIS.values()
    if api.name not in LOGIN
    for version in sorted({api.first, api.last})
]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as one:
        add_users(one)
        with httpx.Client(base_url=one.http_url, auth=ROOT) as http:
            body = {"name": THERE.replace(".", "/"), "settings": {"layout": "dedicated"}}
            http.post("/v1/topics", json=body).raise_for_status()
        with Client(one, ROOT) as root:
            assert root.produce(THERE, batch_of([b"x"])).error_code == 0
        yield one


def filled(api: Api, version: int, topic: str) -> Any:
    """A request whose every topic is this one, and whose groups and transactions are the caller's own."""
    top = getattr(wire, f"{api.name}Request")

    def value(field: Field) -> Any:
        match field.type:
            case "string" if field.name in ("principal", "host", "protocol_type"):
                return {"principal": "User:ann", "host": "*", "protocol_type": "consumer"}[field.name]
            case "string":
                named = "topic" in field.name or field.name in ("name", "resource_name")
                return topic if named else OWN
            case "uuid" | "bytes" | "records" | "bool" | "f64":
                empty = {"uuid": bytes(16), "bytes": b"", "bool": False, "f64": 1.0}
                return batch_of([b"x"]) if field.type == "records" else empty[field.type]
            case kind if field.is_struct:
                return struct(getattr(top, kind), field.fields)
        return NUMBERS.get(field.name, 0)

    def struct(kind: Any, fields: list[Field]) -> Any:
        wanted = {one.name: value(one) for one in fields if version in one.versions}
        return kind(
            **{
                one.name: [wanted[one.name]] if one.is_array else wanted[one.name]
                for one in fields
                if one.name in wanted
            }
        )

    return struct(top, api.request.fields)


def heard(broker: Broker, api: Api, version: int, topic: str) -> str:
    with Client(broker, ANN) as client:
        answer = str(client.ask(api.name, version, filled(api, version, topic)))
    changing = (
        r"0x[0-9a-f]+|member_id='[^']*'|(producer_id|producer_epoch|member_epoch|group_epoch|assignment_epoch)=-?\d+"
    )
    return re.sub(changing, "", answer.replace(topic, "TOPIC"))


@pytest.mark.parametrize(("api", "version"), CALLS)
def test_what_is_there_and_what_is_not_look_the_same(broker: Broker, api: Api, version: int) -> None:
    assert heard(broker, api, version, THERE) == heard(broker, api, version, NOWHERE)


def test_only_an_admin_is_shown_the_directory_and_its_disk(broker: Broker) -> None:
    asked = wire.DescribeLogDirsRequest(topics=None)
    with Client(broker, ANN) as ann, Client(broker, ROOT) as root:
        assert (ann.ask("DescribeLogDirs", 4, asked).error_code, root.ask("DescribeLogDirs", 4, asked).error_code) == (
            31,
            0,
        )
        assert not ann.ask("DescribeLogDirs", 2, asked).results


def test_a_share_group_starts_over_only_where_its_user_may_consume(broker: Broker) -> None:
    """What makes a queue keeps records: nobody does that to a topic that is not theirs."""
    kinds = wire.AlterShareGroupOffsetsRequest
    part = kinds.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)
    topic = kinds.AlterShareGroupOffsetsRequestTopic(topic_name=THERE, partitions=[part])
    with Client(broker, ANN) as ann:
        answer = ann.ask("AlterShareGroupOffsets", 0, kinds(group_id="anns", topics=[topic]))
    assert answer.responses[0].partitions[0].error_code == 29
    with httpx.Client(base_url=broker.http_url, auth=ROOT) as http:
        assert not http.get("/v1/queues").json()["items"]
