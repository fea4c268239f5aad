"""confluent-kafka's own serialisers register, cache and decode against the broker, and are told what is incompatible."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from mainstem.testing import Broker

AVRO = json.dumps({"type": "record", "name": "Reading", "fields": [{"name": "celsius", "type": "double"}]})
WIDER = json.dumps(
    {
        "type": "record",
        "name": "Reading",
        "fields": [{"name": "celsius", "type": "double"}, {"name": "room", "type": "string"}],
    }
)
JSON_SCHEMA = json.dumps(
    {
        "title": "Reading",
        "type": "object",
        "properties": {"celsius": {"type": "number"}},
        "required": ["celsius"],
        "additionalProperties": False,
    }
)


def reading_class() -> Any:
    """As protoc would have made it from a file that imports another."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="reading.proto", package="plant", syntax="proto3")
    file.dependency.append(timestamp_pb2.DESCRIPTOR.name)
    message = file.message_type.add(name="Reading")
    message.field.add(name="celsius", number=1, type=field.TYPE_DOUBLE, label=field.LABEL_OPTIONAL)
    kind = ".google.protobuf.Timestamp"
    message.field.add(name="at", number=2, type=field.TYPE_MESSAGE, type_name=kind, label=field.LABEL_OPTIONAL)
    descriptor_pool.Default().Add(file)
    return message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName("plant.Reading"))


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as one:
        yield one


@pytest.fixture
def client(broker: Broker) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": broker.http_url})


@pytest.fixture
def topic() -> str:
    return f"readings.{uuid.uuid4().hex[:8]}"


def round_trip(broker: Broker, topic: str, value: bytes) -> bytes:
    """Through the Kafka port, as a producer and a consumer see it."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, value)
    assert producer.flush(20) == 0
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    try:
        consumer.subscribe([topic])
        message = next(one for _ in range(100) if (one := consumer.poll(0.5)) is not None and not one.error())
        found: Any = message.value()
        return bytes(found)
    finally:
        consumer.close()


def test_avro_is_registered_once_and_decoded(broker: Broker, client: SchemaRegistryClient, topic: str) -> None:
    context = SerializationContext(topic, MessageField.VALUE)
    serialise = AvroSerializer(client, AVRO)
    data = serialise({"celsius": 21.5}, context)
    assert data is not None and data[0] == 0
    assert serialise({"celsius": 1.0}, context)[:5] == data[:5]
    assert client.get_versions(f"{topic}-value") == [1]
    stored = round_trip(broker, topic, data)
    assert AvroDeserializer(SchemaRegistryClient({"url": broker.http_url}))(stored, context) == {"celsius": 21.5}


def test_json_schema_is_registered_and_decoded(broker: Broker, client: SchemaRegistryClient, topic: str) -> None:
    context = SerializationContext(topic, MessageField.VALUE)
    data = JSONSerializer(JSON_SCHEMA, client)({"celsius": 21.5}, context)
    stored = round_trip(broker, topic, data)
    assert JSONDeserializer(JSON_SCHEMA, schema_registry_client=client)(stored, context) == {"celsius": 21.5}
    assert client.get_latest_version(f"{topic}-value").schema.schema_type == "JSON"


def test_protobuf_is_registered_with_what_it_imports_and_decoded(
    broker: Broker, client: SchemaRegistryClient, topic: str
) -> None:
    context = SerializationContext(topic, MessageField.VALUE)
    reading = reading_class()
    sent = reading(celsius=21.5, at=timestamp_pb2.Timestamp(seconds=7))
    data = ProtobufSerializer(reading, client)(sent, context)
    stored = round_trip(broker, topic, data)
    found = ProtobufDeserializer(reading, schema_registry_client=SchemaRegistryClient({"url": broker.http_url}))
    assert found(stored, context) == sent
    text = client.get_latest_version(f"{topic}-value").schema.schema_str
    assert "message Reading" in text and ".google.protobuf.Timestamp at = 2;" in text


def test_an_incompatible_schema_is_refused_before_anything_is_produced(
    client: SchemaRegistryClient, topic: str
) -> None:
    context = SerializationContext(topic, MessageField.VALUE)
    AvroSerializer(client, AVRO)({"celsius": 1.0}, context)
    with pytest.raises(SchemaRegistryError) as refused:
        AvroSerializer(client, WIDER)({"celsius": 1.0, "room": "a"}, context)
    assert refused.value.http_status_code == 409 and refused.value.error_code == 409
    assert "incompatible with an earlier schema" in refused.value.error_message
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in refused.value.error_message
    assert client.get_versions(f"{topic}-value") == [1]
    assert not client.test_compatibility(f"{topic}-value", Schema(WIDER, "AVRO"))


def test_references_levels_and_deletions_as_the_client_calls_them(client: SchemaRegistryClient, topic: str) -> None:
    part = json.dumps({"type": "record", "name": "Place", "namespace": "a.b", "fields": [{"name": "n", "type": "int"}]})
    client.register_schema(f"{topic}.place", Schema(part, "AVRO"))
    whole = json.dumps({"type": "record", "name": "Trip", "fields": [{"name": "to", "type": "a.b.Place"}]})
    from confluent_kafka.schema_registry import SchemaReference

    reference = SchemaReference("a.b.Place", f"{topic}.place", 1)
    schema_id = client.register_schema(topic, Schema(whole, "AVRO", [reference]))
    assert client.get_schema(schema_id).references == [reference]
    with pytest.raises(SchemaRegistryError) as refused:
        client.delete_subject(f"{topic}.place")
    assert refused.value.error_code == 42206
    client.set_compatibility(topic, "FULL")
    assert client.get_compatibility(topic) == "FULL"
    assert client.delete_subject(topic) == [1]
    assert client.delete_subject(topic, permanent=True) == [1]
    assert topic not in client.get_subjects()


def test_a_protobuf_file_that_only_hands_on_another_is_a_reference_like_any(
    client: SchemaRegistryClient, topic: str
) -> None:
    """Python's serialiser registers every import as a descriptor in base 64, also one without a message of its own."""
    from confluent_kafka.schema_registry import SchemaReference
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    def registered(name: str, file: FileDescriptorProto, references: list[SchemaReference]) -> SchemaReference:
        text = base64.b64encode(file.SerializeToString()).decode()
        client.register_schema(f"{topic}.{name}", Schema(text, "PROTOBUF", references))
        return SchemaReference(name, f"{topic}.{name}", 1)

    inner = FileDescriptorProto(name="inner.proto", package="p", syntax="proto3")
    inner.message_type.add(name="Inner")
    public = FileDescriptorProto(
        name="public.proto", syntax="proto3", dependency=["inner.proto"], public_dependency=[0]
    )
    outer = FileDescriptorProto(name="outer.proto", package="p", syntax="proto3", dependency=["public.proto"])
    outer.message_type.add(name="Outer").field.add(name="inner", number=1, type=11, label=1, type_name=".p.Inner")
    first = registered("inner.proto", inner, [])
    second = registered("public.proto", public, [first])
    text = base64.b64encode(outer.SerializeToString()).decode()
    schema_id = client.register_schema(topic, Schema(text, "PROTOBUF", [second]))
    assert client.get_schema(schema_id).references == [second]
    broken = outer.__deepcopy__()
    broken.message_type[0].field[0].type_name = ".p.Missing"
    with pytest.raises(SchemaRegistryError):
        client.register_schema(
            topic, Schema(base64.b64encode(broken.SerializeToString()).decode(), "PROTOBUF", [second])
        )


def test_options_that_a_protobuf_file_declares_are_known_to_those_that_import_it(
    client: SchemaRegistryClient, topic: str
) -> None:
    """Python's serialiser registers the file as a descriptor; who imports it may write text that uses the options."""
    from confluent_kafka.schema_registry import SchemaReference
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    options = FileDescriptorProto(name="options.proto", package="p", syntax="proto3")
    options.dependency.append("google/protobuf/descriptor.proto")
    options.message_type.add(name="Unit").field.add(name="symbol", number=1, type=9, label=1)
    extendee = ".google.protobuf.FieldOptions"
    options.extension.add(name="unit", number=50000, type=11, label=1, type_name=".p.Unit", extendee=extendee)
    method = options.service.add(name="Units").method.add(name="Watch", input_type=".p.Unit", output_type=".p.Unit")
    method.server_streaming = True
    descriptor = base64.b64encode(options.SerializeToString()).decode()
    client.register_schema(f"{topic}.options", Schema(descriptor, "PROTOBUF"))
    text = client.get_latest_version(f"{topic}.options").schema.schema_str or ""
    assert "extend .google.protobuf.FieldOptions {" in text and "rpc Watch (.p.Unit) returns (stream .p.Unit);" in text
    reading = (
        'syntax = "proto3"; package p; import "options.proto"; '
        'message Reading { double celsius = 1 [(unit).symbol = "C"]; }'
    )
    reference = SchemaReference("options.proto", f"{topic}.options", 1)
    schema_id = client.register_schema(topic, Schema(reading, "PROTOBUF", [reference]))
    assert client.get_schema(schema_id).references == [reference]
    again = client.register_schema(topic, Schema(reading, "PROTOBUF", [reference]))
    other = client.register_schema(topic, Schema(reading.replace('"C"', '"F"'), "PROTOBUF", [reference]))
    assert again == schema_id != other, "another option is another schema"
    found = client.get_latest_version(topic)
    assert found.version == 2 and '"F"' in (found.schema.schema_str or "")
