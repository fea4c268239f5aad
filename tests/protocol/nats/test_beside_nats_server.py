"""The same bytes to nats-server and to us: the same answers, or the same silence and end."""

from __future__ import annotations

import re

import pytest

from mainstem.testing import Broker
from tests.protocol.nats.raw import Raw

STAYS_OPEN = {
    "a message and its subscriber": b"SUB a.b 1\r\nPUB a.b 2\r\nhi\r\n",
    "lower case, tabs and a bare line feed": b"sub\ta.b \t1\npub a.b 2\r\nhi\r\n",
    "headers and a reply": b"SUB a.b 1\r\nHPUB a.b r.s 22 24\r\nNATS/1.0\r\nX: yes\r\n\r\n\r\nhi\r\n",
    "headers with a wrong version line": b"SUB a.b 1\r\nHPUB a.b 10 12\r\nNATS/2.0\r\nhi\r\n",
    "two subscriptions, two copies": b"SUB a.b 1\r\nSUB a.* 2\r\nSUB > 3\r\nPUB a.b 0\r\n\r\n",
    "a number of a subscription that is in use": b"SUB a 1\r\nSUB b 1\r\nPUB b 1\r\nx\r\nPUB a 1\r\ny\r\n",
    "a maximum counts from the subscription": b"SUB a 1\r\nPUB a 1\r\n1\r\nUNSUB 1 2\r\nPUB a 1\r\n2\r\nPUB a 1\r\n3\r\n",
    "a maximum that was reached": b"SUB a 1\r\nPUB a 1\r\n1\r\nPING\r\nUNSUB 1 1\r\nPUB a 1\r\n2\r\n",
    "an unknown subscription ends": b"UNSUB 77\r\n",
    "more than one token": b"SUB a.> 1\r\nPUB a 0\r\n\r\nPUB a.b 0\r\n\r\nPUB a.b.c 0\r\n\r\n",
    "an invalid subscription": b"SUB a..b 1\r\nSUB >.a 2\r\nSUB a.b. 3\r\n",
    "an invalid subject is nobody's": b"SUB > 1\r\nPUB a..b 0\r\n\r\nPUB a. 0\r\n\r\n",
    "a wildcard leads to inboxes": b"SUB > 1\r\nSUB *.x 2\r\nPUB _INBOX.x 0\r\n\r\n",
    "nobody responds": b"SUB _INBOX.me 9\r\nPUB no.body _INBOX.me 2\r\nhi\r\n",
    "nobody responds to an inbox": b"SUB _INBOX.me 9\r\nPUB _INBOX.other _INBOX.me 2\r\nhi\r\n",
    "published before it subscribed": b"PUB pre.x 1\r\nx\r\nSUB pre.x 1\r\nPUB pre.x 1\r\ny\r\n",
    "published before it unsubscribed": b"SUB pre.y 1\r\nPUB pre.y 1\r\nx\r\nUNSUB 1\r\nPUB pre.y 1\r\ny\r\n",
    "a queue group of one": b"SUB a q 1\r\nPUB a 1\r\nx\r\n",
}
CLOSES = {
    "an unknown operation": b"HELLO\r\n",
    "a blank line": b"\r\n",
    "a payload longer than it says": b"PUB a 1\r\nxy\r\n",
    "a size that is none": b"PUB a x\r\n",
    "headers longer than all": b"HPUB a 9 4\r\nabcd\r\n",
    "an endless line": b"SUB " + b"a" * 5000,
    "a CONNECT that is not JSON": b"CONNECT {nonsense\r\n",
    "a protocol of the future": b'CONNECT {"protocol":7}\r\n',
    "no responders without headers": b'CONNECT {"no_responders":true}\r\n',
}


@pytest.mark.parametrize("what", STAYS_OPEN)
def test_answers_alike(broker: Broker, peer: int, what: str) -> None:
    answers = []
    for port in (broker.nats_port, peer):
        with Raw(port) as one:
            one.synced()
            one.send(STAYS_OPEN[what])
            first = one.synced()
            answers.append([*first, *one.synced()])
    assert sorted(answers[0]) == sorted(answers[1])


@pytest.mark.parametrize("what", CLOSES)
def test_closes_alike(broker: Broker, peer: int, what: str) -> None:
    said = []
    for port in (broker.nats_port, peer):
        with Raw(port, connect=not CLOSES[what].startswith(b"CONNECT")) as one:
            one.synced()
            one.send(CLOSES[what])
            said.append(re.sub(rb"INFO [^\r]*\r\n", b"", one.rest()))
    assert said[0] == said[1]


def test_verbose_clients_are_answered_alike(broker: Broker, peer: int) -> None:
    answers = []
    for port in (broker.nats_port, peer):
        with Raw(port, verbose=True) as one:
            one.send(b"SUB v 1\r\nPUB v 1\r\nx\r\nUNSUB 1\r\n")
            answers.append(sorted([*one.synced(), *one.synced()]))
    assert answers[0] == answers[1]


def test_commands_may_be_cut_anywhere(broker: Broker) -> None:
    said = b"SUB cut.x 1\r\nHPUB cut.x r 22 24\r\nNATS/1.0\r\nX: yes\r\n\r\n\r\nhi\r\nPUB cut.x 0\r\n\r\n"
    with Raw(broker.nats_port) as one:
        one.synced()
        for byte in said:
            one.send(bytes([byte]))
        got = [*one.synced(), *one.synced()]
    assert b"HMSG cut.x 1 r 22 24" in got
    assert b"MSG cut.x 1 0" in got
