"""Publishes that are read where they lie, cut at each byte."""

from __future__ import annotations

import uuid

from mainstem.testing import Broker
from tests.oracles.nats_wire import message
from tests.protocol.nats.raw import Raw

HEADERS = b"NATS/1.0\r\nA: b\r\nA: c\r\n\r\n"


def published(subject: bytes) -> bytes:
    headed = b"HPUB %b %d %d\r\n%b" % (subject, len(HEADERS), len(HEADERS) + 3, HEADERS)
    return (
        b"PUB %b 5\r\nhello\r\n" % subject
        + b"pub\t%b  reply.to 0 \n\r\n" % subject
        + headed
        + b"two\r\n"
        + b"PUB %b 4\r\n\r\nPU\r\n" % subject
    )


def delivered(subject: bytes) -> bytes:
    return (
        message(subject, b"7", b"", b"", b"hello")
        + message(subject, b"7", b"reply.to", b"", b"")
        + message(subject, b"7", b"", HEADERS, b"two")
        + message(subject, b"7", b"", b"", b"\r\nPU")
    )


def test_a_publish_is_the_same_wherever_it_is_cut(broker: Broker) -> None:
    subject = b"cut.%b" % uuid.uuid4().hex.encode()
    data, wanted = published(subject), delivered(subject) + b"PONG\r\n"
    with Raw(broker.nats_port) as listener, Raw(broker.nats_port) as publisher, Raw(broker.nats_port) as witness:
        listener.send(b"SUB %b 7\r\n" % subject)
        assert listener.synced() == []
        for cut in range(len(data)):
            publisher.send(data[:cut])
            witness.synced()  # its PING came later and was answered: the first part was read alone
            publisher.send(data[cut:])
            assert publisher.synced() == []
            listener.send(b"PING\r\n")
            assert listener.exactly(len(wanted)) == wanted, f"cut behind byte {cut}"
