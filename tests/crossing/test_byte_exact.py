"""What comes back to the protocol that wrote it is what it sent, byte for byte, seen below the client libraries."""

from __future__ import annotations

import struct
import uuid

import pika.spec as spec
import pytest

from mainstem.codec.batch import BatchBuilder, crc32c
from mainstem.codec.compression import deflate
from mainstem.model.topic import amqp_key, kafka_name
from mainstem.testing import Broker, BrokerProcess
from tests.crossing.message import Message, Speaker
from tests.crossing.mqtt_speaker import MqttSpeaker
from tests.crossing.raw_amqp import RawAmqp
from tests.crossing.speakers import speakers_of
from tests.protocol.kafka.raw import RawClient
from tests.protocol.mqtt.raw import Raw

# Out of the usual order, with repeats, marks of a client's own and everything MQTT allows in a PUBLISH.
MQTT_PROPERTIES = (
    b"\x26\x00\x01b\x00\x011"  # user property b=1
    b"\x09\x00\x03\xff\x00\x01"  # correlation data
    b"\x26\x00\x06ms-own\x00\x01x"
    b"\x03\x00\x00"  # an empty content type
    b"\x26\x00\x01b\x00\x012"
    b"\x01\x01"  # payload format
    b"\x08\x00\x03r/t"  # response topic
    b"\x26\x00\x05h;b64\x00\x03a!?"  # looks like a mark, is none
    b"\x26\x00\x00\x00\x00"
)


def text(value: bytes) -> bytes:
    return len(value).to_bytes(2, "big") + value


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("when", ["live", "history"])
def test_mqtt_properties_come_back_as_they_were_sent(broker: Broker, when: str, qos: int) -> None:
    topic = f"exact/{uuid.uuid4().hex}"
    packet_id = b"\0\1" if qos else b""
    properties = bytes([len(MQTT_PROPERTIES)]) + MQTT_PROPERTIES
    body = text(topic.encode()) + packet_id + properties + b"payload \xc3\xa9"
    packet = bytes([0x30 | qos << 1, len(body)]) + body
    with Raw.connected(broker.mqtt_port, version=5) as writer, Raw.connected(broker.mqtt_port, version=5) as reader:
        if when == "live":
            reader.subscribe((topic, 2))
        writer.send(packet)
        if qos:
            writer.packet()
        if qos == 2:
            writer.send(b"\x62\x02\0\1")
            writer.packet()
        if when == "history":
            writer.ping()
            reader.subscribe((f"$stream/{topic}", 2))
        got = reader.message()
    assert (got.topic, got.payload, got.retain) == (topic, b"payload \xc3\xa9", False)
    assert got.qos == qos
    if when == "live":
        assert got.properties == MQTT_PROPERTIES
    else:  # a stream tells where the record lies, behind what was sent or before it
        assert MQTT_PROPERTIES in got.properties
        added = got.properties.replace(MQTT_PROPERTIES, b"")
        assert added.startswith(b"\x26\x00\x09ms-offset") and b"ms-append-ts" in added


# Every type a table can hold, a name that stands twice, nesting, an unusual order.
TABLE = b"".join(
    (
        b"\x01tt\x01",
        b"\x01bb\xff",
        b"\x01BB\xff",
        b"\x01ss\xff\x00",
        b"\x01uu\xff\x00",
        b"\x01II\xff\x00\x00\x00",
        b"\x01ii\xff\x00\x00\x00",
        b"\x01ll" + bytes(8),
        b"\x01ff" + struct.pack(">f", 1.5),
        b"\x01dd" + struct.pack(">d", -2.5),
        b"\x01DD\x02\x00\x00\x00\x7d",
        b"\x01TT" + (1_700_000_000).to_bytes(8, "big"),
        b"\x01VV",
        b"\x01SS\x00\x00\x00\x02\xff\x00",
        b"\x01xx\x00\x00\x00\x02\xff\x00",
        b"\x01AA\x00\x00\x00\x05s\x00\x01t\x00",
        b"\x01FF\x00\x00\x00\x0a\x01kF\x00\x00\x00\x03\x01vV",
        b"\x01SS\x00\x00\x00\x01b",
        b"\x02\xc3\x28S\x00\x00\x00\x00",
    )
)


def properties_of(table: bytes) -> bytes:
    """content_type, headers, delivery_mode, priority, correlation_id, timestamp, app_id."""
    flags = 0x8000 | 0x2000 | 0x1000 | 0x0800 | 0x0400 | 0x0040 | 0x0008
    short = b"\x04\xff\xfe\x00x"
    return (
        flags.to_bytes(2, "big")
        + b"\x0atext/plain"
        + len(table).to_bytes(4, "big")
        + table
        + b"\x02\x07"
        + short
        + (1_700_000_000).to_bytes(8, "big")
        + b"\x00"
    )


@pytest.mark.parametrize("when", ["live", "history"])
def test_amqp_content_headers_come_back_as_they_were_sent(broker: Broker, when: str) -> None:
    key = f"exact.{uuid.uuid4().hex}"
    sent = properties_of(TABLE)
    with RawAmqp(broker) as writer, RawAmqp(broker) as reader:
        writer.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
        queue = f"q-{key}"
        if when == "live":
            reader.ask(spec.Queue.Declare(queue=queue, exclusive=True), spec.Queue.DeclareOk)
            reader.ask(spec.Queue.Bind(queue=queue, exchange="amq.topic", routing_key=key), spec.Queue.BindOk)
            reader.ask(spec.Basic.Consume(queue=queue, consumer_tag="c"), spec.Basic.ConsumeOk)
        writer.publish("amq.topic", key, sent, b"body\xff\0")
        if when == "history":
            reader.ask(spec.Basic.Qos(prefetch_count=10), spec.Basic.QosOk)
            consume = spec.Basic.Consume(queue=key, consumer_tag="c", arguments={"x-stream-offset": "first"})
            reader.ask(consume, spec.Basic.ConsumeOk)
        got, body = reader.delivered()
    assert body == b"body\xff\0"
    if when == "live":
        assert got == sent
    else:  # a stream tells its offset, behind the headers that were sent
        start = got.index(TABLE)
        size = int.from_bytes(got[start - 4 : start], "big")
        added = got[start + len(TABLE) : start - 4 + 4 + size]
        assert added.startswith(b"\x0fx-stream-offsetl") and len(added) == 16 + 1 + 8
        assert got.replace(added, b"").replace(size.to_bytes(4, "big"), len(TABLE).to_bytes(4, "big"), 1) == sent


@pytest.mark.parametrize("codec", range(5), ids=["none", "gzip", "snappy", "lz4", "zstd"])
def test_kafka_batches_come_back_as_they_were_sent(broker: Broker, codec: int) -> None:
    builder = BatchBuilder()
    headers = [(b"", None), (b"h", b"\xff"), (b"h", b""), (b"ms-topic", b"mine"), (b"\xff", b"1")]
    builder.add(None, None, headers, 1_700_000_000_123)
    builder.add(b"\xff\0", b"", (), 5)
    builder.add(b"", b"x" * 1000, [(b"ms-mqtt", b"not yours")], -1)
    batch = compressed(bytes(builder.seal_batch(0)), codec)
    topic = f"exact.{uuid.uuid4().hex}"
    with RawClient(broker) as client:
        answer = client.produce(topic, batch)
        assert answer.error_code == 0
        part = client.fetch(topic, answer.base_offset, max_wait_ms=500).responses[0].partitions[0]
    got = bytes(part.records)
    assert (got[8:12], got[16:]) == (batch[8:12], batch[16:])  # base offset and leader epoch are the broker's


def compressed(batch: bytes, codec: int) -> bytes:
    """The same batch with its records deflated."""
    records = deflate(codec, batch[61:]) if codec else batch[61:]
    checked = codec.to_bytes(2, "big") + batch[23:61] + records
    head = batch[:8] + (len(checked) + 9).to_bytes(4, "big") + batch[12:17]
    return head + crc32c(checked).to_bytes(4, "big") + checked


def test_a_foreign_reader_changes_nothing_for_the_writer(broker: Broker, speakers: dict[str, Speaker]) -> None:
    """A topic that Kafka and AMQP read in their words still comes back to MQTT in its own."""
    topic = f"exact/{uuid.uuid4().hex}"
    said = Message(topic, b"v", key=b"\xff", headers=[("h", None), ("h", b"\xfe")], message_id="m")
    speakers["mqtt"].say(said)
    for reader in ("kafka", "amqp"):
        with speakers[reader].history(topic) as ear:
            ear.hear(topic)
    with speakers["mqtt"].history(topic) as ear:
        assert ear.hear(topic).raw == speakers["mqtt"].raw_of(said)


def test_long_names_lead_back_after_a_restart(broker_process: BrokerProcess) -> None:
    topic = "plant/" + "/".join(f"section-{n:03d}" for n in range(40))
    name, key = kafka_name(topic.encode()), amqp_key(topic.encode())
    assert len(name) < 249 and len(key) < 255
    MqttSpeaker(broker_process).say(Message(topic, b"1"))
    broker_process.restart()
    speakers = speakers_of(broker_process)
    speakers["kafka"].say(Message(topic, b"2"))
    speakers["amqp"].say(Message(topic, b"3"))
    for reader in ("mqtt", "kafka", "amqp"):
        with speakers[reader].history(topic) as ear:
            assert [ear.hear(topic).message.value for _ in range(3)] == [b"1", b"2", b"3"], reader
