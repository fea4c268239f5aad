"""An AMQP 0-9-1 client: publish to an exchange with confirms, consume a queue or a pattern. pamqp does the frames."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from pamqp import body as content_body
from pamqp import commands, frame, header, heartbeat
from pamqp.base import Frame
from pamqp.exceptions import AMQPFrameError, UnmarshalingException

from mainstem.model.errors import InvalidArgument, MainstemError, NotFound
from mainstem.server.cli.failures import Refused, WrongPeer
from mainstem.server.clients.client import Address, Message, Start, Stream

CHANNEL = 1
ACCESS_REFUSED, NOT_FOUND = 403, 404
UNCONFIRMED_MAX = 512
PREFETCH = 500
HEARTBEAT_S = 60
FRAME_HEAD_BYTES = 7
FRAME_BYTES = FRAME_HEAD_BYTES + 1  # around a payload
CLOSE_S = 2.0  # for a goodbye; who is blocked is not answered
TOPICS = "amq.topic"  # where everything is stored, whether a queue takes it or not


class _Consume(commands.Basic.Consume):
    def validate(self) -> None:
        """pamqp's check of names knows no patterns; the broker checks anyway."""


class AmqpClient:
    """`amqp://host/key` is amq.topic with that key or pattern; `?exchange=` another; `?queue=name` consumes a queue."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._stream = Stream(address)
        self._exchange = address.options.get("exchange", TOPICS)
        self._frame_bytes_max = 131_072
        self._published = 0
        self._unconfirmed: set[int] = set()
        self._blocked = ""  # why the broker takes nothing from publishers
        self._open(address)

    def publish(self, message: Message) -> None:
        if not self._published:
            self._call(commands.Confirm.Select(), commands.Confirm.SelectOk)
        headers: dict[str, Any] = {name: (value or b"").decode(errors="replace") for name, value in message.headers}
        if message.key is not None:
            headers["ms-key"] = message.key.decode(errors="replace")
        properties = commands.Basic.Properties(delivery_mode=2, headers=headers or None)
        value = message.value or b""
        publish = commands.Basic.Publish(
            exchange=self._exchange, routing_key=message.topic, mandatory=self._exchange != TOPICS
        )
        parts = [
            frame.marshal(publish, CHANNEL),
            frame.marshal(header.ContentHeader(0, len(value), properties), CHANNEL),
        ]
        step = self._frame_bytes_max - FRAME_BYTES
        parts += [
            frame.marshal(content_body.ContentBody(value[at : at + step]), CHANNEL) for at in range(0, len(value), step)
        ]
        self._stream.send(*parts)
        self._published += 1
        self._unconfirmed.add(self._published)
        while len(self._unconfirmed) >= UNCONFIRMED_MAX:
            self._read_confirm()

    def flush(self) -> None:
        while self._unconfirmed:
            self._read_confirm()

    def has_queue(self, name: str) -> bool:
        """Whether one of this name is there. Of a no the channel ends: ask before anything else, and open another client."""
        try:
            self._call(commands.Queue.Declare(queue=name, passive=True), commands.Queue.DeclareOk)
        except (NotFound, Refused):
            return False
        return True

    def subscribe(self, target: str, start: Start) -> None:
        self._call(commands.Basic.Qos(prefetch_count=PREFETCH), commands.Basic.QosOk)
        queue = self._address.options.get("queue", "")
        arguments: dict[str, Any] = {}
        if start.kind != "latest":  # a topic, a pattern or a view, read as a stream
            queue = queue or target
            arguments = {"x-stream-offset": _stream_offset(start)}
        elif not queue:
            declare = commands.Queue.Declare(queue="", exclusive=True, auto_delete=True)
            queue = self._call(declare, commands.Queue.DeclareOk).queue
            bind = commands.Queue.Bind(queue=queue, exchange=self._exchange, routing_key=target)
            self._call(bind, commands.Queue.BindOk)
        self._call(_Consume(queue=queue, arguments=arguments), commands.Basic.ConsumeOk)

    def messages(self, idle_s: float | None = None) -> Iterator[Message]:
        heard = time.monotonic()
        while True:
            try:
                got = self._frame(HEARTBEAT_S / 2 if idle_s is None else min(idle_s, HEARTBEAT_S / 2))
            except TimeoutError:
                if idle_s is not None and time.monotonic() - heard >= idle_s:
                    return
                self._stream.send(frame.marshal(heartbeat.Heartbeat(), 0))
                continue
            if isinstance(got, commands.Basic.Deliver):
                heard = time.monotonic()
                yield self._delivery(got)
                self._stream.send(frame.marshal(commands.Basic.Ack(delivery_tag=got.delivery_tag or 0), CHANNEL))

    def close(self) -> None:
        with suppress(MainstemError, TimeoutError):  # it is gone already, which is what we want
            if not self._blocked:
                self._send(commands.Connection.Close(200, "done", 0, 0), 0)
                while not isinstance(self._frame(CLOSE_S), commands.Connection.CloseOk):
                    pass
        self._stream.close()

    def _open(self, address: Address) -> None:
        self._stream.send(b"AMQP\0\0\x09\x01")
        self._expect(commands.Connection.Start)
        token = f"\0{address.user or 'guest'}\0{address.password or 'guest'}"
        properties: Any = {
            "product": "mainstem",
            "capabilities": {
                "publisher_confirms": True,
                "consumer_cancel_notify": True,
                "connection.blocked": True,
                "authentication_failure_close": True,
            },
        }
        self._send(commands.Connection.StartOk(properties, "PLAIN", token, "en_US"), 0)
        tune = self._expect(commands.Connection.Tune)
        self._frame_bytes_max = tune.frame_max or self._frame_bytes_max
        self._send(commands.Connection.TuneOk(tune.channel_max, self._frame_bytes_max, HEARTBEAT_S), 0)
        self._call(commands.Connection.Open(address.options.get("vhost", "/")), commands.Connection.OpenOk, channel=0)
        self._call(commands.Channel.Open(), commands.Channel.OpenOk)

    def _delivery(self, deliver: commands.Basic.Deliver) -> Message:
        head = self._expect(header.ContentHeader)
        value = b""
        while len(value) < head.body_size:
            value += self._expect(content_body.ContentBody).value
        told = dict(head.properties.headers or {})
        key = told.pop("ms-key", None)
        headers = [(name, _plain(one)) for name, one in told.items() if name != "x-stream-offset"]
        facts = {"exchange": deliver.exchange, "redelivered": deliver.redelivered}
        if "x-stream-offset" in told:
            facts["offset"] = told["x-stream-offset"]
        if head.properties.content_type:
            facts["content_type"] = head.properties.content_type
        return Message(value, deliver.routing_key or "", _plain(key), headers, facts)

    def _read_confirm(self) -> None:
        got = self._frame()
        if isinstance(got, commands.Basic.Ack):
            if got.multiple:
                self._unconfirmed = {tag for tag in self._unconfirmed if tag > got.delivery_tag}
            else:
                self._unconfirmed.discard(got.delivery_tag)
        elif isinstance(got, commands.Basic.Nack):
            why = f"it is {self._blocked}" if self._blocked else "a queue that it would go to is full"
            raise Refused(f"the broker refuses the message: {why}", fix="mainstem doctor, mainstem queue ls")
        elif isinstance(got, commands.Basic.Return):
            raise Refused(
                f"no queue takes what is published to exchange {got.exchange or '(default)'!r} "
                f"with key {got.routing_key!r}: {got.reply_code} {got.reply_text}",
                fix="bind a queue, or publish to amq.topic, where it is stored as a topic",
            )

    @property
    def _right_to_ask_for(self) -> str:
        if not self._address.user:
            return "where users exist: amqp://USER:PASSWORD@HOST/..."
        return f"mainstem user may {self._address.user} publish TOPIC --why, then: mainstem user allow"

    def _call(self, command: Frame, answer: type[Any], *, channel: int = CHANNEL) -> Any:
        self._send(command, channel)
        return self._expect(answer)

    def _send(self, command: Frame, channel: int) -> None:
        self._stream.send(frame.marshal(command, channel))

    def _expect(self, kind: type[Any]) -> Any:
        while True:
            got = self._frame()
            if isinstance(got, kind):
                return got

    def _frame(self, wait_s: float | None = None) -> Any:
        """The next frame; what ends the connection or channel is raised with the broker's words."""
        buffer = self._stream.peek()
        while len(buffer) < FRAME_HEAD_BYTES or len(buffer) < FRAME_HEAD_BYTES + _payload_size(buffer) + 1:
            self._stream.fill(wait_s)
            if buffer.startswith(b"AMQP"):
                raise WrongPeer(f"{self._stream.where} speaks another version of AMQP: {bytes(buffer[4:8])!r}")
        size = FRAME_HEAD_BYTES + _payload_size(buffer) + 1
        try:
            _, _, got = frame.unmarshal(bytes(buffer[:size]))
        except (UnmarshalingException, AMQPFrameError) as error:
            raise WrongPeer(f"{self._stream.where} does not answer like AMQP 0-9-1 ({error})") from error
        self._stream.skip(size)
        if isinstance(got, commands.Connection.Close | commands.Channel.Close):
            if got.reply_code == NOT_FOUND:
                raise NotFound(got.reply_text, fix="mainstem queue ls, mainstem topic ls")
            fix = self._right_to_ask_for if got.reply_code == ACCESS_REFUSED else ""
            raise Refused(f"the broker ended it: {got.reply_code} {got.reply_text}", fix=fix)
        if isinstance(got, commands.Connection.Blocked | commands.Connection.Unblocked):
            self._blocked = getattr(got, "reason", "")
        return got


def _payload_size(buffer: bytearray) -> int:
    return int.from_bytes(buffer[3:7], "big")


def _stream_offset(start: Start) -> Any:
    from datetime import UTC, datetime

    if start.kind == "earliest":
        return "first"
    if start.kind == "offset":
        return start.value
    if start.kind == "time":
        return datetime.fromtimestamp(start.value / 1000, UTC)
    if start.kind == "stamp":
        return datetime.fromtimestamp(start.value // 1_000_000, UTC)  # AMQP knows whole seconds
    raise InvalidArgument("AMQP cannot count back", fix="--from earliest or --from 5m, or use kafka://")


def _plain(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else str(value).encode()
