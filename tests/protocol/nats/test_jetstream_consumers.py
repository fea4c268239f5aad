"""How consumers deliver: paused, by priority, at a rate, as it was; what they tell of it."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import nats
import nats.errors
import pytest

from tests.protocol.nats.test_jetstream import WAIT_S, connected, unique, until


class Consumer:
    """One made by the API itself, and pulled from with whatever a pull may say."""

    def __init__(self, client: Any, stream: str, name: str) -> None:
        self.client, self.stream, self.name = client, stream, name

    @classmethod
    async def make(cls, client: Any, stream: str, name: str, **config: Any) -> Consumer:
        one = cls(client, stream, name)
        given = {"durable_name": name, "ack_policy": "explicit", **config}
        answer = await one.call("CREATE", {"stream_name": stream, "config": given})
        assert "error" not in answer, answer
        return one

    async def call(self, word: str, body: Any = None) -> dict[str, Any]:
        subject = f"$JS.API.CONSUMER.{word}.{self.stream}.{self.name}"
        data = b"" if body is None else json.dumps(body).encode()
        answer: dict[str, Any] = json.loads((await self.client.request(subject, data, timeout=WAIT_S)).data)
        return answer

    async def pull(self, **asked: Any) -> Any:
        """A subscription to what the pull gets."""
        inbox = self.client.new_inbox()
        heard = await self.client.subscribe(inbox)
        request = {"batch": 1, "expires": 30_000_000_000, **asked}
        await self.client.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{self.name}", json.dumps(request).encode(), reply=inbox
        )
        await self.client.flush()
        return heard


async def got(heard: Any) -> tuple[str, bytes]:
    """Its next message: the status, if it is one, and the payload."""
    message = await heard.next_msg(WAIT_S)
    return (message.headers or {}).get("Status", ""), message.data


async def stream_of(client: Any, count: int, **config: Any) -> str:
    name = unique("c")
    await client.jetstream().add_stream(name=name, subjects=[name], **config)
    for n in range(count):
        await client.jetstream().publish(name, b"%d" % n)
    return name


async def test_a_paused_consumer_waits_and_goes_on_by_itself_or_when_told(url: str) -> None:
    client = await connected(url)
    stream = await stream_of(client, 2)
    told = await client.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.PAUSE.{stream}.p")
    until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    consumer = await Consumer.make(client, stream, "p", pause_until=until)
    info = await consumer.call("INFO")
    assert info["paused"] and 0 < info["pause_remaining"] <= 3_600_000_000_000
    waiting = await consumer.pull()
    with pytest.raises(nats.errors.TimeoutError):
        await waiting.next_msg(0.3)
    assert not (await consumer.call("PAUSE", {}))["paused"]
    assert await got(waiting) == ("", b"0")
    soon = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    assert (await consumer.call("PAUSE", {"pause_until": soon}))["paused"]
    assert await got(await consumer.pull()) == ("", b"1")
    assert datetime.now(UTC).isoformat() >= soon
    assert [json.loads((await told.next_msg(WAIT_S)).data)["paused"] for _ in range(3)] == [True, False, True]
    await client.close()


async def test_the_pull_with_the_lower_number_is_served_first(url: str) -> None:
    client = await connected(url)
    stream = await stream_of(client, 0)
    consumer = await Consumer.make(client, stream, "p", priority_policy="prioritized", priority_groups=["g"])
    low, high, other = [await consumer.pull(group="g", priority=p, batch=2) for p in (5, 0, 0)]
    for n in range(5):
        await client.jetstream().publish(stream, b"%d" % n)
    assert [await got(one) for one in (high, other, high, other, low)] == [("", b"%d" % n) for n in range(5)]
    await client.close()


async def test_an_overflow_pull_is_served_only_while_enough_waits(url: str) -> None:
    client = await connected(url)
    stream = await stream_of(client, 2)
    consumer = await Consumer.make(client, stream, "p", priority_policy="overflow", priority_groups=["g"])
    spare = await consumer.pull(group="g", min_pending=4, batch=10)
    busy = await consumer.pull(group="g", min_ack_pending=1)
    with pytest.raises(nats.errors.TimeoutError):
        await spare.next_msg(0.2)
    for n in (2, 3):
        await client.jetstream().publish(stream, b"%d" % n)
    assert await got(spare) == ("", b"0")  # four waited
    assert await got(busy) == ("", b"1")  # one was unacked
    with pytest.raises(nats.errors.TimeoutError):
        await spare.next_msg(0.2)
    await client.close()


async def test_a_pinned_client_has_all_messages_until_it_is_unpinned(url: str) -> None:
    client = await connected(url)
    stream = await stream_of(client, 3)
    told = await client.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.*.{stream}.p")
    consumer = await Consumer.make(client, stream, "p", priority_policy="pinned_client", priority_groups=["g"])
    first = await (await consumer.pull(group="g")).next_msg(WAIT_S)
    pin = first.headers["Nats-Pin-Id"]
    assert (await consumer.call("INFO"))["priority_groups"][0]["pinned_client_id"] == pin
    other = await consumer.pull(group="g")
    assert await got(await consumer.pull(group="g", id="wrong")) == ("423", b"")
    assert await got(await consumer.pull(group="g", id=pin)) == ("", b"1")
    with pytest.raises(nats.errors.TimeoutError):
        await other.next_msg(0.2)
    assert "error" not in await consumer.call("UNPIN", {"group": "g"})
    assert await got(other) == ("", b"2")
    assert await got(await consumer.pull(group="g", id=pin)) == ("423", b"")
    kinds = [json.loads((await told.next_msg(WAIT_S)).data)["type"].rpartition(".")[2] for _ in range(4)]
    assert kinds == ["consumer_action", "consumer_group_pinned", "consumer_group_unpinned", "consumer_group_pinned"]
    await client.close()


async def test_a_rate_limit_and_an_original_replay_take_their_time(url: str) -> None:
    client, loop = await connected(url), asyncio.get_running_loop()
    stream = await stream_of(client, 1)
    await asyncio.sleep(0.4)  # is what the replay must wait, too
    await client.jetstream().publish(stream, b"1" * 100)
    heard = await client.subscribe("deliver." + stream)
    await Consumer.make(client, stream, "r", replay_policy="original", deliver_subject="deliver." + stream)
    await heard.next_msg(WAIT_S)
    begin = loop.time()
    await heard.next_msg(WAIT_S)
    assert loop.time() - begin > 0.2
    slow = await client.subscribe("slow." + stream)
    for _ in range(2):
        await client.jetstream().publish(stream, b"1" * 100)
    begin = loop.time()
    await Consumer.make(client, stream, "s", rate_limit_bps=4_000, deliver_subject="slow." + stream)
    for _ in range(4):
        await slow.next_msg(WAIT_S)
    assert loop.time() - begin > 0.3  # some 350 bytes before the last
    await client.close()


async def test_acks_are_measured_and_naks_and_ends_are_told(url: str) -> None:
    client = await connected(url)
    stream = await stream_of(client, 3)
    told = await client.subscribe(f"$JS.EVENT.*.CONSUMER.*.{stream}.m")
    consumer = await Consumer.make(client, stream, "m", sample_freq="100%")
    for answer in (b"+ACK", b"-NAK", b"+TERM it is broken"):
        message = await (await consumer.pull()).next_msg(WAIT_S)
        await client.publish(message.reply, answer)
    events = [json.loads((await told.next_msg(WAIT_S)).data) for _ in range(4)]
    assert [one["type"].rpartition(".")[2] for one in events] == [
        "consumer_action",
        "consumer_ack",
        "nak",
        "terminated",
    ]
    assert events[1]["ack_time"] > 0 and (events[1]["stream_seq"], events[1]["deliveries"]) == (1, 1)
    assert events[2]["stream_seq"] == 2 and events[3]["reason"] == "it is broken"
    await client.close()


async def test_a_consumer_that_is_reset_delivers_again(url: str) -> None:
    client = await connected(url)
    stream = await stream_of(client, 4)
    consumer = await Consumer.make(client, stream, "r")
    for n in range(4):
        message = await (await consumer.pull()).next_msg(WAIT_S)
        if n < 2:
            await client.request(message.reply, b"", timeout=WAIT_S)
    assert (await consumer.call("RESET"))["reset_seq"] == 3
    assert [await got(await consumer.pull()) for _ in range(2)] == [("", b"2"), ("", b"3")]
    assert (await consumer.call("RESET", {"seq": 1}))["num_pending"] == 4
    assert await got(await consumer.pull()) == ("", b"0")
    await client.close()


async def test_a_stream_may_keep_the_advisories(url: str) -> None:
    client = await connected(url)
    kept = unique("kept")
    await client.jetstream().add_stream(name=kept, subjects=["$JS.EVENT.ADVISORY.STREAM.>"])
    stream = await stream_of(client, 0)
    await client.jetstream().delete_stream(stream)
    found = [json.loads((await client.jetstream().get_msg(kept, seq)).data) for seq in (2, 3)]
    assert [(one["stream"], one["action"]) for one in found] == [(stream, "create"), (stream, "delete")]
    await client.jetstream().delete_stream(kept)
    await client.close()


async def test_a_message_that_matches_two_of_a_consumers_filters_is_delivered_once(url: str) -> None:
    client, name = await connected(url), unique("c")
    await client.jetstream().add_stream(name=name, subjects=[f"{name}.>"])
    for subject in ("a.b", "a.c", "x.b", "x.y"):  # the first matches both, the last none
        await client.jetstream().publish(f"{name}.{subject}", subject.encode())
    consumer = await Consumer.make(client, name, "d", filter_subjects=[f"{name}.*.b", f"{name}.a.*"])
    assert (await consumer.call("INFO"))["num_pending"] == 3
    heard = await consumer.pull(batch=10, no_wait=True)
    assert [await got(heard) for _ in range(4)] == [("", b"a.b"), ("", b"a.c"), ("", b"x.b"), ("408", b"")]
    await client.close()


async def test_a_consumer_obeys_its_streams_limits_for_consumers(url: str) -> None:
    client = await connected(url)
    name = unique("c")
    limits = {"max_ack_pending": 2, "inactive_threshold": 300_000_000}
    body = json.dumps({"name": name, "subjects": [name], "consumer_limits": limits}).encode()
    await client.request(f"$JS.API.STREAM.CREATE.{name}", body, timeout=WAIT_S)
    for n in range(3):
        await client.jetstream().publish(name, b"%d" % n)
    consumer = await Consumer.make(client, name, "d")
    heard = await consumer.pull(batch=3, expires=400_000_000)
    assert [await got(heard) for _ in range(3)] == [("", b"0"), ("", b"1"), ("408", b"")]
    await until(lambda: is_gone(consumer))
    await client.close()


async def is_gone(consumer: Consumer) -> bool:
    return "error" in await consumer.call("INFO")


async def test_a_stream_that_is_changed_to_interest_keeps_what_consumers_are_owed(url: str) -> None:
    client = await connected(url)
    name = await stream_of(client, 4)
    consumer = await Consumer.make(client, name, "d", deliver_policy="by_start_sequence", opt_start_seq=3)
    body = json.dumps({"name": name, "subjects": [name], "retention": "interest"}).encode()
    await client.request(f"$JS.API.STREAM.UPDATE.{name}", body, timeout=WAIT_S)
    assert (await client.jetstream().stream_info(name)).state.messages == 2
    heard = await consumer.pull()
    assert (await heard.next_msg(WAIT_S)).data == b"2"
    await client.close()
