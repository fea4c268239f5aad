"""The same JetStream requests to nats-server and to us: the same answers, but for times and versions."""

from __future__ import annotations

from typing import Any

from mainstem.testing import Broker
from tests.protocol.nats.beside import differing
from tests.protocol.nats.raw import Raw

A = "$JS.API."
STREAM = {"name": "s1", "subjects": ["a.>"]}
CONSUMER: dict[str, Any] = {"durable_name": "c1", "ack_policy": "explicit"}

REQUESTS: list[tuple[str, Any, dict[str, str]]] = [
    (f"{A}INFO", b"", {}),
    (f"{A}STREAM.NAMES", b"", {}),
    (f"{A}STREAM.LIST", {"offset": 9}, {}),
    (f"{A}STREAM.CREATE.s1", STREAM, {}),
    (f"{A}STREAM.CREATE.s1", STREAM, {}),
    (f"{A}STREAM.CREATE.s1", {**STREAM, "subjects": ["a.>", "b"]}, {}),
    (f"{A}STREAM.CREATE.s2", {"name": "s2", "subjects": ["a.b"]}, {}),
    (f"{A}STREAM.CREATE.s2", {"name": "s3"}, {}),
    (f"{A}STREAM.CREATE.s2", {"name": "s2", "foo": 1}, {}),
    (f"{A}STREAM.CREATE.s2", b"", {}),
    (f"{A}STREAM.CREATE.s2", {"name": "s2", "subjects": ["x"], "num_replicas": 3}, {}),
    (f"{A}STREAM.CREATE.s2", {"name": "s2", "subjects": ["x"], "max_age": 1}, {}),
    (f"{A}STREAM.CREATE.s2", {"name": "s2", "subjects": ["x"], "duplicate_window": 1}, {}),
    (f"{A}STREAM.CREATE.s2", {"name": "s2", "subjects": ["x"], "deny_purge": True, "allow_rollup_hdrs": True}, {}),
    (f"{A}STREAM.CREATE.s2", {"name": "s2", "subjects": ["x"], "discard_new_per_subject": True}, {}),
    (f"{A}STREAM.UPDATE.none", {"name": "none", "subjects": ["x"]}, {}),
    (f"{A}STREAM.INFO.none", b"", {}),
    ("a.b", b"hi", {}),
    ("a.c", b"hi", {"Nats-Msg-Id": "1"}),
    ("a.c", b"hi", {"Nats-Msg-Id": "1"}),
    ("a.c", b"x", {"Nats-Expected-Last-Sequence": "7"}),
    ("a.c", b"x", {"Nats-Expected-Last-Subject-Sequence": "7"}),
    ("a.new", b"x", {"Nats-Expected-Last-Subject-Sequence": "0"}),
    ("a.c", b"x", {"Nats-Expected-Stream": "other"}),
    ("a.c", b"x", {"Nats-Expected-Last-Msg-Id": "7"}),
    ("a.c", b"x", {"Nats-Rollup": "sub"}),
    ("a.c", b"x", {"Nats-TTL": "5"}),
    (f"{A}STREAM.INFO.s1", {"subjects_filter": ">", "deleted_details": True}, {}),
    (f"{A}STREAM.NAMES", {"subject": "a.*"}, {}),
    (f"{A}STREAM.NAMES", {"subject": "z"}, {}),
    (f"{A}STREAM.MSG.GET.s1", {"seq": 1}, {}),
    (f"{A}STREAM.MSG.GET.s1", {"seq": 9}, {}),
    (f"{A}STREAM.MSG.GET.s1", {"last_by_subj": "a.c"}, {}),
    (f"{A}STREAM.MSG.GET.s1", {"seq": 2, "next_by_subj": "a.*"}, {}),
    (f"{A}STREAM.MSG.GET.s1", {}, {}),
    (f"{A}STREAM.MSG.DELETE.s1", {"seq": 9}, {}),
    (f"{A}DIRECT.GET.s1", {"seq": 1}, {}),
    (f"{A}STREAM.UPDATE.s1", {**STREAM, "allow_direct": True, "max_msgs_per_subject": 5}, {}),
    (f"{A}STREAM.UPDATE.s1", {**STREAM, "storage": "memory"}, {}),
    (f"{A}DIRECT.GET.s1", {"seq": 1}, {}),
    (f"{A}DIRECT.GET.s1", {"seq": 99}, {}),
    (f"{A}DIRECT.GET.s1.a.c", b"", {}),
    (f"{A}DIRECT.GET.s1", {}, {}),
    (f"{A}CONSUMER.CREATE.s1.c1", {"stream_name": "s1", "config": CONSUMER}, {}),
    (f"{A}CONSUMER.CREATE.s1.c1", {"stream_name": "s1", "config": {**CONSUMER, "ack_policy": "all"}}, {}),
    (
        f"{A}CONSUMER.CREATE.s1.c1",
        {"stream_name": "s1", "config": {**CONSUMER, "max_deliver": 4}, "action": "create"},
        {},
    ),
    (f"{A}CONSUMER.CREATE.s1.c1", {"stream_name": "s1", "config": {**CONSUMER, "max_deliver": 4}}, {}),
    (f"{A}CONSUMER.CREATE.s1.c9", {"stream_name": "s1", "config": {"durable_name": "c9"}, "action": "update"}, {}),
    (f"{A}CONSUMER.CREATE.s1.c2", {"stream_name": "s1", "config": CONSUMER}, {}),
    (f"{A}CONSUMER.CREATE.s1.c5", {"stream_name": "s1", "config": {"durable_name": "c5", "flow_control": True}}, {}),
    (
        f"{A}CONSUMER.DURABLE.CREATE.s1.c4",
        {"stream_name": "s1", "config": {"durable_name": "c4", "deliver_policy": "by_start_sequence"}},
        {},
    ),
    (
        f"{A}CONSUMER.DURABLE.CREATE.s1.c4",
        {"stream_name": "s1", "config": {"durable_name": "c4", "deliver_subject": "d.*"}},
        {},
    ),
    (f"{A}CONSUMER.INFO.s1.none", b"", {}),
    (f"{A}CONSUMER.INFO.none.none", b"", {}),
    (f"{A}CONSUMER.MSG.NEXT.s1.none", {"batch": 1, "expires": 100_000_000}, {}),
    (f"{A}CONSUMER.MSG.NEXT.s1.c1", {"batch": 1, "expires": 100_000_000, "idle_heartbeat": 90_000_000}, {}),
    (f"{A}CONSUMER.NAMES.s1", b"", {}),
    (f"{A}CONSUMER.INFO.s1.c1", b"", {}),
    (f"{A}CONSUMER.DELETE.s1.c1", b"x", {}),
    (f"{A}CONSUMER.DELETE.s1.c1", b"", {}),
    (f"{A}CONSUMER.DELETE.s1.c1", b"", {}),
    (f"{A}STREAM.MSG.DELETE.s1", {"seq": 2}, {}),
    (f"{A}STREAM.INFO.s1", {"deleted_details": True}, {}),
    (f"{A}STREAM.PURGE.s1", {"filter": "a.b"}, {}),
    (f"{A}STREAM.INFO.s1", b"", {}),
    (f"{A}STREAM.PURGE.s1", b"", {}),
    (f"{A}STREAM.PURGE.s1", {"seq": 1, "keep": 2}, {}),
    (f"{A}STREAM.INFO.s1", b"", {}),
    (f"{A}STREAM.DELETE.s1", b"", {}),
    (f"{A}STREAM.DELETE.s1", b"", {}),
]


SILENT = (
    *("INTEREST", "ACCOUNT.INFO", "INFO.x", "STREAM.NAMES.x", "STREAM.INFO", "STREAM.INFO.a.b", "STREAM.BOGUS.a"),
    *("STREAM.TEMPLATE.NAMES", "CONSUMER.CREATE", "CONSUMER.INFO.a", "CONSUMER.DURABLE.CREATE.a", "stream.names"),
    *("META.LEADER.STEPDOWN", "META.RESCUE", "SERVER.REMOVE", "SERVER.EVACUATE", "ACCOUNT.PURGE.a"),
)


def test_calls_that_are_none_are_passed_over_alike(broker: Broker, peer: int) -> None:
    """No answer, no 503, and the connection goes on."""
    for port in (broker.nats_port, peer):
        with Raw(port) as client:
            client.send(b"SUB _INBOX.x 1\r\n")
            for call in SILENT:
                client.send(f"PUB $JS.API.{call} _INBOX.x 2\r\n{{}}\r\n".encode())
            client.send(b"PUB $JS.API.STREAM.INFO.none _INBOX.x 0\r\n\r\n")
            while not (line := client.line()).startswith(b"MSG"):
                assert not line.startswith((b"HMSG", b"-ERR")), line
            assert b"10059" in client.line()  # the first that was answered


async def test_requests_are_answered_alike(broker: Broker, peer: int) -> None:
    assert not await differing(REQUESTS, broker.nats_url, f"nats://127.0.0.1:{peer}")
