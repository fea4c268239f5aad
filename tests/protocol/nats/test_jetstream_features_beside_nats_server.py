"""Mirrors, sources, transforms, batches, counters, schedules, priorities: asked of nats-server and of us, answered alike."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import nats

from mainstem.testing import Broker
from tests.protocol.nats.beside import WAIT_S, A, Request, differing

PAST, FUTURE = "2001-01-01T00:00:00Z", "2101-01-01T00:00:00Z"


def create(name: str, **config: Any) -> Request:
    return f"{A}STREAM.CREATE.{name}", {"name": name, **config}, {}


def update(name: str, **config: Any) -> Request:
    return f"{A}STREAM.UPDATE.{name}", {"name": name, **config}, {}


def consumer(stream: str, name: str, **config: Any) -> Request:
    return (
        f"{A}CONSUMER.CREATE.{stream}.{name}",
        {"stream_name": stream, "config": {"durable_name": name, **config}},
        {},
    )


def get(stream: str, seq: int) -> Request:
    return f"{A}STREAM.MSG.GET.{stream}", {"seq": seq}, {}


REFUSED: list[Request] = [
    (f"{A}STREAM.LEADER.STEPDOWN.m", b"", {}),
    (f"{A}STREAM.PEER.REMOVE.m", {"peer": "p"}, {}),
    (f"{A}STREAM.PEER.EVACUATE.m", {"peer": "p"}, {}),
    (f"{A}STREAM.CANCEL_MOVE.m", b"", {}),
    (f"{A}CONSUMER.LEADER.STEPDOWN.m.c", b"", {}),
    (f"{A}STREAM.SNAPSHOT.m", {"deliver_subject": "to"}, {}),
    create("m", subjects=["x"], mirror={"name": "o"}),
    create("m", mirror={"name": "o"}, sources=[{"name": "o"}]),
    create("m", mirror={"name": "o"}, first_seq=5),
    create("m", mirror={"name": "o"}, allow_atomic=True),
    create("m", mirror={"name": "o"}, allow_msg_counter=True),
    create("m", mirror={"name": "o"}, allow_msg_schedules=True),
    create("m", mirror={"name": "a.b"}),
    create("m", mirror={"name": "o"}, subject_delete_marker_ttl=1_000_000_000),
    create("m", mirror={"name": "m"}),
    create("m", sources=[{"name": "o"}, {"name": "o"}]),
    create("m", sources=[{"name": "a b"}]),
    create("m", sources=[{"name": "m"}]),
    create("m", sources=[{"name": "o", "filter_subject": "a", "subject_transforms": [{"src": "a", "dest": "b"}]}]),
    create("m", sources=[{"name": "o", "subject_transforms": [{"src": "a.*", "dest": "b.{{wildcard(2)}}"}]}]),
    create("m", sources=[{"name": "o", "subject_transforms": [{"src": "a..", "dest": "b"}]}]),
    create("m", sources=[{"name": "o"}], allow_msg_schedules=True),
    create("m", subjects=["m"], subject_transform={"src": "m", "dest": "b.>"}),
    create("m", subjects=["m.*"], subject_transform={"src": "m.*", "dest": "b.{{nothing(1)}}"}),
    create("m", subjects=["m.*"], subject_transform={"src": "m.*", "dest": "b.{{split(1)}}"}),
    create("m", subjects=["m.*"], subject_transform={"src": "m.*", "dest": "b.{{left(1,2,3)}}"}),
    create("m", subjects=["m.*"], subject_transform={"src": "m.*", "dest": "b.{{left(1,x)}}"}),
    create("m", subjects=["m.>"], republish={"src": "m.>", "dest": "m.x.>"}),
    create("m", subjects=["m.>"], republish={"src": "m.>", "dest": "y"}),
    create("m", subjects=["m"], subject_delete_marker_ttl=5),
    create("m", subjects=["m"], subject_delete_marker_ttl=-5),
    create("m", subjects=["m"], allow_msg_counter=True, discard="new"),
    create("m", subjects=["m"], allow_msg_counter=True, allow_msg_ttl=True),
    create("m", subjects=["m"], allow_msg_counter=True, allow_msg_schedules=True),
    create("m", subjects=["m"], allow_msg_counter=True, retention="workqueue"),
    create("m", subjects=["m"], allow_msg_schedules=True, discard="new"),
    create("m", subjects=["m"], persist_mode="async", storage="memory"),
    create("m", subjects=["m"], persist_mode="async", allow_atomic=True),
    create("m", subjects=["m"], mirror_direct=True),
    create("m", subjects=["m"], max_age=-1),
    create("m", subjects=["a.*", "a.b"]),
    create("m", subjects=["a", "a"]),
    create("m", subjects=[">"]),
    create("m", subjects=["$JS.API.>"]),
    create("m", subjects=["$SYS.>"]),
]

ORIGIN: list[Request] = [
    create("o", subjects=["o.>"], allow_direct=True),
    create("mir", mirror={"name": "o"}),
    create("src", sources=[{"name": "o", "filter_subject": "o.1"}], subjects=["own"]),
    create("map", sources=[{"name": "o", "subject_transforms": [{"src": "o.*", "dest": "p.{{wildcard(1)}}.q"}]}]),
    *[(f"o.{n % 2}", b"x", {"A": "b"}) for n in range(4)],
]
COPIED = {"mir": 4, "src": 2, "map": 4}
COPIES: list[Request] = [
    *[(f"{A}STREAM.INFO.{name}", {"subjects_filter": ">"}, {}) for name in COPIED],
    *[(f"{A}STREAM.MSG.GET.{name}", {"seq": 2}, {}) for name in COPIED],
    (f"{A}STREAM.MSG.GET.map", {"last_by_subj": "p.1.*"}, {}),
    (f"{A}STREAM.MSG.GET.map", {"last_by_subj": "o.1"}, {}),
    ("own", b"x", {}),
    consumer("map", "c", filter_subject="p.1.>"),
    update("mir", mirror={"name": "src"}),
    (f"{A}STREAM.MSG.GET.mir", {"seq": 3}, {}),
    (f"{A}DIRECT.GET.mir.o.1", b"", {}),
    consumer("mir", "c", ack_policy="explicit"),
    consumer("mir", "d", ack_policy="explicit", filter_subject="o.1"),
    (f"{A}STREAM.PURGE.src", {"filter": "o.*"}, {}),
    (f"{A}STREAM.INFO.src", {"subjects_filter": ">"}, {}),
]

TRANSFORMS: list[Request] = [
    create(
        "t", subjects=["t.*.*"], subject_transform={"src": "t.*.*", "dest": "to.{{wildcard(2)}}.{{partition(5,1)}}"}
    ),
    ("t.a.b", b"1", {}),
    ("t.c.d", b"2", {"Nats-Expected-Last-Subject-Sequence": "0"}),
    ("t.a.b", b"3", {"Nats-Expected-Last-Subject-Sequence": "1"}),
    ("t.a.b", b"3", {"Nats-Expected-Last-Subject-Sequence": "1"}),
    get("t", 1),
    get("t", 2),
    (f"{A}STREAM.MSG.GET.t", {"last_by_subj": "to.b.*"}, {}),
    (f"{A}STREAM.INFO.t", {"subjects_filter": "to.>"}, {}),
    consumer("t", "c", filter_subject="to.b.>"),
    (f"{A}STREAM.PURGE.t", {"filter": "to.b.*"}, {}),
    (f"{A}STREAM.INFO.t", {"subjects_filter": ">"}, {}),
]

COUNTERS: list[Request] = [
    create("n", subjects=["n.>"], allow_msg_counter=True, allow_direct=True),
    ("n.a", b"", {"Nats-Incr": "5"}),
    ("n.a", b"", {"Nats-Incr": "+7"}),
    ("n.a", b"", {"Nats-Incr": "-20"}),
    ("n.b", b"", {"Nats-Incr": "123456789012345678901234567890"}),
    ("n.b", b"", {"Nats-Incr": "1"}),
    ("n.a", b"x", {"Nats-Incr": "1"}),
    ("n.a", b"", {"Nats-Incr": "x"}),
    ("n.a", b"", {}),
    ("n.a", b"", {"Nats-Incr": "1", "Nats-Expected-Last-Sequence": "1"}),
    get("n", 3),
    update("n", subjects=["n.>"]),
    create("p", subjects=["p"]),
    ("p", b"", {"Nats-Incr": "1"}),
    ("p", b"", {"Nats-Batch-Id": "a", "Nats-Batch-Sequence": "1"}),
    ("p", b"", {"Nats-Schedule": "@hourly", "Nats-Schedule-Target": "p.x"}),
    ("p", b"", {"Nats-Stream-Source": "x"}),
    ("p", b"", {"Nats-Expected-Last-Subject-Sequence-Subject": "x"}),
]


def in_batch(subject: str, name: str, seq: int, commit: str = "", **headers: str) -> Request:
    lines = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(seq), **headers}
    return subject, b"x", {**lines, "Nats-Batch-Commit": commit} if commit else lines


BATCHES: list[Request] = [
    create("b", subjects=["b.>"], allow_atomic=True, allow_msg_ttl=True),
    in_batch("b.1", "x", 1),
    in_batch("b.2", "x", 2),
    in_batch("b.3", "x", 3, "1"),
    in_batch("b.1", "y", 1),
    in_batch("b.1", "y", 2, "eob"),
    in_batch("b.1", "z", 1, "1"),
    in_batch("b.1", "w", 2),
    in_batch("b.1", "w", 1),
    in_batch("b.1", "w", 3),
    in_batch("b.1", "w", 4),
    in_batch("b.1", "v", 1, "no"),
    in_batch("b.1", "v" * 65, 1),
    in_batch("b.1", "u", 1, "eob"),
    ("b.1", b"", {"Nats-Batch-Id": "t"}),
    in_batch("b.1", "s", 2000),
    in_batch("b.9", "r", 1, **{"Nats-Expected-Last-Subject-Sequence": "3"}),
    in_batch("b.9", "r", 2, "1"),
    in_batch("b.9", "q", 1, **{"Nats-Expected-Last-Msg-Id": "3"}),
    in_batch("b.9", "q", 2, "1"),
    in_batch("b.9", "d", 1, **{"Nats-Msg-Id": "3"}),
    in_batch("b.9", "d", 2, "1", **{"Nats-Msg-Id": "3"}),
    (f"{A}STREAM.INFO.b", {"subjects_filter": ">"}, {}),
]


def schedule(pattern: str, target: str = "s.to", **more: str) -> Request:
    return "s.when", b"x", {"Nats-Schedule": pattern, "Nats-Schedule-Target": target, **more}


SCHEDULES: list[Request] = [
    create("s", subjects=["s.>"], allow_msg_schedules=True),
    schedule(f"@at {FUTURE}"),
    schedule("@every 1h"),
    schedule("@every 10ms"),
    schedule("@daily"),
    schedule("0 30 * * * mon-fri", **{"Nats-Schedule-Time-Zone": "Europe/Berlin"}),
    schedule("0 30 * * * mon-fri", **{"Nats-Schedule-Time-Zone": "Nowhere/City"}),
    schedule("@every 1h", **{"Nats-Schedule-Time-Zone": "Europe/Berlin"}),
    schedule("0 61 * * * *"),
    schedule("0 1 * * *"),
    schedule("sometimes"),
    schedule("@daily", "s.when"),
    schedule("@daily", "elsewhere"),
    schedule("@daily", "s.*"),
    schedule("@daily", **{"Nats-Schedule-TTL": "1h"}),
    schedule("@daily", **{"Nats-Schedule-TTL": "x"}),
    schedule("@daily", **{"Nats-Schedule-Source": "s.to"}),
    schedule("@daily", **{"Nats-Rollup": "all"}),
    schedule("@daily", **{"Nats-Schedule-Rollup": "all"}),
    ("s.x", b"", {"Nats-Scheduler": "s.when"}),
    ("s.x", b"", {"Nats-Schedule-Next": "now", "Nats-Scheduler": "s.when"}),
    (f"{A}STREAM.INFO.s", {"subjects_filter": ">"}, {}),
    ("s.x", b"", {"Nats-Schedule-Next": "purge", "Nats-Scheduler": "s.when"}),
    (f"{A}STREAM.INFO.s", {"subjects_filter": ">"}, {}),
    update("s", subjects=["s.>"]),
]

CONSUMERS: list[Request] = [
    create("c", subjects=["c"]),
    consumer("c", "a", priority_groups=["x"]),
    consumer("c", "a", priority_policy="overflow"),
    consumer("c", "a", priority_policy="overflow", priority_groups=[""]),
    consumer("c", "a", priority_policy="overflow", priority_groups=["not good!"]),
    consumer("c", "a", priority_policy="overflow", priority_groups=["x"], deliver_subject="d"),
    consumer("c", "a", priority_timeout=5),
    consumer("c", "a", rate_limit_bps=5),
    consumer("c", "a", sample_freq="lots"),
    consumer("c", "o", priority_policy="overflow", priority_groups=["x"], ack_policy="explicit"),
    consumer("c", "p", priority_policy="pinned_client", priority_groups=["x"], ack_policy="explicit"),
    consumer("c", "r", priority_policy="prioritized", priority_groups=["x"], ack_policy="explicit"),
    consumer("c", "s", deliver_subject="d", rate_limit_bps=100, sample_freq="30%", ack_policy="explicit"),
    *[
        (f"{A}CONSUMER.MSG.NEXT.c.{name}", {"batch": 1, "no_wait": True, **more}, {})
        for name in ("o", "p", "r")
        for more in (
            {},
            {"group": "x"},
            {"group": "y"},
            {"group": "x", "min_pending": 5},
            {"min_pending": 5},
            {"group": "x", "id": "nobody"},
            {"group": "x", "priority": 10},
        )
        if not (name == "p" and more.get("id"))  # the pull would wait on
    ],
    (f"{A}CONSUMER.UNPIN.c.p", {"group": "x"}, {}),
    (f"{A}CONSUMER.UNPIN.c.p", {"group": "y"}, {}),
    (f"{A}CONSUMER.UNPIN.c.p", {}, {}),
    (f"{A}CONSUMER.UNPIN.c.none", {"group": "x"}, {}),
    (f"{A}CONSUMER.PAUSE.c.none", {}, {}),
    (f"{A}CONSUMER.PAUSE.c.o", {"pause_until": PAST}, {}),
    (f"{A}CONSUMER.PAUSE.c.o", b"", {}),
    (f"{A}CONSUMER.INFO.c.o", b"", {}),
    *[("c", b"x", {}) for _ in range(3)],
    (f"{A}CONSUMER.RESET.c.o", {"seq": 3}, {}),
    (f"{A}CONSUMER.RESET.c.o", b"", {}),
    consumer("c", "n", deliver_policy="new"),
    (f"{A}CONSUMER.RESET.c.n", {"seq": 1}, {}),
    consumer("c", "q", deliver_policy="by_start_sequence", opt_start_seq=2),
    (f"{A}CONSUMER.RESET.c.q", {"seq": 1}, {}),
    (f"{A}CONSUMER.RESET.c.q", {"seq": 2}, {}),
]


async def settled(url: str) -> None:
    """Until all was copied."""
    client = await nats.connect(url, connect_timeout=WAIT_S)
    deadline = time.monotonic() + WAIT_S
    for name, count in COPIED.items():
        while (await client.jetstream().stream_info(name)).state.messages < count:
            assert time.monotonic() < deadline, f"{name} has not all of {count}"
            await asyncio.sleep(0.05)
    await client.close()


async def test_mirrors_and_sources_hold_the_same(broker: Broker, peer: int) -> None:
    ours, theirs = broker.nats_url, f"nats://127.0.0.1:{peer}"
    assert not await differing(ORIGIN, ours, theirs)
    await settled(ours)
    await settled(theirs)
    assert not await differing(COPIES, ours, theirs)


async def test_requests_are_answered_alike(broker: Broker, peer: int) -> None:
    requests = [*REFUSED, *TRANSFORMS, *COUNTERS, *BATCHES, *SCHEDULES, *CONSUMERS]
    assert not await differing(requests, broker.nats_url, f"nats://127.0.0.1:{peer}")
