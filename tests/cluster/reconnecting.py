"""Clients that reconnect by themselves, as applications use them: each publishes, and consumes what it published.

Publishes are confirmed one by one. Where the answer to one got lost with its connection the client publishes it again, and
notes the doubt: AMQP may then hold it twice, a stream of NATS knows it by its `Nats-Msg-Id`. Anything else that the library
reports is an error.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Callable

import aio_pika
import nats
from aiormq.exceptions import ChannelInvalidStateError
from nats.aio.msg import Msg
from nats.errors import ConnectionClosedError, ConnectionReconnectingError, StaleConnectionError, UnexpectedEOF
from nats.js.api import StorageType

from mainstem.testing.ledger import Ledger
from mainstem.testing.process import BrokerProcess
from tests.cluster.kit import Cluster

ANSWER_S, AGAIN_S, PACE_S = 2.0, 0.05, 0.005
RECEIVED_S = 45.0  # longer than the ack wait of a consumer
LOST = (
    TimeoutError, ConnectionError, asyncio.CancelledError, ChannelInvalidStateError, aio_pika.exceptions.AMQPError,
    nats.errors.Error,
)  # fmt: skip
EXPECTED = (
    TimeoutError,
    ConnectionError,
    UnexpectedEOF,
    StaleConnectionError,
    ConnectionClosedError,
    ConnectionReconnectingError,
)
Send = Callable[[bytes, int], Awaitable[object]]


class Reconnecting(threading.Thread):
    """It connects to one broker and stays with it, whoever owns its namespace's cell."""

    kind = ""

    def __init__(self, cluster: Cluster, broker: str, namespace: str = "") -> None:
        super().__init__(name=f"{self.kind}-{broker}-{namespace or 'main'}", daemon=True)
        self._cluster, self.broker, self.namespace = cluster, broker, namespace
        self.ledger, self.acked, self.received = Ledger(self.name), 0, list[bytes]()
        self.doubts, self.errors, self.failure = list[str](), list[str](), ""
        self._acks_s: list[float] = []
        self._stopped = threading.Event()

    @property
    def process(self) -> BrokerProcess:
        return self._cluster[self.broker]

    def run(self) -> None:
        try:
            asyncio.run(self.live())
        except BaseException as error:
            self.failure = repr(error)

    async def live(self) -> None:
        raise NotImplementedError

    async def publish_all(self, send: Send) -> None:
        for number in itertools.count():
            if self._stopped.is_set():
                break
            await self._publish(send, self.ledger.payload("p", number), number)
            self.ledger.ok("p", number)
            self.acked += 1
            self._acks_s.append(time.monotonic())
            await asyncio.sleep(PACE_S)
        deadline = time.monotonic() + RECEIVED_S
        while len(set(self.received)) < self.acked and time.monotonic() < deadline:
            await asyncio.sleep(AGAIN_S)

    async def _publish(self, send: Send, payload: bytes, number: int) -> None:
        while True:
            try:
                await send(payload, number)
                return
            except LOST as error:
                self.doubts.append(repr(error))
                await asyncio.sleep(AGAIN_S)

    def longest_s(self, since_s: float) -> float:
        """Between two acknowledgements, from then on."""
        times = [since_s, *(one for one in self._acks_s if one > since_s)]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    def wait_acked(self, more: int) -> None:
        def reached(target: int = self.acked + more) -> bool:
            assert not self.failure, self.failure
            return self.acked >= target

        self._cluster.until(reached)

    def judge(self) -> dict[str, list[str]]:
        """A stream's consumer gets what it did not acknowledge again when its ack wait is over, after later messages."""
        return self.ledger.judge(self.received, ordered=self.kind == "amqp").problems(repeats_allowed=True)

    def stop(self) -> None:
        self._stopped.set()
        self.join(60)
        assert not self.is_alive()
        assert not self.failure, self.failure


class AmqpClient(Reconnecting):
    kind = "amqp"

    async def live(self) -> None:
        login = f"{self.namespace}:device".replace(":", "%3A", 1) if self.namespace else "guest"
        host = f"{self.process.host}:{self.process.ports['amqp']}"
        url = f"amqp://{login}:{'any' if self.namespace else 'guest'}@{host}/{self.namespace or '%2F'}"
        connection = await aio_pika.connect_robust(url, reconnect_interval=AGAIN_S)
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(self.name, durable=True)

            async def receive(message: aio_pika.abc.AbstractIncomingMessage) -> None:
                self.received.append(message.body)
                await message.ack()

            async def send(payload: bytes, _number: int) -> None:
                message = aio_pika.Message(payload, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                await channel.default_exchange.publish(message, self.name, timeout=ANSWER_S)

            await queue.consume(receive)
            await self.publish_all(send)


class NatsClient(Reconnecting):
    kind = "nats"

    async def live(self) -> None:
        login = {"user": f"{self.namespace}:device", "password": "any"} if self.namespace else {}
        url = f"nats://{self.process.host}:{self.process.ports['nats']}"
        client = await nats.connect(
            url, max_reconnect_attempts=-1, reconnect_time_wait=AGAIN_S, error_cb=self._note, **login
        )
        js, subject = client.jetstream(timeout=ANSWER_S), f"{self.name}.one"
        await js.add_stream(name=self.name, subjects=[f"{self.name}.>"], storage=StorageType.FILE)

        async def receive(message: Msg) -> None:
            self.received.append(message.data)
            await message.ack()

        async def send(payload: bytes, number: int) -> None:
            await js.publish(subject, payload, headers={"Nats-Msg-Id": str(number)})

        await js.subscribe(subject, durable="reader", cb=receive, manual_ack=True)
        try:
            await self.publish_all(send)
        finally:
            await client.close()

    async def _note(self, error: Exception) -> None:
        if not isinstance(error, EXPECTED):
            self.errors.append(repr(error))
