"""Many connections whose requests are read in one turn of the loop: what one sends never becomes another's."""

from __future__ import annotations

from contextlib import ExitStack

from mainstem.protocols.kafka.messages import ProduceRequest
from mainstem.testing import Broker
from tests.protocol.kafka.clients import create_topic, unique
from tests.protocol.kafka.raw import RawClient, batch_of
from tests.protocol.mqtt.raw import Raw

CONNECTIONS, ROUNDS = 24, 20
ZSTD = 4


def test_compressed_batches_for_a_live_reader_are_kept_as_each_producer_sent_them(broker: Broker) -> None:
    """A thread inflates them before they are stored: by then the next connection has been read into the same buffer."""
    topic = create_topic(broker, unique("side"))
    with ExitStack() as stack:
        reader = stack.enter_context(Raw.connected(broker.mqtt_port))
        reader.subscribe((topic.replace(".", "/"), 1))
        clients = [stack.enter_context(RawClient(broker)) for _ in range(CONNECTIONS)]
        for round_number in range(ROUNDS):
            sent = [f"{round_number}-{n}".encode() for n in range(CONNECTIONS)]
            for client, value in zip(clients, sent, strict=True):
                part = ProduceRequest.PartitionProduceData(index=0, records=batch_of([value * 20], attributes=ZSTD))
                data = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
                client.send("Produce", 9, ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data]))
            answers = [client.receive("Produce", 9) for client in clients]
            assert {answer.responses[0].partition_responses[0].error_code for answer in answers} == {0}
            assert {reader.message().payload for _ in clients} == {value * 20 for value in sent}
