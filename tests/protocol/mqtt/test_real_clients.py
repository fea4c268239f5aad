"""paho, aiomqtt and mosquitto's own tools, as people use them."""

import asyncio
import subprocess
import threading

import aiomqtt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from mainstem.testing.broker import Broker
from tests.protocol.mqtt.raw import unique


@pytest.mark.parametrize("protocol", [paho.MQTTv31, paho.MQTTv311, paho.MQTTv5])
def test_paho_publishes_and_receives_at_every_qos(broker: Broker, protocol: int) -> None:
    topic, done = unique("paho"), threading.Event()
    seen: list[tuple[bytes, int]] = []
    subscriber = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=protocol)  # type: ignore[arg-type]
    subscribed = threading.Event()
    subscriber.on_subscribe = lambda *_: subscribed.set()

    def on_message(_client: object, _data: object, message: paho.MQTTMessage) -> None:
        seen.append((message.payload, message.qos))
        if len(seen) == 60:
            done.set()

    subscriber.on_message = on_message
    subscriber.connect("127.0.0.1", broker.mqtt_port)
    subscriber.loop_start()
    subscriber.subscribe(topic, qos=2)
    assert subscribed.wait(5)
    publisher = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=protocol)  # type: ignore[arg-type]
    publisher.connect("127.0.0.1", broker.mqtt_port)
    publisher.loop_start()
    for n in range(60):
        publisher.publish(topic, b"%d" % n, qos=n % 3).wait_for_publish(5)
    assert done.wait(10)
    for client in (subscriber, publisher):
        client.disconnect()
        client.loop_stop()
    assert sorted(seen) == sorted((b"%d" % n, n % 3) for n in range(60))


async def test_aiomqtt_with_properties_and_a_reply(broker: Broker) -> None:
    question, answer = unique("question"), unique("answer")
    properties = Properties(PacketTypes.PUBLISH)
    properties.ResponseTopic = answer
    properties.CorrelationData = b"\x00\xff"
    properties.UserProperty = [("a", "1"), ("a", "2")]

    async def serve() -> None:
        async with aiomqtt.Client("127.0.0.1", broker.mqtt_port, protocol=aiomqtt.ProtocolVersion.V5) as server:
            await server.subscribe(question, qos=1)
            ready.set()
            async for message in server.messages:
                assert message.properties is not None
                assert message.properties.UserProperty == [("a", "1"), ("a", "2")]
                reply = Properties(PacketTypes.PUBLISH)
                reply.CorrelationData = message.properties.CorrelationData
                await server.publish(message.properties.ResponseTopic, b"42", qos=1, properties=reply)
                return

    ready = asyncio.Event()
    serving = asyncio.create_task(serve())
    async with aiomqtt.Client("127.0.0.1", broker.mqtt_port, protocol=aiomqtt.ProtocolVersion.V5) as client:
        await client.subscribe(answer, qos=1)
        await ready.wait()
        await client.publish(question, b"?", qos=1, properties=properties)
        message = await anext(aiter(client.messages))
        assert message.payload == b"42"
        assert message.properties is not None
        assert message.properties.CorrelationData == b"\x00\xff"
    await serving


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
def test_mosquittos_tools(broker: Broker, version: str) -> None:
    topic = unique("mosquitto")
    common = ["-h", "127.0.0.1", "-p", str(broker.mqtt_port), "-V", version, "-t"]
    for n in range(3):
        subprocess.run(
            ["mosquitto_pub", *common, f"{topic}/{n}", "-m", f"m{n}", "-q", str(n), "-r"], check=True, timeout=10
        )
    command = ["mosquitto_sub", *common, f"{topic}/#", "-q", "2", "-C", "3", "-W", "5", "-F", "%t %p %q %r"]
    told = subprocess.run(command, check=True, timeout=10, capture_output=True, text=True).stdout.splitlines()
    assert sorted(told) == [f"{topic}/{n} m{n} {n} 1" for n in range(3)]
