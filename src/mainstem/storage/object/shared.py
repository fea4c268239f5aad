"""What the object logs of one broker share: the writer of bundles, the registry of pieces, the merger.

The order of a bundle's life, so that a crash anywhere loses nothing acked and forgets no object:

    1 registry: pending          durable before the first byte leaves
    2 PUT, and a look at it      under a key that was never used
    3 registry: live + pieces    durable, one transaction, in order of the sequences. Now its frames are acked
    4 merged with others         the same three steps for the new one; the transaction of the third takes the old pieces away
    5 registry: doomed           when no piece names it; deleted after the grace time

Each life of the broker is a *run* with bundles of its own. `<prefix>/runs` names the runs, and is stored before a run's
first bundle, so that who has only the bucket finds all of them (`catching_up.py`).
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mainstem.model.errors import StorageFault
from mainstem.storage.engine import Buffer, Part
from mainstem.storage.engines import OBJECT
from mainstem.storage.log_state import FileState
from mainstem.storage.object.bundle import FINAL, MERGED_CHUNK_BYTES, Bundle, Content, Piece, index_frames, make_bundle
from mainstem.storage.object.catching_up import RUNS
from mainstem.storage.object.engine import ObjectEngine
from mainstem.storage.object.merging import Merger
from mainstem.storage.object.pieces import LogEnd, Pieces, Placed
from mainstem.storage.object.writer import BundleWriter, Gathered
from mainstem.storage.tier.registry import FILE
from mainstem.storage.tier.store import StoreAway
from mainstem.storage.tier.tier import Tier

LIFE = "object_life"
REPLACE_TRIES = 3


class ObjectLogs:
    """Any thread may call."""

    def __init__(self, tier: Tier) -> None:
        self.tier, self.pieces = tier, Pieces(tier.registry)
        self.pieces.on_doomed = tier.cache.forget
        settings = tier.settings
        self.run = uuid.uuid4().hex
        self._last_run = tier.registry.fact(LIFE)
        tier.registry.set_fact(LIFE, self.run)
        self.writer: BundleWriter[Bundle] = BundleWriter(
            self._store,
            self._commit,
            bundle_bytes=settings.bundle_bytes,
            bundle_s=settings.bundle_ms / 1000,
            unstored_max=settings.unstored_bytes_max,
        )
        self._engines: dict[int, ObjectEngine] = {}
        self._announced = False
        self.manifest_due = False  # a log is new: the manifest in the bucket should know it soon
        self._announcing = threading.Lock()
        self.merger = Merger(tier, self.pieces, self._engines.get)

    # -- logs

    def open(self, directory: Path, log_id: int, segment_bytes: int) -> ObjectEngine:
        state = FileState(directory)
        noted = state.get(OBJECT) if directory.exists() else None
        if noted is None:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            state.put(OBJECT, {"id": self.tier.registry.id})
        elif noted["id"] != self.tier.registry.id:
            raise StorageFault(
                f"{directory}: this log lies in an object store, and {self.tier.registry.path} does not know it",
                fix=f"put the {FILE} of broker {noted['id']} back, or mainstem restore {self.tier.store.url} DIRECTORY",
            )
        engine = self._engines[log_id] = ObjectEngine(self, log_id, directory, segment_bytes)
        return engine

    def load(self, log_id: int) -> tuple[LogEnd, list[Placed]]:
        if log_id not in self.pieces.known:  # a new one: made on the loop, which waits for no transaction
            return LogEnd(), []
        return self.pieces.end_of(log_id), self.pieces.of_log(log_id)

    def was_closed(self, end: LogEnd) -> bool:
        return bool(end.closed_run) and end.closed_run == self._last_run

    @contextmanager
    def erasing(self) -> Iterator[None]:
        """What pieces leave meanwhile, bundles do not keep for the sake of others: these are written anew without it. Not
        for the loop."""
        bared: set[str] = set()
        self.pieces.bared = bared
        self.pieces.erasures += 1
        try:
            yield
        finally:
            self.pieces.erasures += 1
            self.pieces.bared = None
        self.merger.rewrite(bared)

    def close_log(self, log_id: int, end: LogEnd) -> None:
        self.pieces.close_log(log_id, end)

    def forget_engine(self, log_id: int, engine: ObjectEngine) -> None:
        if self._engines.get(log_id) is engine:
            del self._engines[log_id]

    def forget_log(self, log_id: int) -> None:
        """Its topic was deleted."""
        self.pieces.forget_log(log_id, self.tier.now_ms())

    # -- bundles

    def _store(self, gathered: Gathered) -> Bundle:
        self._announce()
        contents = (one.content() for one in gathered.in_order())
        bundle, body = make_bundle(contents, self.run, gathered.sequence)
        self.tier.store_object(bundle, body)
        self.tier.cache.put(bundle, memoryview(body))
        return bundle

    def _announce(self) -> None:
        with self._announcing:
            if not self._announced:
                if self.run not in self.pieces.runs:
                    self.pieces.begin_run(self.run)
                told = json.dumps(self.pieces.runs).encode()

                def announce() -> None:
                    self.tier.check_ours()  # else the list of another broker would be replaced
                    self.tier.store.put(RUNS, told)

                self.tier.keep_trying(announce)
                self._announced = True

    def _commit(self, gathered: Gathered, bundle: Bundle) -> None:
        self.pieces.commit(bundle, self.tier.now_ms())
        ends: dict[ObjectEngine, int] = {}
        for pending, piece in zip(gathered.in_order(), bundle.footer.pieces, strict=True):
            engine = self._engines.get(piece.log_id)
            if engine is not None:
                engine.stored(pending, piece, Placed(piece, bundle))
                ends[engine] = piece.end_offset
        for engine, end in ends.items():
            engine.on_durable(end)
        logs = {piece.log_id for piece in bundle.footer.pieces}
        if not logs <= self.pieces.known:
            self.pieces.known |= logs
            self.manifest_due = True
        self.merger.note(bundle)

    def store_part(self, log_id: int, old: Part, frames: Sequence[Buffer]) -> Placed:
        """What a part is rewritten to, in a bundle of its own; the caller commits it."""
        place = log_id, old.base_offset, old.generation + 1, old.base_offset, old.end_offset
        stamps = old.first_stamp, old.last_stamp
        if not sum(map(len, frames)):
            return Placed(Piece(*place, *stamps, 0, 0, 0, 0), None)
        index = index_frames(log_id, old.base_offset, frames)
        content = Content(*place, *stamps, frames, index)
        bundle, body = make_bundle([content], self.run, 0, level=FINAL, chunk_bytes=MERGED_CHUNK_BYTES)
        self.tier.store_object(bundle, body, REPLACE_TRIES)
        return Placed(bundle.footer.pieces[0], bundle)

    # -- the end

    def finish(self, until_s: float) -> bool:
        """What is on its way is stored, or at `until_s` given up: nothing of it was acked. False: it was given up."""
        self.merger.close()
        stored = True
        try:
            stored = self.writer.wait(until_s)
        except StoreAway:
            stored = False
        self.writer.stop(StoreAway("the broker is stopping", fix="publish it again"))
        return stored
