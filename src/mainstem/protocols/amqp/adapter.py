"""AMQP words to broker words: the listener and one connection, from protocol header to its last frame."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from mainstem import __version__
from mainstem.broker.broker import Broker
from mainstem.broker.delivery.live import RecordRef
from mainstem.broker.queues.exchange_names import DEFAULT, TOPIC, key_of
from mainstem.broker.queues.queue import Queue
from mainstem.broker.rights.access import Principal
from mainstem.model.crossing import amqp_properties
from mainstem.model.errors import MainstemError, QuotaExceeded
from mainstem.model.origin import Origin, RecordFlag
from mainstem.protocols.amqp.blocking import HOLD_SPACE, AmqpMetering, Blocking
from mainstem.protocols.amqp.channel import AUDITED, Channel
from mainstem.protocols.amqp.consumer_timeouts import ConsumerTimeouts
from mainstem.protocols.amqp.consuming import StreamConsumer
from mainstem.protocols.amqp.durable_answers import DurableAnswers
from mainstem.protocols.amqp.events import METHODS_FROM, Event, LargePublishEvent, MethodEvent
from mainstem.protocols.amqp.faults import EXPECTED, AccessRefused, Fault, bad_frame, fault_of
from mainstem.protocols.amqp.lifecycle import CAPABILITIES, PROTOCOL_HEADER, Lifecycle, State
from mainstem.protocols.amqp.login import log_in, mechanisms_of, renew
from mainstem.protocols.amqp.methods import BY_NAME, decode, encode, name_of
from mainstem.protocols.amqp.vhosts import Publisher, Replies, Vhost
from mainstem.protocols.amqp.wire import ChannelWire, Inbound, Outbound
from mainstem.protocols.connection import HOLD_LOG, HOLD_TURN, OUT_BYTES_MAX, Connection, Server
from mainstem.protocols.login import keep_login, tell_refused
from mainstem.protocols.porter import stays
from mainstem.protocols.unsent import SHARE_BYTES

logger = logging.getLogger("mainstem.amqp")

FRAME_METHOD, FRAME_HEARTBEAT = 1, 8
TURN_BYTES = 640 * 1024  # of all clients between two ticks
HOLD_TICK = 128  # a socket that the loop reads (TLS) waits instead, until what it has brought is written and handed on
READ_BYTES_COUNTED = 64 * 1024  # a shorter read is the last of its turn anyway
HEARTBEAT = b"\x08\0\0\0\0\0\0\xce"
CHANNEL_OPEN, CHANNEL_CLOSE, CHANNEL_CLOSE_OK = (
    BY_NAME[name].number for name in ("channel.open", "channel.close", "channel.close-ok")
)
COMPATIBLE_VERSION = "4.1.0"  # the RabbitMQ whose behaviour clients may expect


def server_properties() -> dict[str, Any]:
    """Clients switch features on by these; `product` is what they look for before they trust RabbitMQ's semantics."""
    return {
        "capabilities": dict.fromkeys(CAPABILITIES, True),
        "cluster_name": "mainstem",
        "copyright": "",
        "information": "Mainstem, speaking RabbitMQ's AMQP 0-9-1",
        "platform": f"Mainstem {__version__}",
        "product": "RabbitMQ",
        "version": COMPATIBLE_VERSION,
    }


class AmqpServer(Server):
    """The TCP listener."""

    reads_in_place = True
    turn_bytes = alone_bytes = TURN_BYTES

    def __init__(self, broker: Broker, config: Any) -> None:
        super().__init__(broker.ticker, connections_max=config.limits.connections_max)
        self.broker = broker
        self.config = config
        self.handshake_s = max(1, config.limits.login_ms // 1000)
        self.replies = Replies()
        self.properties = server_properties()
        self.timeouts = ConsumerTimeouts()
        self._vhosts: dict[str, Vhost] = {}
        self._beats: dict[int, list[AmqpConnection]] = {}
        self._space_low = False
        self._rights_seen = broker.access.version
        self.turn_out_bytes_max = OUT_BYTES_MAX  # collected for one client before it is written
        self._turn = self._turn_bytes = 0  # how much was read since that tick
        self._described: dict[tuple[bytes, int, bytes | None, bytes | None], bytes] = {}

    def make_connection(self) -> asyncio.Protocol:
        return AmqpConnection(self)

    def set_tight(self, tight: bool) -> None:
        self.turn_out_bytes_max = SHARE_BYTES if tight else OUT_BYTES_MAX
        for connection in self.connections:
            assert isinstance(connection, AmqpConnection)
            connection.outbound.bytes_max = self.turn_out_bytes_max

    def vhost(self, name: str) -> Vhost:
        found, namespace = self._vhosts.get(name), self.broker.namespace(name)
        if found is None or found.namespace is not namespace:
            found = self._vhosts[name] = Vhost(self.broker, namespace)
        return found

    async def run_deadlines(self) -> None:
        beats = asyncio.get_running_loop().create_task(self._run_beats())
        try:
            await super().run_deadlines()
        finally:
            beats.cancel()

    async def _run_beats(self) -> None:
        while True:
            await asyncio.sleep(1)
            self.watch_space()
            self.watch_rights()
            self.timeouts.look(self.deadlines.second)
            for due in [second for second in self._beats if second <= self.deadlines.second]:
                for connection in self._beats.pop(due):
                    connection.beat()

    def watch_space(self) -> None:
        """While the disk is almost full, those who have published are read no more: what they sent would be refused."""
        low = self.broker.maintenance.space_low
        if low == self._space_low:
            return
        self._space_low = low
        for connection in list(self.connections):
            assert isinstance(connection, AmqpConnection)
            if low and connection.inbound.messages:
                connection.blocking.hold_for_space()
            elif not low:
                connection.blocking.release(HOLD_SPACE)

    def watch_rights(self) -> None:
        """Every request is asked for its right; a consumer goes on without one, so its right is asked for again."""
        if self._rights_seen == self.broker.access.version:
            return
        self._rights_seen = self.broker.access.version
        for connection in list(self.connections):
            assert isinstance(connection, AmqpConnection)
            for channel in list(connection.channels.values()):
                channel.end_denied()

    def plan_beat(self, connection: AmqpConnection, in_s: int) -> None:
        self._beats.setdefault(self.deadlines.second + in_s, []).append(connection)

    def turn_is_full(self, size: int) -> bool:
        """So much more was read from sockets of the loop's; whether that is enough until the next tick.

        Without a limit a turn may take in megabytes, of which the consumers' output holds one: the rest would have to be
        read back from the log. So a fast publisher and its consumer go hand in hand.
        """
        ticks = self.broker.ticker.ticks
        if self._turn != ticks:
            self._turn, self._turn_bytes = ticks, 0
        self._turn_bytes += size
        return self._turn_bytes >= TURN_BYTES

    # What the wire asks of a record that is to be delivered.

    def describe(self, record: RecordRef) -> bytes:
        """Exchange and routing key as two short strings."""
        exchange_name = key_name = None
        if record.origin == Origin.AMQP:
            exchange_name, key_name = record.header(b"ms-exchange"), record.header(b"ms-routing-key")
        is_default = record.origin == Origin.AMQP and bool(record.flags & RecordFlag.DEFAULT_EXCHANGE)
        known = (record.topic, is_default, exchange_name, key_name)
        found = self._described.get(known)
        if found is None:
            exchange = DEFAULT if is_default else (exchange_name or TOPIC.encode()).decode("utf-8", "surrogateescape")
            key = (
                key_name if key_name is not None else key_of(exchange, record.topic).encode("utf-8", "surrogateescape")
            )
            name = exchange.encode("utf-8", "surrogateescape")
            found = bytes((len(name),)) + name + bytes((len(key[:255]),)) + key[:255]
            if len(self._described) >= 10_000:
                self._described.clear()
            self._described[known] = found
        return found

    def translate(self, record: RecordRef) -> bytes:
        """Another protocol's record in AMQP's properties."""
        return amqp_properties(record.outline(), self.broker.clock.now_ns())


class AmqpConnection(Connection):
    """One client."""

    metered_by = AmqpMetering

    __slots__ = (
        "answers",
        "blocking",
        "channels",
        "closing_channels",
        "connected_ms",
        "draining",
        "header",
        "inbound",
        "lifecycle",
        "outbound",
        "own_queues",
        "principal",
        "publisher",
        "to_confirm",
        "to_resume",
        "vhost",
        "written_second",
    )

    server: AmqpServer

    def __init__(self, server: AmqpServer) -> None:
        super().__init__(server)
        amqp = server.config.amqp
        self.lifecycle = Lifecycle(
            self,
            server.properties,
            channel_max=amqp.channels_max,
            frame_max=amqp.frame_bytes_max,
            heartbeat_s=amqp.heartbeat_s,
        )
        self.outbound = Outbound(server.ticker, server.describe, server.translate)
        self.outbound.connection = self
        self.outbound.bytes_max = server.turn_out_bytes_max
        self.inbound = Inbound(self, self.outbound)
        self.header = b""
        self.channels: dict[int, Channel] = {}
        self.closing_channels: set[int] = set()
        self.own_queues: set[Queue] = set()
        self.principal = Principal("anonymous")
        self.vhost: Vhost | None = None
        self.publisher: Publisher | None = None
        self.to_confirm: list[ChannelWire] = []
        self.to_resume: set[StreamConsumer] = set()
        self.draining = False
        self.blocking, self.answers = Blocking(self), DurableAnswers(self)
        self.written_second = 0
        self.connected_ms = int(time.time() * 1000)

    def vhost_of(self) -> Vhost:
        assert self.vhost is not None
        return self.vhost

    # -- bytes in

    def on_open(self) -> None:
        self.server.deadlines.watch(self, self.server.handshake_s, however=True)

    def on_data(self, data: bytes) -> None:
        if self.lifecycle.state is State.HEADER:
            data = self._read_header(data)
            if not data:
                return
        self.inbound.receive(data)
        self.drain()
        self.note_unfinished()
        if len(data) >= READ_BYTES_COUNTED and self.server.turn_is_full(len(data)):
            self.hold(HOLD_TICK)
            self.outbound.touch()

    def note_unfinished(self) -> None:
        self.server.unfinished.note(self, self.inbound.kept_bytes())

    def _read_header(self, data: bytes) -> bytes:
        """The first eight bytes, however they are cut; what follows them."""
        missing = 8 - len(self.header)
        self.header += data[:missing]
        if len(self.header) < 8 and PROTOCOL_HEADER.startswith(self.header):
            return b""
        if not self.lifecycle.on_header(self.header):
            self.outbound.write(PROTOCOL_HEADER)
            self.close(f"spoke {self.header!r} instead of AMQP 0-9-1", linger=True)
            return b""
        return data[missing:]

    def drain(self, time_ms: int = 0, event: Event | None = None, failure: BaseException | None = None) -> None:
        """Handle frames until none is whole, or something must be decided or written first.

        `event` or `failure`: what the first of them came to, if they were looked at where they lay (`Inbound.take`).
        """
        if self.draining:
            return
        self.draining = True
        try:
            self._drain(time_ms or self.server.broker.clock.now_ns() // 1_000_000, event, failure)
        except Exception:
            self.break_off()
        finally:
            self.draining = False

    def _drain(self, time_ms: int, event: Event | None, failure: BaseException | None) -> None:
        inbound, broker = self.inbound, self.server.broker
        before = inbound.messages
        if self.publisher is not None:
            self.publisher.check()
        while not self.closing and (event or failure or not self.held & ~(HOLD_TICK | HOLD_TURN)):
            try:
                if failure is not None:
                    raise failure
                if event is None:
                    event = inbound.next(time_ms)
                    if event is None:
                        break
                self._handle(event)
            except Fault as fault:
                self.fail(fault)
            except MainstemError as error:
                self.fail(fault_of(error))
            event = failure = None
        published = inbound.messages - before
        self.server.counters.messages_in += published
        broker.queues.flush_settled()
        self.after_read()
        if published and (broker.ticker.pressed or broker.maintenance.space_low):
            self.hold_back()

    def hold_back(self) -> None:
        """It publishes, and the disk does not keep up, or is almost full."""
        broker = self.server.broker
        if broker.ticker.pressed:
            broker.ticker.press(self)
        if broker.maintenance.space_low:
            self.blocking.hold_for_space()

    def after_read(self) -> None:
        """What the channels and consumers have to do once a read is handled."""
        touched = self.inbound.take_touched()
        if touched:
            for channel in touched:
                channel.after_read()
            self.to_confirm += touched
            self.outbound.touch()
        if self.outbound.stalled:
            self.retry_stalled()
        if self.to_resume:
            waiting, self.to_resume = self.to_resume, set()
            for consumer in waiting:
                consumer.resume()

    def note_confirm(self, wire: ChannelWire) -> None:
        """A publish of the slow path is to be confirmed with this read."""
        self.inbound.touch(wire)

    def _handle(self, event: Event) -> None:
        if not isinstance(event, MethodEvent):
            channel = self.channels.get(event.channel)
            if channel is not None:
                channel.publish_large(event) if isinstance(event, LargePublishEvent) else channel.publish(event)
            return
        state = self.lifecycle.state
        if state is State.CLOSING and event.number not in (
            BY_NAME["connection.close"].number,
            BY_NAME["connection.close-ok"].number,
        ):
            return  # after our close only theirs counts
        if self.answers.wait_for_acks(event):
            return
        if event.channel == 0 and event.number >= METHODS_FROM:
            self.lifecycle.handle(name_of(event.number), decode(event.number, event.payload))
        else:
            self._handle_channel(event)
        if self.publisher is not None:
            self.publisher.check()

    def _handle_channel(self, event: MethodEvent) -> None:
        number = event.channel
        channel = self.channels.get(number)
        if channel is not None:
            channel.handle(event.number, event.payload)
        elif number in self.closing_channels:
            if event.number == CHANNEL_CLOSE:
                self.send_method(number, encode("channel.close-ok"))
            if event.number in (CHANNEL_CLOSE_OK, CHANNEL_CLOSE):
                self.closing_channels.discard(number)
        elif event.number < METHODS_FROM:
            raise Fault(505, EXPECTED[0])
        elif self.lifecycle.state is not State.RUNNING:
            raise bad_frame(FRAME_METHOD, event.number.to_bytes(4, "big") + event.payload)
        elif event.number == CHANNEL_OPEN:
            self.lifecycle.check_channel(number, len(self.channels))
            self.channels[number] = opened = Channel(self, number)
            self.inbound.open(opened.wire)
            opened.send("channel.open-ok")
        elif event.number != CHANNEL_CLOSE_OK:
            raise Fault(504, "expected 'channel.open'")

    def fail(self, fault: Fault) -> None:
        """Close the channel, or everything, with the reason."""
        number = self.inbound.channel_number
        failed = self.inbound.method_number
        if fault.hard or number not in self.channels:
            if self.lifecycle.state not in (State.CLOSING, State.CLOSED):
                logger.info("%s: %s", self.label(), fault)
                self.lifecycle.close(fault, failed)
                self._close_channels()
                self.server.deadlines.watch(self, self.server.handshake_s, however=True)
            if fault.code == 501:
                self.close(str(fault), linger=True)  # in step no more: nothing that follows can be read
            return
        self.fail_channel(number, fault, failed)

    def fail_channel(self, number: int, fault: Fault, failed: int = 0) -> None:
        logger.info("%s, channel %d: %s", self.label(), number, fault)
        method = name_of(failed)
        if isinstance(fault, AccessRefused) and method not in AUDITED:
            tell_refused(self, self.server.broker.audit, fault.action or method, fault.what, fault.text)
        self.drop_channel(number)
        self.closing_channels.add(number)
        payload = encode(
            "channel.close",
            reply_code=fault.code,
            reply_text=fault.text,
            class_id=failed >> 16,
            method_id=failed & 0xFFFF,
        )
        self.send_method(number, payload)

    def drop_channel(self, number: int) -> None:
        channel = self.channels.pop(number, None)
        if channel is not None:
            self.inbound.close(number)
            channel.close()

    def _close_channels(self) -> None:
        for number in list(self.channels):
            self.drop_channel(number)

    # -- what the lifecycle asks

    def send_method(self, channel: int, payload: bytes) -> None:
        self.outbound.write_frame(FRAME_METHOD, channel, payload)

    def mechanisms(self) -> tuple[str, ...]:
        return mechanisms_of(self)

    def login(self, name: str, password: bytes, mechanism: str) -> None:
        log_in(self, name, password, mechanism)

    def renew(self, secret: bytes) -> None:
        renew(self, secret)

    def let_in(self, principal: Principal) -> None:
        self.principal = principal
        keep_login(self, principal)
        self.lifecycle.logged_in()

    def logged_in(self) -> Principal | None:
        return self.principal if self.vhost is not None else None

    def tuned(self, frame_max: int, heartbeat_s: int) -> None:
        self.inbound.frame_max = self.outbound.frame_max = frame_max
        self.server.deadlines.watch(self, 2 * heartbeat_s)
        if heartbeat_s:
            self.server.plan_beat(self, max(1, heartbeat_s // 2))

    def open_namespace(self, name: str) -> None:
        principal = self.principal
        if not self.server.broker.access.has_namespace(name):
            raise Fault(530, f"vhost {name} not found")
        self.principal = principal = self.server.broker.access.within(principal, name)
        if not principal.admin and principal.namespace != name:
            raise Fault(530, f"access to vhost '{name}' refused for user '{principal.name}'")
        if not stays(self, principal, name):
            return
        vhost = self.server.vhost(name)
        try:
            self.server.broker.quotas.enter(
                self.metering, vhost.namespace, "" if principal.anonymous else principal.name
            )
        except QuotaExceeded as error:
            raise Fault(
                530, f"access to vhost '{name}' refused for user '{principal.name}': connection limit is reached"
            ) from error
        self.vhost = vhost
        self.publisher = self.vhost.publisher(principal)
        self.inbound.targets = self.publisher.targets
        self.inbound.body_bytes_max = self.vhost.namespace.defaults.message_bytes_max

    def end(self, reason: str) -> None:
        self.close(reason)

    # -- bytes out

    def send(self, data: bytes) -> None:
        self.outbound.write(data)

    def flush(self) -> None:
        self.outbound.flush()

    def before_flush(self) -> None:
        """What is confirmed leaves with the rest; the socket is read again."""
        if self.to_confirm:
            waiting, self.to_confirm = self.to_confirm, []
            for channel in waiting:
                channel.released(None)
        if self.held & HOLD_TICK:
            self.release(HOLD_TICK)

    def beat(self) -> None:
        """Half an interval is over: say that we live, unless something was said."""
        if self.transport is None or self.closing:
            return
        half = max(1, self.lifecycle.heartbeat_s // 2)
        if self.server.deadlines.second - self.written_second >= half:
            self.outbound.write(HEARTBEAT)
        self.server.plan_beat(self, half)

    def on_silence(self) -> None:
        self.close("missed heartbeats from client" if self.lifecycle.state is State.RUNNING else "handshake_timeout")

    def on_blocked(self) -> None:
        self.outbound.blocked = True

    def on_room(self) -> None:
        self.outbound.blocked = False
        self.retry_stalled()
        for channel in self.channels.values():
            for consumer in channel.consumers.values():
                if isinstance(consumer, StreamConsumer):
                    consumer.resume()

    def retry_stalled(self) -> None:
        """Consumers that had no room are offered records again."""
        stalled, self.outbound.stalled = self.outbound.stalled, []
        for consumer in stalled:
            consumer.stalled = False
            consumer.queue.wake()

    # -- held back

    def hold_for_log(self) -> None:
        """The disk does not keep up: this publisher is read no more until it does, and is told."""
        self.blocking.hold(HOLD_LOG, "low on disk throughput")

    def release_from_log(self) -> None:
        self.blocking.release(HOLD_LOG)

    # -- the end

    def close(self, reason: str = "", *, linger: bool = False) -> None:
        if not self.closing and self.lifecycle.state is State.RUNNING and reason:
            self.lifecycle.close(Fault(320, reason, hard=True))
        super().close(reason, linger=linger)

    def finish(self) -> None:
        """Its channels and exclusive queues are gone when it reads close-ok."""
        self._clean_up()
        super().finish()

    def on_lost(self) -> None:
        self._clean_up()

    def _clean_up(self) -> None:
        self._close_channels()
        self.inbound.forget()
        for queue in list(self.own_queues):
            queue.queues.delete(queue)
        self.own_queues.clear()
