"""The way back to data of format 1: everything that is kept, written as the version before reads it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from mainstem.broker.broker import Broker
from mainstem.broker.sessions.sessions import DONE
from mainstem.server.app import broker_options
from mainstem.server.settings import Config
from mainstem.storage.directory import BEFORE, DataDirectory, write_format


def downgrade(config: Config) -> Path:
    """Of a stopped broker: nothing is lost but what format 1 has no words for; returns the directory."""
    path = Path(config.data.directory)
    directory = DataDirectory(path)
    try:
        asyncio.run(_downgrade(Broker(broker_options(config))))
        write_format(path, 1)
        shutil.rmtree(path / BEFORE, ignore_errors=True)  # of the upgrade that is undone: the next makes another
    finally:
        directory.release()
    return path


async def _downgrade(broker: Broker) -> None:
    await broker.open()
    broker.recover_journal()
    sessions = broker.session_keeper.sessions
    for key in list(sessions.keys_from(b"")):
        session = sessions.find(key)
        if session is not None:  # a delivery that is done beyond the position has no word there
            session.flight = [one for one in session.flight if one[1] != DONE]
    broker.journal.back_to_format_1 = True
    await broker.close()
