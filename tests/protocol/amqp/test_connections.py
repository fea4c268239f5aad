"""Connections and channels: handshake, limits, and RabbitMQ's words for what went wrong. Frames are sent by hand."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from mainstem.protocols.amqp.methods import BY_NUMBER, encode
from mainstem.testing.broker import Broker
from tests.protocol.amqp.conftest import Connect, declared, eventually, parameters


class Raw:
    """A socket that speaks frames."""

    def __init__(self, broker: Broker) -> None:
        self.socket = socket.create_connection((broker.host, broker.amqp_port), timeout=10)
        self.buffer = b""

    def header(self) -> None:
        self.socket.sendall(b"AMQP\0\0\x09\x01")
        assert self.expect("connection.start")

    def login(self, response: bytes = b"\0guest\0guest", mechanism: str = "PLAIN", **properties: Any) -> None:
        self.header()
        self.send(
            0,
            "connection.start-ok",
            client_properties=properties,
            mechanism=mechanism,
            response=response,
            locale="en_US",
        )

    def open(self, **tuning: int) -> Raw:
        self.login()
        self.expect("connection.tune")
        self.send(0, "connection.tune-ok", **{"channel_max": 100, "frame_max": 4096, "heartbeat": 0, **tuning})
        self.send(0, "connection.open", virtual_host="/")
        self.expect("connection.open-ok")
        return self

    def channel(self, number: int = 1) -> Raw:
        self.send(number, "channel.open")
        self.expect("channel.open-ok")
        return self

    def send(self, channel: int, name: str, **values: Any) -> None:
        self.frame(1, channel, encode(name, **values))

    def frame(self, kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> None:
        self.socket.sendall(struct.pack(">BHI", kind, channel, len(payload)) + payload + end)

    def read(self) -> tuple[str, bytes]:
        head = self._exactly(7)
        kind, _, size = struct.unpack(">BHI", head)
        payload = self._exactly(size + 1)[:-1]
        if kind != 1:
            return f"frame {kind}", payload
        return BY_NUMBER[int.from_bytes(payload[:4], "big")].name, payload[4:]

    def expect(self, name: str) -> bytes:
        while True:
            got, payload = self.read()
            if got != "frame 8":
                assert got == name, (got, payload)
                return payload

    def closed(self, name: str) -> tuple[int, str, int, int]:
        """The code, text, class and method of a close."""
        payload = self.expect(name)
        size = payload[2]
        return (
            int.from_bytes(payload[:2], "big"),
            payload[3 : 3 + size].decode(),
            *struct.unpack(">HH", payload[3 + size :]),
        )

    def ended(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _exactly(self, size: int) -> bytes:
        while len(self.buffer) < size:
            piece = self.socket.recv(65536)
            if not piece:
                raise ConnectionError("closed")
            self.buffer += piece
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data


@pytest.fixture
def raw(broker: Broker) -> Iterator[Raw]:
    one = Raw(broker)
    yield one
    one.socket.close()


@pytest.mark.parametrize("header", [b"AMQP\0\1\0\0", b"AMQP\1\1\0\x0a", b"GET / HTTP/1.1\r\n", b"XXXXXXXX"])
def test_another_protocol_is_told_what_we_speak(raw: Raw, header: bytes) -> None:
    raw.socket.sendall(header)
    assert raw._exactly(8) == b"AMQP\0\0\x09\x01"
    assert raw.ended()


def test_the_header_may_come_byte_by_byte(raw: Raw) -> None:
    for byte in b"AMQP\0\0\x09\x01":
        raw.socket.sendall(bytes((byte,)))
    raw.expect("connection.start")


def test_server_properties_name_the_features_clients_look_for(connect: Connect) -> None:
    properties = connect()._impl.server_properties
    assert properties["product"] == "RabbitMQ"
    assert properties["capabilities"]["basic.nack"] is True
    assert set(properties["capabilities"]) >= {"publisher_confirms", "consumer_cancel_notify", "connection.blocked"}


def test_amqplain_logs_in_too(raw: Raw) -> None:
    table = b"\x05LOGINS\0\0\0\x05guest\x08PASSWORDS\0\0\0\x05guest"
    raw.login(table, "AMQPLAIN")
    raw.expect("connection.tune")


def test_external_is_refused(raw: Raw) -> None:
    raw.login(b"", "EXTERNAL")
    assert raw.closed("connection.close")[:2] == (
        503,
        "COMMAND_INVALID - unknown authentication mechanism 'EXTERNAL'",
    )


def test_an_unknown_vhost_is_not_allowed(raw: Raw) -> None:
    raw.login()
    raw.expect("connection.tune")
    raw.send(0, "connection.tune-ok", channel_max=0, frame_max=0, heartbeat=0)
    raw.send(0, "connection.open", virtual_host="nowhere")
    assert raw.closed("connection.close") == (530, "NOT_ALLOWED - vhost nowhere not found", 10, 40)


def test_frames_above_the_agreed_size_are_an_error(raw: Raw) -> None:
    raw.open(frame_max=4096).channel()
    raw.frame(1, 1, b"x" * 4089)
    assert raw.closed("connection.close")[0] == 501


def test_a_large_frame_before_tuning_is_an_error(raw: Raw) -> None:
    raw.header()
    raw.socket.sendall(struct.pack(">BHI", 1, 0, 100_000))
    assert raw.closed("connection.close")[0] == 501


def test_a_frame_must_end_as_it_should(raw: Raw) -> None:
    raw.open()
    raw.frame(1, 1, encode("channel.open"), end=b"\x00")
    code, text, _, _ = raw.closed("connection.close")
    assert (code, "FRAME_ERROR" in text) == (501, True)


def test_a_channel_opened_twice_is_an_error(raw: Raw) -> None:
    raw.open().channel()
    raw.send(1, "channel.open")
    assert raw.closed("connection.close") == (504, "CHANNEL_ERROR - second 'channel.open' seen", 20, 10)


def test_a_method_on_a_channel_that_is_not_open_is_an_error(raw: Raw) -> None:
    raw.open()
    raw.send(3, "queue.declare", queue="x")
    assert raw.closed("connection.close")[:2] == (504, "CHANNEL_ERROR - expected 'channel.open'")


def test_more_channels_than_agreed_are_refused(raw: Raw) -> None:
    raw.open(channel_max=2).channel(2)
    raw.send(3, "channel.open")
    assert raw.closed("connection.close")[0] == 530


PUBLISH = (1, 1, encode("basic.publish", exchange="", routing_key="q"), b"\xce")
EXPECTED_METHOD = "UNEXPECTED_FRAME - expected method frame, got non method frame instead"
EXPECTED_HEADER = "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead"


@pytest.mark.parametrize(
    ("frames", "answer"),
    [
        (
            [(1, 1, encode("channel.open"), b"\x00")],
            (501, "FRAME_ERROR - type 1, all octets = <<0,20,0,10,0>>: {invalid_frame_end_marker,0}", 0, 0),
        ),
        (
            [(3, 1, b"x" * 4_089, b"\xce")],
            (501, "FRAME_ERROR - type 3, all octets = <<>>: {frame_too_large,4089,4088}", 0, 0),
        ),
        (
            [(7, 0, b"first sixteen are shown", b"\xce")],
            (501, 'FRAME_ERROR - type 7, first 16 octets = <<"first sixteen ar">>: unknown_frame', 0, 0),
        ),
        ([(8, 0, b"a", b"\xce")], (501, 'FRAME_ERROR - type 8, all octets = <<"a">>: unknown_frame', 0, 0)),
        ([(8, 1, b"", b"\xce")], (505, "UNEXPECTED_FRAME - type 8, all octets = <<>>", 0, 0)),
        ([(1, 1, b"\0\x3c", b"\xce")], (501, "FRAME_ERROR - type 1, all octets = <<0,60>>: unknown_frame", 0, 0)),
        ([(1, 1, b"\0\x3c\0\xc8", b"\xce")], (501, "FRAME_ERROR - cannot decode <<>>", 60, 200)),
        (
            [(1, 1, b"\0\x3c\0\x28\0\0\x05ab", b"\xce")],
            (501, "FRAME_ERROR - cannot decode <<0,0,5,97,98>>", 60, 40),
        ),
        (
            [(1, 1, encode("queue.declare", queue="??").replace(b"??", b"\xff\xfe"), b"\xce")],
            (501, "FRAME_ERROR - Malformed UTF-8 in shortstr", 50, 10),
        ),
        (
            [PUBLISH, (2, 1, b"\0\x3c\0\0", b"\xce")],
            (501, "FRAME_ERROR - type 2, all octets = <<0,60,0,0>>: unknown_frame", 0, 0),
        ),
        ([PUBLISH, (2, 1, struct.pack(">HHQH", 60, 1, 0, 0), b"\xce")], (505, EXPECTED_HEADER, 60, 40)),
        ([PUBLISH, (1, 1, encode("basic.get"), b"\xce")], (505, EXPECTED_HEADER, 60, 40)),
        ([(3, 1, b"abc", b"\xce")], (505, EXPECTED_METHOD, 0, 0)),
        ([(3, 7, b"abc", b"\xce")], (505, EXPECTED_METHOD, 0, 0)),
        (
            [(1, 0, encode("connection.blocked"), b"\xce")],
            (504, "CHANNEL_ERROR - unexpected method in connection state running", 10, 60),
        ),
    ],
)
def test_malformed_input_is_answered_with_rabbitmqs_code_and_text(
    raw: Raw, frames: list[tuple[int, int, bytes, bytes]], answer: tuple[int, str, int, int]
) -> None:
    raw.open().channel()
    for kind, number, payload, end in frames:
        raw.frame(kind, number, payload, end=end)
    assert raw.closed("connection.close") == answer


def nested(depth: int) -> bytes:
    """A table in a table in a table."""
    value = b"V"
    for _ in range(depth):
        value = b"F" + struct.pack(">I", 2 + len(value)) + b"\x01a" + value
    return struct.pack(">I", 2 + len(value)) + b"\x01a" + value


@pytest.mark.parametrize(
    "properties",
    [
        b"\x20\0\0\0\0\x05\x01aS\0\0",  # a table that ends inside a value
        b"\x20\0\0\0\0\x03\x01aZ",  # a type nobody knows
        b"\x80\0\xff",  # a short string longer than the frame
        b"\x80\0\x01a\x00",  # bytes behind the last property
        b"\x20\0" + nested(80),
    ],
)
def test_malformed_properties_are_a_syntax_error(raw: Raw, properties: bytes) -> None:
    raw.open().channel()
    raw.send(1, "basic.publish", exchange="", routing_key="q")
    raw.frame(2, 1, struct.pack(">HHQ", 60, 0, 0) + properties)
    assert raw.closed("connection.close")[0] == 502


def test_after_its_close_a_channel_number_is_free_again_and_late_frames_are_ignored(raw: Raw) -> None:
    raw.open().channel()
    raw.send(1, "queue.declare", queue="nowhere", passive=True)
    raw.send(1, "basic.publish", exchange="", routing_key="q")
    raw.frame(2, 1, struct.pack(">HHQ", 60, 0, 1) + b"\0\0")
    raw.frame(3, 1, b"x")
    code, text, class_id, method_id = raw.closed("channel.close")
    assert (code, text) == (404, "NOT_FOUND - no queue 'nowhere' in vhost '/'")
    assert (class_id, method_id) == (50, 10)
    raw.send(1, "channel.close-ok")
    raw.channel()


def test_closing_is_answered(raw: Raw) -> None:
    raw.open().channel()
    raw.send(1, "channel.close", reply_code=200)
    raw.expect("channel.close-ok")
    raw.send(0, "connection.close", reply_code=200)
    raw.expect("connection.close-ok")
    raw.socket.shutdown(socket.SHUT_WR)  # who closed first closes the socket
    assert raw.ended()


def test_heartbeats_are_sent_and_missed_ones_end_the_connection(raw: Raw) -> None:
    raw.open(heartbeat=1)
    raw.socket.settimeout(10)
    seen = 0
    while True:
        try:
            got, _ = raw.read()
        except ConnectionError:
            break
        seen += got == "frame 8"
        if got == "connection.close":
            break
    assert seen >= 1


def test_bytes_may_be_cut_anywhere(broker: Broker, connect: Connect, name: str) -> None:
    channel = connect().channel()
    queue = declared(channel, name)
    raw = Raw(broker)
    raw.open().channel()
    method = encode("basic.publish", exchange="", routing_key=queue)
    frames = b"".join(
        struct.pack(">BHI", kind, 1, len(payload)) + payload + b"\xce"
        for kind, payload in (
            (1, method),
            (2, struct.pack(">HHQ", 60, 0, 10) + b"\x10\0\x01"),
            (3, b"01234"),
            (3, b"56789"),
        )
    )
    for at in range(0, len(frames), 3):
        raw.socket.sendall(frames[at : at + 3])
    assert eventually(lambda: channel.basic_get(queue, auto_ack=True)[2]) == b"0123456789"
    raw.socket.close()


def test_a_client_that_goes_away_gives_everything_back(broker: Broker, connect: Connect, name: str) -> None:
    channel = connect().channel()
    queue = declared(channel, name)
    channel.basic_publish("", queue, b"x")
    raw = Raw(broker)
    raw.open().channel()
    raw.send(1, "basic.get", queue=queue)
    raw.expect("basic.get-ok")
    raw.socket.close()
    method, _, _ = eventually(lambda: _got(channel, queue))
    assert method.redelivered


def _got(channel: Any, queue: str) -> Any:
    got = channel.basic_get(queue)
    return got if got[0] is not None else None


def test_users_are_checked_once_there_are_any(name: str) -> None:
    with Broker() as broker:
        import httpx

        answer = httpx.post(
            f"{broker.http_url}/v1/users", json={"name": "anna", "password": "correct horse", "admin": True}, timeout=10
        )
        assert answer.status_code < 300, answer.text
        right = parameters(broker, credentials=pika.PlainCredentials("anna", "correct horse"))
        pika.BlockingConnection(right).close()
        with pytest.raises(
            pika.exceptions.ProbableAuthenticationError, match="ACCESS_REFUSED - Login was refused using"
        ):
            pika.BlockingConnection(parameters(broker))


def test_megabytes_sent_at_once_come_whole_and_in_order(broker: Broker, connect: Connect, name: str) -> None:
    count, size = 8_192, 2_048
    channel = connect().channel()
    queue = declared(channel, name)
    method = encode("basic.publish", exchange="", routing_key=queue)
    header = struct.pack(">HHQ", 60, 0, size) + b"\x10\0\x01"
    front = struct.pack(">BHI", 1, 1, len(method)) + method + b"\xce"
    front += struct.pack(">BHI", 2, 1, len(header)) + header + b"\xce" + struct.pack(">BHI", 3, 1, size)
    publisher = Raw(broker).open().channel()
    sent = b"".join(front + n.to_bytes(size, "big") + b"\xce" for n in range(count))
    sending = threading.Thread(target=publisher.socket.sendall, args=(sent,))
    sending.start()
    got: list[int] = []
    for delivery, _, body in channel.consume(queue, inactivity_timeout=20):
        assert delivery is not None, f"{len(got)} of {count} came"
        channel.basic_ack(delivery.delivery_tag)
        got.append(int.from_bytes(body, "big"))
        if len(got) == count:
            break
    sending.join()
    publisher.socket.close()
    assert got == list(range(count))
    channel.cancel()
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


def set_low_mark(broker: Broker, free_bytes: int) -> None:
    """As if the disk were fuller than it is; the broker looks at once, on its own loop."""
    assert broker.app is not None
    assert broker.loop is not None
    maintenance = broker.app.broker.maintenance
    maintenance.space_low_bytes = free_bytes
    broker.loop.call_soon_threadsafe(maintenance.watch_space)


def test_publishers_are_told_while_the_disk_is_almost_full() -> None:
    with Broker() as broker:
        connection = pika.BlockingConnection(parameters(broker))
        told: list[str] = []
        connection.add_on_connection_blocked_callback(lambda _, frame: told.append(frame.method.reason))
        connection.add_on_connection_unblocked_callback(lambda *_: told.append("unblocked"))
        channel = connection.channel()
        queue = declared(channel, "q")
        channel.basic_publish("", queue, b"before")
        reader = pika.BlockingConnection(parameters(broker)).channel()
        assert eventually(lambda: reader.basic_get(queue, auto_ack=True)[2]) == b"before"
        set_low_mark(broker, 1 << 60)
        eventually(lambda: connection.process_data_events(0.05) or told == ["low on disk"])
        channel.basic_publish("", queue, b"waits")
        assert reader.basic_get(queue, auto_ack=True)[0] is None
        set_low_mark(broker, 0)
        eventually(lambda: connection.process_data_events(0.05) or told == ["low on disk", "unblocked"])
        assert eventually(lambda: reader.basic_get(queue, auto_ack=True)[2]) == b"waits"
        connection.close()
