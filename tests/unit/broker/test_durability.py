"""When publishers are answered under each policy, when they are held, and when they are refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.topics.policy import Policy
from mainstem.log.committer import Committer
from mainstem.log.log import Log
from mainstem.log.syncing import Syncing
from mainstem.model.errors import DiskFull, InvalidArgument
from tests.unit.broker.kit import Released, durable, everything, kafka_batch, produce, reader_of, running, until, values


class SlowSync:
    """Every sync is a thread's, and waits until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.count = 0
        for owner, name in ((Log, "sync"), (Syncing, "sync_data")):
            monkeypatch.setattr(owner, name, self._held(getattr(owner, name)))
        monkeypatch.setattr(Syncing, "begin", lambda syncing, flusher: False)

    def _held(self, real: Callable[[Any], None]) -> Callable[[Any], None]:
        def sync(synced: Any) -> None:
            assert self.open.wait(20)
            self.count += 1
            real(synced)

        return sync


async def test_sync_acks_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowSync(monkeypatch)
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        waiter = Released()
        namespace.publish(b"a", b"1").wait(waiter)
        stem = namespace.stem(namespace.defaults)
        await until(lambda: stem.written == 1)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not waiter.tickets
        assert stem.stable == 0
        slow.open.set()
        await until(lambda: bool(waiter.tickets))
        assert stem.stable == 1


@pytest.mark.parametrize("durability", ["os", "none", "interval:50"])
async def test_weaker_policies_do_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str) -> None:
    slow = SlowSync(monkeypatch)
    async with running(tmp_path, durability=durability) as broker:
        ticket = await durable(broker.namespace("/").publish(b"a", b"1"))
        assert ticket.stable
        assert slow.count == 0
        slow.open.set()


async def test_interval_syncs_by_itself_after_its_time(tmp_path: Path) -> None:
    async with running(tmp_path, durability="interval:10") as broker:
        namespace = broker.namespace("/")
        await durable(namespace.publish(b"a", b"1"))
        stem = namespace.stem(namespace.defaults)
        await until(lambda: stem.engine.durable_offset == 1)
        await durable(namespace.publish(b"a", b"2"))
        await until(lambda: stem.engine.durable_offset == 2)


async def test_os_syncs_what_is_sealed(tmp_path: Path) -> None:
    async with running(tmp_path, durability="os") as broker:
        namespace = broker.namespace("/")
        await durable(namespace.publish(b"a", b"1"))
        stem = namespace.stem(namespace.defaults)
        await broker.maintenance.round()
        assert stem.engine.durable_offset == 0
        stem.engine.roll()
        await broker.maintenance.round()
        assert stem.engine.durable_offset == 1


def test_what_a_policy_may_say() -> None:
    for wrong in ("fsync", "interval", "interval:0", "interval:x", "interval:9999999999", "sync:1"):
        with pytest.raises(InvalidArgument):
            Policy(durability=wrong)


async def test_many_publishers_share_one_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowSync(monkeypatch)
    async with running(tmp_path) as broker:
        namespace, waiter = broker.namespace("/"), Released()
        for n in range(1_000):
            namespace.publish(b"a", b"%d" % n).wait(waiter)
            if n % 50 == 0:
                await asyncio.sleep(0)
        slow.open.set()
        await until(lambda: len(waiter.tickets) == 1_000)
        assert slow.count <= 3


# -- pressure ----------------------------------------------------------------------------------------------------------


class Publisher:
    def __init__(self) -> None:
        self.held = False

    def hold_for_log(self) -> None:
        self.held = True

    def release_from_log(self) -> None:
        self.held = False


async def test_publishers_are_held_while_too_much_is_unsynced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowSync(monkeypatch)
    async with running(tmp_path) as broker:
        broker.logs.limit_unsynced(100_000)
        namespace, publisher = broker.namespace("/"), Publisher()
        for _ in range(10):
            ticket = namespace.publish(b"a", b"x" * 20_000)
            waiter = Released()
            ticket.wait(waiter)
            broker.ticker.tick()
            if broker.ticker.pressed:
                broker.ticker.press(publisher)
        assert publisher.held
        slow.open.set()
        await until(lambda: not publisher.held)
        assert not broker.ticker.pressed
        await durable(ticket)


# -- a disk that is nearly full ----------------------------------------------------------------------------------------


async def test_a_nearly_full_disk_refuses_data_keeps_state_serves_reads_and_recovers_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = SimpleNamespace(total=100 << 30, used=0, free=50 << 30)
    monkeypatch.setattr("mainstem.broker.upkeep.maintenance.shutil.disk_usage", lambda path: free)
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        broker.create_topic(namespace, b"own", Policy(layout="dedicated"))
        broker.create_topic(namespace, b"fast", Policy(layout="dedicated", engine="memory"))
        await durable(namespace.publish(b"a", b"before"))
        free.free = 1 << 20
        await until(lambda: broker.maintenance.space_low)
        refused = await durable(namespace.publish(b"a", b"refused"))
        assert isinstance(refused.error, DiskFull)
        assert "free" in str(refused.error) and refused.error.fix
        with pytest.raises(DiskFull):
            produce(namespace, b"own", kafka_batch([(None, b"refused")]))
        assert (await durable(broker.journal.put("kind", b"k", b"state"))).stable
        assert (await durable(namespace.publish(b"fast", b"memory has room"))).stable
        assert values(everything(reader_of(namespace, b"a"))) == [b"before"]
        free.free = 50 << 30
        await until(lambda: not broker.maintenance.space_low)
        await durable(namespace.publish(b"a", b"after"))
        assert values(everything(reader_of(namespace, b"a"))) == [b"before", b"after"]


async def test_a_full_disk_refuses_and_keeps_what_was_acked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mainstem.storage.segment.engine import SegmentEngine

    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        await durable(namespace.publish(b"a", b"kept"))
        real = SegmentEngine.append

        def full(self: SegmentEngine, *args: Any) -> None:
            raise DiskFull("no space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(SegmentEngine, "append", full)
            refused = await durable(namespace.publish(b"a", b"refused"))
            assert isinstance(refused.error, DiskFull)
            assert values(everything(reader_of(namespace, b"a"))) == [b"kept"]
        assert SegmentEngine.append is real
        again = await durable(namespace.publish(b"a", b"again"))
        assert again.stable
        assert again.base_offset == 1, "a refused record used no offset"


def test_committer_threads_are_few() -> None:
    committer = Committer(lambda done: None, threads=100)
    assert len(committer._threads) <= 4
    committer.stop()


class PublishesAgain(Released):
    """Publishes on hearing that its message is durable, so many times: as a session does that notes its position."""

    def __init__(self, namespace: Namespace, times: int) -> None:
        super().__init__()
        self.namespace, self.times = namespace, times

    def released(self, ticket: Any) -> None:
        if self.times:
            self.times -= 1
            self.namespace.publish(b"a", b"heard").wait(self)


@pytest.mark.parametrize("times", [1, 50])
async def test_what_is_written_on_hearing_of_the_last_message_does_not_fail_a_stop(tmp_path: Path, times: int) -> None:
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        namespace.publish(b"a", b"last").wait(PublishesAgain(namespace, times))
    for _ in range(5):
        await asyncio.sleep(0.001)  # nothing that was planned is left to fail
    async with running(tmp_path) as broker:
        found = values(everything(reader_of(broker.namespace("/"), b"a")))
    assert found[0] == b"last"
    assert len(found) == 2 or times > 1
