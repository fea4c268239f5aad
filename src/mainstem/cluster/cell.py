"""A cell that this process owns: its files rebuilt, its log open, a broker over both; images now and then.

Taking a cell: the epoch is raised first (`Membership.take`), from then on the owner before commits nothing. Then the files
are made of the image and the rows behind it, and the broker opens over them as after an unclean stop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainstem.broker.broker import Broker, BrokerOptions
from mainstem.cluster.disk import CellDisk
from mainstem.cluster.image import ImageMaker, Rebuilt, rebuild
from mainstem.cluster.objects import CellObjects
from mainstem.cluster.schema import SCHEMA, metadata_schema
from mainstem.cluster.wal import CellWal, Fenced
from mainstem.metadata.postgres import PostgresStore
from mainstem.metadata.postgres_session import PostgresSession
from mainstem.model.errors import MainstemError
from mainstem.storage.tier.store import StoreSettings

if TYPE_CHECKING:
    import asyncpg

logger = logging.getLogger("mainstem.cluster")

IMAGE_BYTES = 64 << 20  # of changes since the last one
IMAGE_S = 600.0  # with any change
LOOK_S = 1.0


class CellStore(PostgresStore):
    """The metadata of a cell: only its owner writes it."""

    def __init__(self, dsn: str, cell_id: int, epoch: int, lost: Callable[[str], None]) -> None:
        self._cell_id, self._epoch, self._lost = cell_id, epoch, lost
        super().__init__(dsn, metadata_schema(cell_id))

    async def _guard(self, connection: asyncpg.Connection[Any]) -> None:
        """The lock keeps a taker waiting until this transaction has ended."""
        sql = f"SELECT 1 FROM {SCHEMA}.lane WHERE cell_id = $1 AND epoch = $2 FOR SHARE"
        if await connection.fetchval(sql, self._cell_id, self._epoch) is None:
            reason = f"another broker took cell {self._cell_id}"
            self._lost(reason)
            raise Fenced(reason)


class Cell:
    """From `open` on this process serves it; `lost(reason)` ends that, from any thread."""

    def __init__(self, dsn: str, store: StoreSettings, cell_id: int, epoch: int, directory: Path) -> None:
        self.cell_id, self.epoch = cell_id, epoch
        self._dsn, self._root = dsn, directory / f"cell-{cell_id}"
        self.objects = CellObjects(store, cell_id)
        self._images: asyncio.Task[None] | None = None

    def rebuild(self) -> Rebuilt:
        """In a thread."""
        began = time.monotonic()
        session = PostgresSession(self._dsn, SCHEMA)
        try:
            found = rebuild(session, self.cell_id, self._root, self.objects)
        finally:
            session.close()
        logger.info(
            "cell %d, epoch %d: %d files, %d rows of %d KiB replayed in %.2f s",
            self.cell_id, self.epoch, len(found.files), found.rows, found.replayed_bytes >> 10, time.monotonic() - began,
        )  # fmt: skip
        return found

    def open(self, found: Rebuilt, options: BrokerOptions, lost: Callable[[str], None]) -> Broker:
        self.wal = CellWal(self._dsn, self.cell_id, self.epoch, found.seq, found.slot, lost)
        self.wal.bytes_since_image = found.replayed_bytes
        disk = CellDisk(self._root, self.wal, self.objects, found.files)
        self.images = ImageMaker(self._dsn, self.cell_id, self.epoch, self._root, self.wal, disk, self.objects)
        self.images.named = found.named
        store = CellStore(self._dsn, self.cell_id, self.epoch, lost)
        return Broker(replace(options, data=self._root, disk=disk, replicated=True), store=store)

    def start(self) -> None:
        """The broker serves: images may be made."""
        self._images = asyncio.get_running_loop().create_task(self._keep_images())

    async def close(self) -> None:
        """After the broker was closed: commit what it recorded."""
        if self._images is not None:
            self._images.cancel()
        self.objects.closing.set()
        await asyncio.to_thread(self.wal.close)

    async def _keep_images(self) -> None:
        made_s = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_S)
            size = self.wal.bytes_since_image
            if size < IMAGE_BYTES and (not size or time.monotonic() - made_s < IMAGE_S):
                continue
            try:
                await asyncio.to_thread(self.images.run)
                made_s = time.monotonic()
            except MainstemError as error:
                self.wal.bytes_since_image += size
                logger.error("no image was made, the write-ahead log grows; it is tried again: %s", error)
