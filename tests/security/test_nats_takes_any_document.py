"""JetStream's calls, headers and acks with values of every kind and size: an answer, never an error of the broker's own."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from mainstem.protocols.nats.jetstream import consumer_config, stream_config
from mainstem.testing import Broker
from tests.protocol.nats.raw import Raw

VALUES: list[Any] = [
    None,
    True,
    5,
    -1,
    1.5,
    1 << 62,
    1 << 64,
    10**400,
    "x",
    "",
    "a b",
    "a..b",
    "*.>",
    "2001-01-01T00:00:00Z",
]
VALUES += ["\ud800", [], [5], ["a..b"], [None], ["\udfff"], {}, {"x": 1}]
BYTES = [
    b"[",
    b"nope",
    b"5",
    b"null",
    b'"x"',
    b"\xff",
    b"[" * 50_000,
    b'{"seq":' + b"[" * 50_000,
    b'{"seq":NaN,"offset":1e999}',
]
CALLS = {
    "INFO": (),
    "STREAM.NAMES": ("offset", "subject"),
    "STREAM.LIST": ("offset", "subject"),
    "STREAM.INFO.s": ("offset", "subjects_filter", "deleted_details"),
    "STREAM.PURGE.s": ("filter", "seq", "keep"),
    "STREAM.MSG.GET.s": ("seq", "last_by_subj", "next_by_subj", "start_time", "batch", "multi_last"),
    "STREAM.MSG.DELETE.s": ("seq", "no_erase"),
    "STREAM.SNAPSHOT.s": ("deliver_subject",),
    "DIRECT.GET.s": (
        "seq",
        "last_by_subj",
        "next_by_subj",
        "start_time",
        "batch",
        "max_bytes",
        "multi_last",
        "up_to_seq",
    ),
    "CONSUMER.NAMES.s": ("offset",),
    "CONSUMER.LIST.s": ("offset",),
    "CONSUMER.PAUSE.s.c": ("pause_until",),
    "CONSUMER.UNPIN.s.c": ("group",),
    "CONSUMER.RESET.s.c": ("seq",),
    "CONSUMER.MSG.NEXT.s.c": ("batch", "expires", "no_wait", "max_bytes", "idle_heartbeat", "group", "priority", "id"),
}
SOURCE = ("name", "opt_start_seq", "opt_start_time", "filter_subject", "subject_transforms", "external", "consumer")
HEADERS = [
    *("TTL", "Msg-Id", "Rollup", "Incr", "Stream-Source", "Counter-Sources", "Required-Api-Level", "Marker-Reason"),
    *(f"Expected-{one}" for one in ("Stream", "Last-Sequence", "Last-Subject-Sequence", "Last-Msg-Id")),
    *(f"Batch-{one}" for one in ("Id", "Sequence", "Commit")),
    *("Schedule", *(f"Schedule-{one}" for one in ("Target", "TTL", "Source", "Time-Zone", "Rollup"))),
]
TEXTS = [
    b"",
    b"x",
    b"-1",
    b"1",
    b"9" * 40,
    b"1.5",
    b"\xff",
    b"a..b",
    b"*",
    b"@every 1ns",
    b"@at x",
    b"@at 9999-99-99T00:00:00Z",
]
TEXTS += [b"99 99 * * * *", b"\xd9\xa3", b"1_0", b"+5"]
ACKS = [
    b"-NAK x",
    b"-NAK {",
    b'-NAK {"delay":"x"}',
    b'-NAK {"delay":1e400}',
    b"-NAK 1e400s",
    b"-NAK []",
    b"+NXT {",
    b"+NXT -1",
]
ACKS += [b'+NXT {"batch":"x"}', b"+NXT 99999999999999", b"+TERM \xff", b"+WPI x", b"zz", b"+NXT " + b"[" * 50_000]
ACKS += [b'-NAK {"delay":' + b"[" * 50_000]
PLACES = ["c.1.1.1.1.0", "c.x.1.1.1.0", "c.1.99.1.1.0", "c.1.-1.1.1.0", f"c.1.{'9' * 30}.1.1.0", "none.1.1.1.1.0", "c"]
PLACES += [f"c.1.1.1.{'9' * 30}.0", f"c.{'9' * 30}.1.1.1.0", "c.1.1.1.1.0.9.9.9"]
SCHEDULED = {"allow_direct": True, "allow_msg_ttl": True, "allow_msg_schedules": True}


WAITING_MAX = 50


class Client(Raw):
    """One that has no more changes waiting than a namespace may."""

    waiting = 0

    def ask(self, subject: str, body: bytes) -> None:
        self.send(b"PUB %b _INBOX.x %d\r\n%b\r\n" % (subject.encode(), len(body), body))

    def call(self, call: str, body: Any) -> None:
        self.waiting += 1
        if self.waiting == WAITING_MAX:
            self.settled(call)
        self.ask(f"$JS.API.{call}", body if isinstance(body, bytes) else json.dumps(body).encode())

    def settled(self, where: object) -> None:
        """Everything sent so far is answered, and not with an error of the broker's own."""
        self.waiting = 0
        self.call("STREAM.UPDATE.end", {"name": "end"})  # in turn behind all changes
        lines = b""
        while b"10059" not in (line := self.line()) or b"stream_update" not in line:
            lines += line
        assert b"internal error" not in lines, where


@pytest.fixture
def client(caplog: pytest.LogCaptureFixture) -> Iterator[Client]:
    with caplog.at_level(logging.ERROR), Broker() as broker, Client(broker.nats_port) as one:
        one.send(b"SUB _INBOX.x 1\r\n")
        one.call("STREAM.CREATE.s", {"name": "s", "subjects": ["s.>"], **SCHEDULED})
        one.call("STREAM.CREATE.b", {"name": "b", "subjects": ["b.>"], "allow_atomic": True, "allow_batched": True})
        one.call("STREAM.CREATE.n", {"name": "n", "subjects": ["n.>"], "allow_msg_counter": True})
        one.call("CONSUMER.CREATE.s.c", {"stream_name": "s", "config": {"durable_name": "c", "ack_policy": "explicit"}})
        one.settled("at the start")
        one.ask("s.a", b"1")
        yield one
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def test_calls(client: Client) -> None:
    for call, fields in CALLS.items():
        for body in BYTES:
            client.call(call, body)
        for field in fields:
            for value in VALUES:
                client.call(call, {field: value})
        client.settled(call)


def test_configurations_of_streams(client: Client) -> None:
    for value in VALUES:
        for key in sorted(stream_config.KNOWN):
            client.call("STREAM.CREATE.z", {"name": "z", "subjects": ["z.>"], key: value})
            client.call("STREAM.UPDATE.s", {"name": "s", "subjects": ["s.>"], **SCHEDULED, "sealed": False, key: value})
            client.call("STREAM.DELETE.z", b"")
        for key in SOURCE:
            client.call("STREAM.CREATE.z", {"name": "z", "sources": [{"name": "s", key: value}]})
            client.call("STREAM.DELETE.z", b"")
            client.call("STREAM.CREATE.z", {"name": "z", "mirror": {"name": "s", key: value}})
            client.call("STREAM.DELETE.z", b"")
        for key in ("src", "dest", "headers_only"):
            for what in ("republish", "subject_transform"):
                client.call("STREAM.CREATE.z", {"name": "z", what: {"src": "z", "dest": "q", key: value}})
                client.call("STREAM.DELETE.z", b"")
        client.settled(value)


def test_configurations_of_consumers(client: Client) -> None:
    for value in VALUES:
        for key in sorted(consumer_config.KNOWN):
            for config in ({key: value}, {"deliver_subject": "to", key: value}):
                client.call("CONSUMER.CREATE.s.k", {"stream_name": "s", "config": config})
                client.call("CONSUMER.DELETE.s.k", b"")
        for key in ("stream_name", "config", "action", "pedantic"):
            client.call("CONSUMER.CREATE.s.k", {"stream_name": "s", "config": {}, key: value})
            client.call("CONSUMER.DELETE.s.k", b"")
        client.settled(value)


def test_headers_of_publishes(client: Client) -> None:
    for subject in (b"s.a", b"b.a", b"n.a", b"plain.a"):
        for name in HEADERS:
            for text in TEXTS:
                more = b"Nats-Schedule: @at 2101-01-01T00:00:00Z\r\n" if name.startswith("Schedule-") else b""
                more = b"Nats-Schedule-Target: s.t\r\n" if name == "Schedule" else more
                more = b"Nats-Batch-Id: q\r\n" if name in ("Batch-Sequence", "Batch-Commit") else more
                block = b"NATS/1.0\r\nNats-%b: %b\r\n%b\r\n" % (name.encode(), text, more)
                sizes = (len(block), len(block) + 1)
                client.send(b"HPUB %b _INBOX.x %d %d\r\n%bx\r\n" % (subject, *sizes, block))
        client.settled(subject)


def test_acks(client: Client) -> None:
    for body in ACKS:
        for place in PLACES:
            client.ask(f"$JS.ACK.s.{place}", body)
        client.settled(body[:20])


@pytest.mark.parametrize(
    "options",
    [
        b"[" * 3000,
        b'{"user":"\\ud800","pass":"\\ud800"}',
        b'{"user":5,"pass":[],"jwt":{}}',
        b'{"protocol":' + b"9" * 3000 + b"}",
        b'{"protocol":1.5}',
        b'{"echo":"x","lang":5,"name":[5],"nkey":5,"sig":5}',
    ],
)
def test_options_of_connect(client: Client, options: bytes) -> None:
    """Good or not, it is answered or closed, and the others go on."""
    other = Raw(client.socket.getpeername()[1], connect=False)
    other.send(b"CONNECT " + options + b"\r\nQUIT\r\n")
    other.rest()
    other.socket.close()
    client.settled(options[:20])
