"""aio-pika: robust connections, confirms, competing consumers, RPC, all at once on one loop."""

from __future__ import annotations

import asyncio

import aio_pika
import pytest
from aio_pika.patterns import RPC

from mainstem.testing.broker import Broker


@pytest.fixture
def url(broker: Broker) -> str:
    return broker.amqp_url


async def test_a_thousand_confirmed_messages_reach_competing_consumers_once(url: str, name: str) -> None:
    connection = await aio_pika.connect_robust(url)
    async with connection:
        publishing = await connection.channel(publisher_confirms=True)
        queue = await publishing.declare_queue(name, durable=True)
        seen: list[bytes] = []
        done = asyncio.Event()

        async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            async with message.process():
                seen.append(message.body)
                if len(seen) == 1000:
                    done.set()

        for _ in range(3):
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=20)
            await (await channel.get_queue(name)).consume(take)
        await asyncio.gather(
            *(
                publishing.default_exchange.publish(
                    aio_pika.Message(b"%d" % n, delivery_mode=aio_pika.DeliveryMode.PERSISTENT), name
                )
                for n in range(1000)
            )
        )
        await asyncio.wait_for(done.wait(), 30)
        assert sorted(seen) == sorted(b"%d" % n for n in range(1000))
        await queue.delete(if_unused=False, if_empty=False)


async def test_remote_procedure_calls_are_answered(url: str, name: str) -> None:
    connection = await aio_pika.connect_robust(url)
    async with connection:
        rpc = await RPC.create(await connection.channel())

        async def multiply(*, x: int, y: int) -> int:
            return x * y

        await rpc.register(name, multiply, auto_delete=True)
        answers = await asyncio.gather(*(rpc.call(name, kwargs={"x": n, "y": n}) for n in range(20)))
        assert answers == [n * n for n in range(20)]
        await rpc.close()


async def test_an_iterator_takes_what_is_there_and_requeues_what_fails(url: str, name: str) -> None:
    connection = await aio_pika.connect_robust(url)
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(name, auto_delete=True)
        for body in (b"good", b"bad"):
            await channel.default_exchange.publish(aio_pika.Message(body), name)
        seen: list[tuple[bytes, bool | None]] = []
        async with queue.iterator() as messages:
            async for message in messages:
                seen.append((message.body, message.redelivered))
                if message.body == b"bad" and not message.redelivered:
                    await message.reject(requeue=True)
                else:
                    await message.ack()
                if len(seen) == 3:
                    break
        assert seen == [(b"good", False), (b"bad", False), (b"bad", True)]
