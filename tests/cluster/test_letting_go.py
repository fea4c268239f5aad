"""A process that hands its cell over goes on as a relay: nothing of the broker that it was may stay in its memory.

Objects are counted, and threads: a broker that is kept grows with what its clients do, and hand-overs have no end.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import platform
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import nats
import pika
import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from nats.js.api import StorageType

from mainstem.cluster.certificate import relay_contexts
from mainstem.cluster.membership import Membership
from mainstem.cluster.relay import Relay
from mainstem.cluster.schema import FIRST_CELL, SCHEMA, Identity, prepare
from mainstem.metadata.postgres_session import PostgresSession
from mainstem.server.cell_serving import Serving
from mainstem.server.cluster_node import let_go_of
from mainstem.server.config import load_config
from mainstem.server.lifecycle import loop_factory
from mainstem.server.listeners import take_ports
from mainstem.storage.tier.store import StoreSettings
from tests.cluster.kit import new_database
from tests.cluster.owner import file_store
from tests.contract.postgres_server import PostgresServer
from tests.protocol.mqtt.raw import Raw

TURNS_S, GONE_S = 0.2, 10.0
POOLS = "uvloop", "asyncio"  # the loop's own threads, of which there are soon as many as may be
BLOCKS, BLOCK_BYTES, STAYS_EACH = 1000, 50_000, 50
ROWS, READERS = 500, 10
WARM, MORE = 3, 3  # hand-overs: what is made once for a process is there by then


class Member:
    """One broker of two in this process: what a node does with a cell, without its doors."""

    def __init__(self, name: str, dsn: str, store: StoreSettings, identity: Identity, directory: Path) -> None:
        doors = [f"listeners.{one}_port=0" for one in ("mqtt", "ws", "kafka", "amqp", "nats", "http")]
        where = [f"data.directory={directory / name}", f"cluster.postgres={dsn}", f"tier.store={store.url}"]
        self.config = load_config(None, {}, [*doors, *where])
        self.ports = vars_of_ports(self.config.listeners)
        (directory / name).mkdir()
        self.membership = Membership(dsn, name, fail, lambda view: None)
        self.membership.register("127.0.0.1", 1 + ord(name), {}, "test")
        _, connecting = relay_contexts(identity.secret)
        relay = Relay(connecting, lambda: self.membership.view)
        self.serving = Serving(self.config, self.membership, relay, directory / name, fail)

    async def serve_and_hand_over(self, epoch: int) -> int:
        taken = await asyncio.to_thread(self.membership.take, FIRST_CELL, epoch, "test")
        assert taken == epoch + 1
        for name in self.ports:
            setattr(self.config.listeners, name, 0)
        sockets = take_ports(self.config.listeners, move=False, tls=False)
        await self.serving.start(FIRST_CELL, taken, sockets)
        assert self.serving.app is not None
        with contextlib.ExitStack() as clients:
            await asyncio.to_thread(use_all, dict(self.serving.app.ports), clients)
            app = self.serving.app
            await self.serving.hand_over("the test goes on")
            let_go_of(app)
            del app
        return taken


def vars_of_ports(listeners: object) -> list[str]:
    return [one for one in type(listeners).__slots__ if one.endswith("_port") and getattr(listeners, one) == 0]  # type: ignore[attr-defined]


def fail(reason: str) -> None:
    raise AssertionError(reason)


def use_all(ports: dict[str, int], clients: contextlib.ExitStack) -> None:
    """Each protocol publishes, consumes, and is connected when the broker hands over."""
    clients.enter_context(Raw.connected(ports["mqtt"], client_id="kept", clean=False))
    clients.enter_context(Raw.connected(ports["mqtt"])).subscribe(("a/#", 1))
    clients.enter_context(Raw.connected(ports["mqtt"])).publish("a/b", b"1", qos=1)
    amqp = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", ports["amqp"]))
    clients.callback(leave, amqp)
    channel = amqp.channel()
    channel.queue_declare("orders", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "orders", b"1", pika.BasicProperties(delivery_mode=2))
    assert channel.basic_get("orders")[2] == b"1"  # and left unacknowledged, as is what a consumer gets
    channel.basic_publish("", "orders", b"2", pika.BasicProperties(delivery_mode=2))
    assert next(channel.consume("orders", inactivity_timeout=20))[2] == b"2"
    servers = {"bootstrap.servers": f"127.0.0.1:{ports['kafka']}", "log_level": 0}
    producer = Producer({**servers, "transactional.id": "payments"})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce("numbers", b"1")
    producer.commit_transaction(20)
    reader = Consumer({**servers, "group.id": "readers", "auto.offset.reset": "earliest"})
    reader.assign([TopicPartition("numbers", 0, 0)])  # as no member: the next one need not wait for it
    assert reader.consume(1, timeout=20)
    reader.commit(asynchronous=False)
    reader.close()
    clients.callback(leave, producer)
    asyncio.run(use_nats(ports["nats"]))
    with urllib.request.urlopen(f"http://127.0.0.1:{ports['http']}/v1/topics", timeout=20) as answer:
        assert b"numbers" in answer.read()


async def use_nats(port: int) -> None:
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    js = client.jetstream(timeout=20)
    await js.add_stream(name="EVENTS", subjects=["events.>"], storage=StorageType.FILE)
    pull = await js.pull_subscribe("events.>", "worker")
    await js.publish("events.one", b"1")
    assert [one.data for one in await pull.fetch(1, timeout=20)] == [b"1"]
    await client.close()


def leave(client: object) -> None:
    """It was connected until now, and nobody is there to say goodbye to."""


def own_bytes(process: int) -> int:
    """What is this process's alone: files that several map do not count."""
    return int(psutil.Process(process).memory_full_info().uss)


def ours() -> Counter[str]:
    """How many objects of each of our classes there are, and threads by their names."""
    gc.unfreeze()
    gc.collect()
    found = (type(one) for one in gc.get_objects())
    names = Counter(
        f"{one.__module__}.{one.__qualname__}" for one in found if str(one.__module__).startswith("mainstem")
    )
    threads = (one.name.rstrip("0123456789_-") for one in threading.enumerate())
    names.update(f"thread {name}" for name in threads if name not in POOLS)
    return names


@pytest.fixture
def members(tmp_path: Path, postgres: PostgresServer) -> Iterator[list[Member]]:
    dsn, store = new_database(postgres), file_store(tmp_path)
    session = PostgresSession(dsn, SCHEMA)
    identity = prepare(session, store.url)
    session.close()
    made = [Member(name, dsn, store, identity, tmp_path) for name in ("a", "b")]
    yield made
    for one in made:
        one.membership.stop()


@pytest.mark.timeout(120)
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning"
)  # of clients that are left; a warning that is kept keeps its frames
def test_a_broker_that_handed_its_cell_over_leaves_no_object_and_no_thread_behind(
    members: list[Member], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # what is logged is kept, too

    async def hand_round() -> Counter[str]:
        epoch = 0
        for _ in range(WARM):
            epoch = await members[epoch % 2].serve_and_hand_over(epoch)
        await asyncio.sleep(TURNS_S)
        before = ours()
        for _ in range(MORE):
            epoch = await members[epoch % 2].serve_and_hand_over(epoch)
        deadline = time.monotonic() + GONE_S
        while (more := ours() - before) and time.monotonic() < deadline:
            await asyncio.sleep(TURNS_S)  # transports end in turns of the loop
        return more

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        more = runner.run(hand_round())
    assert more == Counter(), "they grew with the hand-overs"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have ways of their own")
def test_memory_that_was_let_go_of_is_the_systems_again() -> None:
    """Between what stays, as it is after a hand-over: by itself malloc gives back only what is behind all that is used."""
    blocks = [bytes(BLOCK_BYTES) for _ in range(BLOCKS)]
    stays = blocks[::STAYS_EACH]
    app = SimpleNamespace(broker=SimpleNamespace(blocks=blocks))
    del blocks
    before = own_bytes(os.getpid())
    let_go_of(app)  # type: ignore[arg-type]
    assert before - own_bytes(os.getpid()) > BLOCKS * BLOCK_BYTES // 2
    assert len(stays) == BLOCKS // STAYS_EACH


def test_threads_that_read_from_postgresql_leave_nothing_behind_when_they_end(postgres: PostgresServer) -> None:
    def read() -> None:
        session = PostgresSession(postgres.dsn, "public")
        rows = session.use(lambda c: c.fetch(f"SELECT n, n + 1 AS m FROM generate_series(1, {ROWS}) n"))
        assert len(rows) == ROWS
        session.close()

    def read_in_threads() -> int:
        for _ in range(READERS):
            thread = threading.Thread(target=read)
            thread.start()
            thread.join()
        gc.collect()
        return sys.getallocatedblocks()

    before = read_in_threads()
    assert read_in_threads() - before < ROWS
