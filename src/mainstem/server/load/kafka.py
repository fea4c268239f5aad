"""Kafka workloads against any broker: each run makes a topic, with all its partitions on one broker, and deletes it.

Closed loop (no `rate`): a publisher has at most `window` records that were not yet fetched by all consumers and
acknowledged (acks=all); a batch holds what the window has room for, up to `send_bytes`. Open loop (`rate`): records are sent
when they are due, whether or not the broker keeps up, and latency is counted from then. Each consumer fetches everything.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mainstem.model.errors import MainstemError
from mainstem.protocols.kafka.wire import encode_request, message
from mainstem.server.cli.failures import Refused
from mainstem.server.clients.client import Address
from mainstem.server.clients.kafka import LATEST, KafkaClient, check
from mainstem.server.load.measure import PIPELINED, Result, Timing, drive

ANSWER_MS = 30_000
FETCH_BYTES = 1 << 20
FETCH_WAIT_MS = 500
ASKED_BYTES = 28  # of each partition in a Fetch request; six bytes come after the last
PRODUCE, FETCH = 7, 11  # the versions that `_kafka.pyx` knows
LEADER_S_MAX = 15.0


@dataclass(frozen=True, slots=True)
class Workload:
    """`pairs`: publisher n has a partition and a consumer of its own; else all go round the same `partitions`."""

    name: str
    publishers: int = 1
    subscribers: int = 1
    size: int = 64
    window: int = 10_000
    send_bytes: int = PIPELINED  # 0: one record for each request
    rate: float = 0.0  # records a second in all; 0: closed loop
    pairs: bool = False
    partitions: int = 1


def run(workload: Workload, address: Address, timing: Timing) -> Result:
    """One run of one workload."""
    from mainstem.server.load._kafka import Load

    count = workload.publishers if workload.pairs else workload.partitions
    each = 1 if workload.pairs else count  # partitions of one consumer
    with _topic(address, count) as (topic, leader), contextlib.ExitStack() as stack:
        load = Load(
            size=workload.size,
            window=workload.window,
            receivers=1 if workload.pairs else workload.subscribers,
            send_bytes=workload.send_bytes,
            rate=workload.rate,
            in_order=each == 1,
            partitions=each,
            asked_at=len(_fetch_request(topic, 0, each)) - 6 - each * ASKED_BYTES,
        )
        for n in range(workload.publishers):
            load.add_publisher(_connect(stack, leader), _produce_front(topic, n % count))
        for n in range(workload.subscribers):
            load.add_consumer(_connect(stack, leader), _fetch_request(topic, n if workload.pairs else 0, each))
        return drive(workload.name, load, timing)


def _connect(stack: contextlib.ExitStack, address: Address) -> int:
    client = KafkaClient(address)
    stack.callback(client.close)
    return client.stream.socket.fileno()


def _produce_front(topic: str, partition: int) -> bytes:
    """A Produce request up to the size of its records."""
    kind = message("ProduceRequest")
    part = kind.PartitionProduceData(index=partition, records=b"")
    data = kind.TopicProduceData(name=topic, partition_data=[part])
    request = kind(acks=-1, timeout_ms=ANSWER_MS, topic_data=[data])
    return b"".join(encode_request("ProduceRequest", PRODUCE, request, correlation=0, client_id="mainstem-bench"))[:-4]


def _fetch_request(topic: str, first: int, count: int) -> bytes:
    kind = message("FetchRequest")
    parts = [
        kind.FetchPartition(partition=first + n, fetch_offset=0, partition_max_bytes=FETCH_BYTES) for n in range(count)
    ]
    request = kind(
        max_wait_ms=FETCH_WAIT_MS,
        min_bytes=1,
        max_bytes=FETCH_BYTES,
        session_epoch=-1,
        topics=[kind.FetchTopic(topic=topic, partitions=parts)],
    )
    return b"".join(encode_request("FetchRequest", FETCH, request, correlation=0, client_id="mainstem-bench"))


@contextlib.contextmanager
def _topic(address: Address, partitions: int) -> Iterator[tuple[str, Address]]:
    """A topic of our own, and the one broker that leads it."""
    name = f"mainstem-bench-{os.urandom(4).hex()}"
    with contextlib.closing(KafkaClient(address)) as client:
        node, leader = _leader(client, address)
        kind = message("CreateTopicsRequest")
        places = [kind.CreatableReplicaAssignment(partition_index=n, broker_ids=[node]) for n in range(partitions)]
        wanted = kind.CreatableTopic(
            name=name, num_partitions=-1, replication_factor=-1, assignments=places, configs=[]
        )
        made = client.call("CreateTopics", topics=[wanted], timeout_ms=ANSWER_MS)
        check(made.topics[0].error_code, f"topic {name}", made.topics[0].error_message)
        try:
            with contextlib.closing(KafkaClient(leader)) as one:
                _wait_for(one, name, partitions)
            yield name, leader
        finally:
            # By another connection: this one may have been idle for too long. What went wrong before says more.
            with contextlib.suppress(MainstemError), contextlib.closing(KafkaClient(address)) as remover:
                remover.call("DeleteTopics", topic_names=[name], timeout_ms=ANSWER_MS)


def _leader(client: KafkaClient, address: Address) -> tuple[int, Address]:
    """The broker at the address; of a cluster where none is called so, the first, at its own address."""
    brokers = client.call("Metadata", topics=[], allow_auto_topic_creation=False).brokers
    if len(brokers) == 1:
        return brokers[0].node_id, address  # whatever it calls itself: we have reached it
    chosen = next((one for one in brokers if (one.host, one.port) == (address.host, address.port)), brokers[0])
    return chosen.node_id, replace(address, host=chosen.host, port=chosen.port)


def _wait_for(client: KafkaClient, topic: str, partitions: int) -> None:
    """A topic that was just made may not be led by anyone yet, whatever the metadata says: ask the leader itself."""
    kind = message("ListOffsetsRequest")
    wanted = [kind.ListOffsetsPartition(partition_index=n, timestamp=LATEST) for n in range(partitions)]
    deadline = time.monotonic() + LEADER_S_MAX
    while True:
        answer = client.call(
            "ListOffsets", replica_id=-1, topics=[kind.ListOffsetsTopic(name=topic, partitions=wanted)]
        )
        if not any(one.error_code for one in answer.topics[0].partitions):
            return
        if time.monotonic() > deadline:
            raise Refused(f"topic {topic} has no leader after {LEADER_S_MAX:.0f} s")
        time.sleep(0.05)
