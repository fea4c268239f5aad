"""Fast batches (nats-server 2.14): the same steps to nats-server and to us, answered alike; and what is acked is stored."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Sequence
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from mainstem.testing import Broker
from tests.protocol.nats.beside import WAIT_S, A

START, APPEND, COMMIT, COMMIT_ONLY, PING = range(5)
Step = tuple[int, int, dict[str, str] | None]  # sequence, operation, headers


class Writer:
    """One fast batch by hand: no client library of Python's knows them."""

    def __init__(self, client: Client, subject: str, *, flow: int = 2, gap: str = "fail") -> None:
        self.client, self.subject, self.flow, self.gap = client, subject, flow, gap
        self.name = uuid.uuid4().hex[:8]
        self.inbox = client.new_inbox()
        self.said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def begin(self) -> None:
        async def hear(message: Any) -> None:
            self.said.put_nowait(json.loads(message.data))

        await self.client.subscribe(f"{self.inbox}.>", cb=hear)

    async def send(self, sequence: int, operation: int, headers: dict[str, str] | None = None) -> None:
        reply = f"{self.inbox}.{self.name}.{self.flow}.{self.gap}.{sequence}.{operation}.$FI"
        await self.client.publish(self.subject, b"m%d" % sequence, reply=reply, headers=headers)

    async def heard(self) -> dict[str, Any]:
        said = await asyncio.wait_for(self.said.get(), WAIT_S)
        if "batch" in said:
            said["batch"] = "the batch"
        return said


async def conversation(url: str, steps: Sequence[Step], **asked: Any) -> tuple[list[Any], list[str]]:
    """What is said until the end of the batch, and what the stream has then. Each step waits for the one before."""
    client = await nats.connect(url, connect_timeout=WAIT_S)
    stream = f"F{uuid.uuid4().hex[:8]}"
    config = {"name": stream, "subjects": [f"{stream}.>"], "allow_batched": True}
    created = await client.request(f"{A}STREAM.CREATE.{stream}", json.dumps(config).encode(), timeout=WAIT_S)
    assert json.loads(created.data)["config"]["allow_batched"]
    writer = Writer(client, f"{stream}.a", **asked)
    await writer.begin()
    said: list[Any] = []
    for step in steps:
        await writer.send(*step)
        await client.flush()
        await client.request(f"{A}STREAM.INFO.{stream}", timeout=WAIT_S)  # what was said came before the answer
        await asyncio.sleep(0.05)
        while not writer.said.empty():
            said.append(_plain(await writer.heard(), stream))
    while not any("batch" in one or one.get("stream") for one in said):
        said.append(_plain(await writer.heard(), stream))
    stored = []
    answer = json.loads((await client.request(f"{A}STREAM.INFO.{stream}", timeout=WAIT_S)).data)
    for sequence in range(1, answer["state"]["last_seq"] + 1):
        stored.append((await client.jetstream().get_msg(stream, sequence)).data.decode())
    await client.close()
    return said, stored


def _plain(said: dict[str, Any], stream: str) -> dict[str, Any]:
    return {**said, "stream": "it"} if said.get("stream") == stream else said


CONVERSATIONS: dict[str, tuple[list[Step], dict[str, Any]]] = {
    "whole": ([(1, START, None), (2, APPEND, None), (3, APPEND, None), (4, COMMIT, None)], {}),
    "ended by a word": ([(1, START, None), (2, APPEND, None), (3, COMMIT_ONLY, None)], {}),
    "one message": ([(1, COMMIT, None)], {}),
    "pinged": ([(1, START, None), (1, PING, None), (2, COMMIT, None)], {"flow": 10}),
    "a gap that ends it": ([(1, START, None), (2, APPEND, None), (5, APPEND, None)], {}),
    "a gap that may be": ([(1, START, None), (4, APPEND, None), (5, COMMIT, None)], {"gap": "ok"}),
    "a ping beyond a gap": ([(1, START, None), (3, PING, None), (4, COMMIT, None)], {"gap": "ok"}),
    "refused at once": ([(1, START, {"Nats-Expected-Last-Sequence": "9"})], {}),
    "refused in the midst": ([(1, START, None), (2, APPEND, {"Nats-Expected-Stream": "other"})], {}),
    "refused, and goes on": (
        [(1, START, None), (2, APPEND, {"Nats-Expected-Stream": "other"}), (3, COMMIT, None)],
        {"gap": "ok"},
    ),
    "a duplicate": (
        [(1, START, {"Nats-Msg-Id": "i"}), (2, APPEND, {"Nats-Msg-Id": "i"}), (3, COMMIT, None)],
        {},
    ),
    "unknown": ([(2, APPEND, None)], {}),
    "no start": ([(2, START, None)], {}),
    "no mode": ([(1, START, None)], {"gap": "maybe"}),
}


@pytest.mark.parametrize("named", CONVERSATIONS)
async def test_a_batch_is_answered_as_by_nats_server(broker: Broker, peer: int, named: str) -> None:
    steps, asked = CONVERSATIONS[named]
    ours = await conversation(broker.nats_url, steps, **asked)
    assert ours == await conversation(f"nats://127.0.0.1:{peer}", steps, **asked)


async def test_streams_that_do_not_allow_it_refuse(broker: Broker, peer: int) -> None:
    answers = []
    for url in (broker.nats_url, f"nats://127.0.0.1:{peer}"):
        client = await nats.connect(url, connect_timeout=WAIT_S)
        await client.jetstream().add_stream(name="plain", subjects=["plain"])
        writer = Writer(client, "plain")
        await writer.begin()
        await writer.send(1, START)
        answers.append(await writer.heard())
        await client.close()
    assert answers[0] == answers[1] and answers[0]["error"]["err_code"] == 10205


async def test_thousands_at_the_pace_that_the_broker_sets(broker: Broker) -> None:
    """A publisher that keeps to the flow has everything stored in order, with few acks."""
    client = await nats.connect(broker.nats_url, connect_timeout=WAIT_S)
    create = {"name": "many", "subjects": ["many"], "allow_batched": True}
    await client.request(f"{A}STREAM.CREATE.many", json.dumps(create).encode())
    writer = Writer(client, "many", flow=400)
    await writer.begin()
    await writer.send(1, START)
    pace, acked, acks, count = (await writer.heard())["msgs"], 0, 0, 5_000
    for sequence in range(2, count + 1):
        while sequence > acked + 2 * pace:
            said = await writer.heard()
            assert said["type"] == "ack" and said["seq"] > acked
            pace, acked, acks = said["msgs"], said["seq"], acks + 1
        await writer.send(sequence, COMMIT if sequence == count else APPEND)
    while "batch" not in (said := await writer.heard()):
        acks += 1
    assert said == {"stream": "many", "seq": count, "batch": "the batch", "count": count}
    assert acks < count / 100
    assert (await client.jetstream().get_msg("many", 4_321)).data == b"m4321"
    await client.close()
