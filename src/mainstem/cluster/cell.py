"""A cell that this process owns: its files rebuilt, its log open, a broker over both; images now and then.

Taking a cell: the epoch is raised first (`Membership.take`), from then on the owner before commits nothing. Then the files
are made of the image and the rows behind it, and the broker opens over them as after an unclean stop. An heir has made most
of them before (`prepare`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainstem.broker.broker import Broker, BrokerOptions
from mainstem.broker.rights.followed_users import UserSource
from mainstem.cluster.disk import CellDisk
from mainstem.cluster.image import ImageMaker
from mainstem.cluster.membership import Membership, look
from mainstem.cluster.objects import CellObjects
from mainstem.cluster.rebuilding import Rebuilding, Rebuilt
from mainstem.cluster.schema import FIRST_CELL, SCHEMA, metadata_schema
from mainstem.cluster.wal import CellWal, Fenced
from mainstem.metadata.postgres import PostgresStore
from mainstem.metadata.postgres_session import PostgresSession
from mainstem.model.errors import ConfigError, Overloaded, StorageFault
from mainstem.storage.tier.store import StoreSettings

if TYPE_CHECKING:
    import asyncpg

logger = logging.getLogger("mainstem.cluster")

IMAGE_BYTES = 64 << 20  # of changes since the last one
IMAGE_ROWS = 20_000  # likewise: a taker replays about so many in a second
IMAGE_S = 600.0  # with any change
UNFLUSHED_BYTES_MAX = 1 << 30
HOLD_S = 10.0
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

    def start_ids_at(self, sequence: str, reserved: int) -> None:
        """Of a store that is new: ids below were given elsewhere."""
        self._call(lambda: self._reserve_ids(sequence, reserved)).result()


@contextmanager
def borrow_cell(dsn: str, reason: str) -> Iterator[int]:
    """The first cell while no broker serves it: owned meanwhile, like by a broker. Its epoch."""
    membership = Membership(dsn, "mainstem", lambda reason: None, lambda view: None)
    session = PostgresSession(dsn, SCHEMA)
    try:
        cell = session.use(look).cells[FIRST_CELL]
    except (StorageFault, KeyError) as error:
        raise ConfigError("there is no cluster yet", fix="start a broker: mainstem serve --cluster URL ...") from error
    finally:
        session.close()
    epoch = membership.take(FIRST_CELL, cell.epoch, reason)
    if epoch is None:
        raise ConfigError(
            f"{cell.owner} serves the cluster",
            fix="ask it, --url http://HOST:PORT instead of --cluster, or stop all brokers",
        )
    try:
        yield epoch
    finally:
        membership.release(FIRST_CELL, reason)


class Cell:
    """From `open` on this process serves it; `lost(reason)` ends that, from any thread."""

    def __init__(self, dsn: str, store: StoreSettings, cell_id: int, directory: Path) -> None:
        self.cell_id, self.epoch = cell_id, 0
        self._dsn, self._root = dsn, directory / f"cell-{cell_id}"
        self.objects = CellObjects(store, cell_id)
        self._session = PostgresSession(dsn, SCHEMA)
        self._rebuilding = Rebuilding(self._session, cell_id, self._root, self.objects)
        self._images: asyncio.Task[None] | None = None
        self._refusing = False
        self._next_image_s = 0.0  # not before (monotonic)

    def hold_images(self) -> None:
        """An heir reads the last one, which the next would take away. For HOLD_S: it may not come."""
        self._next_image_s = time.monotonic() + HOLD_S

    def prepare(self) -> None:
        """As its heir: make the files as far as they are known. In a thread."""
        self._rebuilding.catch_up()

    def forget(self) -> None:
        """It was prepared in vain. In a thread."""
        self._rebuilding.close()
        self._session.close()

    def rebuild(self, epoch: int) -> Rebuilt:
        """As its owner. In a thread."""
        self.epoch = epoch
        began = time.monotonic()
        try:
            found = self._rebuilding.finish(epoch)
        finally:
            self._session.close()
        logger.info(
            "cell %d, epoch %d: %d files, %d rows of %d KiB behind the image, the rest replayed in %.2f s",
            self.cell_id, epoch, len(found.files), found.rows, found.replayed_bytes >> 10, time.monotonic() - began,
        )  # fmt: skip
        return found

    def open(
        self,
        found: Rebuilt,
        options: BrokerOptions,
        lost: Callable[[str], None],
        users: UserSource | None = None,
    ) -> Broker:
        """`users`: those that another cell keeps."""
        self.wal = CellWal(self._dsn, self.cell_id, self.epoch, found.seq, found.slot, lost)
        self.wal.recorded_bytes = found.replayed_bytes
        disk = CellDisk(self._root, self.wal, self.objects, found.files)
        self.images = ImageMaker(self._dsn, self.cell_id, self.epoch, self._root, self.wal, disk, self.objects)
        self.images.go_on(found.image, found.seq - found.rows)
        store = CellStore(self._dsn, self.cell_id, self.epoch, lost)
        tier = None if options.tier is None else replace(options.tier, store=self._tier_store(options.tier.store))
        options = replace(options, data=self._root, disk=disk, tier=tier, replicated=True)
        self._broker = Broker(options, store=store, users=users)
        return self._broker

    def _tier_store(self, store: StoreSettings) -> StoreSettings:
        """Where sealed segments and bundles of this cell lie."""
        url = f"{store.url.rstrip('/')}/cells/{self.cell_id}/tier"
        if url.startswith("file://"):
            Path(url.removeprefix("file://")).mkdir(parents=True, exist_ok=True)
        return replace(store, url=url)

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
        made_s, making = time.monotonic(), None
        while True:
            await asyncio.sleep(LOOK_S)
            self._watch_unflushed()
            if making is not None and making.done():
                if (error := making.exception()) is None:
                    made_s = time.monotonic()
                else:
                    logger.error("no image was made, the write-ahead log grows; it is tried again: %s", error)
                making = None
            size = self.unflushed_bytes
            if time.monotonic() < self._next_image_s:
                continue
            many = size >= IMAGE_BYTES or self.wal.seq - self.images.flushed_seq >= IMAGE_ROWS
            if making is None and (many or (size and time.monotonic() - made_s >= IMAGE_S)):
                making = asyncio.get_running_loop().run_in_executor(None, self.images.run)

    @property
    def unflushed_bytes(self) -> int:
        """Of the log in PostgreSQL: what no image holds."""
        return self.wal.recorded_bytes - self.images.flushed_bytes

    def _watch_unflushed(self) -> None:
        """A store that takes no images must not fill PostgreSQL: publishers are refused, readers are not."""
        over = self.unflushed_bytes > UNFLUSHED_BYTES_MAX
        if over == self._refusing or self._broker.maintenance.space_low:  # that refusal says more
            return
        refusal = None
        if over:
            refusal = Overloaded(
                f"{self.unflushed_bytes >> 20} MiB of changes are in no image: the object store takes none",
                fix="see why: mainstem cluster doctor",
            )
        logger.warning("publishes are %s", f"refused: {refusal}" if over else "taken again: an image was made")
        self._refusing = over
        for log in self._broker.logs.by_id.values():
            log.refusal = refusal
