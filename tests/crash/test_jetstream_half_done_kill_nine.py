"""kill -9 twice in a row over work that is half done: acks with gaps between them, keys and objects that are being put."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.errors import NotFoundError, ObjectNotFoundError

from mainstem.testing.process import BrokerProcess

WAIT_S = 20
MESSAGES, DELIVERED, ACKED = 300, 180, 90
ROUNDS = 3
CHUNK = 128 * 1024


async def connected(broker: BrokerProcess) -> Any:
    return await nats.connect(broker.nats_url, connect_timeout=WAIT_S, allow_reconnect=False)


def crash_twice(broker: BrokerProcess) -> None:
    for _ in range(2):  # the second time with nothing but recovery between
        broker.kill()
        broker.start()


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["explicit", "all"])
async def test_what_was_acked_never_comes_again_and_the_rest_does(tmp_path: Path, policy: str) -> None:
    chance = random.Random(7)
    with BrokerProcess(tmp_path / "data") as broker:
        client = await connected(broker)
        js = client.jetstream(timeout=WAIT_S)
        await js.add_stream(name="h", subjects=["h.>"])
        await asyncio.gather(*(js.publish(f"h.{n % 5}", b"%d" % n) for n in range(MESSAGES)))
        config = {"durable_name": "w", "ack_policy": policy, "ack_wait": 2_000_000_000}
        body = json.dumps({"stream_name": "h", "config": config}).encode()
        await client.request("$JS.API.CONSUMER.CREATE.h.w", body, timeout=WAIT_S)
        pull = await js.pull_subscribe("", "w", stream="h")
        taken = await pull.fetch(DELIVERED, timeout=WAIT_S)
        if policy == "explicit":
            acked = chance.sample(taken, ACKED)
            await asyncio.gather(*(message.ack_sync(timeout=WAIT_S) for message in acked))
        else:
            acked = taken[:ACKED]
            await acked[-1].ack_sync(timeout=WAIT_S)
        settled = {message.metadata.sequence.stream for message in acked}
        once = {message.metadata.sequence.stream for message in taken} - settled
        with contextlib.suppress(Exception):
            await client.close()
        crash_twice(broker)
        client = await connected(broker)
        js = client.jetstream(timeout=WAIT_S)
        info = await js.consumer_info("h", "w")
        assert (info.num_pending or 0) + (info.num_ack_pending or 0) == MESSAGES - ACKED
        found = await _everything(js, MESSAGES - ACKED, each=policy == "explicit")
        assert found.keys() == set(range(1, MESSAGES + 1)) - settled
        assert all(found[seq] > 1 for seq in once), "a delivery before the crash was not counted"
        await client.close()


async def _everything(js: Any, count: int, *, each: bool) -> dict[int, int]:
    """What the consumer is still owed: how often each was delivered, by sequence.

    New messages come before those whose lease has to end first, and with the policy `all` an ack of one settles all before
    it: then only the last is acked, once everything has come.
    """
    pull, found = await js.pull_subscribe("", "w", stream="h"), dict[int, int]()
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while len(found) < count:
        assert asyncio.get_running_loop().time() < deadline, f"{len(found)} of {count} came"
        with contextlib.suppress(asyncio.TimeoutError):
            for message in await pull.fetch(50, timeout=1):
                if each:
                    await message.ack_sync(timeout=WAIT_S)
                elif message.metadata.sequence.stream == MESSAGES:
                    last = message
                found[message.metadata.sequence.stream] = message.metadata.num_delivered
    if not each:
        await last.ack_sync(timeout=WAIT_S)
    with pytest.raises(asyncio.TimeoutError):
        await pull.fetch(1, timeout=0.5)
    return found


class Store:
    """What a client was told is stored or deleted. What it was doing when the broker ended may be either."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes | None] = {}  # name → digest; None: it was deleted
        self.keys: dict[str, tuple[int, bytes | None]] = {}
        self.doubtful: set[str] = set()

    async def put_objects(self, js: Any) -> None:
        store = await js.object_store("files")
        for n in range(1_000_000):
            name, data = f"file {n % 7}", random.randbytes((n % 4) * CHUNK + n % 1000)
            self.doubtful.add(name)
            if n % 5 == 4 and self.objects.get(name) is not None:
                await store.delete(name)
                self.objects[name] = None
            else:
                await store.put(name, data)
                self.objects[name] = hashlib.sha256(data).digest()
            self.doubtful.discard(name)

    async def put_keys(self, js: Any) -> None:
        bucket = await js.key_value("keys")
        for n in range(1_000_000):
            key = f"k{n % 9}"
            self.doubtful.add(key)
            if n % 6 == 5:
                await bucket.delete(key)
                self.keys[key] = 0, None
            else:
                self.keys[key] = await bucket.put(key, b"%d" % n), b"%d" % n
            self.doubtful.discard(key)

    async def check(self, js: Any) -> None:
        """Nothing that is named can be half: get compares the digest that was stored with what it read."""
        store, bucket = await js.object_store("files"), await js.key_value("keys")
        for name, digest in self.objects.items():
            try:
                found = hashlib.sha256((await store.get(name)).data).digest()
            except (ObjectNotFoundError, NotFoundError):
                found = None
            assert found == digest or name in self.doubtful, name
            self.objects[name] = found
        for key, (revision, value) in self.keys.items():
            try:
                entry = await bucket.get(key)
            except NotFoundError:
                assert value is None or key in self.doubtful, key
                continue
            assert (entry.value == value and entry.revision == revision) or key in self.doubtful, key
            self.keys[key] = entry.revision, entry.value
        self.doubtful.clear()


@pytest.mark.slow
async def test_keys_and_objects_are_whole_and_what_they_were_after_each_of_several_kills(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        client, known = await connected(broker), Store()
        await client.jetstream(timeout=WAIT_S).create_object_store("files")
        await client.jetstream(timeout=WAIT_S).create_key_value(bucket="keys", history=3)
        await client.close()
        for number in range(ROUNDS):
            client = await connected(broker)
            js = client.jetstream(timeout=WAIT_S)
            work = [asyncio.create_task(one) for one in (known.put_objects(js), known.put_keys(js))]
            done, _ = await asyncio.wait(work, timeout=2 + number / 3)
            assert not done, "a client stopped before the kill"
            broker.kill()
            for one in work:
                one.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            with contextlib.suppress(Exception):
                await client.close()
            for _ in range(2):
                broker.start()
                client = await connected(broker)
                await known.check(client.jetstream(timeout=WAIT_S))
                await client.close()
                broker.kill()
            broker.start()
        assert len(known.objects) > 3 and len(known.keys) == 9
