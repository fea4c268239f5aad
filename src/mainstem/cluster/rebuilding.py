"""The files of a cell, made of its image and the rows behind it: what a taker does before its broker opens.

An heir begins while the owner before still serves (`catch_up`), and ends it when the epoch is its own (`finish`): clients
wait only for the rows in between. Where the owner made another image meanwhile, whose commit deletes rows and objects that
this one needs, it begins anew.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainstem.cluster.changes import File, Replay, parse_changes
from mainstem.cluster.image import VERSION, Image, signature_of
from mainstem.cluster.objects import CellObjects
from mainstem.cluster.schema import SLOTS, metadata_schema, wal_table
from mainstem.cluster.wal import Fenced
from mainstem.codec.batch import crc32c
from mainstem.metadata.postgres_session import PostgresSession
from mainstem.model.errors import CorruptFrame
from mainstem.storage.backup import Progress
from mainstem.storage.directory import write_format
from mainstem.storage.engine import Buffer
from mainstem.storage.tier.store import ObjectMissing

if TYPE_CHECKING:
    import asyncpg

DOWNLOADS = 8
ROWS_MIN, ROWS_MAX = 8, 4096  # fetched at once, as many as make about ROWS_BYTES
ROWS_BYTES = 8 << 20


class Rebuilt:
    """What a taker knows of a cell after it rebuilt its files."""

    def __init__(self, files: dict[str, File], seq: int, slot: int, image: Image, rows: int, size: int) -> None:
        self.files, self.seq, self.slot, self.image = files, seq, slot, image
        self.rows, self.replayed_bytes = rows, size


class Rebuilding:
    """Of one cell, under `root`. One thread at a time; each call waits for PostgreSQL and for the store. `progress` is told
    bytes done, and bytes in all."""

    def __init__(
        self,
        session: PostgresSession,
        cell_id: int,
        root: Path,
        objects: CellObjects,
        progress: Progress | None = None,
    ) -> None:
        self._session, self._cell_id, self._root, self._objects = session, cell_id, root, objects
        self._progress = progress
        self._replay: Replay | None = None  # None: nothing is made yet

    def catch_up(self) -> None:
        """As far as the log goes by now, whoever writes it. CorruptFrame or ObjectMissing where its owner makes an image
        just then: the next call begins anew."""
        try:
            self._apply_rows(self._begun(self._lane()))
        except (CorruptFrame, ObjectMissing):
            self.close()
            raise

    def finish(self, epoch: int) -> Rebuilt:
        """The epoch must be ours: from then on nobody adds a row. Fenced where another broker takes the cell meanwhile,
        whose images replace what we read."""
        try:
            return self._finish()
        except CorruptFrame as error:
            now = self._session.use(lambda c: c.fetchval("SELECT epoch FROM lane WHERE cell_id = $1", self._cell_id))
            if now != epoch:
                raise Fenced(f"another broker took cell {self._cell_id} while its files were rebuilt") from error
            raise
        finally:
            self.close()

    def close(self) -> None:
        replay, self._replay = self._replay, None
        if replay is not None:
            replay.close()

    def _lane(self) -> Any:
        lane = self._session.use(lambda c: c.fetchrow("SELECT * FROM lane WHERE cell_id = $1", self._cell_id))
        assert lane is not None
        return lane

    def _begun(self, lane: Any) -> Replay:
        """What was made before, unless an image has taken its place."""
        return self._replay if self._replay is not None and lane["image"] == self._image else self._begin(lane)

    def _begin(self, lane: Any) -> Replay:
        self.close()
        shutil.rmtree(self._root, ignore_errors=True)
        self._root.mkdir(mode=0o700, parents=True)
        self._image, self._at, self._limit = lane["image"], int(lane["flushed_seq"]), ROWS_MIN
        self._rows = self._size = 0
        self._unpacked = Image()
        replay = Replay(self._root, self._objects.get)
        rows_bytes = 0
        if self._progress is not None:
            rows_bytes = self._session.use(lambda c: _rows_bytes(c, self._cell_id, self._at))
        self._told = _Told(self._progress, rows_bytes)
        if self._image:
            image = bytes(self._objects.get(self._image))
            self._unpacked = _unpack(image, self._root, replay.files, self._objects.get, self._told)
            self._unpacked.named.add(self._image)
        self._replay = replay
        return replay

    def _apply_rows(self, replay: Replay) -> None:
        cell_id = self._cell_id
        while found := self._session.use(lambda c: rows_after(c, cell_id, self._at, self._limit)):
            fetched = sum(len(body) for _, _, body in found)
            wanted = max(ROWS_MIN, len(found) * ROWS_BYTES // max(fetched, 1))
            whole = len(found) == self._limit  # else there are no more
            self._limit = min(wanted, 4 * self._limit, ROWS_MAX)
            for seq, crc, body in found:
                if seq != self._at + 1 or crc32c(body) != crc:
                    raise CorruptFrame(
                        f"cell {cell_id}: row {self._at + 1} of the write-ahead log is missing or damaged"
                    )
                for change in parse_changes(body):
                    replay.apply(change)
                self._at, self._rows, self._size = seq, self._rows + 1, self._size + len(body)
                self._told.add(len(body))
            if not whole:
                break

    def _finish(self) -> Rebuilt:
        lane = self._lane()
        replay = self._begun(lane)
        if self._at < lane["wal_seq"]:
            self._apply_rows(replay)
        if self._at != lane["wal_seq"]:
            raise CorruptFrame(
                f"cell {self._cell_id}: the write-ahead log ends at {self._at} instead of {lane['wal_seq']}"
            )
        _drop_removed(self._session, self._cell_id, self._root, replay.files)
        write_format(self._root)
        return Rebuilt(replay.files, self._at, int(lane["slot"]), self._unpacked, self._rows, self._size)


def rebuild(
    session: PostgresSession,
    cell_id: int,
    epoch: int,
    root: Path,
    objects: CellObjects,
    progress: Progress | None = None,
) -> Rebuilt:
    """All at once."""
    return Rebuilding(session, cell_id, root, objects, progress).finish(epoch)


class _Told:
    """How many bytes are made, of all that there are to make."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.done, self.total = progress, 0, total

    def add(self, size: int) -> None:
        self.done += size
        if self.progress is not None:
            self.progress(min(self.done, self.total), self.total)


async def _rows_bytes(connection: asyncpg.Connection[Any], cell_id: int, after: int) -> int:
    """Of the rows that the image does not have."""
    sizes = [
        await connection.fetchval(
            f"SELECT coalesce(sum(octet_length(body)), 0)::bigint FROM {wal_table(cell_id, slot)} WHERE seq > $1", after
        )
        for slot in range(SLOTS)
    ]
    return sum(sizes)


async def rows_after(
    connection: asyncpg.Connection[Any], cell_id: int, after: int, count: int
) -> list[tuple[int, int, bytes]]:
    tables = " UNION ALL ".join(
        f"(SELECT seq, crc, body FROM {wal_table(cell_id, slot)} WHERE seq > $1 ORDER BY seq LIMIT {count})"
        for slot in range(SLOTS)
    )
    sql = f"SELECT seq, crc, body FROM ({tables}) AS rows ORDER BY seq LIMIT {count}"
    return [(row[0], row[1], row[2]) for row in await connection.fetch(sql, after)]


def _unpack(
    image: bytes, root: Path, files: dict[str, File], fetch: Callable[[str, int], Buffer], told: _Told
) -> Image:
    start = 4 + int.from_bytes(image[:4], "big")
    head = json.loads(image[4:start])
    if head["version"] > VERSION:
        raise CorruptFrame(f"the image has version {head['version']}", fix="start a newer Mainstem")
    recorded, caches = head["files"], head.get("caches", [])  # an older Mainstem's has no caches
    at, large = start, list[tuple[str, int, str]]()
    told.total += sum(size for _, size, _ in (*recorded, *caches))
    for number, (path, size, key) in enumerate((*recorded, *caches)):
        (root / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = None
        if key:
            large.append((path, size, key))
        else:
            content = image[at : at + size]
            at += size
            (root / path).write_bytes(content)
            told.add(size)
        if number < len(recorded):
            files[path] = File(size, None if path.endswith(".log") else content, key=key)
    with ThreadPoolExecutor(DOWNLOADS, thread_name_prefix="rebuild") as pool:
        for written in pool.map(lambda one: (root / one[0]).write_bytes(fetch(one[2], one[1])), large):
            told.add(written)
    stored = {path: (signature_of(root / path), key) for path, _, key in caches if key}
    return Image({key for _, _, key in large}, stored)


def _drop_removed(session: PostgresSession, cell_id: int, root: Path, files: dict[str, File]) -> None:
    """Logs that the metadata does not know any more were removed by the owner before, which no change says."""
    schema = metadata_schema(cell_id)

    async def known(connection: asyncpg.Connection[Any]) -> set[str]:
        if await connection.fetchval("SELECT to_regclass($1)", f"{schema}.logs") is None:
            return set()
        return {str(row[0]) for row in await connection.fetch(f"SELECT id FROM {schema}.logs")}

    logs = session.use(known)
    for path in [*(root / "logs").glob("*")]:
        if path.name not in logs:
            shutil.rmtree(path, ignore_errors=True)
            for name in [name for name in files if name.startswith(f"logs/{path.name}/")]:
                del files[name]
