"""kill -9 twice in a row under counters, atomic batches, sources and a shared queue: what was answered stays true."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from nats.js.api import ConsumerConfig

from mainstem.testing.process import BrokerProcess

WAIT_S = 20
ROUNDS = 2
AT_LEAST = 40  # batches acked before each kill
BATCH = 5
STREAMS: list[dict[str, Any]] = [
    {"name": "n", "subjects": ["n.>"], "allow_msg_counter": True, "max_msgs_per_subject": 1},
    {"name": "b", "subjects": ["b"], "allow_atomic": True},
    {"name": "copy", "sources": [{"name": "b"}]},
]


class Run:
    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.sum_acked = self.sum_tried = 0
        self.batches: dict[int, int] = {}  # acked: its number → the last sequence
        self.tried = 0
        self.settled: set[bytes] = set()  # payloads whose ack was confirmed to the joined consumer

    async def connected(self) -> Any:
        return await nats.connect(self.broker.nats_url, connect_timeout=WAIT_S, allow_reconnect=False)

    async def until_killed(self) -> None:
        client = await self.connected()
        enough = len(self.batches) + AT_LEAST
        work = [asyncio.create_task(one) for one in (self._count(client), self._batch(client), self._take(client))]
        while len(self.batches) < enough:
            assert not any(one.done() for one in work), "a client stopped before the kill"
            await asyncio.sleep(0.01)
        self.broker.kill()
        for one in work:
            one.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        with contextlib.suppress(Exception):
            await client.close()

    async def _count(self, client: Any) -> None:
        while True:
            self.sum_tried += 1
            answer = await client.request("n.x", b"", timeout=WAIT_S, headers={"Nats-Incr": "1"})
            self.sum_acked = int(json.loads(answer.data)["val"])

    async def _batch(self, client: Any) -> None:
        while True:
            self.tried += 1
            number = self.tried
            for place in range(1, BATCH + 1):
                headers = {"Nats-Batch-Id": f"b{number}", "Nats-Batch-Sequence": str(place)}
                if place == BATCH:
                    headers["Nats-Batch-Commit"] = "1"
                answer = await client.request("b", b"%d %d" % (number, place), timeout=WAIT_S, headers=headers)
            ack = json.loads(answer.data)
            assert ack["count"] == BATCH and ack["seq"] not in self.batches.values(), "a sequence was given twice"
            self.batches[number] = ack["seq"]

    async def _take(self, client: Any) -> None:
        config = ConsumerConfig(metadata={"mainstem-queue": "work"})
        pull = await client.jetstream(timeout=WAIT_S).pull_subscribe("", "worker", stream="b", config=config)
        while True:
            try:
                messages = await pull.fetch(10, timeout=1)
            except nats.errors.TimeoutError:
                continue
            for message in messages:
                assert message.data not in self.settled, "a message came again after its ack was confirmed"
                await message.ack_sync(timeout=WAIT_S)
                self.settled.add(message.data)

    async def check(self) -> None:
        client = await self.connected()
        js = client.jetstream(timeout=WAIT_S)
        counted = json.loads((await js.get_last_msg("n", "n.x")).data)["val"]
        assert self.sum_acked <= int(counted) <= self.sum_tried
        found = await self._all(js, "b")
        whole = Counter(int(data.split()[0]) for _, data in found)
        assert set(whole.values()) == {BATCH}, "a batch was stored in part"
        assert whole.keys() >= self.batches.keys()
        assert {seq for seq, _ in found} >= set(self.batches.values())
        copied = Counter(data for _, data in await self._copied(js, len(found)))
        assert copied == Counter(data for _, data in found), "a source lost or repeated a message"
        await client.close()

    async def _copied(self, js: Any, count: int) -> list[tuple[int, bytes]]:
        deadline = asyncio.get_running_loop().time() + WAIT_S
        while (await js.stream_info("copy")).state.messages < count:
            assert asyncio.get_running_loop().time() < deadline, "not all was copied"
            await asyncio.sleep(0.05)
        return await self._all(js, "copy")

    async def _all(self, js: Any, stream: str) -> list[tuple[int, bytes]]:
        count = (await js.stream_info(stream)).state.messages
        reader = await js.subscribe("", stream=stream, ordered_consumer=True)
        messages = [await reader.next_msg(WAIT_S) for _ in range(count)]
        await reader.unsubscribe()
        return [(m.metadata.sequence.stream, m.data) for m in messages]


@pytest.mark.slow
async def test_what_was_answered_stays_true_after_each_of_several_kills(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        run = Run(broker)
        client = await run.connected()
        for config in STREAMS:
            answer = await client.request(
                f"$JS.API.STREAM.CREATE.{config['name']}", json.dumps(config).encode(), WAIT_S
            )
            assert b'"error"' not in answer.data, answer.data
        await client.close()
        for _ in range(ROUNDS):
            await run.until_killed()
            for _ in range(2):  # the second time with nothing but recovery between
                broker.start()
                await run.check()
                broker.kill()
            broker.start()
        assert run.settled
