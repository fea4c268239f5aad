"""What a rule denies is reached by no way around it: mirrors, sources, republish, schedules, updates, queues."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import nats
import nats.errors
import pytest

from mainstem.protocols.kafka.errors import ErrorCode
from mainstem.testing import Broker
from tests.protocol.kafka.raw import batch_of
from tests.protocol.nats.test_jetstream import WAIT_S, until
from tests.security.attempts import Client as KafkaClient
from tests.users import ANN, ROOT, add_users, allow, deny

REFUSED_S = 0.5


@pytest.fixture(scope="module")
def guarded() -> Iterator[Broker]:
    """Ann may do everything with `a/#` and what is copied to a stream of hers, but not read `a/secret`."""
    with Broker() as broker:
        add_users(broker)
        for topic_filter in ("a/#", "ann/#", "$copies/mine/#"):
            allow(broker, topic_filter, "publish", "consume", "create", "delete", "describe")
        deny(broker, "a/secret", "consume")
        yield broker


async def connected(broker: Broker, user: tuple[str, str]) -> Any:
    async def quiet(error: Exception) -> None: ...

    return await nats.connect(
        broker.nats_url, user=user[0], password=user[1], connect_timeout=WAIT_S, allow_reconnect=False, error_cb=quiet
    )


async def asks(client: Any, subject: str, body: Any = b"", headers: dict[str, str] | None = None) -> dict[str, Any]:
    """The answer; empty where there is none, as for whoever has not the right."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        answer = await client.request(subject, data, timeout=REFUSED_S, headers=headers)
    except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
        return {}
    found: dict[str, Any] = json.loads(answer.data)
    return found


async def makes(client: Any, name: str, **config: Any) -> bool:
    answer = await asks(client, f"$JS.API.STREAM.CREATE.{name}", {"name": name, **config})
    return bool(answer) and "error" not in answer


async def test_what_is_denied_is_not_read_or_written_by_a_stream(guarded: Broker) -> None:
    root, ann = await connected(guarded, ROOT), await connected(guarded, ANN)
    assert await makes(root, "all", subjects=["a.>"], allow_direct=True)
    assert await makes(root, "safe", subjects=["ann.open"])
    await root.jetstream().publish("a.secret", b"secret")
    assert not await makes(ann, "m", mirror={"name": "all"})
    assert not await makes(ann, "mine", sources=[{"name": "all"}])
    assert not await makes(ann, "mine", sources=[{"name": "not there yet"}])
    assert not await makes(ann, "mine", subjects=["ann.b"], republish={"src": "ann.b", "dest": "not.hers"})
    assert await makes(root, "mirror", mirror={"name": "all"})
    for subject, body in (
        ("$JS.API.STREAM.MSG.GET.mirror", {"seq": 1}),
        ("$JS.API.DIRECT.GET.all", {"seq": 1}),
        ("$JS.API.CONSUMER.CREATE.mirror.x", {"stream_name": "mirror", "config": {"durable_name": "x"}}),
        ("$JS.API.CONSUMER.CREATE.all.x", {"stream_name": "all", "config": {"durable_name": "x"}}),
    ):
        assert await asks(ann, subject, body) == {}, subject
    # She may change the stream. That it has other subjects then does not open what is in it.
    assert "error" not in await asks(ann, "$JS.API.STREAM.UPDATE.all", {"name": "all", "subjects": ["ann.x"]})
    assert await asks(ann, "$JS.API.STREAM.MSG.GET.all", {"seq": 1}) == {}
    await root.close()
    await ann.close()


async def test_a_source_copies_no_more_than_its_owner_was_allowed_to_read(guarded: Broker) -> None:
    root, ann = await connected(guarded, ROOT), await connected(guarded, ANN)
    assert await makes(root, "o", subjects=["ann.o"])
    assert await makes(ann, "mine", sources=[{"name": "o"}])
    await root.jetstream().delete_stream("o")
    assert await makes(root, "o", subjects=["hidden", "ann.o"])
    await root.jetstream().publish("hidden", b"hidden")
    await root.jetstream().publish("ann.o", b"open")

    async def copied() -> bool:
        return bool((await root.jetstream().stream_info("mine")).state.messages >= 1)

    await until(copied)
    await asyncio.sleep(0.1)
    assert (await root.jetstream().stream_info("mine")).state.messages == 1
    assert (await root.jetstream().get_msg("mine", 1)).data == b"open"
    await root.close()
    await ann.close()


async def test_a_schedule_needs_the_rights_of_what_it_does(guarded: Broker) -> None:
    root, ann = await connected(guarded, ROOT), await connected(guarded, ANN)
    assert await makes(root, "s", subjects=["ann.s.>", "s.>"], allow_msg_schedules=True)
    at = {"Nats-Schedule": "@at 2001-01-01T00:00:00Z"}
    assert await asks(ann, "ann.s.when", b"x", {**at, "Nats-Schedule-Target": "s.to"}) == {}
    headers = {**at, "Nats-Schedule-Target": "ann.s.to", "Nats-Schedule-Source": "s.secret"}
    assert await asks(ann, "ann.s.when", b"x", headers) == {}
    assert "seq" in await asks(ann, "ann.s.when", b"x", {**at, "Nats-Schedule-Target": "ann.s.to"})
    await root.close()
    await ann.close()


async def test_a_queue_is_joined_only_by_who_may_consume_it(guarded: Broker) -> None:
    root, ann = await connected(guarded, ROOT), await connected(guarded, ANN)
    assert await makes(root, "q", subjects=["ann.q", "q"])
    config = {"durable_name": "w", "ack_policy": "explicit", "metadata": {"mainstem-queue": "jobs"}}
    request = {"stream_name": "q", "config": config}
    assert await asks(ann, "$JS.API.CONSUMER.CREATE.q.w", request) == {}
    assert "error" not in await asks(root, "$JS.API.CONSUMER.CREATE.q.w", request)
    await root.jetstream().publish("q", b"x")
    assert await asks(ann, "$JS.API.CONSUMER.MSG.NEXT.q.w", {"batch": 1}) == {}
    for word, body in (("PAUSE", {"pause_until": "2101-01-01T00:00:00Z"}), ("RESET", b""), ("DELETE", b"")):
        assert await asks(ann, f"$JS.API.CONSUMER.{word}.q.w", body) == {}
    await root.close()
    await ann.close()


async def test_a_kafka_client_is_told_that_a_streams_subject_takes_no_batch(guarded: Broker) -> None:
    """Whether or not something lies there; what the stream has it may read."""
    root = await connected(guarded, ROOT)
    assert await makes(root, "events", subjects=["ev.>"])
    await root.jetstream().publish("ev.one", b"x")
    await root.close()

    def tries() -> None:
        with KafkaClient(guarded, ROOT) as client:
            for name in ("ev.one", "ev.two"):
                answer = client.produce(name, batch_of([b"y"]))
                assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
                assert "subject of JetStream's events" in answer.error_message
            assert client.fetch("ev.one", 0).responses[0].partitions[0].error_code == 0

    await asyncio.to_thread(tries)
