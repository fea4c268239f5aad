"""A JetStream stream whose messages lie in an object store: every request and every kind of consumer reads them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamSource,
)

from mainstem.testing import Broker
from mainstem.testing.process import BrokerProcess
from tests.crossing.test_faulty_object_storage import metric
from tests.crossing.test_object_storage import eventually, local_bytes
from tests.crossing.test_object_storage_readers import move_all_to_the_store, tiered

COUNT = 300
DEADLINE_S = 30.0
FETCHED = 'mainstem_tier_bytes_total{direction="in"}'
VALUES = [b"%06d" % number + b"." * 1_000 for number in range(COUNT)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    (tmp_path / "bucket").mkdir()
    settings = (
        f"tier.store=file://{tmp_path / 'bucket'}",
        "topics.tier=s3",
        "topics.local_retention_bytes=0",
        "topics.segment_bytes=65536",
    )
    with Broker(*settings, engine="segment", data=tmp_path / "data") as broker:
        yield broker


@asynccontextmanager
async def connected(broker: Broker) -> AsyncIterator[Client]:
    client = await nats.connect(broker.nats_url, allow_reconnect=False)
    yield client
    await client.close()


def forget_what_is_here(broker: Broker) -> None:
    """The next read of each object meets the store."""
    cache = tiered(broker)[0]._tier.cache
    for key in list(cache._sizes):
        cache._drop(key)


async def make(broker: Broker, **config: Any) -> list[float]:
    """A stream of three subjects in turns, sealed and uploaded; when its messages were published, in s."""
    async with connected(broker) as client:
        stream = StreamConfig(name="S", subjects=["s.*"], storage=StorageType.FILE, allow_direct=True, **config)
        await client.jetstream().add_stream(stream)
        times = list[float]()
        for number, value in enumerate(VALUES):
            times.append(time.time())
            await client.jetstream().publish(f"s.{number % 3}", value)
    await asyncio.to_thread(move_all_to_the_store, broker, 2)
    await asyncio.to_thread(forget_what_is_here, broker)
    return times


async def asked(client: Client, subject: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
    answer = await client.request(subject, json.dumps(request).encode() if request else b"", timeout=DEADLINE_S)
    found: dict[str, Any] = json.loads(answer.data)
    assert "error" not in found, found
    return found


async def gathered(client: Client, subject: str, request: dict[str, Any]) -> list[bytes]:
    """The messages of an answer that ends with 204."""
    inbox, found = client.new_inbox(), list[bytes]()
    listening = await client.subscribe(inbox)
    await client.publish(subject, json.dumps(request).encode(), reply=inbox)
    while True:
        message = await listening.next_msg(DEADLINE_S)
        if (message.headers or {}).get("Status") == "204":
            return found
        assert "Status" not in (message.headers or {}), message.headers
        found.append(message.data)


async def pulled(client: Client, count: int = COUNT, subject: str = "s.*", **config: Any) -> list[bytes]:
    subscription = await client.jetstream().pull_subscribe(subject, stream="S", config=ConsumerConfig(**config))
    found = list[bytes]()
    while len(found) < count:
        messages = await subscription.fetch(min(100, count - len(found)), timeout=DEADLINE_S)
        for message in messages:
            if config.get("ack_policy") != AckPolicy.NONE:
                await message.ack()
            found.append(message.data)
    return found


async def info(client: Client, _: list[float]) -> None:
    state = (await asked(client, "$JS.API.STREAM.INFO.S"))["state"]
    assert state["messages"] == COUNT
    assert not state["first_ts"].startswith("0001")


async def get_by_sequence(client: Client, _: list[float]) -> None:
    assert (await client.jetstream().get_msg("S", 7)).data == VALUES[6]


async def get_next_by_subject(client: Client, _: list[float]) -> None:
    assert (await client.jetstream().get_msg("S", 10, subject="s.1", next=True)).data == VALUES[10]


async def direct_get_one(client: Client, _: list[float]) -> None:
    assert (await client.jetstream().get_msg("S", 9, direct=True)).data == VALUES[8]


async def direct_get_a_batch(client: Client, _: list[float]) -> None:
    assert await gathered(client, "$JS.API.DIRECT.GET.S", {"seq": 1, "batch": COUNT}) == VALUES


async def direct_get_the_last_of_each_subject(client: Client, _: list[float]) -> None:
    assert await gathered(client, "$JS.API.DIRECT.GET.S", {"multi_last": ["s.*"]}) == VALUES[-3:]


async def delete_one(client: Client, _: list[float]) -> None:
    assert (await asked(client, "$JS.API.STREAM.MSG.DELETE.S", {"seq": 5}))["success"]
    assert await pulled(client, COUNT - 1) == VALUES[:4] + VALUES[5:]


async def pull_without_acks(client: Client, _: list[float]) -> None:
    assert await pulled(client, ack_policy=AckPolicy.NONE) == VALUES


async def pull_with_acks(client: Client, _: list[float]) -> None:
    assert await pulled(client) == VALUES


async def pull_a_subject(client: Client, _: list[float]) -> None:
    assert await pulled(client, COUNT // 3, "s.1") == VALUES[1::3]


async def pull_since_a_time(client: Client, times: list[float]) -> None:
    since = datetime.fromtimestamp(times[200], UTC).isoformat()
    request = {"stream_name": "S", "config": {"deliver_policy": "by_start_time", "opt_start_time": since}}
    made = await asked(client, "$JS.API.CONSUMER.CREATE.S", request)
    assert made["num_pending"] == COUNT - 200


async def pull_the_last_of_each_subject(client: Client, _: list[float]) -> None:
    assert await pulled(client, 3, deliver_policy=DeliverPolicy.LAST_PER_SUBJECT) == VALUES[-3:]


async def push(client: Client, _: list[float]) -> None:
    subscription = await client.jetstream().subscribe("s.*", stream="S", ordered_consumer=True)
    assert [(await subscription.next_msg(DEADLINE_S)).data for _ in VALUES] == VALUES


async def copy_by_a_source(client: Client, _: list[float]) -> None:
    js = client.jetstream()
    await js.add_stream(StreamConfig(name="COPY", storage=StorageType.FILE, sources=[StreamSource(name="S")]))
    deadline = time.monotonic() + DEADLINE_S
    while (await js.stream_info("COPY")).state.messages < COUNT:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    assert (await js.get_msg("COPY", COUNT)).data == VALUES[-1]


READS: list[Callable[[Client, list[float]], Awaitable[None]]] = [
    info,
    get_by_sequence,
    get_next_by_subject,
    direct_get_one,
    direct_get_a_batch,
    direct_get_the_last_of_each_subject,
    pull_without_acks,
    pull_with_acks,
    pull_a_subject,
    pull_since_a_time,
    pull_the_last_of_each_subject,
    push,
    copy_by_a_source,
    delete_one,
]


def test_a_stream_in_the_store_answers_every_request_and_serves_every_consumer(broker: Broker) -> None:
    async def run() -> None:
        times = await make(broker)
        for read in READS:
            await asyncio.to_thread(forget_what_is_here, broker)
            async with connected(broker) as client:
                try:
                    await asyncio.wait_for(read(client, times), DEADLINE_S)
                except Exception as error:
                    raise AssertionError(f"{read.__name__}: {error!r}") from error

    asyncio.run(run())


def test_messages_in_the_store_end_by_their_age(broker: Broker) -> None:
    async def run() -> None:
        await make(broker)
        async with connected(broker) as client:
            config = (await client.jetstream().stream_info("S")).config
            await asyncio.to_thread(forget_what_is_here, broker)
            config.max_age = 0.2
            config.duplicate_window = 0.2
            await client.jetstream().update_stream(config)
            await client.jetstream().publish("s.0", b"young")  # so that they cannot all go unread
            deadline = time.monotonic() + DEADLINE_S
            while (await client.jetstream().stream_info("S")).state.first_seq <= COUNT:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)

    asyncio.run(run())


def test_messages_in_the_store_go_when_nobody_wants_them_any_more(broker: Broker) -> None:
    async def run() -> None:
        async with connected(broker) as client:
            js = client.jetstream()
            await js.add_stream(StreamConfig(name="S", subjects=["s.*"], retention=RetentionPolicy.INTEREST))
            await js.add_consumer("S", ConsumerConfig(durable_name="some", filter_subject="s.1"))
            await js.add_consumer("S", ConsumerConfig(durable_name="all"))
            for number, value in enumerate(VALUES):
                await js.publish(f"s.{number % 3}", value)
        await asyncio.to_thread(move_all_to_the_store, broker, 2)
        await asyncio.to_thread(forget_what_is_here, broker)
        async with connected(broker) as client:
            js = client.jetstream()
            await js.delete_consumer("S", "all")
            deadline = time.monotonic() + DEADLINE_S
            while (await js.stream_info("S")).state.messages != COUNT // 3:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
            await asyncio.to_thread(forget_what_is_here, broker)
            subscription = await js.pull_subscribe_bind("some", "S")
            messages = await subscription.fetch(COUNT // 3, timeout=DEADLINE_S)
            assert [message.data for message in messages] == VALUES[1::3]
            await asyncio.to_thread(forget_what_is_here, broker)
            for message in messages:
                await message.ack()
            while (await js.stream_info("S")).state.messages:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)

    asyncio.run(run())


def test_a_start_after_kill_nine_fetches_no_message_of_a_stream(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    settings = (f"tier.store=file://{tmp_path / 'bucket'}", "topics.tier=s3", "topics.local_retention_bytes=0")

    async def publish(broker: BrokerProcess) -> None:
        client = await nats.connect(broker.nats_url)
        config = StreamConfig(name="S", subjects=["s.*"], storage=StorageType.FILE, duplicate_window=0.1)
        await client.jetstream().add_stream(config)  # within the window a start looks for ids
        for value in VALUES:
            await client.jetstream().publish("s.0", value)
        await client.close()

    async def state(broker: BrokerProcess) -> tuple[int, int, list[bytes]]:
        client = await nats.connect(broker.nats_url)
        found = (await client.jetstream().stream_info("S")).state
        values = await pulled(client, COUNT, "s.0", ack_policy=AckPolicy.NONE)
        await client.close()
        return found.messages, found.bytes, values

    with BrokerProcess(tmp_path / "data", *settings, "topics.segment_bytes=65536") as broker:
        asyncio.run(publish(broker))
        eventually(lambda: local_bytes(broker) == 0, "every sealed segment is in the store only")
        before = asyncio.run(state(broker))
        assert before[2] == VALUES
        time.sleep(2)  # the journal is written
        broker.kill()
        broker.start()
        assert metric(broker, FETCHED) < COUNT * len(VALUES[0]) / 10, "only what objects say of their topics is fetched"
        assert asyncio.run(state(broker)) == before
