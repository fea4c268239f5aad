"""A value that does not match its topic's schema is refused, or set aside, in the words of each protocol."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import nats
import nats.errors
import nats.js.errors
import pika
import pika.exceptions
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from mainstem.testing import Broker
from tests.protocol.mqtt.raw import Raw, publish_packet

SHAPE = {"type": "object", "properties": {"celsius": {"type": "number"}}, "required": ["celsius"]}
GOOD, BAD = b'{"celsius": 21.5}', b'{"celsius": "warm"}'
AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "celsius", "type": "double"}]})


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    policy = (
        "policies.stream/#.schema=shape",
        "policies.stream/#.schema_mode=dead-letter",
        "policies.plain/#.schema=shape",
    )
    with Broker(*policy) as one, httpx.Client(base_url=one.http_url, timeout=60) as http:
        body = {"schema": json.dumps(SHAPE), "schemaType": "JSON"}
        http.post("/subjects/shape/versions", json=body).raise_for_status()
        http.post("/subjects/avro/versions", json={"schema": AVRO}).raise_for_status()
        for name, subject, mode in (
            ("checked", "shape", "refuse"),
            ("aside", "shape", "dead-letter"),
            ("loose", "shape", "off"),
            ("binary", "avro", "refuse"),
            ("early", "none-yet", "refuse"),
            ("many", "shape", "dead-letter"),
        ):
            settings = {"schema": subject, "schema_mode": mode, "layout": "dedicated"}
            http.post("/v1/topics", json={"name": name, "settings": settings}).raise_for_status()
        yield one


def values(broker: Broker, topic: str) -> list[Any]:
    rows = httpx.get(f"{broker.http_url}/v1/messages", params={"topic": topic, "limit": 500}, timeout=30).json()
    return [row["value"] for row in rows.get("items", [])]


def produced(broker: Broker, topic: str, *sent: bytes, **settings: Any) -> list[int]:
    """The error code of each, 0 for none."""
    codes: list[int] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 50, **settings})
    for value in sent:
        producer.produce(topic, value, on_delivery=lambda error, _: codes.append(error.code() if error else 0))
    assert producer.flush(30) == 0
    return codes


def test_mqtt_is_told_that_the_payload_is_invalid(broker: Broker) -> None:
    before = values(broker, "checked")
    with Raw.connected(broker.mqtt_port, version=5) as client:
        for qos in (1, 2):
            client.send(publish_packet("checked", BAD, qos=qos, version=5, packet_id=qos))
            _, body = client.packet()
            assert body[2] == 0x99
            assert b"match the topic's schema" in body
        client.send(publish_packet("checked", GOOD, qos=1, version=5, packet_id=3))
        _, body = client.packet()
        assert len(body) == 2 or body[2] < 0x80
        client.send(publish_packet("loose", BAD, qos=1, version=5, packet_id=4))
        _, body = client.packet()
        assert len(body) == 2 or body[2] < 0x80
    assert values(broker, "checked") == [*before, GOOD.decode()]


def test_kafka_is_told_which_record_is_invalid_and_stores_none_of_the_batch(broker: Broker) -> None:
    before = values(broker, "checked")
    assert produced(broker, "checked", GOOD, BAD) == [87, 87]
    assert produced(broker, "checked", BAD, **{"compression.type": "zstd"}) == [87]
    assert values(broker, "checked") == before
    assert produced(broker, "checked", GOOD, GOOD) == [0, 0]


def test_amqp_gets_a_nack_or_its_channel_is_closed(broker: Broker) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.basic_publish("amq.topic", "checked", BAD)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
            channel.queue_declare("q", passive=True)
        assert closed.value.reply_code == 406 and "schema shape" in closed.value.reply_text
        confirmed = connection.channel()
        confirmed.confirm_delivery()
        with pytest.raises(pika.exceptions.NackError):
            confirmed.basic_publish("amq.topic", "checked", BAD)
        confirmed.basic_publish("amq.topic", "checked", GOOD)
        within = connection.channel()
        within.tx_select()
        within.basic_publish("amq.topic", "checked", BAD)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
            within.tx_commit()
        assert closed.value.reply_code == 406


async def test_nats_is_told_and_stays_connected(broker: Broker) -> None:
    told: list[Exception] = []
    arrived = asyncio.Event()

    async def note(error: Exception) -> None:
        told.append(error)
        arrived.set()

    client = await nats.connect(broker.nats_url, error_cb=note)
    await client.publish("checked", BAD)
    await asyncio.wait_for(arrived.wait(), 20)
    assert "schema shape" in str(told[0])
    await client.publish("checked", GOOD)
    await client.flush()
    assert client.is_connected
    await client.close()


async def test_what_a_stream_sets_aside_is_refused_and_takes_no_sequence(broker: Broker) -> None:
    client = await nats.connect(broker.nats_url)
    js = client.jetstream()
    await js.add_stream(name="strict", subjects=["stream.>"])
    assert (await js.publish("stream.a", GOOD)).seq == 1
    with pytest.raises(nats.js.errors.APIError, match="set aside") as refused:
        await js.publish("stream.a", BAD)
    assert refused.value.err_code == 10077
    assert (await js.publish("stream.a", GOOD)).seq == 2
    assert (await js.stream_info("strict")).state.messages == 2
    deadline = time.monotonic() + 20  # another log, which is written on its own
    while not (aside := values(broker, "dead/stream/a")) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert aside == [BAD.decode()]
    await client.close()


async def test_jetstream_tells_the_reason_instead_of_a_sequence(broker: Broker) -> None:
    client = await nats.connect(broker.nats_url)
    try:
        streams = client.jetstream()
        await streams.add_stream(name="CHECKED", subjects=["plain.>"])
        first = await streams.publish("plain.a", GOOD)
        with pytest.raises(nats.js.errors.APIError) as refused:
            await streams.publish("plain.a", BAD)
        assert refused.value.err_code == 10077 and "schema shape" in (refused.value.description or "")
        many = await asyncio.gather(
            *(streams.publish("plain.a", BAD if n % 3 == 0 else GOOD) for n in range(30)), return_exceptions=True
        )
        assert [isinstance(one, nats.js.errors.APIError) for one in many] == [n % 3 == 0 for n in range(30)]
        assert (await streams.publish("plain.a", GOOD)).seq == first.seq + 21, "what is refused takes no sequence"
        await streams.delete_stream("CHECKED")
    finally:
        await client.close()


def test_http_answers_422(broker: Broker) -> None:
    with httpx.Client(base_url=broker.http_url, timeout=30) as http:
        refused = http.post("/v1/messages", json={"topic": "checked", "value": BAD.decode()})
        assert refused.status_code == 422 and refused.json()["code"] == "MS-1010"
        assert "/celsius" in refused.json()["detail"]
        unknown = http.post("/v1/messages", json={"topic": "early", "value": "{}"})
        assert unknown.status_code == 422 and "has no version" in unknown.json()["detail"]
        assert http.post("/v1/messages", json={"topic": "checked", "value": "x" * 300_000}).status_code == 422
        assert http.post("/v1/messages", json={"topic": "checked", "value_json": None}).status_code == 200


def test_a_serialised_value_is_checked_by_the_version_it_names(broker: Broker) -> None:
    client = SchemaRegistryClient({"url": broker.http_url})
    serialise = AvroSerializer(client, AVRO, conf={"subject.name.strategy": lambda *_: "avro"})
    good = serialise({"celsius": 1.5}, SerializationContext("binary", MessageField.VALUE))
    assert good is not None
    assert produced(broker, "binary", good) == [0]
    assert produced(broker, "binary", good[:-1]) == [87], "cut"
    assert produced(broker, "binary", good + b"x") == [87], "and more"
    assert produced(broker, "binary", b"\0\0\0\x7f\x7f" + good[5:]) == [87], "an id that does not exist"
    shape = client.get_latest_version("shape").schema_id
    assert produced(broker, "binary", b"\0" + shape.to_bytes(4, "big") + GOOD) == [87], "an id of another subject"
    assert produced(broker, "binary", b'{"celsius": 2.5}') == [0], "bare JSON of the same fields"
    assert produced(broker, "binary", b"\0") == [87]


def test_what_does_not_match_is_set_aside_with_the_reason_and_the_rest_is_stored(broker: Broker) -> None:
    assert produced(broker, "aside", GOOD, BAD, GOOD, **{"enable.idempotence": True}) == [0, 0, 0]
    assert produced(broker, "aside", BAD) == [0]
    with Raw.connected(broker.mqtt_port, version=5) as client:
        client.send(publish_packet("aside", b"no json", qos=1, version=5))
        _, body = client.packet()
        assert len(body) == 2 or body[2] < 0x80
    httpx.post(f"{broker.http_url}/v1/messages", json={"topic": "aside", "value": "neither"}).raise_for_status()
    assert values(broker, "aside") == [GOOD.decode()] * 2
    deadline = time.monotonic() + 20
    while len(values(broker, "dead/aside")) < 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert values(broker, "dead/aside") == [BAD.decode(), BAD.decode(), "no json", "neither"]
    rows = httpx.get(f"{broker.http_url}/v1/messages", params={"topic": "dead/aside"}).json()["items"]
    assert all("ms-schema-misfit" in str(row["headers"]) for row in rows)


def test_an_idempotent_producer_goes_on_after_batches_that_lost_records(broker: Broker) -> None:
    sent = [GOOD if n % 3 else BAD for n in range(200)]
    assert produced(broker, "many", *sent, **{"enable.idempotence": True, "batch.num.messages": 7}) == [0] * 200
    assert len(values(broker, "many")) == sum(value == GOOD for value in sent)


def test_an_idempotent_producer_goes_on_after_batches_of_which_nothing_was_left(broker: Broker) -> None:
    before, codes = len(values(broker, "many")), list[int]()
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
    for value in (GOOD, BAD, BAD, GOOD, BAD, GOOD):
        producer.produce("many", value, on_delivery=lambda error, _: codes.append(error.code() if error else 0))
        assert producer.flush(30) == 0, "a batch of its own"
    assert codes == [0] * 6
    assert len(values(broker, "many")) == before + 3


def test_a_new_version_and_a_new_setting_hold_at_once(broker: Broker) -> None:
    with (
        httpx.Client(base_url=broker.http_url, timeout=60) as http,
        Raw.connected(broker.mqtt_port, version=5) as client,
    ):

        def sent(packet_id: int) -> int:
            client.send(publish_packet("turns", BAD, qos=1, version=5, packet_id=packet_id))
            _, body = client.packet()
            return body[2] if len(body) > 2 else 0

        assert sent(1) < 0x80
        http.patch("/v1/topics/turns", json={"settings": {"schema": "turning"}}).raise_for_status()
        assert sent(2) == 0x99
        text = {"schema": json.dumps({"type": "object"}), "schemaType": "JSON"}
        http.post("/subjects/turning/versions", json=text).raise_for_status()
        assert sent(3) < 0x80
        http.delete("/subjects/turning").raise_for_status()
        assert sent(4) == 0x99
        http.patch("/v1/topics/turns", json={"settings": {"schema": ""}}).raise_for_status()
        assert sent(5) < 0x80
