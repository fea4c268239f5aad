"""What every store shares: a queue in call order, one thread that writes it in rounds, and blocks of ids.

While a round commits, the next one collects in the queue, as in the log's own group commit. Each write of a round
has a savepoint of its own, so a refused one (a name that is taken) fails alone.

A full disk fails nothing that can wait: a round that meets one has room made for it, or waits until there is some; so does
a round whose server is away. New things are refused before they are made (`check_room`).
"""

from __future__ import annotations

import queue
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mainstem.metadata.rows import Facts
from mainstem.metadata.store import Changes, MetadataStore, Operation, Pending, Precondition, Room, Written
from mainstem.model.errors import MainstemError, Overloaded, StorageFault

QUEUED_MAX = 65_536  # writes waiting for the store; beyond that the caller is refused
ROUND_MAX = 1_024  # writes in one transaction
ID_BLOCK = 1024  # ids reserved at once; a crash skips at most twice as many
RETRY_S = 0.25

T = TypeVar("T")


@dataclass(slots=True)
class Write:
    """One transaction of a caller's: inside a round's."""

    operations: Sequence[Operation]
    requires: Sequence[Precondition]
    written: Written


@dataclass(slots=True)
class Call:
    """Something that is done between rounds, in its place in the queue."""

    run: Callable[[], Any]
    answer: Pending[Any]


@dataclass(slots=True)
class _Ids:
    next: int = 0
    end: int = 0
    ahead: Pending[int] | None = None  # the end of the block after this one, which was asked for


class RoundStore(MetadataStore):
    """A store has `_commit_round`, `_load`, `_changes_since`, `_reserve_ids`, `_give_back_ids`, `_copy` and `_shut`, all
    of which run in its thread only."""

    def __init__(self, room: Room | None = None) -> None:
        self._room = room
        self._waits: Overloaded | None = None  # while a round cannot be written: why
        self._ending = threading.Event()
        self._queue: queue.SimpleQueue[Write | Call | None] = queue.SimpleQueue()
        self._closed = False
        self._ids: dict[str, _Ids] = {}
        self._thread = threading.Thread(target=self._run, name="metadata", daemon=True)

    # -- what a store does

    @abstractmethod
    def _commit_round(self, writes: list[Write]) -> list[MainstemError | None]:
        """One transaction; the outcome of each. Raises Overloaded where none was kept and trying again may help."""

    @abstractmethod
    def _load(self) -> Facts: ...

    @abstractmethod
    def _changes_since(self, last: int) -> Changes: ...

    @abstractmethod
    def _reserve_ids(self, sequence: str, count: int) -> int:
        """Durably; the end of the new block. Raises Overloaded where trying again may help."""

    @abstractmethod
    def _give_back_ids(self, sequence: str, first: int, end: int) -> None:
        """[first, end) was reserved and never given; nothing to do if others reserved after it."""

    @abstractmethod
    def _copy(self, path: Path) -> None: ...

    @abstractmethod
    def _shut(self) -> None: ...

    # -- the interface

    def load(self) -> Facts:
        """Reads through the writer's thread, so it sees everything put before."""
        return self._call(self._load).result()

    def transact(self, operations: Sequence[Operation], requires: Sequence[Precondition] = ()) -> Written:
        write = Write(operations, requires, Written())
        self._enqueue(write)
        return write.written

    def changes_since(self, last: int) -> Pending[Changes]:
        return self._call(lambda: self._changes_since(last))

    def prepare_ids(self, sequences: Iterable[str]) -> None:
        for sequence in sequences:
            self._ids_of(sequence)

    def next_id(self, sequence: str) -> int:
        ids = self._ids_of(sequence)
        if ids.next >= ids.end:
            ahead = ids.ahead or self._reserve(sequence)
            ids.ahead = ahead
            ids.end = self._wait(ahead)  # rare: it was asked for a whole block ago
            ids.next, ids.ahead = ids.end - ID_BLOCK, None
        number = ids.next
        ids.next += 1
        if ids.ahead is None:
            ids.ahead = self._reserve(sequence)
        return number

    def _ids_of(self, sequence: str) -> _Ids:
        """With a block of them under way, at least: whoever needs an id is on the loop, where nobody should wait."""
        ids = self._ids.get(sequence)
        if ids is None:
            ids = self._ids[sequence] = _Ids()
            ids.ahead = self._reserve(sequence)
        return ids

    def _reserve(self, sequence: str) -> Pending[int]:
        return self._call(lambda: self._until_kept(lambda: self._reserve_ids(sequence, ID_BLOCK)))

    def _wait(self, answer: Pending[T]) -> T:
        """For the store, but not until it can write again."""
        while True:
            with suppress(TimeoutError):
                return answer.result(RETRY_S)
            if self._waits is not None:
                raise self._waits

    def check_room(self) -> None:
        if self._waits is not None:
            raise self._waits
        if self._room is not None:
            self._room.check()

    def copy_to(self, path: Path) -> Written:
        written = Written()
        self._enqueue(Call(lambda: self._copy(path), written))
        return written

    def end_waiting(self) -> None:
        self._ending.set()

    def close(self) -> None:
        if self._closed:
            return
        self._enqueue(Call(self._give_back_all, Pending()))
        self._closed = True
        self._ending.set()
        self._stop_thread()
        self._shut()

    def _give_back_all(self) -> None:
        """A clean stop gives the unused ids back."""
        for sequence, ids in self._ids.items():
            end = ids.end
            if ids.ahead is not None and ids.ahead.done() and ids.ahead.exception() is None:
                end = ids.ahead.result()
                ids.next = ids.next if end - ID_BLOCK == ids.end else end - ID_BLOCK
            if ids.next < end:
                self._give_back_ids(sequence, ids.next, end)

    # -- the queue and its thread

    def _start_thread(self) -> None:
        self._thread.start()

    def _stop_thread(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _call(self, run: Callable[[], T]) -> Pending[T]:
        answer: Pending[T] = Pending()
        self._enqueue(Call(run, answer))
        return answer

    def _enqueue(self, one: Write | Call) -> None:
        if self._closed:
            raise StorageFault("the metadata store is closed")
        if self._queue.qsize() >= QUEUED_MAX:
            raise Overloaded(f"{QUEUED_MAX} metadata changes are waiting for the store")
        self._queue.put(one)

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            if isinstance(first, Call):
                answer_call(first)
                continue
            writes, after = [first], None
            while len(writes) < ROUND_MAX and not self._queue.empty():
                one = self._queue.get()
                if not isinstance(one, Write):
                    after = one
                    break
                writes.append(one)
            else:
                self._commit(writes)
                continue
            self._commit(writes)
            if after is None:
                return
            answer_call(after)

    def _commit(self, writes: list[Write]) -> None:
        outcomes: Sequence[MainstemError | None]
        try:
            outcomes = self._until_kept(lambda: self._commit_round(writes))
        except MainstemError as error:
            outcomes = [error] * len(writes)
        for write, outcome in zip(writes, outcomes, strict=True):
            if outcome is None:
                write.written.set_result(None)
            else:
                write.written.set_exception(outcome)

    def _until_kept(self, attempt: Callable[[], T]) -> T:
        while True:
            try:
                done = attempt()
            except Overloaded as error:
                if not self._may_wait(error):
                    self._waits = None
                    raise  # nobody waits any longer: it was never acknowledged
            else:
                self._waits = None
                return done

    def _may_wait(self, error: Overloaded) -> bool:
        if self._room is None:
            return False
        if not self._room.give_up():
            self._waits = error
            return not self._ending.wait(RETRY_S)
        return True


def answer_call(call: Call) -> None:
    try:
        found = call.run()
    except BaseException as error:
        call.answer.set_exception(error)
    else:
        call.answer.set_result(found)
