"""Deleting topics and records on request.

A topic with logs of its own goes with them. In a shared log a deletion is a low mark: nobody sees the topic's records
below it any more, in one step however many they are; they leave the disk with their parts, or at once with `erase`, which
rewrites the sealed parts without them, at the same offsets. A topic made again under the old name begins above the mark.

    metadata kv:  low/<log id>/<topic> = "<offset>", followed by " <offset of the last deletion>" if there was one
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import TYPE_CHECKING

from mainstem.broker.topics.commits import Commit
from mainstem.broker.topics.topic import Partition, Topic
from mainstem.broker.upkeep.works import Work
from mainstem.log.log import Log
from mainstem.log.rewriting import keep_records, stored_frames
from mainstem.metadata.store import Written
from mainstem.model.errors import MainstemError, NotFound, OffsetOutOfRange, StorageFault

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker
    from mainstem.broker.namespaces.namespace import Namespace
    from mainstem.storage.engine import Buffer, Part

logger = logging.getLogger("mainstem.broker")

LOW = "low/"
HIGH_WATERMARK = -1


class Deletion:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def load(self, kv: dict[str, bytes]) -> None:
        """The marks as they were kept; before the topics are opened."""
        for key, value in kv.items():
            if key.startswith(LOW):
                log_id, _, topic = key.removeprefix(LOW).partition("/")
                log = self._broker.logs.by_id.get(int(log_id))
                if log is not None and log.low_marks is not None:
                    offset, _, deletion = value.partition(b" ")
                    if deletion:
                        log.low_marks.set(topic.encode(), int(deletion), deletion=True)
                    log.low_marks.set(topic.encode(), int(offset))

    # -- topics ----------------------------------------------------------------------------------------------------

    def delete_topic(self, namespace: Namespace, name: bytes) -> Commit[None]:
        """Declared or not. The same name made again is a new topic."""
        topic = namespace.find_topic(name)
        if topic is None:
            raise NotFound(f"no topic {name.decode(errors='replace')!r}", fix="mainstem topic ls")
        broker = self._broker
        broker.ticker.write_now()  # what was published before is deleted with it
        own = {span.log for p in topic.partitions for span in p.spans if not span.shared}
        stems = [stem for stem in namespace.stems.values() if stem.index is not None and stem.index.topics.find(name)]
        _check_marks(stems, name)
        marks = [(stem, stem.written) for stem in stems]
        with broker.store.together() as written:
            for stem, mark in marks:
                self._put_mark(stem, name, mark, deletion=True)
            if topic.declared:
                broker.store.delete_topic(topic.id)
            for log in own:
                broker.store.delete_log(log.id)

        def apply() -> None:
            _set_marks(name, marks, deletion=True)
            if namespace.topics.get(name) is topic:
                namespace.remove_topic(topic)
            else:
                namespace.forget_route(name)
            for log in own:
                if not log.removed:
                    self.remove_log(log, written)

        return Commit(broker.ticker.loop, written, None, apply=apply)

    def remove_log(self, log: Log, written: Written | None = None) -> threading.Thread:
        """Nobody uses it any more. Files are closed and unlinked in a thread, once nobody syncs them and it is durable
        (`written`) that no metadata names them: a log without its files would begin again at an offset it has given."""
        broker = self._broker
        broker.logs.remove(log.id)
        broker.ticker.forget(log)
        broker.coordinator.forget_log(log.id)

        def close_and_unlink() -> None:
            broker.ticker.committer.forget(log)  # a sync under way must still find the files
            with contextlib.suppress(StorageFault):  # it goes anyway
                log.engine.close()
            try:
                if written is not None:
                    written.result()
            except MainstemError as error:
                logger.warning("log %d keeps its files, as its topic was not deleted for good: %s", log.id, error)
            else:
                broker.logs.unlink(log.id)

        thread = threading.Thread(target=close_and_unlink, name=f"remove-log-{log.id}", daemon=True)
        thread.start()
        return thread

    # -- records ---------------------------------------------------------------------------------------------------

    def delete_records(
        self, namespace: Namespace, topic: Topic, partition: Partition, before_offset: int
    ) -> Commit[None]:
        """Nobody sees the partition's records below `before_offset` any more; -1 means all that are stable."""
        broker = self._broker
        start, end = partition.start_offset, partition.stable_offset
        before_offset = end if before_offset == HIGH_WATERMARK else before_offset
        if not 0 <= before_offset <= end:
            raise OffsetOutOfRange(before_offset, start, end)
        _check_marks([span.log for span in partition.spans if span.shared and span.first < before_offset], topic.name)
        marks = [
            (span, min(before_offset, span.limit))
            for span in partition.spans
            if min(before_offset, span.limit) > span.first
        ]
        low_mark = max(partition.low_mark, before_offset)
        with broker.store.together() as written:
            for span, mark in marks:
                if span.shared:
                    self._put_mark(span.log, topic.name, mark)
            if topic.declared:
                broker.save_topic(namespace, topic, {partition.index: low_mark})

        def apply() -> None:
            _set_marks(topic.name, [(span.log, mark) for span, mark in marks if span.shared])
            for span, mark in marks:
                if not span.shared:
                    span.log.low_mark = max(span.log.low_mark, mark)
                    span.log.move_start(mark)
            partition.low_mark = max(partition.low_mark, low_mark)

        return Commit(broker.ticker.loop, written, None, apply=apply)

    def _put_mark(self, log: Log, topic: bytes, offset: int, *, deletion: bool = False) -> None:
        marks = log.low_marks
        if marks is not None and (offset > marks.of(topic) or deletion):
            last = offset if deletion else marks.deletions.get(topic)
            deleted = b" %d" % last if last is not None else b""
            self._broker.store.put_value(
                f"{LOW}{log.id}/{topic.decode()}", b"%d" % max(offset, marks.of(topic)) + deleted
            )

    def prune(self, log: Log) -> None:
        """Marks that the log's start has passed hide nothing any more."""
        if log.low_marks is not None and log.index is not None:
            for topic in log.low_marks.prune(log.index.start_offset):
                self._broker.store.delete_value(f"{LOW}{log.id}/{topic.decode()}")

    # -- erasing ---------------------------------------------------------------------------------------------------

    async def erase_topic(self, namespace: Namespace, name: bytes, work: Work | None = None) -> int:
        """Take all records the topic has, or had before it was deleted, off the disk; returns how many went.

        The topic itself stays if it was declared. What is published meanwhile stays, too.
        """
        broker = self._broker
        broker.ticker.write_now()
        topic = namespace.find_topic(name)
        stems = [stem for stem in namespace.stems.values() if stem.index is not None and stem.index.topics.find(name)]
        if topic is None and not stems:
            raise NotFound(f"no topic {name.decode(errors='replace')!r}", fix="mainstem topic ls")
        own = (
            {span.log for p in topic.partitions for span in p.spans if not span.shared} if topic is not None else set()
        )
        await broker.ticker.settle([*stems, *own])
        _check_marks(stems, name)
        marks = [(stem, stem.written) for stem in stems]
        with broker.store.together() as written:
            for stem, mark in marks:
                self._put_mark(stem, name, mark)
        await written
        _set_marks(name, marks)
        if topic is not None:
            for partition in topic.partitions:
                await self.delete_records(namespace, topic, partition, HIGH_WATERMARK)
        loop, work = asyncio.get_running_loop(), work or Work("erase", "", "")
        work.set(0, sum(part.size_bytes for log in (*stems, *own) for part in log.engine.stat().parts))
        async with broker.maintenance.rewriting:
            for log in (*stems, *own):
                log.engine.roll()
            return await loop.run_in_executor(None, self._erase, stems, own, name, work)

    def _erase(self, stems: list[Log], own: set[Log], name: bytes, work: Work) -> int:
        """In a thread."""
        erased, objects = 0, self._broker.logs.objects
        with objects.erasing() if objects is not None else contextlib.nullcontext():
            for stem in stems:
                assert stem.low_marks is not None
                erased += _erase_from_stem(stem, name, stem.low_marks.of(name), work)
            for log in own:
                size = log.engine.stat().size_bytes
                erased += _erase_log(log)
                work.done += size
        return erased


def _set_marks(topic: bytes, marks: list[tuple[Log, int]], *, deletion: bool = False) -> None:
    """They are committed, and there was room for them when they were planned."""
    for log, offset in marks:
        if log.low_marks is not None:
            log.low_marks.set(topic, offset, deletion=deletion, checked=True)


def _check_marks(stems: list[Log], topic: bytes) -> None:
    """All or none: what is refused half way would come back with the next start."""
    for stem in stems:
        if stem.low_marks is not None:
            stem.low_marks.check(topic)


def _erase_from_stem(log: Log, topic: bytes, mark: int, work: Work) -> int:
    """Rewrite the sealed parts that hold the topic's records below the mark."""
    index, erased = log.index, 0
    assert index is not None
    number = index.topics.find(topic)
    for part in log.engine.stat().parts:
        hidden = set(index.find_one(number, part.base_offset, min(part.end_offset, mark))) if part.sealed else set()
        if hidden:
            frames, gone = _without(log, part, hidden)
            if gone:
                log.engine.replace(part, frames)
                erased += gone
        work.done += part.size_bytes
    return erased


def _without(log: Log, part: Part, hidden: set[int]) -> tuple[list[Buffer], int]:
    frames: list[Buffer] = []
    gone = 0
    for frame in stored_frames(log, part):
        kept = [record for record in frame.records if record.offset not in hidden]
        whole = not frame.records and frame.is_data and frame.head.base_offset in hidden  # it does not decode
        gone += len(frame.records) - len(kept) + (frame.head.count if whole else 0)
        if len(kept) == len(frame.records) and not whole:
            frames.append(bytes(frame.data))
        elif kept:
            frames.append(keep_records(frame, log.id, kept))
    return frames, gone


def _erase_log(log: Log) -> int:
    before = log.engine.stat()
    log.keep_start()
    start = log.trim(log.low_mark)
    return start - before.start_offset
