"""Direct gets: one message, batches, the last of many subjects, and requests that are none: answered as by nats-server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import nats
import pytest

from mainstem.testing import Broker

WAIT_S = 10
PAST, FUTURE = "2001-01-01T00:00:00Z", "2101-01-01T00:00:00Z"
ASKED: list[Any] = [
    *[{"seq": one} for one in (1, 5, 0, 99, -1, "x")],
    *[{"last_by_subj": one} for one in ("d.1", "d.*", "none", "a..b", 5)],
    *[{"seq": one, "next_by_subj": "d.2"} for one in (0, 1, 4, 99)],
    {"next_by_subj": "d.>"},
    *[{"batch": one} for one in (1, 3, 100, -1, "x")],
    *[{"batch": 3, "seq": one} for one in (1, 4, 7, 99)],
    *[{"batch": 3, "next_by_subj": one} for one in ("d.1", "none.>", "a..b")],
    *[{"batch": 3, "start_time": one} for one in (PAST, FUTURE, "x")],
    {"batch": 9, "max_bytes": 8},
    {"max_bytes": 1},
    {"seq": 1, "start_time": PAST},
    {"start_time": PAST},
    *[{"multi_last": one} for one in (["d.1", "d.2"], ["d.>"], [">"], ["none"], ["a..b"], [""], "x")],
    *[{"multi_last": ["d.>"], "up_to_seq": one} for one in (1, 4, 6, 7, 8, 99)],
    *[{"multi_last": ["d.>"], "up_to_time": one} for one in (PAST, FUTURE, "x")],
    *[{"multi_last": ["d.>"], "batch": one} for one in (1, 2, 9)],
    *[{"multi_last": ["d.>"], "seq": one} for one in (3, 6, 99)],
    *[{**one, "no_hdr": True} for one in ({"seq": 2}, {"last_by_subj": "d.1"})],
    {"multi_last": ["d.>"], "up_to_seq": 3, "up_to_time": PAST},
    {},
    {"foo": 1},
    [],
    "x",
]


async def told(url: str, storage: str) -> list[Any]:
    """Each request's answers, to the last that came before that of a request behind it."""
    client = await nats.connect(url, connect_timeout=WAIT_S)
    js = client.jetstream(timeout=WAIT_S)
    await js.add_stream(name="d", subjects=["d.*"], allow_direct=True, storage=storage)
    for n in range(7):
        await js.publish(f"d.{n % 3}", b"m%d" % n, headers={"N": str(n)} if n % 2 else None)
    found: list[Any] = []
    for number, asked in enumerate(ASKED):
        inbox = f"_INBOX.of.{number}"
        heard = await client.subscribe(inbox)
        await client.publish("$JS.API.DIRECT.GET.d", json.dumps(asked).encode(), reply=inbox)
        await client.flush()
        await asyncio.sleep(0.02)  # nats-server answers batches beside the connection
        await client.request("$JS.API.DIRECT.GET.d", b'{"seq":1}', timeout=WAIT_S)
        answers = []
        while heard.pending_msgs:
            message = await heard.next_msg(WAIT_S)
            headers = {key: value for key, value in (message.headers or {}).items() if key != "Nats-Time-Stamp"}
            answers.append((headers, message.data))
        await heard.unsubscribe()
        found.append(answers)
    await js.delete_stream("d")
    await client.close()
    return found


@pytest.mark.parametrize("storage", ["file", "memory"])
async def test_direct_gets_are_answered_alike(broker: Broker, peer: int, storage: str) -> None:
    ours, theirs = await told(broker.nats_url, storage), await told(f"nats://127.0.0.1:{peer}", storage)
    assert not [(asked, a, b) for asked, a, b in zip(ASKED, ours, theirs, strict=True) if a != b]


async def test_a_long_batch_comes_whole_while_others_are_served(broker: Broker) -> None:
    client, other = await nats.connect(broker.nats_url), await nats.connect(broker.nats_url)
    js = client.jetstream(timeout=WAIT_S)
    await js.add_stream(name="long", subjects=["long"], allow_direct=True)
    count = 3_000
    await asyncio.gather(*(js.publish("long", b"%d" % n) for n in range(count)))
    heard = await client.subscribe("_INBOX.long")
    await client.publish("$JS.API.DIRECT.GET.long", b'{"seq":1,"batch":100000}', reply="_INBOX.long")
    await other.request("$JS.API.DIRECT.GET.long", b'{"seq":1}', timeout=WAIT_S)
    found = [await heard.next_msg(WAIT_S) for _ in range(count + 1)]
    assert sorted(int(one.data) for one in found[:-1]) == list(range(count))
    assert found[-1].headers["Status"] == "204" and found[-1].headers["Nats-Num-Pending"] == "0"
    await client.close()
    await other.close()
