"""kill -9, and an object of the tier is missing at the next start: its offsets answer with an error, all others are read."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import httpx
import nats
import nats.js.errors
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType, StreamConfig

from mainstem.storage.tier.objects import Object
from mainstem.testing.process import BrokerProcess
from tests.crossing.test_faulty_object_storage import metric
from tests.crossing.test_topics_in_objects import (
    TOPICS,
    eventually,
    forget_indexes,
    objects_of,
    publish,
    said_since,
    wait_until_dropped,
)

DEADLINE_S = 60.0
COUNT = 300
VALUES = [b"%06d" % number + b"." * 1_000 for number in range(COUNT)]
UNKNOWN = "nobody knows which topics they hold"
Rows = dict[str, list[tuple[int, str]]]
T = TypeVar("T")


@pytest.fixture
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> BrokerProcess:
    """Not started. Topics below s/ share a log; the log of a stream has the defaults, which the journal's log has, too."""
    (tmp_path / "bucket").mkdir()
    words = ["tier=s3", "local_retention_bytes=0", "segment_bytes=16384"]
    of_stream = "stream" in request.node.name
    policy = [f"topics.{one}" if of_stream else f"policies.s/#.{one}" for one in words]
    store = [f"tier.store=file://{tmp_path / 'bucket'}", "tier.manifest_ms=0s"]
    return BrokerProcess(tmp_path / "data", *store, *policy, "policies.s/#.layout=shared")


class Lost:
    """An object that is moved away, and put back."""

    def __init__(self, tmp_path: Path, one: Object) -> None:
        self.key, self.footer = one.key, one.footer
        self._path, self._aside = tmp_path / "bucket" / one.key, tmp_path / "aside"
        self._path.rename(self._aside)

    def put_back(self) -> None:
        self._aside.rename(self._path)


def rows(broker: BrokerProcess, topic: str, start: str, limit: int = 500) -> list[tuple[int, str]]:
    asked = {"topic": topic, "from": start, "limit": str(limit)}
    answer = httpx.get(f"{broker.http_url}/v1/messages", params=asked, timeout=DEADLINE_S)
    answer.raise_for_status()
    return [(row["offset"], row["value"]) for row in answer.json()["items"]]


def all_rows(broker: BrokerProcess, topics: list[str]) -> Rows:
    return {topic: rows(broker, topic, "earliest") for topic in topics}


def check_all_but(broker: BrokerProcess, lost: Lost, before: Rows) -> None:
    """Each topic ends with an error where the lost part begins, and goes on behind it."""
    first, end = lost.footer.base_offset, lost.footer.end_offset
    for topic, held in before.items():
        early, late = [row for row in held if row[0] < first], [row for row in held if row[0] >= end]
        assert rows(broker, topic, "earliest", len(early)) == early
        assert rows(broker, topic, f"@{end}") == late
    topic = TOPICS[0]
    asked = {"topic": topic, "from": f"@{first}", "limit": "10"}
    answer = httpx.get(f"{broker.http_url}/v1/messages", params=asked, timeout=DEADLINE_S)
    assert answer.status_code == 500
    assert lost.key in answer.text or f"the offsets {first} to {end}" in answer.text
    assert kafka_error(broker, "s.0.x", first) == KafkaError.INVALID_MSG  # librdkafka: CORRUPT_MESSAGE
    assert metric(broker, "mainstem_tier_damaged_objects") == 1


def kafka_error(broker: BrokerProcess, topic: str, offset: int) -> int:
    """What a consumer is told that reads there."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "check.crcs": False}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, offset)])
    try:
        found = consumer.poll(DEADLINE_S)
        assert found is not None
        error = found.error()
        assert error is not None, found.offset()
        return error.code()
    except KafkaException as error:
        code: int = error.args[0].code()
        return code
    finally:
        consumer.close()


def command(*words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "mainstem", *words], capture_output=True, text=True, timeout=DEADLINE_S
    )
    return done.returncode, done.stdout + done.stderr


def check_commands(broker: BrokerProcess, lost: Lost, tmp_path: Path) -> None:
    """`doctor` and `log verify` name it."""
    config = tmp_path / "doctor.toml"
    config.write_text(f'[tier]\nstore = "file://{tmp_path / "bucket"}"\n')
    code, said = command(
        "doctor", "--json", "--data", str(broker.data), "--config", str(config), "--url", broker.http_url
    )
    checks = {check["check"]: check for check in map(json.loads, said.splitlines()) if "check" in check}
    assert code == 1
    assert checks["objects"]["state"] == "bad"
    assert lost.key in checks["objects"]["reason"]
    assert lost.footer.holds in checks["objects"]["reason"]
    code, said = command("log", "verify", str(lost.footer.log_id), "--data", str(broker.data))
    assert code == 1
    assert lost.key in said


def middle_object(broker: BrokerProcess, log_id: int | None = None) -> Object:
    found = [one for one in objects_of(broker) if log_id in (None, one.footer.log_id)]
    largest = max({one.footer.log_id for one in found}, key=lambda log: sum(one.footer.log_id == log for one in found))
    parts = [one for one in found if one.footer.log_id == largest]
    assert len(parts) > 2
    return parts[len(parts) // 2]


@pytest.mark.parametrize("index", ["kept", "lost"])
def test_a_shared_log_serves_all_but_the_part_that_is_missing(
    broker: BrokerProcess, tmp_path: Path, index: str
) -> None:
    """`lost`: the topic index too, as after a restore from the bucket."""
    with broker:
        topics = list(publish(broker))
        wait_until_dropped(broker)
        before = all_rows(broker, topics)
        broker.kill()
        lost = Lost(tmp_path, middle_object(broker))
        if index == "lost":
            forget_indexes(broker)
        position = broker.log_path.stat().st_size
        broker.start()
        said = said_since(broker, position)
        assert lost.key in said
        assert lost.footer.holds in said
        assert (UNKNOWN in said) == (index == "lost")
        check_all_but(broker, lost, before)
        check_commands(broker, lost, tmp_path)
        assert broker.stop() == 0  # what is written then says nothing else
        broker.start()
        check_all_but(broker, lost, before)
        broker.kill()
        lost.put_back()
        broker.start()
        assert all_rows(broker, topics) == before
        assert metric(broker, "mainstem_tier_damaged_objects") == 0


@pytest.mark.slow
def test_an_object_that_is_put_back_is_read_without_a_restart(broker: BrokerProcess, tmp_path: Path) -> None:
    with broker:
        topics = list(publish(broker))
        wait_until_dropped(broker)
        before = all_rows(broker, topics)
        broker.kill()
        lost = Lost(tmp_path, middle_object(broker))
        broker.start()
        check_all_but(broker, lost, before)
        lost.put_back()

        def readable() -> bool:
            try:
                return all_rows(broker, topics) == before
            except httpx.HTTPStatusError:
                return False

        eventually(readable, "the cache asks for it again")
        assert metric(broker, "mainstem_tier_damaged_objects") == 0


def with_client(broker: BrokerProcess, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        client = await nats.connect(broker.nats_url, allow_reconnect=False)
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(run())


async def make_stream(client: Client) -> None:
    config = StreamConfig(name="S", subjects=["js.*"], storage=StorageType.FILE, allow_direct=True, max_age=3_600)
    await client.jetstream().add_stream(config)
    for number, value in enumerate(VALUES):
        await client.jetstream().publish(f"js.{number % 3}", value, headers={"Nats-Msg-Id": str(number)})


async def state(client: Client) -> tuple[int, int, int, int]:
    found = (await client.jetstream().stream_info("S")).state
    return found.messages, found.bytes, found.first_seq, found.last_seq


def pulled_from(seq: int, count: int) -> Callable[[Client], Coroutine[Any, Any, list[bytes]]]:
    async def pull(client: Client) -> list[bytes]:
        begin = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=seq, ack_policy=AckPolicy.NONE
        )
        subscription = await client.jetstream().pull_subscribe("js.*", stream="S", config=begin)
        found = list[bytes]()
        while len(found) < count:
            messages = await subscription.fetch(min(100, count - len(found)), timeout=DEADLINE_S)
            found += [message.data for message in messages]
        return found

    return pull


async def refusal_at(client: Client, seq: int) -> str:
    with pytest.raises(nats.js.errors.APIError) as refused:
        await client.jetstream().get_msg("S", seq)
    return f"{refused.value.code} {refused.value.description}"


@pytest.mark.parametrize("index", ["kept", "lost"])
def test_a_stream_keeps_its_counts_and_serves_all_but_the_part_that_is_missing(
    broker: BrokerProcess, tmp_path: Path, index: str
) -> None:
    with broker:
        with_client(broker, make_stream)
        wait_until_dropped(broker)
        before = with_client(broker, state)
        assert before[0] == COUNT
        eventually(lambda: len(objects_of(broker)) > 2, "parts are in the store")
        broker.kill()
        lost = Lost(tmp_path, middle_object(broker))
        if index == "lost":
            forget_indexes(broker)
        position = broker.log_path.stat().st_size
        broker.start()
        said = said_since(broker, position)
        assert lost.key in said
        assert "duplicates of their messages are not recognised" in said
        first, end = lost.footer.base_offset, lost.footer.end_offset
        unknown = end - first if index == "lost" else 0
        after = with_client(broker, state)
        assert (after[0], *after[2:]) == (COUNT - unknown, *before[2:])
        assert after[1] == before[1]
        assert "404" not in with_client(broker, lambda client: refusal_at(client, first + 1))
        for seq in (1, first, end + 1, COUNT):
            assert (
                with_client(broker, lambda client, seq=seq: client.jetstream().get_msg("S", seq)).data
                == VALUES[seq - 1]
            )
        assert with_client(broker, pulled_from(1, first)) == VALUES[:first]
        assert with_client(broker, pulled_from(end + 1, COUNT - end)) == VALUES[end:]
        with_client(broker, lambda client: client.jetstream().publish("js.0", b"goes on"))
        broker.kill()
        lost.put_back()
        broker.start()
        now = with_client(broker, state)
        assert (now[0], now[2]) == (COUNT + 1, before[2])
        assert with_client(broker, pulled_from(1, COUNT)) == VALUES
