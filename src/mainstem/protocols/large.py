"""A large message of a client: a thread writes it (`log/large.py`). Its publisher is read no further until it has a place in
the log: so its messages keep their order. Until then it counts among what clients have sent and is not kept yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from mainstem.codec.large_memory import IDLE_S, kept_bytes, release_idle
from mainstem.log.large import append_large, large_pool
from mainstem.protocols.connection import HOLD_LARGE

if TYPE_CHECKING:
    from mainstem.codec.large_record import LargeRecord
    from mainstem.log.gather import Ticket, TopicRef
    from mainstem.protocols.connection import Connection


def publish_large(connection: Connection, record: LargeRecord, resolve: Callable[[], TopicRef], origin: int) -> Ticket:
    unfinished = connection.server.unfinished

    def placed() -> None:
        unfinished.note(connection, 0)
        connection.release(HOLD_LARGE)

    connection.hold(HOLD_LARGE)
    unfinished.note(connection, record.size)
    return append_large(record, resolve, origin, placed)


async def release_memory() -> None:
    """What large messages left is given back once they are over; cancel it to stop."""
    while True:
        await asyncio.sleep(IDLE_S)
        if kept_bytes():
            await asyncio.get_running_loop().run_in_executor(large_pool(), release_idle)
