"""Group commit: who is synced, when, by how many, and what happens when a sync fails."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mainstem.broker.topics.policy import Policy
from mainstem.log.committer import EXIT_STORAGE_FAILED, Committer
from mainstem.log.log import Log
from mainstem.log.syncing import Syncing
from mainstem.storage.flusher import Flusher
from tests.unit.broker.kit import Released, durable, running

WAIT_S = 10.0


class SlowSyncing(Syncing):
    def __init__(self, log: SlowLog) -> None:
        super().__init__(log)
        self._slow_log = log

    def sync_data(self) -> None:
        self._slow_log.sync_data()


class SlowLog(Log):
    """Syncs when the test lets it."""

    def __init__(self, log_id: int, allowed: threading.Semaphore | None = None) -> None:
        self.id = log_id
        self.stable = 0
        self.syncs = 0
        self.began = threading.Semaphore(0)
        self._allowed = allowed
        self.syncing = SlowSyncing(self)

    def sync_data(self) -> None:
        self.began.release()
        if self._allowed is not None:
            assert self._allowed.acquire(timeout=WAIT_S)
        self.syncs += 1


class Posted:
    def __init__(self) -> None:
        self.rounds: list[list[tuple[int, int]]] = []
        self._some = threading.Condition()

    def __call__(self, done: list[tuple[Log, int]]) -> None:
        with self._some:
            self.rounds.append([(log.id, end) for log, end in done])
            self._some.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self._some:
            assert self._some.wait_for(condition, WAIT_S)


def test_what_comes_during_a_sync_shares_the_next_one() -> None:
    allowed, posted = threading.Semaphore(0), Posted()
    log, committer = SlowLog(1, allowed), Committer(posted)
    committer.submit([(log, 10)])
    assert log.began.acquire(timeout=WAIT_S)
    for end in range(11, 500):
        committer.submit([(log, end)])
    allowed.release()
    allowed.release()
    posted.wait(lambda: len(posted.rounds) == 2)
    committer.stop()
    assert posted.rounds == [[(1, 10)], [(1, 499)]]
    assert log.syncs == 2


def test_several_threads_never_sync_one_log_at_once_and_share_the_others() -> None:
    allowed, posted = threading.Semaphore(0), Posted()
    slow, quick = SlowLog(1, allowed), SlowLog(2)
    committer = Committer(posted, threads=2)
    committer.submit([(slow, 1)])
    assert slow.began.acquire(timeout=WAIT_S)
    committer.submit([(slow, 2), (quick, 5)])
    posted.wait(lambda: posted.rounds == [[(2, 5)]])
    assert slow.syncs == 0
    allowed.release()
    allowed.release()
    posted.wait(lambda: len(posted.rounds) == 3)
    committer.stop()
    assert posted.rounds[1:] == [[(1, 1)], [(1, 2)]]


def test_stopping_finishes_what_was_submitted() -> None:
    posted = Posted()
    logs, committer = [SlowLog(n) for n in range(20)], Committer(posted, threads=4)
    committer.submit([(log, 7) for log in logs])
    committer.stop()
    assert sorted(pair for one in posted.rounds for pair in one) == [(n, 7) for n in range(20)]


def test_a_forgotten_log_is_not_synced_any_more() -> None:
    allowed, posted = threading.Semaphore(0), Posted()
    busy, gone = SlowLog(1, allowed), SlowLog(2)
    committer = Committer(posted)
    committer.submit([(busy, 1)])
    assert busy.began.acquire(timeout=WAIT_S)
    committer.submit([(gone, 1)])
    committer.forget(gone)
    allowed.release()
    committer.stop()
    assert gone.syncs == 0


def test_forgetting_waits_for_the_sync_that_runs() -> None:
    allowed, posted = threading.Semaphore(0), Posted()
    log, committer = SlowLog(1, allowed), Committer(posted)
    committer.submit([(log, 1)])
    assert log.began.acquire(timeout=WAIT_S)
    threading.Timer(0.05, allowed.release).start()
    committer.forget(log)
    assert log.syncs == 1
    committer.stop()


def test_a_failed_sync_is_told_and_never_counts_as_done() -> None:
    posted, failed = Posted(), threading.Event()

    class BrokenLog(SlowLog):
        def sync_data(self) -> None:
            raise OSError(5, "Input/output error")

    committer = Committer(posted, on_failure=lambda log, error: failed.set())
    committer.submit([(BrokenLog(1), 1)])
    assert failed.wait(WAIT_S)
    committer.stop()
    assert posted.rounds == []


BROKEN_DISK = """
import asyncio, os, sys
from pathlib import Path
from mainstem.broker.broker import Broker, BrokerOptions
from mainstem.storage.disk import RealDisk

class Waiter:
    def released(self, ticket):
        print("acked", ticket.stable, flush=True)

async def main():
    broker = Broker(BrokerOptions(Path(sys.argv[1])))
    await broker.open()
    broker.recover_journal()
    broker.start()
    namespace = broker.namespace("/")
    namespace.publish(b"a", b"kept").wait(Waiter())
    while broker.namespace("/").stem(broker.options.defaults).stable == 0:
        await asyncio.sleep(0.01)
    if sys.argv[2] == "a call of the disk":
        def fail(self, fd):
            raise OSError(5, "Input/output error")
        RealDisk.fdatasync = RealDisk.fsync = fail
        RealDisk.flushable = False  # so that the flusher, which makes its own calls, does not do it
    else:
        nowhere = os.open("/dev/null", os.O_WRONLY)  # takes what is written, and fails when it is synced
        for fd in os.listdir("/proc/self/fd"):
            if os.path.exists(f"/proc/self/fd/{fd}") and os.readlink(f"/proc/self/fd/{fd}").endswith(".log"):
                os.dup2(nowhere, int(fd))
    namespace.publish(b"a", b"never acked").wait(Waiter())
    await asyncio.sleep(30)
    print("still alive", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("broken", "told"), [("a call of the disk", b"Input/output error"), ("a descriptor", b"Invalid argument")]
)
def test_a_failed_fsync_ends_the_process_loudly_and_acks_nothing(broken: str, told: bytes, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BROKEN_DISK, str(tmp_path / "data"), broken],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == EXIT_STORAGE_FAILED
    assert done.stdout == b"acked True\n"
    assert told in done.stderr
    assert b"the process ends" in done.stderr


# -- with a flusher ----------------------------------------------------------------------------------------------------


async def test_the_flusher_takes_over_again_after_a_round_that_took_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        namespace, committer = broker.namespace("/"), broker.ticker.committer
        await durable(namespace.publish(b"a", b"the first sync of a new file is a thread's"))
        stem = namespace.stem(namespace.defaults)
        asked: list[bool] = []
        begin = Syncing.begin

        def watched(syncing: Syncing, flusher: Flusher) -> bool:
            began = begin(syncing, flusher)
            if syncing is stem.syncing:
                asked.append(began)
            return began

        monkeypatch.setattr(Syncing, "begin", watched)
        for n in range(20):
            await durable(namespace.publish(b"a", b"%d" % n))
        assert any(asked)
        stem.engine.roll()
        tickets = []
        for n in range(200):
            tickets.append(namespace.publish(b"a", b"%d" % n))
            waiter = Released()
            tickets[-1].wait(waiter)
            await asyncio.sleep(0)
        for ticket in tickets:
            await durable(ticket)
        del asked[:]
        await durable(namespace.publish(b"a", b"last"))
        assert asked == [True]
        assert stem.stable == stem.written == stem.engine.durable_offset
        assert sum(committer.sync_ns.counts) == sum(committer.sync_records.counts) >= 23


async def test_a_log_removed_while_the_flusher_syncs_it_is_forgotten(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        for n in range(10):
            name = b"own/%d" % n
            broker.create_topic(namespace, name, Policy(layout="dedicated"))
            await durable(namespace.publish(name, b"1"))
            waiter = Released()
            namespace.publish(name, b"2").wait(waiter)
            broker.ticker.tick()
            broker.delete_topic(namespace, name)
        await durable(namespace.publish(b"other", b"still alive"))
