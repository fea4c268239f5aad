"""The power is cut under a stream that was altered to `sync` while it was used: no message acked since then is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import nats
import pytest
from nats.js.api import StreamConfig

from mainstem.testing.power_cut import PowerCutMount, why_not
from mainstem.testing.process import BrokerProcess
from tests.crossing.commands import mainstem

WAIT_S = 20
BEFORE, AFTER = 20, 200


@pytest.mark.slow
@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
async def test_what_is_acked_after_the_change_survives(tmp_path: Path) -> None:
    with PowerCutMount(tmp_path) as mount:
        (mount.path / "data").mkdir(mode=0o700)
        data = tmp_path / "data"
        data.symlink_to(mount.path / "data")
        with BrokerProcess(data) as broker:
            client = await nats.connect(broker.nats_url, connect_timeout=WAIT_S, allow_reconnect=False)
            js = client.jetstream(timeout=WAIT_S)
            metadata = {"mainstem-durability": "none"}
            await js.add_stream(StreamConfig(name="s", subjects=["s"], metadata=metadata, allow_direct=True))
            for n in range(BEFORE):
                await js.publish("s", b"before %d" % n)
            await asyncio.to_thread(mainstem, broker, "stream", "alter", "s", "--durability", "sync")
            acks = [await js.publish("s", b"after %d" % n) for n in range(AFTER)]
            mount.cut(broker.pid)
            broker.kill()
            await client.close()
            broker.start()
            client = await nats.connect(broker.nats_url, connect_timeout=WAIT_S)
            js = client.jetstream(timeout=WAIT_S)
            found = [(await js.get_msg("s", ack.seq, direct=True)).data for ack in acks]
            assert found == [b"after %d" % n for n in range(AFTER)]
            await client.close()
