"""An image: all files of a cell as of one row of its write-ahead log, so that older rows can go.

    object:  u32 length of the head, the head (JSON), the contents of small files one after the other
    head:    {"version", "cell", "epoch", "seq", "files": [[path, size, key of its object or ""]], "caches": likewise}
             a file without a key lies in the contents, in this order

Caches are the indexes of sealed segments and the topic indexes of shared logs, as they were saved last: no change says what
is in them, and whoever opens them adds what they lack. Without them a taker walks through every segment, and reads every
record of a shared log, while clients wait. They may be older than the image or newer, and need not match each other or their
segments (that is found out as each is opened); but what they say is committed.

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainstem.cluster.changes import File
from mainstem.cluster.disk import INLINE_BYTES_MAX, CellDisk
from mainstem.cluster.objects import CellObjects
from mainstem.cluster.schema import SCHEMA, SLOTS, wal_table
from mainstem.cluster.wal import CellWal, Fenced
from mainstem.log.topic_index import FILES as TOPIC_INDEXES
from mainstem.metadata.postgres_session import PostgresSession
from mainstem.model.errors import MainstemError

if TYPE_CHECKING:
    import asyncpg

logger = logging.getLogger("mainstem.cluster")

VERSION = 1
CACHES = "*.index", *TOPIC_INDEXES  # of each log's directory, read in this order
Listed = list[tuple[str, int, str]]  # path, size, key of its object or ""
Signature = tuple[int, int, int]


def signature_of(path: Path) -> Signature:
    """Another one wherever a file was written anew."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


@dataclass(slots=True)
class Image:
    """The objects that it names, itself included; those of caches with the files that were made of them."""

    named: set[str] = field(default_factory=set)
    caches: dict[str, tuple[Signature, str]] = field(default_factory=dict)


class ImageMaker:
    """Of one owned cell. Not for two threads at once; `run` waits for the store and for PostgreSQL."""

    def __init__(
        self, dsn: str, cell_id: int, epoch: int, root: Path, wal: CellWal, disk: CellDisk, objects: CellObjects
    ) -> None:
        self._dsn, self._cell_id, self._epoch = dsn, cell_id, epoch
        self._root, self._wal, self._disk, self._objects = root, wal, disk, objects
        self._last = Image()
        self.made = 0
        self.flushed_bytes = self.flushed_seq = 0  # recorded before the last one; its row

    def go_on(self, image: Image, flushed_seq: int = 0) -> None:
        """After the last one, which an owner before made."""
        self._last, self.flushed_seq = image, flushed_seq

    def run(self) -> None:
        barrier, files = self._disk.capture()
        recorded_bytes = self._wal.recorded_bytes  # a little more than before the barrier, at most
        seq = self._wal.seq_of(barrier)
        listed: Listed = []
        contents: list[bytes] = []
        for path, file in sorted(files.items()):
            found = self._keep(path, file)
            if found is not None:
                listed.append((path, file.size, file.key))
                contents.append(found)
        caches = self._keep_caches(contents, now := Image())
        self._wal.wait(self._wal.recorded)  # what they say was recorded before
        head: dict[str, Any] = {"version": VERSION, "cell": self._cell_id, "epoch": self._epoch, "seq": seq}
        head |= {"files": listed, "caches": caches}
        packed = json.dumps(head, separators=(",", ":")).encode()
        key = self._objects.put("images", b"".join([len(packed).to_bytes(4, "big"), packed, *contents]))
        self._commit(seq, key)
        self.made, self.flushed_bytes, self.flushed_seq = self.made + 1, recorded_bytes, seq
        now.named = {key, *(one[2] for one in (*listed, *caches) if one[2])}
        self._delete_unnamed(now)

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

    def _keep_caches(self, contents: list[bytes], now: Image) -> Listed:
        """Those that did not change since the last image are in the store, small ones are added to the contents. One that is
        gone meanwhile is left out."""
        listed: Listed = []
        for path in sorted(one for pattern in CACHES for one in self._root.glob(f"logs/*/{pattern}")):
            name = str(path.relative_to(self._root))
            try:
                signature = signature_of(path)
                known = self._last.caches.get(name)
                if known is not None and known[0] == signature:
                    now.caches[name] = known
                    listed.append((name, signature[-1], known[1]))
                    continue
                content = path.read_bytes()
            except FileNotFoundError:
                continue
            key = ""
            if len(content) > INLINE_BYTES_MAX:
                key = self._objects.put("files", content)
                now.caches[name] = signature, key
            else:
                contents.append(content)
            listed.append((name, len(content), key))
        return listed

    def _commit(self, seq: int, key: str) -> None:
        session = PostgresSession(self._dsn, SCHEMA)
        older = (self._wal.slot + 1) % SLOTS
        try:
            if not session.use(lambda c: commit_image(c, self._cell_id, self._epoch, seq, key, older)):
                raise Fenced(f"cell {self._cell_id} is another broker's: its image is not ours to change")
        finally:
            session.close()

    def _delete_unnamed(self, now: Image) -> None:
        gone, self._last = self._last.named - now.named, now
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
