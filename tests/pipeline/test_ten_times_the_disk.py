"""A log ten times as large as its share of the local disk is read whole by every protocol and by Spark.

MAINSTEM_TIER_MIB=10240 is 10 GB of log on a budget of 1 GB; it takes as much again on the disk, for the store.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import time
import uuid
from pathlib import Path

import nats
import pika
import pytest
from nats.js.api import StorageType, StreamConfig
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from mainstem.testing.process import BrokerProcess
from tests.crossing.test_object_storage import local_bytes
from tests.pipeline.conftest import read
from tests.pipeline.whole_readers import READERS
from tests.protocol.mqtt.raw import Raw, publish_packet
from tests.s3_server import s3_server

TOTAL_BYTES = int(os.environ.get("MAINSTEM_TIER_MIB", "200")) << 20
BUDGET_BYTES = TOTAL_BYTES // 10
VALUE_BYTES = 65_000
COUNT = TOTAL_BYTES // VALUE_BYTES
IN_FLIGHT = 100
DROP_S_MAX = 900.0  # of what is uploaded still when all is published
TEXT = random.Random(24).randbytes(1 << 19).hex().encode()


def value(number: int) -> bytes:
    """Of a record: each another one, none compressible."""
    begin = number * 7_919 % (len(TEXT) - VALUE_BYTES)
    return b"%010d:" % number + TEXT[begin : begin + VALUE_BYTES - 11]


async def declare_stream(broker: BrokerProcess) -> None:
    client = await nats.connect(broker.nats_url)
    await client.jetstream().add_stream(StreamConfig(name="ALL", subjects=["t.a"], storage=StorageType.FILE))
    await client.close()


def declare_queue(broker: BrokerProcess) -> None:
    with pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.amqp_port)) as connection:
        channel = connection.channel()
        channel.queue_declare("held", durable=True)
        channel.queue_bind("held", "amq.topic", "t.a")


def publish_all(broker: BrokerProcess) -> None:
    with Raw.connected(broker.mqtt_port, keep_alive=0) as client:
        client.socket.settimeout(120)
        for first in range(0, COUNT, IN_FLIGHT):
            numbers = range(first, min(first + IN_FLIGHT, COUNT))
            client.send(b"".join(publish_packet("t/a", value(n), qos=1, packet_id=n - first + 1) for n in numbers))
            client.acks(len(numbers))


@pytest.mark.slow
@pytest.mark.timeout(max(1_200, TOTAL_BYTES >> 21))
def test_a_log_ten_times_its_local_budget_is_read_whole_by_every_protocol_and_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One log, a JetStream's, that all of them read."""
    (tmp_path / "store").mkdir()
    with s3_server(tmp_path / "store", volume_mib=max(64, TOTAL_BYTES >> 24)) as server:
        settings = (
            f"tier.store=s3://bucket/{uuid.uuid4().hex}",
            f"tier.endpoint={server.endpoint}",
            "tier.cache_bytes=64MiB",
            "topics.tier=s3",
            f"topics.local_retention_bytes={BUDGET_BYTES}",
            f"topics.segment_bytes={min(64 << 20, BUDGET_BYTES // 4)}",
        )
        with BrokerProcess(tmp_path / "data", *settings, environment=server.environment) as broker:
            asyncio.run(declare_stream(broker))
            declare_queue(broker)
            began = time.monotonic()
            publish_all(broker)
            deadline = time.monotonic() + DROP_S_MAX
            while local_bytes(broker) > BUDGET_BYTES:
                assert time.monotonic() < deadline, "the local disk holds its budget only"
                time.sleep(0.2)
            print(f"\n{COUNT} records published and uploaded: {time.monotonic() - began:.0f} s", flush=True)
            for who, reader in READERS.items():
                began, got = time.monotonic(), 0
                for found in reader(broker, COUNT):
                    assert found == value(got), f"{who}: record {got} is another one"
                    got += 1
                assert got == COUNT, f"{who} got {got} of {COUNT}"
                print(f"{who}: {COUNT} records compared, {time.monotonic() - began:.0f} s", flush=True)
            began = time.monotonic()
            frame = read(spark, broker, subscribe="t.a").select("offset", f.md5("value").alias("sum"))
            sums = [(hashlib.md5(value(number)).hexdigest(),) for number in range(COUNT)]
            wanted = spark.createDataFrame(sums, "sum string")
            found_sums = frame.select("sum").cache()
            assert found_sums.count() == COUNT
            assert found_sums.exceptAll(wanted).count() == 0
            print(f"Spark: {COUNT} records compared, {time.monotonic() - began:.0f} s", flush=True)
            assert local_bytes(broker) <= BUDGET_BYTES
