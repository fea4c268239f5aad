"""An image: all files of a cell as of one row of its write-ahead log, so that older rows can go.

    object:  u32 length of the head, the head (JSON), the contents of small files one after the other
    head:    {"version", "cell", "epoch", "seq", "files": [[path, size, key of its object or ""]]}
             a file without a key lies in the contents, in this order

Files larger than INLINE_BYTES_MAX are objects of their own, which later images name again while they do not change: a
sealed segment is uploaded once. Files are read while they change (`changes.py` says why that is right).

    1 barrier   everything before it will be in the image, everything after it goes to the other table
    2 upload    files, then the image
    3 commit    lane.flushed_seq and lane.image, in our epoch; the older table is truncated in the same transaction
    4 delete    objects that the image before named and this one does not: no later one can name them, being made of this one
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainstem.cluster.changes import File, Replay, parse_changes
from mainstem.cluster.disk import INLINE_BYTES_MAX, CellDisk
from mainstem.cluster.objects import CellObjects
from mainstem.cluster.schema import SCHEMA, SLOTS, metadata_schema, wal_table
from mainstem.cluster.wal import CellWal, Fenced
from mainstem.codec.batch import crc32c
from mainstem.metadata.postgres_session import PostgresSession
from mainstem.model.errors import CorruptFrame, MainstemError
from mainstem.storage.backup import Progress
from mainstem.storage.directory import write_format

if TYPE_CHECKING:
    import asyncpg

logger = logging.getLogger("mainstem.cluster")

VERSION = 1
DOWNLOADS = 8
ROWS_MIN, ROWS_MAX = 8, 4096  # fetched at once, as many as make about ROWS_BYTES
ROWS_BYTES = 8 << 20


class ImageMaker:
    """Of one owned cell. Not for two threads at once; `run` waits for the store and for PostgreSQL."""

    def __init__(
        self, dsn: str, cell_id: int, epoch: int, root: Path, wal: CellWal, disk: CellDisk, objects: CellObjects
    ) -> None:
        self._dsn, self._cell_id, self._epoch = dsn, cell_id, epoch
        self._root, self._wal, self._disk, self._objects = root, wal, disk, objects
        self.named: set[str] = set()  # objects of the last image, itself included
        self.made = 0
        self.flushed_bytes = self.flushed_seq = 0  # recorded before the last one; its row

    def run(self) -> None:
        barrier, files = self._disk.capture()
        recorded_bytes = self._wal.recorded_bytes  # a little more than before the barrier, at most
        seq = self._wal.seq_of(barrier)
        listed: list[tuple[str, int, str]] = []
        contents: list[bytes] = []
        for path, file in sorted(files.items()):
            found = self._keep(path, file)
            if found is not None:
                listed.append((path, file.size, file.key))
                contents.append(found)
        head = {"version": VERSION, "cell": self._cell_id, "epoch": self._epoch, "seq": seq, "files": listed}
        packed = json.dumps(head, separators=(",", ":")).encode()
        key = self._objects.put("images", b"".join([len(packed).to_bytes(4, "big"), packed, *contents]))
        self._commit(seq, key)
        self.made, self.flushed_bytes, self.flushed_seq = self.made + 1, recorded_bytes, seq
        self._delete_unnamed({key, *(one[2] for one in listed if one[2])})

    def _keep(self, path: str, file: File) -> bytes | None:
        """Its content, or b"" where it is (now) an object; None if it is gone: then a later change says so, too. It may have
        become shorter since the capture (cut, or written anew), which a later change says as well."""
        if file.key:
            return b""
        content = file.content
        if content is None:
            try:
                with (self._root / path).open("rb") as opened:
                    content = opened.read(file.size)
            except FileNotFoundError:
                self._disk.forget_removed(path)
                return None
        file.size = len(content)
        if file.size <= INLINE_BYTES_MAX:
            return content
        file.key = self._objects.put("files", content)
        self._disk.note_stored(path, file)
        return b""

    def _commit(self, seq: int, key: str) -> None:
        session = PostgresSession(self._dsn, SCHEMA)
        older = (self._wal.slot + 1) % SLOTS
        try:
            if not session.use(lambda c: commit_image(c, self._cell_id, self._epoch, seq, key, older)):
                raise Fenced(f"cell {self._cell_id} is another broker's: its image is not ours to change")
        finally:
            session.close()

    def _delete_unnamed(self, named: set[str]) -> None:
        gone, self.named = self.named - named, named
        for key in gone:
            try:
                self._objects.delete(key)
            except MainstemError as error:
                logger.warning("an object that nothing names stays in the store: %s", error)


async def commit_image(
    connection: asyncpg.Connection[Any], cell_id: int, epoch: int, seq: int, key: str, older: int
) -> bool:
    """The log goes on from it; the `older` table, which holds nothing newer, is emptied. False: the cell is another's."""
    async with connection.transaction():
        sql = "UPDATE lane SET flushed_seq = $3, image = $4 WHERE cell_id = $1 AND epoch = $2 RETURNING 1"
        if await connection.fetchval(sql, cell_id, epoch, seq, key) is None:
            return False
        highest = await connection.fetchval(f"SELECT max(seq) FROM {wal_table(cell_id, older)}")
        if highest is not None and highest <= seq:
            await connection.execute(f"TRUNCATE {wal_table(cell_id, older)}")
        return True


class Rebuilt:
    """What a taker knows of a cell after it rebuilt its files."""

    def __init__(self, files: dict[str, File], seq: int, slot: int, named: set[str], rows: int, size: int) -> None:
        self.files, self.seq, self.slot, self.named = files, seq, slot, named
        self.rows, self.replayed_bytes = rows, size


def rebuild(
    session: PostgresSession,
    cell_id: int,
    epoch: int,
    root: Path,
    objects: CellObjects,
    progress: Progress | None = None,
) -> Rebuilt:
    """Make the cell's files under `root` of its image and the rows behind it. The epoch must be ours already: from then on
    nobody adds a row. Fenced where another broker takes the cell meanwhile, whose images replace what we read.
    `progress` is told bytes done, and bytes in all."""
    try:
        return _rebuild(session, cell_id, root, objects, progress)
    except CorruptFrame as error:
        now = session.use(lambda c: c.fetchval("SELECT epoch FROM lane WHERE cell_id = $1", cell_id))
        if now != epoch:
            raise Fenced(f"another broker took cell {cell_id} while its files were rebuilt") from error
        raise


def _rebuild(
    session: PostgresSession, cell_id: int, root: Path, objects: CellObjects, progress: Progress | None
) -> Rebuilt:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(mode=0o700, parents=True)
    lane = session.use(lambda c: c.fetchrow("SELECT * FROM lane WHERE cell_id = $1", cell_id))
    assert lane is not None
    replay = Replay(root, objects.get)
    named: set[str] = set()
    at, limit = int(lane["flushed_seq"]), ROWS_MIN
    told = _Told(progress, session.use(lambda c: _rows_bytes(c, cell_id, at)) if progress is not None else 0)
    if lane["image"]:
        named = {lane["image"], *_unpack(objects.get(lane["image"]), root, replay.files, objects.get, told)}
    rows = size = 0
    while found := session.use(lambda c, after=at, count=limit: rows_after(c, cell_id, after, count)):  # type: ignore[misc]
        fetched = sum(len(body) for _, _, body in found)
        limit = min(max(ROWS_MIN, len(found) * ROWS_BYTES // max(fetched, 1)), 4 * limit, ROWS_MAX)
        for seq, crc, body in found:
            if seq != at + 1 or crc32c(body) != crc:
                raise CorruptFrame(f"cell {cell_id}: row {at + 1} of the write-ahead log is missing or damaged")
            for change in parse_changes(body):
                replay.apply(change)
            at, rows, size = seq, rows + 1, size + len(body)
            told.add(len(body))
    if at != lane["wal_seq"]:
        raise CorruptFrame(f"cell {cell_id}: the write-ahead log ends at {at} instead of {lane['wal_seq']}")
    replay.close()
    _drop_removed(session, cell_id, root, replay.files)
    write_format(root)
    return Rebuilt(replay.files, at, int(lane["slot"]), named, rows, size)


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
    image: bytes, root: Path, files: dict[str, File], fetch: Callable[[str, int], bytes], told: _Told
) -> Iterable[str]:
    """The keys of the objects it names."""
    start = 4 + int.from_bytes(image[:4], "big")
    head = json.loads(image[4:start])
    if head["version"] > VERSION:
        raise CorruptFrame(f"the image has version {head['version']}", fix="start a newer Mainstem")
    at, large = start, list[tuple[str, int, str]]()
    told.total += sum(size for _, size, _ in head["files"])
    for path, size, key in head["files"]:
        (root / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if key:
            files[path] = File(size, key=key)
            large.append((path, size, key))
            continue
        content = image[at : at + size]
        at += size
        (root / path).write_bytes(content)
        files[path] = File(size, None if path.endswith(".log") else content)
        told.add(size)
    with ThreadPoolExecutor(DOWNLOADS, thread_name_prefix="rebuild") as pool:
        for written in pool.map(lambda one: (root / one[0]).write_bytes(fetch(one[2], one[1])), large):
            told.add(written)
    return [key for _, _, key in large]


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
