"""kill -9 and power cuts under JetStream: no PubAck, no ack and no revision is taken back, no sequence is given twice.

MAINSTEM_KILL_ROUNDS=50 runs it longer; each round is two kills or cuts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from nats.js.errors import APIError

from mainstem.testing.ledger import Ledger, OffsetMemory
from mainstem.testing.power_cut import PowerCutMount, why_not
from mainstem.testing.process import BrokerProcess

WAIT_S = 20
ROUNDS = int(os.environ.get("MAINSTEM_KILL_ROUNDS", "3"))
IN_FLIGHT = 20
AT_LEAST = 150  # acked before each kill


class Run:
    """What clients were told, across kills."""

    def __init__(self, broker: BrokerProcess, end: Callable[[], None]) -> None:
        """`end` takes the broker away without a warning."""
        self.broker, self._end = broker, end
        self.ledger = Ledger("js")
        self.sequences = OffsetMemory()
        self.acked: dict[int, bytes] = {}  # by sequence
        self.settled: set[int] = set()  # confirmed to the consumer
        self.revisions: dict[str, tuple[int, bytes]] = {}
        self.number = 0

    async def until_killed(self) -> None:
        client = await nats.connect(self.broker.nats_url, connect_timeout=WAIT_S, allow_reconnect=False)
        js = client.jetstream(timeout=WAIT_S)
        enough = len(self.acked) + AT_LEAST
        work = [
            asyncio.create_task(one)
            for one in (self._publish(js), self._publish_many(js), self._consume(js), self._put(js))
        ]
        while len(self.acked) < enough:
            assert not any(one.done() for one in work), "a client stopped before the kill"
            await asyncio.sleep(0.01)
        self._end()
        for one in work:
            one.cancel()
        for ended in await asyncio.gather(*work, return_exceptions=True):
            assert not isinstance(ended, AssertionError), ended
        with contextlib.suppress(Exception):
            await client.close()

    async def _publish(self, js: Any) -> None:
        while True:
            await self._publish_one(js)

    async def _publish_many(self, js: Any) -> None:
        while True:
            await asyncio.gather(*(self._publish_one(js) for _ in range(IN_FLIGHT)))

    async def _publish_one(self, js: Any) -> None:
        self.number += 1
        number, payload = self.number, self.ledger.payload("p", self.number)
        ack = await js.publish(f"k.{number % 7}", payload)
        assert ack.seq not in self.acked, "a sequence was given twice"
        self.acked[ack.seq] = payload
        self.ledger.ok("p", number)

    async def _consume(self, js: Any) -> None:
        pull = await js.pull_subscribe("k.>", "worker")
        while True:
            try:
                messages = await pull.fetch(10, timeout=1)
            except nats.errors.TimeoutError:
                continue
            for message in messages:
                await message.ack_sync(timeout=WAIT_S)
                self.settled.add(message.metadata.sequence.stream)

    async def _put(self, js: Any) -> None:
        kv = await js.key_value("b")
        count = 0
        while True:
            count += 1
            key, value = f"key{count % 5}", b"%d" % count
            try:
                revision = await kv.put(key, value)
            except APIError:
                return
            assert revision > self.revisions.get(key, (0, b""))[0]
            self.revisions[key] = (revision, value)

    async def check(self) -> None:
        client = await nats.connect(self.broker.nats_url, connect_timeout=WAIT_S, allow_reconnect=False)
        js = client.jetstream(timeout=WAIT_S)
        reader = await js.subscribe("k.>", ordered_consumer=True)
        last = (await js.stream_info("k")).state.last_seq
        found: dict[int, bytes] = {}
        while not found or max(found) < (last or 0):
            message = await reader.next_msg(WAIT_S)
            found[message.metadata.sequence.stream] = message.data
        self.sequences.see("k", found)
        assert not self.sequences.changed
        assert {seq: found.get(seq) for seq in self.acked} == self.acked
        verdict = self.ledger.judge(found[seq] for seq in sorted(found))
        assert not {kind: one for kind, one in verdict.problems().items() if kind != "disordered"}
        info = await js.consumer_info("k", "worker")
        assert (info.num_pending or 0) + (info.num_ack_pending or 0) <= len(found) - len(self.settled)
        kv = await js.key_value("b")
        for key, (revision, value) in self.revisions.items():
            entry = await kv.get(key)
            assert (entry.revision, entry.value) == (revision, value) or entry.revision > revision
        await client.close()

    async def rounds(self) -> None:
        client = await nats.connect(self.broker.nats_url, connect_timeout=WAIT_S)
        await client.jetstream().add_stream(name="k", subjects=["k.>"])
        await client.jetstream().create_key_value(bucket="b", history=2)
        await client.close()
        for _ in range(ROUNDS):
            await self.until_killed()
            self.broker.start()
            await self.check()
            self._end()  # again, with nothing but recovery between
            self.broker.start()
            await self.check()


@pytest.mark.slow
async def test_what_was_acked_is_there_after_each_of_several_kills(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        await Run(broker, broker.kill).rounds()


@pytest.mark.slow
@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
async def test_what_was_acked_is_there_after_each_of_several_power_cuts(tmp_path: Path) -> None:
    with PowerCutMount(tmp_path, size_mib=1024) as mount:
        (mount.path / "data").mkdir(mode=0o700)
        data = tmp_path / "data"
        data.symlink_to(mount.path / "data")  # the broker's output lies beside it, not on the disk that is cut
        with BrokerProcess(data) as broker:

            def cut() -> None:
                mount.cut(broker.pid)
                broker.kill()

            await Run(broker, cut).rounds()
