"""Exactly-once writes of Spark jobs: staged by tasks, committed once per (query, sink, batch) by the driver.

    stage    each task attempt's batches go to files of their own, fsynced, invisible
    commit   decision journaled and durable (batch, attempts, where the logs stood)   <- the commit point
             -> batches appended -> durable -> the end journaled -> staged files removed

A repeated commit has no effect, one by an older run of the driver is refused, an attempt that the driver does not name
is dropped. After a crash the decisions without an end are carried on before anyone is served: each appended batch
carries the commit's number and its own (in the producer id, below -1, and the sequence), so what the logs already hold
is found by reading them from where they stood, and only the rest is appended.

    <data>/staging/<hash of namespace, query, sink>/<batch>/<hash of run>-<task>-<attempt>-<part>
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from mainstem.broker.rights.decisions import SCHEMAS_TOPIC
from mainstem.broker.scans.selection import canonical_topic, kafka_topic
from mainstem.broker.schemas.enforcement import invalid_record, misfits_of
from mainstem.broker.staging.staged_append import append_staged, appended_already, durable
from mainstem.broker.staging.writers import Writer
from mainstem.codec.batch import check_batch, decode_values
from mainstem.codec.staged import decode_staged
from mainstem.log.gather import Ticket
from mainstem.log.live_log import not_stored
from mainstem.model.errors import (
    AlreadyExists,
    ClientFault,
    DiskFull,
    InvalidArgument,
    InvalidName,
    NotAuthorized,
    NotFound,
    Overloaded,
    StorageFault,
)
from mainstem.model.topic_filter import check_topic
from mainstem.storage.disk import Disk, write_all

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker
    from mainstem.broker.namespaces.namespace import Namespace
    from mainstem.broker.topics.policy import Policy
    from mainstem.broker.topics.topic import Topic

STAGED_BYTES_EACH_MAX = 32 << 20
STAGED_BYTES_MAX = 8 << 30
STAGED_AGE_MS_MAX = 24 * 3_600_000
SINKS_MAX = 100_000
PAST_RUNS_MAX = 32
PARTS_MAX = 100_000
NAME_BYTES_MAX = 256
KIND = "spark-sink"
ANYBODY = Writer()


class BatchId(NamedTuple):
    namespace: str
    query: str
    sink: str
    batch: int

    @property
    def key(self) -> bytes:
        return "\0".join((self.namespace, self.query, self.sink)).encode()


class Attempt(NamedTuple):
    task: int
    attempt: int
    part: int = 0


class Commit(msgspec.Struct, array_like=True):
    """A sink's last decision. `pending`: its batches may not all be in the logs yet."""

    run: str  # of the driver that writes; those in `past` are fenced
    past: list[str]
    batch: int
    number: int = 0
    pending: bool = False
    parts: list[tuple[int, int, int]] = []
    parts_run: str = ""  # that staged them
    floors: dict[int, int] = {}  # log id → where it stood at the decision
    when_ms: int = 0
    owner: str = ""  # the user who began the sink


class Staging:
    def __init__(self, broker: Broker, *, bytes_max: int = STAGED_BYTES_MAX) -> None:
        self._broker = broker
        self._directory = broker.options.data / "staging"
        self._disk = broker.options.disk
        self._bytes_max = bytes_max
        self._sinks: dict[bytes, Commit] = {}
        self._locks: dict[bytes, asyncio.Lock] = {}
        self.staged_bytes = 0
        broker.journal.register(KIND, self._apply, self._dump)

    # -- journal

    def _apply(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._sinks.pop(key, None)
        else:
            self._sinks[key] = msgspec.msgpack.decode(value, type=Commit)

    def _dump(self) -> Iterator[tuple[bytes, bytes]]:
        for key, commit in list(self._sinks.items()):
            yield key, msgspec.msgpack.encode(commit)

    def _keep(self, key: bytes, commit: Commit) -> Ticket:
        if key not in self._sinks and len(self._sinks) >= SINKS_MAX:
            oldest = min(self._sinks, key=lambda one: self._sinks[one].when_ms)
            del self._sinks[oldest]
            self._broker.journal.put(KIND, oldest, None)
        commit.when_ms = self._broker.clock.now_ns() // 1_000_000
        self._sinks[key] = commit
        return self._broker.journal.put(KIND, key, msgspec.msgpack.encode(commit))

    # -- recovery and housekeeping

    async def recover(self) -> int:
        """Before anyone is served: carry on the decisions that a crash cut short; returns how many."""
        await asyncio.to_thread(self.sweep)
        pending = [(key, commit) for key, commit in self._sinks.items() if commit.pending]
        for key, commit in pending:
            namespace, query, sink = key.decode().split("\0")
            batch = BatchId(namespace, query, sink, commit.batch)
            await self._carry_out(self._broker.namespace(namespace), batch, commit, recovering=True)
        return len(pending)

    def sweep(self) -> None:
        """Drop what was staged long ago and count the rest. Runs in a thread."""
        pending = {self._path(_batch_of(key, one)) for key, one in self._sinks.items() if one.pending}
        total, oldest = 0, time.time() - STAGED_AGE_MS_MAX / 1000
        for sink in self._directory.iterdir() if self._directory.is_dir() else ():
            for batch in sink.iterdir():
                if batch not in pending and batch.stat().st_mtime < oldest:
                    _remove(self._disk, batch)
                    continue
                total += sum(file.stat().st_size for file in batch.iterdir())
            with contextlib.suppress(OSError):
                sink.rmdir()
        self.staged_bytes = total

    # -- topics

    async def topics(
        self, namespace: Namespace, names: Sequence[str], *, declare: bool, writer: Writer = ANYBODY
    ) -> dict[str, dict[str, Any]]:
        """How each topic's records are to be written; `declare` makes those that are not there yet."""
        return {name: await self._topic(namespace, name, declare, writer) for name in names}

    async def topics_each(
        self, namespace: Namespace, names: Sequence[str], writer: Writer = ANYBODY
    ) -> dict[str, dict[str, Any]]:
        """The same, but one that cannot be written to is told as such, and does not stand in the others' way."""
        found: dict[str, dict[str, Any]] = {}
        refused: dict[str, str] = {}
        for name in names:
            try:
                found[name] = await self._topic(namespace, name, False, writer)
            except ClientFault as error:
                refused[name] = error.message
        return {"topics": found, "refused": refused}

    async def _topic(self, namespace: Namespace, name: str, declare: bool, writer: Writer) -> dict[str, Any]:
        canonical = canonical_topic(namespace, name)
        check_topic(canonical)
        if canonical == SCHEMAS_TOPIC:
            raise NotAuthorized(f"{name!r} is the schema registry's own", fix="register schemas by its HTTP API")
        writer.require(canonical)
        if canonical in namespace.views:
            raise InvalidName(f"{name!r} is a view; write to a topic that it shows")
        if not namespace.stores(canonical):
            raise not_stored(canonical)
        topic = namespace.topics.get(canonical)
        policy = topic.policy if topic is not None else namespace.policy(canonical)
        if topic is None and declare:
            writer.require_create(canonical)
        if topic is None and (declare or policy.dedicated):
            topic = await self._declared(namespace, canonical, policy)
            policy = topic.policy
        return {
            "canonical": canonical.decode(),
            "kafka": kafka_topic(topic) if topic is not None else name,
            "partitions": len(topic.partitions) if topic is not None else 1,
            "names_topic": topic is None,
            "record_bytes_max": policy.message_bytes_max,
        }

    async def _declared(self, namespace: Namespace, name: bytes, policy: Policy) -> Topic:
        """Made, or found where another task of the same batch, or a client, made it meanwhile."""
        try:
            return await self._broker.declare_topic(namespace, name, policy)
        except AlreadyExists:
            found = namespace.topics.get(name)
            if found is None:  # a view took the name
                raise
            return found

    # -- staging

    async def stage(
        self, batch: BatchId, run: str, attempt: Attempt, data: bytes, writer: Writer = ANYBODY
    ) -> dict[str, Any]:
        """Keep a task's batches; the same attempt again replaces what it staged before."""
        _check_names(batch, run)
        if self.staged_bytes + len(data) > self._bytes_max:
            await asyncio.to_thread(self.sweep)
            if self.staged_bytes + len(data) > self._bytes_max:
                raise Overloaded(
                    f"{self.staged_bytes} bytes are staged already, the limit is {self._bytes_max}",
                    fix="let running jobs commit, or remove abandoned ones: what was staged is dropped after 24 hours",
                )
        if self._broker.maintenance.space_low:
            raise DiskFull(
                f"the broker's disk has less free space than its low mark: {len(data)} bytes are not staged",
                fix="free space on the broker's disk, or lower data.space_low_bytes",
            )
        await self._take_over(batch, run, writer)
        records = await asyncio.to_thread(_check_staged, data, self._broker.namespace(batch.namespace), writer)
        path = self._path(batch) / _file_name(run, attempt)
        self.staged_bytes += len(data) - await asyncio.to_thread(_write, self._disk, path, data)
        return {"records": records, "bytes": len(data)}

    def _path(self, batch: BatchId) -> Path:
        return self._directory / hashlib.blake2b(batch.key, digest_size=16).hexdigest() / str(batch.batch)

    async def _take_over(self, batch: BatchId, run: str, writer: Writer) -> None:
        """A run not seen before is newer than all that were: from now on they are fenced."""
        known = self._own(batch, writer)
        if known is None:
            await durable(self._keep(batch.key, Commit(run, [], -1, owner=writer.user)))
        elif run in known.past:
            raise NotAuthorized(
                f"query {batch.query}: a newer run writes to sink {batch.sink}; this run ({run}) is fenced",
                fix="stop the older driver",
            )
        elif run != known.run:
            past = [known.run, *known.past][:PAST_RUNS_MAX]
            await durable(self._keep(batch.key, msgspec.structs.replace(known, run=run, past=past)))

    def _own(self, batch: BatchId, writer: Writer) -> Commit | None:
        known = self._sinks.get(batch.key)
        if known is not None:
            writer.require_own(known.owner, batch.query, batch.sink)
        return known

    def last_batch(self, namespace: str, query: str, sink: str, writer: Writer = ANYBODY) -> int:
        """The last batch of the query that is, or will be, in the sink's topics; -1 for none."""
        known = self._own(BatchId(namespace, query, sink, 0), writer)
        return known.batch if known is not None else -1

    # -- committing

    async def commit(
        self, namespace: Namespace, batch: BatchId, run: str, parts: Sequence[Attempt], writer: Writer = ANYBODY
    ) -> dict[str, Any]:
        """Make the named attempts visible: all of them, once, whatever crashes."""
        _check_names(batch, run)
        if len(parts) > PARTS_MAX:
            raise InvalidArgument(f"{len(parts)} staged parts, at most {PARTS_MAX} can be committed at once")
        async with self._locks.setdefault(batch.key, asyncio.Lock()):
            await self._take_over(batch, run, writer)
            known = self._sinks[batch.key]
            if batch.batch <= known.batch:
                records = 0
                if known.pending:  # its batches failed half-way, or the answer was lost: go on
                    records = await self._carry_out(
                        namespace, batch._replace(batch=known.batch), known, recovering=True
                    )
                await asyncio.to_thread(self._drop, batch)
                return {"committed": known.pending, "records": records}
            missing = [part for part in parts if not (self._path(batch) / _file_name(run, part)).exists()]
            if missing:
                raise NotFound(
                    f"batch {batch.batch}: {len(missing)} of {len(parts)} staged parts are gone (first: {missing[0]})",
                    fix="let Spark run the batch again",
                )
            number = self._broker.stamps.take(1)
            decision = Commit(
                run, known.past, batch.batch, number, True, [(p.task, p.attempt, p.part) for p in parts], run
            )
            decision.owner = known.owner
            decision.floors = {log.id: log.next_offset for log in self._broker.logs.by_id.values()}
            await durable(self._keep(batch.key, decision))
            records = await self._carry_out(namespace, batch, decision, recovering=False)
        return {"committed": True, "records": records}

    async def _carry_out(self, namespace: Namespace, batch: BatchId, decision: Commit, *, recovering: bool) -> int:
        done: set[int] = set()
        if recovering:
            done = await asyncio.to_thread(appended_already, self._broker.logs, decision.floors, decision.number)
        files = [self._path(batch) / _file_name(decision.parts_run, Attempt(*part)) for part in sorted(decision.parts)]
        records = await append_staged(self._broker, namespace, files, decision.number, done)
        now = self._sinks[batch.key]
        ended = Commit(now.run, now.past, decision.batch, decision.number, owner=now.owner)
        await durable(self._keep(batch.key, ended))
        await asyncio.to_thread(self._drop, batch)
        return records

    def forget_namespace(self, name: str) -> Iterator[None]:
        """It is removed: its jobs' decisions and what they staged."""
        for key in [one for one in self._sinks if one.partition(b"\0")[0] == name.encode()]:
            path = self._path(_batch_of(key, self._sinks.pop(key))).parent
            threading.Thread(target=_remove, args=(self._disk, path), name="remove staged", daemon=True).start()
            self._broker.journal.put(KIND, key, None)
            yield

    async def abort(self, batch: BatchId, run: str, writer: Writer = ANYBODY) -> None:
        """Drop what was staged for a batch; nothing happens to one that is committed, or being so."""
        known = self._own(batch, writer)
        if known is not None and (known.batch >= batch.batch or run in known.past):
            return
        await asyncio.to_thread(self._drop, batch)

    def _drop(self, batch: BatchId) -> None:
        path = self._path(batch)
        with contextlib.suppress(FileNotFoundError):
            self.staged_bytes -= sum(file.stat().st_size for file in path.iterdir())
        _remove(self._disk, path)


def _batch_of(key: bytes, commit: Commit) -> BatchId:
    namespace, query, sink = key.decode().split("\0")
    return BatchId(namespace, query, sink, commit.batch)


def _file_name(run: str, part: Attempt) -> str:
    return f"{hashlib.blake2b(run.encode(), digest_size=8).hexdigest()}-{part.task}-{part.attempt}-{part.part}"


def _check_names(batch: BatchId, run: str) -> None:
    for what, name in (("query", batch.query), ("sink", batch.sink), ("run", run)):
        if not name or len(name.encode()) > NAME_BYTES_MAX or "\0" in name:
            raise InvalidArgument(f"{what} must be 1 to {NAME_BYTES_MAX} bytes without NUL, not {name!r}")


def _check_staged(data: bytes, namespace: Namespace, writer: Writer) -> int:
    """The records, each as its topic wants it: what does not match a schema fails the task, whatever the topic's mode."""
    count = 0
    for item in decode_staged(data):
        count += check_batch(item.batch, bytes_max=STAGED_BYTES_EACH_MAX).count
        writer.check(item, STAGED_BYTES_EACH_MAX)
        policy = namespace.record_rules.policy(item.topic)
        if not namespace.stores(item.topic):
            raise not_stored(item.topic)
        if policy.schema:
            for _, why in misfits_of(
                namespace, policy, decode_values(item.batch, inflated_bytes_max=STAGED_BYTES_EACH_MAX)
            ):
                raise invalid_record(item.topic, policy, why)
    return count


def _remove(disk: Disk, directory: Path) -> None:
    """With what it holds; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        for file in [one for one in directory.rglob("*") if one.is_file()]:
            disk.unlink(file)
        shutil.rmtree(directory, ignore_errors=True)


def _write(disk: Disk, path: Path, data: bytes) -> int:
    """Whole and durable or not at all; returns the size of what it replaced."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = path.stat().st_size if path.exists() else 0
    part = path.with_name(path.name + ".new")
    try:
        part.unlink(missing_ok=True)
        descriptor = disk.open(part, create=True)
        try:
            write_all(disk, descriptor, [data], 0)
            disk.fsync(descriptor)
        finally:
            disk.close(descriptor)
        disk.rename(part, path)
        for directory in (path.parent, path.parent.parent, path.parent.parent.parent):
            disk.fsync_dir(directory)
    except OSError as error:
        part.unlink(missing_ok=True)
        if error.errno in (28, 122):
            raise DiskFull(f"no room to stage {len(data)} bytes in {path.parent}", fix="free disk space") from error
        raise StorageFault(f"cannot stage {path}: {error}") from error
    return before
