"""What streams do by themselves: mirrors, sources, republish, markers, batches, counters, schedules."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import RePublish, StreamConfig, StreamSource
from nats.js.errors import APIError

from mainstem.testing.process import BrokerProcess
from tests.crossing.commands import mainstem
from tests.protocol.nats.test_jetstream import WAIT_S, connected, unique, until


async def add(client: Any, name: str, **config: Any) -> dict[str, Any]:
    """Also with what nats-py has no words for."""
    body = json.dumps({"name": name, **config}).encode()
    answer: dict[str, Any] = json.loads((await client.request(f"$JS.API.STREAM.CREATE.{name}", body, WAIT_S)).data)
    assert "error" not in answer, answer
    return answer


async def all_of(js: Any, stream: str) -> list[Any]:
    """Its messages, by a consumer."""
    last = (await js.stream_info(stream)).state.messages
    reader = await js.subscribe("", stream=stream, ordered_consumer=True)
    return [await reader.next_msg(WAIT_S) for _ in range(last)]


async def test_a_mirror_shows_what_its_origin_has_with_consumers_of_its_own(url: str) -> None:
    client, root = await connected(url), unique("s")
    js = client.jetstream()
    await js.add_stream(name=root, subjects=[f"{root}.>"])
    for n in range(6):
        await js.publish(f"{root}.{n % 2}", b"%d" % n)
    mirror = await js.add_stream(
        StreamConfig(name=f"{root}m", mirror=StreamSource(name=root, filter_subject=f"{root}.1", opt_start_seq=3))
    )
    assert (mirror.state.messages, mirror.state.first_seq, mirror.state.last_seq) == (2, 4, 6)
    pull = await js.pull_subscribe("", "w", stream=f"{root}m")
    taken = await pull.fetch(2, timeout=WAIT_S)
    assert [(m.subject, m.data, m.metadata.sequence.stream, m.metadata.stream) for m in taken] == [
        (f"{root}.1", b"3", 4, f"{root}m"),
        (f"{root}.1", b"5", 6, f"{root}m"),
    ]
    for message in taken:
        await message.ack_sync()
    await js.publish(f"{root}.1", b"live")
    assert [m.data for m in await pull.fetch(1, timeout=WAIT_S)] == [b"live"]
    await js.delete_msg(root, 4)
    with pytest.raises(APIError):
        await js.get_msg(f"{root}m", 4)
    with pytest.raises(APIError, match="mirrors are views"):
        await js.delete_stream(root)
    assert await js.delete_stream(f"{root}m") and await js.delete_stream(root)
    await client.close()


async def test_sources_copy_each_message_once_also_across_kills(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        client = await connected(broker.nats_url)
        js = client.jetstream()
        await js.add_stream(name="a", subjects=["a.>"])
        await js.add_stream(name="b", subjects=["b"])
        await add(client, "all", sources=[{"name": "a", "filter_subject": "a.x"}, {"name": "b"}, {"name": "later"}])
        await add(client, "mirror", mirror={"name": "all"})
        for n in range(40):
            await js.publish("a.x" if n % 2 else "b", b"%d" % n)
            await js.publish("a.y", b"not copied")
        for _ in range(2):
            broker.kill()
            broker.start()
        client = await connected(broker.nats_url)
        js = client.jetstream(timeout=WAIT_S)
        await js.add_stream(name="later", subjects=["later"])
        await js.publish("later", b"last")

        async def all_copied() -> bool:
            return bool((await js.stream_info("all")).state.messages >= 41)

        await until(all_copied)
        found = await all_of(js, "all")
        assert sorted(int(m.data) for m in found if m.data != b"last") == list(range(40))
        assert {m.subject for m in found} == {"a.x", "b", "later"}
        assert [m.data for m in await all_of(js, "mirror")] == [m.data for m in found]
        # To other protocols a copy is not a second message of its topic.
        kafka = f"kafka://127.0.0.1:{broker.ports['kafka']}/b"
        lines = mainstem(broker, "sub", kafka, "--from", "earliest", "--count", "20").split()
        assert lines == [str(n) for n in range(0, 40, 2)]
        await client.close()


async def test_what_a_stream_stores_is_published_again_with_where_it_lies(url: str) -> None:
    client, root = await connected(url), unique("s")
    js = client.jetstream()
    again = RePublish(src=f"{root}.*", dest=f"again.{root}.{{{{wildcard(1)}}}}")
    await js.add_stream(StreamConfig(name=root, subjects=[f"{root}.>"], republish=again))
    heard = await client.subscribe(f"again.{root}.*")
    await client.flush()
    for n in range(3):
        await js.publish(f"{root}.{n % 2}", b"%d" % n, headers={"A": "b"})
    await js.publish(f"{root}.not.this", b"x")
    got = [await heard.next_msg(WAIT_S) for _ in range(3)]
    assert [(m.subject, m.data) for m in got] == [(f"again.{root}.{n % 2}", b"%d" % n) for n in range(3)]
    told = got[2].headers
    assert (told["A"], told["Nats-Stream"], told["Nats-Subject"]) == ("b", root, f"{root}.0")
    assert (told["Nats-Sequence"], told["Nats-Last-Sequence"]) == ("3", "1")
    await client.close()


async def test_a_subject_whose_last_message_expired_gets_a_marker(url: str) -> None:
    client, root = await connected(url), unique("s")
    js = client.jetstream()
    await add(client, root, subjects=[f"{root}.>"], subject_delete_marker_ttl=2_000_000_000)
    heard = await js.subscribe(f"{root}.>", ordered_consumer=True)
    await js.publish(f"{root}.a", b"x", headers={"Nats-TTL": "1s"})
    await js.publish(f"{root}.b", b"stays")
    first = [await heard.next_msg(WAIT_S) for _ in range(2)]
    marker = await heard.next_msg(WAIT_S)
    assert [m.data for m in first] == [b"x", b"stays"]
    assert (marker.subject, marker.data, marker.headers["Nats-Marker-Reason"]) == (f"{root}.a", b"", "MaxAge")

    async def gone() -> bool:
        return bool((await js.stream_info(root)).state.messages == 1)

    await until(gone)  # the marker has a time to live, too, and leaves none
    await client.close()


def batch(client: Any, subject: str, name: str, seq: int, commit: str = "") -> Any:
    headers = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(seq)}
    if commit:
        headers["Nats-Batch-Commit"] = commit
    return client.request(subject, b"%d" % seq, timeout=WAIT_S, headers=headers)


async def test_a_batch_is_stored_whole_or_not_at_all_also_when_the_broker_is_killed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        client = await connected(broker.nats_url)
        await add(client, "b", subjects=["b.>"], allow_atomic=True)
        for seq in range(1, 500):
            assert (await batch(client, f"b.{seq % 5}", "one", seq)).data == b""
        ack = json.loads((await batch(client, "b.0", "one", 500, "1")).data)
        assert (ack["seq"], ack["batch"], ack["count"]) == (500, "one", 500)
        for seq in range(1, 100):
            await batch(client, "b.x", "two", seq)
        broker.kill()
        broker.start()
        client = await connected(broker.nats_url)
        js = client.jetstream(timeout=WAIT_S)
        answer = json.loads((await batch(client, "b.x", "two", 100, "1")).data)
        assert answer["error"]["err_code"] == 10176
        assert [m.data for m in await all_of(js, "b")] == [b"%d" % seq for seq in range(1, 501)]
        await client.close()


async def test_counters_add_up_across_clients_and_restarts(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        clients = [await connected(broker.nats_url) for _ in range(3)]
        await add(clients[0], "n", subjects=["n.>"], allow_msg_counter=True, max_msgs_per_subject=1)

        async def count(client: Any) -> None:
            for n in range(50):
                await client.request(f"n.{n % 2}", b"", timeout=WAIT_S, headers={"Nats-Incr": "2"})

        await asyncio.gather(*(count(client) for client in clients))
        broker.kill()
        broker.start()
        client = await connected(broker.nats_url)
        answer = await client.request("n.0", b"", timeout=WAIT_S, headers={"Nats-Incr": "-1"})
        assert json.loads(answer.data)["val"] == "149"
        message = await client.jetstream().get_last_msg("n", "n.1")
        assert json.loads(message.data) == {"val": "150"}
        await client.close()


async def test_a_schedule_publishes_once_or_again_and_again_and_outlives_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        client = await connected(broker.nats_url)
        await add(client, "s", subjects=["s.>"], allow_msg_schedules=True)
        soon = (datetime.now(UTC) + timedelta(seconds=3)).isoformat(timespec="seconds")
        headers = {"Nats-Schedule-Target": "s.once", "Nats-Schedule": f"@at {soon}", "Own": "kept"}
        await client.request("s.when.once", b"once", timeout=WAIT_S, headers=headers)
        headers = {"Nats-Schedule-Target": "s.often", "Nats-Schedule": "@every 1s"}
        await client.request("s.when.often", b"often", timeout=WAIT_S, headers=headers)
        broker.kill()
        broker.start()
        client = await connected(broker.nats_url)
        js = client.jetstream(timeout=WAIT_S)
        often = await js.subscribe("s.often", ordered_consumer=True)
        once = await js.subscribe("s.once", ordered_consumer=True)
        first = await once.next_msg(WAIT_S)
        assert (first.data, first.headers["Own"], first.headers["Nats-Scheduler"]) == (b"once", "kept", "s.when.once")
        assert first.headers["Nats-Schedule-Next"] == "purge" and "Nats-Schedule" not in first.headers
        assert [(await often.next_msg(WAIT_S)).data for _ in range(2)] == [b"often"] * 2
        await client.request(
            "s.end", b"", timeout=WAIT_S, headers={"Nats-Scheduler": "s.when.often", "Nats-Schedule-Next": "purge"}
        )
        subjects = (await js.stream_info("s", subjects_filter="s.when.>")).state.subjects
        assert not subjects
        broker.kill()
        broker.start()
        client = await connected(broker.nats_url)
        js = client.jetstream(timeout=WAIT_S)
        with pytest.raises(nats.errors.TimeoutError):
            await (await js.subscribe("s.once", deliver_policy="new", ordered_consumer=False)).next_msg(1.5)
        assert (await js.stream_info("s", subjects_filter="s.once")).state.subjects == {"s.once": 1}
        await client.close()


async def test_backups_by_stream_are_refused_and_tell_of_ours(url: str) -> None:
    client = await connected(url)
    name = unique("s")
    await client.jetstream().add_stream(name=name, subjects=[name])
    for call, code, text in (("SNAPSHOT", 10064, "mainstem backup"), ("RESTORE", 10062, "mainstem restore")):
        body = json.dumps({"deliver_subject": "to", "config": {"name": name}, "state": {}}).encode()
        answer = json.loads((await client.request(f"$JS.API.STREAM.{call}.{name}", body, timeout=WAIT_S)).data)
        assert answer["error"]["err_code"] == code and text in answer["error"]["description"]
    await client.close()
