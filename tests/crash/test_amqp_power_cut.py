"""The power is cut under a broker whose AMQP client has acked and then asked something: the answer covers the acks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pika
import pytest

from mainstem.testing import BrokerProcess
from mainstem.testing.power_cut import PowerCutMount, why_not
from tests.protocol.amqp.conftest import declared, parameters, ready

pytestmark = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")

Channel: TypeAlias = Any  # pika's BlockingChannel, which has no types
PERSISTENT = pika.BasicProperties(delivery_mode=2)
ASKED: dict[str, Callable[[Channel], object]] = {
    "queue.declare": lambda channel: channel.queue_declare("jobs", passive=True),
    "basic.qos": lambda channel: channel.basic_qos(prefetch_count=100),
    "channel.close": lambda channel: channel.close(),
    "connection.close": lambda channel: channel.connection.close(),
    "tx.commit": lambda channel: channel.tx_commit(),
}


def test_acks_before_an_answer_survive_a_power_cut(tmp_path: Path) -> None:
    with PowerCutMount(tmp_path) as mount:
        data = tmp_path / "data"
        data.symlink_to(mount.path / "data")
        (mount.path / "data").mkdir(mode=0o700)
        with BrokerProcess(data) as broker:
            published = pika.BlockingConnection(parameters(broker)).channel()
            declared(published, "jobs", durable=True)
            published.confirm_delivery()
            for number in range(3 * len(ASKED)):
                published.basic_publish("", "jobs", b"%d" % number, PERSISTENT)
            published.connection.close()
            for done, (name, ask) in enumerate(ASKED.items(), 1):
                channel = pika.BlockingConnection(parameters(broker)).channel()
                if name == "tx.commit":
                    channel.tx_select()
                tags = [channel.basic_get("jobs")[0].delivery_tag for _ in range(3)]
                for tag in tags:
                    channel.basic_ack(tag)
                ask(channel)
                mount.cut(broker.pid)
                broker.kill()
                broker.start()
                assert ready(pika.BlockingConnection(parameters(broker)).channel(), "jobs") == 3 * (
                    len(ASKED) - done
                ), name
