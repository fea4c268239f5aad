"""JetStream with nats-py: streams, publishing, consumers, and what a restart leaves of them."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, DiscardPolicy, RetentionPolicy, StreamConfig
from nats.js.errors import APIError, BadRequestError, NotFoundError

from mainstem.testing import Broker
from mainstem.testing.process import BrokerProcess
from tests.crossing.commands import eventually, http, mainstem

WAIT_S = 10


def unique(name: str) -> str:
    return f"{name}{uuid.uuid4().hex[:8]}"


async def connected(url: str) -> Any:
    return await nats.connect(url, connect_timeout=WAIT_S, allow_reconnect=False)


async def until(condition: Any) -> None:
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while not await condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not happen"
        await asyncio.sleep(0.02)


async def test_a_stream_keeps_what_is_published_and_a_durable_consumer_takes_it_once(url: str) -> None:
    client, root = await connected(url), unique("s")
    js = client.jetstream()
    await js.add_stream(name=root, subjects=[f"{root}.>"])
    acks = [await js.publish(f"{root}.{n % 3}", b"%d" % n, headers={"N": str(n)}) for n in range(10)]
    assert [(ack.stream, ack.seq) for ack in acks] == [(root, n + 1) for n in range(10)]
    pull = await js.pull_subscribe(f"{root}.>", "worker")
    got = await pull.fetch(10, timeout=WAIT_S)
    assert [(m.subject, m.data, m.headers) for m in got] == [
        (f"{root}.{n % 3}", b"%d" % n, {"N": str(n)}) for n in range(10)
    ]
    assert [(m.metadata.sequence.stream, m.metadata.sequence.consumer, m.metadata.num_pending) for m in got] == [
        (n + 1, n + 1, 9 - n) for n in range(10)
    ]
    for message in got[:5]:
        await message.ack_sync()
    info = await pull.consumer_info()
    assert (info.num_ack_pending, info.num_pending, info.ack_floor.stream_seq) == (5, 0, 5)
    state = (await js.stream_info(root)).state
    assert (state.messages, state.first_seq, state.last_seq, state.consumer_count) == (10, 1, 10, 1)
    await client.close()


async def test_streams_consumers_and_acks_outlive_a_restart(tmp_path: Path) -> None:
    for kill in (False, True):
        name = f"r{int(kill)}"
        with BrokerProcess(tmp_path / name) as broker:
            client = await connected(broker.nats_url)
            js = client.jetstream()
            await js.add_stream(name=name, subjects=[f"{name}.*"], max_msgs_per_subject=2)
            for n in range(9):
                await js.publish(f"{name}.{n % 3}", b"%d" % n)
            pull = await js.pull_subscribe(f"{name}.*", "worker")
            for message in await pull.fetch(2, timeout=WAIT_S):
                await message.ack_sync()
            before = (await js.stream_info(name)).state
            await client.close()
            if kill:
                broker.kill()
                broker.start()
            else:
                broker.restart()
            client = await connected(broker.nats_url)
            js = client.jetstream()
            after = (await js.stream_info(name)).state
            assert (after.messages, after.first_seq, after.last_seq) == (6, 4, 9)
            assert (after.messages, after.bytes, after.last_seq) == (before.messages, before.bytes, before.last_seq)
            pull = await js.pull_subscribe(f"{name}.*", "worker")
            rest = await pull.fetch(4, timeout=WAIT_S)
            assert [m.data for m in rest] == [b"5", b"6", b"7", b"8"]
            assert [m.metadata.sequence.consumer for m in rest] == [3, 4, 5, 6]
            ack = await js.publish(f"{name}.0", b"9")
            assert ack.seq > 9 if kill else ack.seq == 10
            await client.close()


async def test_a_subject_of_a_stream_is_a_topic_for_everyone(broker: Broker) -> None:
    client, root = await connected(broker.nats_url), unique("t")
    js = client.jetstream()
    await js.add_stream(name=root, subjects=[f"{root}.>"], max_msgs_per_subject=1)
    await js.publish(f"{root}.a", b"old")
    await js.publish(f"{root}.a", b"new")
    await asyncio.to_thread(
        mainstem, broker, "pub", f"mqtt://127.0.0.1:{broker.mqtt_port}/{root}/a", "by mqtt", "--qos", "1"
    )
    found = await js.get_last_msg(root, f"{root}.a")
    assert (found.seq, found.data) == (3, b"by mqtt")
    read = await asyncio.to_thread(
        mainstem, broker, "sub", f"kafka://127.0.0.1:{broker.kafka_port}/{root}.a", "--from", "earliest", "--count", "1"
    )
    assert "by mqtt" in read
    assert "old" not in read and "new" not in read
    await client.close()


async def test_limits_remove_the_oldest_or_refuse_the_newest(url: str) -> None:
    client, root = await connected(url), unique("l")
    js = client.jetstream()
    await js.add_stream(name=f"{root}o", subjects=[f"{root}.old"], max_msgs=3)
    for n in range(10):
        await js.publish(f"{root}.old", b"%d" % n)
    state = (await js.stream_info(f"{root}o")).state
    assert (state.messages, state.first_seq, state.last_seq) == (3, 8, 10)
    await js.add_stream(name=f"{root}n", subjects=[f"{root}.new"], max_msgs=3, discard=DiscardPolicy.NEW)
    for n in range(3):
        await js.publish(f"{root}.new", b"%d" % n)
    with pytest.raises(APIError, match="maximum messages exceeded"):
        await js.publish(f"{root}.new", b"3")
    await js.add_stream(name=f"{root}b", subjects=[f"{root}.bytes"], max_bytes=1000)
    for _ in range(20):
        await js.publish(f"{root}.bytes", b"x" * 100)
    state = (await js.stream_info(f"{root}b")).state
    assert 0 < state.bytes <= 1000 and state.last_seq == 20
    await js.add_stream(name=f"{root}a", subjects=[f"{root}.age"], max_age=1)
    await js.publish(f"{root}.age", b"x")

    async def gone() -> bool:
        return bool((await js.stream_info(f"{root}a")).state.messages == 0)

    await until(gone)
    await client.close()


async def test_a_message_with_a_time_to_live_ends_alone_also_after_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        client = await connected(broker.nats_url)
        js = client.jetstream()
        await js.add_stream(name="t", subjects=["t"], allow_msg_ttl=True)
        for ttl in ("1", "1h", "2s"):
            await js.publish("t", ttl.encode(), headers={"Nats-TTL": ttl})
        with pytest.raises(BadRequestError, match="invalid per-message TTL"):
            await js.publish("t", b"", headers={"Nats-TTL": "1ms"})
        await client.close()
        broker.kill()
        broker.start()
        client = await connected(broker.nats_url)
        js = client.jetstream()

        async def one_left() -> bool:
            return bool((await js.stream_info("t")).state.messages == 1)

        await until(one_left)
        assert (await js.get_last_msg("t", "t")).data == b"1h"
        await client.close()


async def test_a_repeated_message_id_is_stored_once_also_after_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        client = await connected(broker.nats_url)
        await client.jetstream().add_stream(name="d", subjects=["d"])
        first = await client.jetstream().publish("d", b"1", headers={"Nats-Msg-Id": "x"})
        again = await client.jetstream().publish("d", b"1", headers={"Nats-Msg-Id": "x"})
        assert (first.seq, first.duplicate, again.seq, again.duplicate) == (1, None, 1, True)
        await client.close()
        broker.kill()
        broker.start()
        client = await connected(broker.nats_url)
        again = await client.jetstream().publish("d", b"1", headers={"Nats-Msg-Id": "x"})
        assert (again.seq, again.duplicate) == (1, True)
        await client.close()


async def test_expected_sequences_let_one_of_two_writers_win(url: str) -> None:
    client, root = await connected(url), unique("e")
    js = client.jetstream()
    await js.add_stream(name=root, subjects=[f"{root}.*"])

    first = {"Nats-Expected-Last-Subject-Sequence": "0"}
    writers = (js.publish(f"{root}.x", b"%d" % n, headers=first) for n in range(20))
    answers = await asyncio.gather(*writers, return_exceptions=True)
    assert [one.seq for one in answers if not isinstance(one, BaseException)] == [1]
    assert [one.err_code for one in answers if isinstance(one, APIError)] == [10071] * 19
    await client.close()


async def test_messages_are_deleted_and_purged_for_everyone(url: str) -> None:
    client, root = await connected(url), unique("p")
    js = client.jetstream()
    await js.add_stream(name=root, subjects=[f"{root}.*"])
    for n in range(10):
        await js.publish(f"{root}.{n % 2}", b"%d" % n)
    await js.delete_msg(root, 5)
    with pytest.raises(NotFoundError):
        await js.get_msg(root, 5)
    info = await js.stream_info(root)
    assert (info.state.messages, info.state.num_deleted) == (9, 1)
    await js.purge_stream(root, subject=f"{root}.0")
    assert (await js.stream_info(root, subjects_filter=">")).state.subjects == {f"{root}.1": 5}
    await js.purge_stream(root, keep=2)
    state = (await js.stream_info(root)).state
    assert (state.messages, state.first_seq, state.last_seq) == (2, 8, 10)
    await js.purge_stream(root)
    state = (await js.stream_info(root)).state
    assert (state.messages, state.first_seq, state.last_seq) == (0, 11, 10)
    assert (await js.publish(f"{root}.0", b"")).seq == 11
    await client.close()


async def test_what_is_not_acked_comes_again_until_it_is_given_up(url: str) -> None:
    client, root = await connected(url), unique("n")
    js = client.jetstream()
    await js.add_stream(name=root, subjects=[root])
    await js.publish(root, b"x")
    config = ConsumerConfig(ack_wait=0.3, max_deliver=3)
    pull = await js.pull_subscribe(root, "w", config=config)
    advisories = await client.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{root}.w")
    first = (await pull.fetch(1, timeout=WAIT_S))[0]
    await first.nak()
    second = (await pull.fetch(1, timeout=WAIT_S))[0]
    assert second.metadata.num_delivered == 2
    third = (await pull.fetch(1, timeout=WAIT_S))[0]  # its time ran out
    assert third.metadata.num_delivered == 3
    assert b'"stream_seq":1' in (await advisories.next_msg(WAIT_S)).data
    with pytest.raises(nats.errors.TimeoutError):
        await pull.fetch(1, timeout=0.5)
    assert (await js.stream_info(root)).state.messages == 1
    await client.close()


async def test_a_nak_with_a_delay_waits_and_a_term_ends_it(url: str) -> None:
    client, root = await connected(url), unique("n")
    js = client.jetstream()
    await js.add_stream(name=root, subjects=[root])
    await js.publish(root, b"x")
    pull = await js.pull_subscribe(root, "w")
    await (await pull.fetch(1, timeout=WAIT_S))[0].nak(delay=0.4)
    with pytest.raises(nats.errors.TimeoutError):
        await pull.fetch(1, timeout=0.2)
    again = (await pull.fetch(1, timeout=WAIT_S))[0]
    await again.in_progress()
    await again.term()

    async def settled() -> bool:
        return bool((await pull.consumer_info()).num_ack_pending == 0)

    await until(settled)
    await client.close()


async def test_a_workqueue_forgets_what_was_done(url: str) -> None:
    client, root = await connected(url), unique("q")
    js = client.jetstream()
    await js.add_stream(name=root, subjects=[root], retention=RetentionPolicy.WORK_QUEUE)
    for n in range(4):
        await js.publish(root, b"%d" % n)
    pull = await js.pull_subscribe(root, "w")
    with pytest.raises(BadRequestError, match="multiple non-filtered consumers"):
        await js.add_consumer(root, durable_name="other", ack_policy=AckPolicy.EXPLICIT)
    got = await pull.fetch(4, timeout=WAIT_S)
    for message in (got[0], got[2]):
        await message.ack_sync()
    state = (await js.stream_info(root)).state
    assert (state.messages, state.first_seq, state.num_deleted) == (2, 2, 1)
    await client.close()


async def test_by_interest_a_message_stays_until_every_consumer_has_settled_it(url: str) -> None:
    client, root = await connected(url), unique("i")
    js = client.jetstream()
    await js.add_stream(name=root, subjects=[root], retention=RetentionPolicy.INTEREST)
    assert (await js.publish(root, b"nobody")).seq == 1
    one, two = await js.pull_subscribe(root, "one"), await js.pull_subscribe(root, "two")
    await js.publish(root, b"both")
    await (await one.fetch(1, timeout=WAIT_S))[0].ack_sync()
    assert (await js.stream_info(root)).state.messages == 1
    await (await two.fetch(1, timeout=WAIT_S))[0].ack_sync()
    state = (await js.stream_info(root)).state
    assert (state.messages, state.last_seq) == (0, 2)
    await client.close()


async def test_push_consumers_deliver_to_one_of_a_group_or_to_all(url: str) -> None:
    client, root = await connected(url), unique("u")
    js = client.jetstream()
    await js.add_stream(name=root, subjects=[root])
    heard: dict[str, list[bytes]] = {"a": [], "b": [], "all": []}

    def into(name: str) -> Any:
        async def note(message: Any) -> None:
            heard[name].append(message.data)
            await message.ack()

        return note

    for name in ("a", "b"):
        await js.subscribe(root, "group", cb=into(name), durable="group", manual_ack=True)
    await js.subscribe(root, cb=into("all"), manual_ack=True)
    for n in range(30):
        await js.publish(root, b"%d" % n)

    async def all_there() -> bool:
        return len(heard["all"]) == len(heard["a"]) + len(heard["b"]) == 30

    await until(all_there)
    assert sorted(heard["a"] + heard["b"]) == sorted(heard["all"]) == sorted(b"%d" % n for n in range(30))
    assert heard["a"] and heard["b"]
    await client.close()


async def test_an_ordered_consumer_gets_everything_in_order(url: str) -> None:
    client, root = await connected(url), unique("o")
    js = client.jetstream()
    await js.add_stream(name=root, subjects=[f"{root}.*"])
    await asyncio.gather(*(js.publish(f"{root}.x", b"y" * 20_000) for _ in range(300)))
    ordered = await js.subscribe(f"{root}.x", ordered_consumer=True)
    got = [(await ordered.next_msg(WAIT_S)).metadata.sequence for _ in range(300)]
    assert [(one.stream, one.consumer) for one in got] == [(n + 1, n + 1) for n in range(300)]
    await client.close()


async def test_consumers_begin_where_they_are_told_to(url: str) -> None:
    client, root = await connected(url), unique("b")
    js = client.jetstream()
    await js.add_stream(name=root, subjects=[f"{root}.*"])
    for n in range(6):
        await js.publish(f"{root}.{n % 2}", b"%d" % n)
    wanted = {
        "all": (ConsumerConfig(deliver_policy=DeliverPolicy.ALL), [b"0", b"1", b"2", b"3", b"4", b"5"]),
        "last": (ConsumerConfig(deliver_policy=DeliverPolicy.LAST), [b"5"]),
        "new": (ConsumerConfig(deliver_policy=DeliverPolicy.NEW), []),
        "seq": (ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=5), [b"4", b"5"]),
        "each": (ConsumerConfig(deliver_policy=DeliverPolicy.LAST_PER_SUBJECT), [b"4", b"5"]),
        "one": (ConsumerConfig(filter_subjects=[f"{root}.1", f"{root}.7"]), [b"1", b"3", b"5"]),
    }
    for name, (config, values) in wanted.items():
        pull = await js.pull_subscribe("" if config.filter_subjects else f"{root}.*", name, stream=root, config=config)
        assert (await pull.consumer_info()).num_pending == len(values), name
        got = await pull.fetch(6, timeout=0.3) if values else []
        assert [m.data for m in got] == values, name
    await js.publish(f"{root}.0", b"6")
    pull = await js.pull_subscribe_bind("new", root)
    assert [m.data for m in await pull.fetch(1, timeout=WAIT_S)] == [b"6"]
    await client.close()


async def test_a_consumer_that_nobody_uses_ends_after_its_threshold(url: str) -> None:
    client, root = await connected(url), unique("i")
    js = client.jetstream()
    await js.add_stream(name=root, subjects=[root])
    info = await js.add_consumer(root, ack_policy=AckPolicy.EXPLICIT, inactive_threshold=0.3)

    async def ended() -> bool:
        try:
            await js.consumer_info(root, info.name)
        except NotFoundError:
            return True
        return False

    await until(ended)
    await client.close()


async def test_a_stream_begins_past_the_history_of_its_subjects(broker: Broker) -> None:
    client, root = await connected(broker.nats_url), unique("h")
    for n in range(5):
        await client.publish(f"{root}.x", b"before %d" % n)
    await client.flush()
    js = client.jetstream()
    info = await js.add_stream(StreamConfig(name=root, subjects=[f"{root}.x"]))
    assert info.state.messages == 0
    ack = await js.publish(f"{root}.x", b"after")
    assert ack.seq > 5

    def whole() -> bool:
        read = mainstem(
            broker, "sub", f"kafka://127.0.0.1:{broker.kafka_port}/{root}.x", "--from", "earliest", "--count", "6"
        )
        return all(f"before {n}" in read for n in range(5)) and "after" in read

    await asyncio.to_thread(eventually, whole, "Kafka reads history and stream as one topic")
    await client.close()


async def test_monitoring_tells_connections_and_streams_in_nats_servers_shape(broker: Broker) -> None:
    client, root = await connected(broker.nats_url), unique("m")
    await client.jetstream().add_stream(name=root, subjects=[root])
    await client.jetstream().publish(root, b"x")
    subscription = await client.subscribe(f"{root}.*")

    async def told(path: str) -> Any:
        return await asyncio.to_thread(http, broker, "GET", path)

    varz, connz = await told("/varz"), await told("/connz?subs=1")
    assert varz["connections"] >= 1 and varz["in_msgs"] >= 1 and varz["jetstream"]["stats"]["api"]["total"] >= 1
    mine = [one for one in connz["connections"] if f"{root}.*" in one["subscriptions_list"]]
    assert [(one["lang"], one["kind"], one["in_msgs"] > 0) for one in mine] == [("python3", "Client", True)]
    details = (await told("/jsz?streams=1"))["account_details"][0]["stream_detail"]
    assert [one["state"]["messages"] for one in details if one["name"] == root] == [1]
    assert (await told("/subsz"))["num_subscriptions"] >= 1
    assert await told("/healthz") == {"status": "ok"}
    await subscription.unsubscribe()
    await client.close()
