"""The cell's objects: written once under a key that is never used again, and read whole.

    cells/<cell>/files/<uuid>    a file of the cell that is too large for a row
    cells/<cell>/images/<uuid>   everything the write-ahead log goes on from

The store may be away for hours: a write or read is tried again without end, until the cell is closed.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from typing import TypeVar

from mainstem.codec.batch import crc32c
from mainstem.model.errors import ConfigError, CorruptFrame
from mainstem.storage.tier.store import ObjectMissing, ObjectStore, StoreAway, StoreSettings

logger = logging.getLogger("mainstem.cluster")

PAUSE_S, PAUSE_S_MAX = 0.25, 10.0
CRC_BYTES = 4
DAMAGED_TRIES = 3
T = TypeVar("T")


class CellObjects:
    """Any thread may call; each call waits."""

    def __init__(self, settings: StoreSettings, cell_id: int) -> None:
        self.store = ObjectStore(settings)
        self._prefix = f"cells/{cell_id}"
        self.closing = threading.Event()
        self.away = ""  # why the store takes nothing, while it does

    def put(self, kind: str, data: bytes) -> str:
        """The key. The object ends with the crc32c of the rest."""
        key = f"{self._prefix}/{kind}/{uuid.uuid4().hex}"
        body = data + crc32c(data).to_bytes(CRC_BYTES, "big")
        self._until_done(lambda: self.store.put(key, body))
        return key

    def get(self, key: str, size: int | None = None) -> memoryview:
        """Of what arrived, without a copy: downloads run beside a loop that serves or relays."""
        for _ in range(DAMAGED_TRIES):  # an answer may be cut off; the object itself is read again then
            body = self._until_done(lambda: self.store.view_all(key))
            data = body[:-CRC_BYTES]
            if crc32c(data).to_bytes(CRC_BYTES, "big") == body[-CRC_BYTES:] and size in (None, len(data)):
                return data
        raise CorruptFrame(f"{self.store.url}/{key} is damaged or cut off", fix="put an older version of it back")

    def delete(self, key: str) -> None:
        self.store.delete(key)

    def _until_done(self, call: Callable[[], T]) -> T:
        pause_s = PAUSE_S
        while True:
            try:
                done = call()
            except ObjectMissing:
                raise
            except (StoreAway, ConfigError) as error:
                if not self.away:
                    logger.error("the object store does not serve; it is tried again: %s", error)
                self.away = error.message
                if self.closing.wait(pause_s):
                    raise StoreAway(error.message, fix=error.fix) from error
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
            else:
                if self.away:
                    logger.warning("the object store serves again")
                self.away = ""
                return done
