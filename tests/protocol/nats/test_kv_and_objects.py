"""The key-value and object stores, through nats-py's stock API."""

from __future__ import annotations

import asyncio
import io
import os
import uuid
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import KeyValueConfig, ObjectMeta
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError, ObjectNotFoundError

from mainstem.testing.process import BrokerProcess

WAIT_S = 10


def unique(name: str) -> str:
    return f"{name}{uuid.uuid4().hex[:8]}"


async def connected(url: str) -> Any:
    return await nats.connect(url, connect_timeout=WAIT_S, allow_reconnect=False)


async def test_keys_are_put_created_updated_deleted_and_purged(url: str) -> None:
    client = await connected(url)
    js = client.jetstream()
    kv = await js.create_key_value(bucket=unique("kv"), history=5)
    assert await kv.put("a", b"1") == 1
    assert await kv.put("a", b"2") == 2
    entry = await kv.get("a")
    assert (entry.key, entry.value, entry.revision) == ("a", b"2", 2)
    assert (await kv.get("a", revision=1)).value == b"1"
    with pytest.raises(KeyWrongLastSequenceError):
        await kv.update("a", b"3", last=1)
    assert await kv.update("a", b"3", last=2) == 3
    with pytest.raises(KeyWrongLastSequenceError):
        await kv.create("a", b"again")
    assert await kv.create("b", b"new") == 4
    assert [one.revision for one in await kv.history("a")] == [1, 2, 3]
    assert sorted(await kv.keys()) == ["a", "b"]
    await kv.delete("a")
    with pytest.raises(KeyNotFoundError) as deleted:
        await kv.get("a")
    assert deleted.value.op == "DEL"
    assert await kv.create("a", b"back") == 6
    await kv.purge("a")
    assert [(one.operation, one.revision) for one in await kv.history("a")] == [("PURGE", 7)]
    with pytest.raises(KeyNotFoundError):
        await kv.get("never")
    status = await kv.status()
    assert (status.history, status.values) == (5, 2)
    await client.close()


async def test_a_bucket_keeps_as_many_revisions_as_its_history_says(url: str) -> None:
    client = await connected(url)
    kv = await client.jetstream().create_key_value(bucket=unique("kv"), history=2)
    for n in range(6):
        await kv.put("x", b"%d" % n)
        await kv.put(f"other.{n}", b"")
    assert [one.value for one in await kv.history("x")] == [b"4", b"5"]
    await client.close()


async def test_watchers_see_what_is_there_and_then_what_comes(url: str) -> None:
    client = await connected(url)
    kv = await client.jetstream().create_key_value(bucket=unique("kv"), history=3)
    for key in ("t.a", "t.b", "u"):
        await kv.put(key, key.encode())
    await kv.put("t.a", b"newer")
    watcher = await kv.watch("t.*")
    seen = []
    while (entry := await watcher.updates(timeout=WAIT_S)) is not None:
        seen.append((entry.key, entry.value))
    assert seen == [("t.b", b"t.b"), ("t.a", b"newer")]
    await kv.put("u", b"not watched")
    await kv.put("t.c", b"!")
    await kv.delete("t.b")
    later = [await watcher.updates(timeout=WAIT_S) for _ in range(2)]
    assert [(one.key, one.operation) for one in later] == [("t.c", None), ("t.b", "DEL")]
    await watcher.stop()
    await client.close()


async def test_an_empty_bucket_has_no_keys_and_its_watcher_says_so_at_once(url: str) -> None:
    client = await connected(url)
    kv = await client.jetstream().create_key_value(bucket=unique("kv"))
    watcher = await kv.watchall()
    assert await watcher.updates(timeout=WAIT_S) is None
    await watcher.stop()
    await client.close()


async def test_keys_of_a_bucket_with_a_time_to_live_end(url: str) -> None:
    client = await connected(url)
    kv = await client.jetstream().create_key_value(config=KeyValueConfig(bucket=unique("kv"), ttl=1))
    await kv.put("x", b"")
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while True:
        try:
            await kv.get("x")
        except KeyNotFoundError:
            break
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.1)
    await client.close()


async def test_of_many_who_create_a_key_one_does(url: str) -> None:
    client = await connected(url)
    kv = await client.jetstream().create_key_value(bucket=unique("kv"))
    made = await asyncio.gather(*(kv.create("x", b"%d" % n) for n in range(20)), return_exceptions=True)
    winners = [n for n, one in enumerate(made) if not isinstance(one, BaseException)]
    assert len(winners) == 1
    assert (await kv.get("x")).value == b"%d" % winners[0]
    await client.close()


async def test_revisions_go_on_after_a_kill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        client = await connected(broker.nats_url)
        kv = await client.jetstream().create_key_value(bucket="b", history=1)
        for n in range(50):
            last = await kv.put(f"k{n % 5}", b"%d" % n)
        await client.close()
        broker.kill()
        broker.start()
        client = await connected(broker.nats_url)
        kv = await client.jetstream().key_value("b")
        assert [(await kv.get(f"k{n}")).value for n in range(5)] == [b"%d" % (45 + n) for n in range(5)]
        assert await kv.update("k4", b"x", last=last) > last
        assert len(await kv.history("k4")) == 1
        await client.close()


async def test_objects_come_back_whole_in_chunks_and_by_name(url: str) -> None:
    client = await connected(url)
    js = client.jetstream()
    bucket = unique("ob")
    store = await js.create_object_store(bucket)
    data = os.urandom(700_000)
    info = await store.put("big file.bin", data, meta=ObjectMeta(description="many chunks"))
    assert (info.size, info.chunks) == (len(data), 6)
    into = io.BytesIO()
    await store.get("big file.bin", writeinto=into)
    assert into.getvalue() == data
    await store.put("big file.bin", b"smaller")
    assert (await store.get("big file.bin")).data == b"smaller"
    assert (await js.stream_info(f"OBJ_{bucket}")).state.messages == 2  # the old chunks are gone
    await store.put("other", b"")
    assert sorted(one.name for one in await store.list()) == ["big file.bin", "other"]
    await store.delete("other")
    with pytest.raises(ObjectNotFoundError):
        await store.get("other")
    await js.delete_object_store(bucket)
    await client.close()
