"""The lag of a group is all that lies ahead of it, also in partitions and slots that it never committed."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from mainstem.testing import Broker
from tests.crossing.commands import http, mainstem
from tests.protocol.kafka.clients import consumer, create_topic, eventually, send, unique


def of_group(broker: Broker, group: str) -> dict[str, Any]:
    found: dict[str, Any] = http(broker, "GET", f"/v1/groups/{group}")
    return found


def test_partitions_that_were_never_committed_count(broker: Broker) -> None:
    topic, group = create_topic(broker, unique("lag"), partitions=3), unique("g")
    for partition, count in enumerate((5, 4, 3)):
        send(broker, topic, [b"v"] * count, partition=partition)
    reader = consumer(broker, group_id=group)
    reader.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
    reader.close()
    facts = of_group(broker, group)
    assert [(row["partition"], row["offset"], row["lag"]) for row in facts["offsets"]] == [
        (0, 2, 3),
        (1, None, 4),
        (2, None, 3),
    ]
    assert facts["lag"] == 10
    rows = [json.loads(line) for line in mainstem(broker, "group", "lag", group, "--json").splitlines()]
    assert sum(row["lag"] for row in rows) == 10
    with urllib.request.urlopen(f"{broker.http_url}/metrics/per-object", timeout=20) as answer:
        shown = [line for line in answer.read().decode().splitlines() if f'cursor="{group}"' in line]
    assert [line.rpartition(" ")[2] for line in shown if line.startswith("mainstem_cursor_lag_messages")] == ["10"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_topic_that_members_read_and_never_committed_counts(broker: Broker, protocol: str) -> None:
    topic, group = create_topic(broker, unique("lag"), partitions=2), unique("g")
    send(broker, topic, [b"v"] * 6, partition=1)
    reader = consumer(broker, group_id=group, group_protocol=protocol)
    reader.subscribe([topic])

    def counted() -> bool:
        reader.poll(0.05)
        return any(row["name"] == group and row["lag"] == 6 for row in http(broker, "GET", "/v1/groups")["items"])

    eventually(counted, "the lag is six")
    reader.close()


def test_slots_of_a_view_that_were_never_committed_count(broker: Broker) -> None:
    name, group = unique("lagging"), unique("g")
    for number in range(2):
        create_topic(broker, f"{name}.{number}")
        send(broker, f"{name}.{number}", [b"v"] * (number + 3))
    view = unique("view")
    slots = http(broker, "POST", "/v1/views", {"name": view, "filter": f"{name}/#"})["partitions"]
    reader = consumer(broker, group_id=group)
    place = next(one for one in slots if one["records"] == 3)
    reader.commit(offsets=[TopicPartition(view, place["slot"], place["start_offset"] + 1)], asynchronous=False)
    reader.close()
    assert of_group(broker, group)["lag"] == 2 + 4
