"""A log ten times as large as its share of the local disk is read whole by every protocol, Spark, an archive, from a backup.

MAINSTEM_TIER_MIB=10240 is 10 GB of log on a budget of 1 GB; it takes twice that on the disk, for the store and the archive.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import nats
import pika
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, TopicPartition
from nats.js.api import StorageType, StreamConfig
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.lake.catalog import LakeOptions
from tests.crossing.test_object_storage import local_bytes
from tests.pipeline.conftest import read
from tests.pipeline.lake_kit import ArchiveRun, table_of
from tests.pipeline.whole_readers import PAGE, READERS, declare_session
from tests.protocol.mqtt.raw import Raw, publish_packet
from tests.s3_server import s3_server

TOTAL_BYTES = int(os.environ.get("MAINSTEM_TIER_MIB", "200")) << 20
BUDGET_BYTES = TOTAL_BYTES // 10
VALUE_BYTES = 65_000
COUNT = TOTAL_BYTES // VALUE_BYTES
IN_FLIGHT = 100
TIMES = 20  # that are looked for
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


def publish_all(broker: BrokerProcess) -> dict[int, int]:
    """When some of the records were published, in ms: all before them earlier, they and all behind them not."""
    times: dict[int, int] = {}
    with Raw.connected(broker.mqtt_port, keep_alive=0) as client:
        client.socket.settimeout(120)
        for first in range(0, COUNT, IN_FLIGHT):
            if first // IN_FLIGHT % max(COUNT // IN_FLIGHT // TIMES, 1) == 1:
                time.sleep(0.01)
                times[first] = time.time_ns() // 1_000_000
            numbers = range(first, min(first + IN_FLIGHT, COUNT))
            client.send(b"".join(publish_packet("t/a", value(n), qos=1, packet_id=n - first + 1) for n in numbers))
            client.acks(len(numbers))
    return times


def check_times(broker: BrokerProcess, times: dict[int, int]) -> None:
    """Kafka finds by time what was published then."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": uuid.uuid4().hex})
    for number, at_ms in times.items():
        (found,) = consumer.offsets_for_times([TopicPartition("t.a", 0, at_ms)], timeout=120)
        consumer.assign([found])
        message = consumer.poll(120)
        assert message is not None
        assert message.value() == value(number), f"another record than {number} was published first after {at_ms}"
    consumer.close()


def check(who: str, found: Iterable[bytes]) -> None:
    """Each record, in order."""
    began, got = time.monotonic(), 0
    for one in found:
        assert one == value(got), f"{who}: record {got} is another one"
        got += 1
    assert got == COUNT, f"{who} got {got} of {COUNT}"
    print(f"{who}: {COUNT} records compared, {time.monotonic() - began:.0f} s", flush=True)


def check_spark(spark: SparkSession, broker: BrokerProcess) -> None:
    began = time.monotonic()
    found = read(spark, broker, subscribe="t.a").select(f.md5("value").alias("sum")).cache()
    wanted = spark.createDataFrame([(hashlib.md5(value(number)).hexdigest(),) for number in range(COUNT)], "sum string")
    assert found.count() == COUNT
    assert found.exceptAll(wanted).count() == 0
    found.unpersist()
    print(f"Spark: {COUNT} records compared, {time.monotonic() - began:.0f} s", flush=True)


def archived(spark: SparkSession, broker: BrokerProcess, folder: Path) -> Iterator[bytes]:
    lake = LakeOptions(str(folder))
    run = ArchiveRun(spark, broker, lake, "t/#", "raw.t")
    assert run.query.awaitTermination(DROP_S_MAX)
    tasks = list(table_of(lake, "raw.t").scan().plan_files())
    paths = [task.file.file_path.removeprefix("file://") for task in tasks]
    firsts = {path: pq.read_table(path, columns=["offset"])["offset"][0].as_py() for path in paths}
    for path in sorted(paths, key=firsts.__getitem__):
        for batch in pq.ParquetFile(path).iter_batches(PAGE, columns=["value"]):
            yield from batch["value"].to_pylist()


def back_up(broker: BrokerProcess, folder: Path) -> Path:
    """A data directory made from a backup of the broker, which is stopped then."""
    mainstem = (sys.executable, "-m", "mainstem")
    backup, restored = str(folder / "backup"), folder / "restored"
    subprocess.run([*mainstem, "backup", backup, "--url", broker.http_url], check=True, timeout=600)
    assert broker.stop() == 0
    subprocess.run([*mainstem, "restore", backup, str(restored)], check=True, timeout=600)
    return restored


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
            declare_session(broker)
            began = time.monotonic()
            times = publish_all(broker)
            deadline = time.monotonic() + DROP_S_MAX
            while local_bytes(broker) > BUDGET_BYTES:
                assert time.monotonic() < deadline, "the local disk holds its budget only"
                time.sleep(0.2)
            print(f"\n{COUNT} records published and uploaded: {time.monotonic() - began:.0f} s", flush=True)
            check_times(broker, times)
            for who, reader in READERS.items():
                check(who, reader(broker, COUNT))
            check_spark(spark, broker)
            assert local_bytes(broker) <= BUDGET_BYTES
            check("an archive", archived(spark, broker, tmp_path / "lake"))
            with BrokerProcess(back_up(broker, tmp_path), *settings, environment=server.environment) as restored:
                check("a backup", READERS["Kafka"](restored, COUNT))
