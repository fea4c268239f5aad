"""Peers of `bench startup`: each is filled, killed with SIGKILL, started again, and asked for its data.

    Mosquitto    retained messages and persistent sessions. It writes its file now and then only: SIGUSR1 makes it write
                 before the kill, else nothing would be there to load
    RabbitMQ     persistent messages in a durable classic queue, published with confirms
    Kafka        records in a topic, acks=all

`ready` is the time from starting the process until a client has an answer that needs the data: the newest retained message,
the count of the queue, the last record of the log. A peer that is not installed is left out, with the reason.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import psutil
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.kafka import FORMAT_ID, free_port
from tests.protocol.kafka.java_clients import BROKER_4, Unavailable, classpath
from tests.protocol.mqtt.raw import Raw

READY_S_MAX = 180.0
VALUE, KILOBYTE = b"%0100d" % 7, bytes(range(256)) * 4
RABBITMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"


class Peer:
    """A server that is killed and started again on the same data."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.environment: dict[str, str] = dict(os.environ)
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        with (self.folder / "out").open("ab") as out:
            self._process = subprocess.Popen(
                self.command(), env=self.environment, stdout=out, stderr=out, start_new_session=True
            )

    def pids(self) -> list[psutil.Process]:
        assert self._process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            one = psutil.Process(self._process.pid)
            return [one, *one.children(recursive=True)]
        return []

    def signal(self, number: int) -> None:
        for one in self.pids():
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()

    def memory_mb(self) -> float:
        return float(sum(one.memory_info().rss for one in self.pids())) / 1e6


class Mosquitto(Peer):
    def command(self) -> list[str]:
        settings = self.folder / "mosquitto.conf"
        settings.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\npersistence true\n"
            f"persistence_location {self.folder}/\nautosave_interval 0\nuser root\nmax_queued_messages 0\n"
        )
        return ["mosquitto", "-c", str(settings)]

    def write_down(self) -> None:
        """Its file is renamed into place when it is whole."""
        database = self.folder / "mosquitto.db"
        before = database.stat().st_mtime_ns if database.exists() else 0
        self.signal(signal.SIGUSR1)
        deadline = time.monotonic() + READY_S_MAX
        while time.monotonic() < deadline:
            if (
                database.exists()
                and database.stat().st_mtime_ns != before
                and not database.with_suffix(".db.new").exists()
            ):
                return
            time.sleep(0.05)
        raise RuntimeError("mosquitto did not write its file")


class RabbitMq(Peer):
    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(folder, port)
        (folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\nloopback_users = none\n")
        (folder / "plugins").write_text("[].\n")
        self.environment |= {
            "HOME": str(folder),
            "RABBITMQ_NODENAME": f"startup{port}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": f"{folder}/mnesia",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_PID_FILE": f"{folder}/pid",
            "RABBITMQ_FEATURE_FLAGS_FILE": f"{folder}/feature_flags",
            "ERL_EPMD_PORT": str(free_port()),
        }

    def command(self) -> list[str]:
        return [RABBITMQ]

    def end_name_server(self) -> None:
        """Erlang's own, which is in a session of its own."""
        subprocess.run(["epmd", "-kill"], env=self.environment, check=False, stdout=subprocess.DEVNULL)


class Kafka(Peer):
    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(folder, port)
        controller = free_port()
        self._settings = folder / "server.properties"
        self._settings.write_text(
            f"""process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder / "logs"}
offsets.topic.replication.factor=1
"""
        )
        self._java = ["java", "-Xmx1G", "-Xms1G", "-XX:+UseG1GC", "-cp", classpath(*BROKER_4)]
        format_command = [*self._java, "kafka.tools.StorageTool", "format", "-t", FORMAT_ID, "-c", str(self._settings)]
        subprocess.run(format_command, check=True, capture_output=True)

    def command(self) -> list[str]:
        return [*self._java, "kafka.Kafka", str(self._settings)]


@contextlib.contextmanager
def running(make: type[Peer]) -> Iterator[Peer]:
    folder = Path(tempfile.mkdtemp(prefix="mainstem-bench-peer-"))
    peer = make(folder, free_port())
    peer.start()
    try:
        yield peer
    finally:
        peer.kill()
        if isinstance(peer, RabbitMq):
            peer.end_name_server()
        shutil.rmtree(folder, ignore_errors=True)


def missing(make: type[Peer]) -> str:
    """Why it cannot be started; empty if it can."""
    if make is Mosquitto:
        return "" if shutil.which("mosquitto") else "mosquitto is not installed"
    if make is RabbitMq:
        return "" if Path(RABBITMQ).exists() else "rabbitmq-server is not installed"
    try:
        classpath(*BROKER_4)
    except Unavailable as reason:
        return str(reason)
    return ""


def seconds_until(ask: Callable[[], bool], began: float) -> float:
    """Asked again and again; whatever goes wrong before it answers is part of starting."""
    while time.perf_counter() - began < READY_S_MAX:
        with contextlib.suppress(Exception):
            if ask():
                return time.perf_counter() - began
        time.sleep(0.01)
    raise RuntimeError(f"no answer in {READY_S_MAX:.0f} s")


# -- data, by the protocol of each: the same calls fill ours


def fill_mqtt(port: int, retained: int, sessions: int) -> None:
    with Raw.connected(port) as client:
        for n in range(retained):
            client.publish(topic_of(n), VALUE, retain=True)
            if n % 1_000 == 999 or n == retained - 1:
                client.publish("filled", b"x", qos=1)  # answered in order: all before it was taken
    for n in range(sessions):
        with Raw.connected(port, f"device-{n}", clean=False) as client:
            client.subscribe((f"devices/{n}/commands", 1))
            client.disconnect()


def has_mqtt(port: int, retained: int) -> bool:
    with Raw.connected(port) as client:
        client.subscribe((topic_of(retained - 1), 0))
        return client.message().payload == VALUE


def topic_of(n: int) -> str:
    return f"site/{n // 1_000}/device/{n % 1_000}/state"


def fill_amqp(port: int, messages: int) -> None:
    with _amqp(port) as channel:
        channel.queue_declare("filled", durable=True)
        channel.tx_select()
        properties = pika.BasicProperties(delivery_mode=2)
        for n in range(messages):
            channel.basic_publish("", "filled", VALUE, properties)
            if n % 5_000 == 4_999 or n == messages - 1:
                channel.tx_commit()


def has_amqp(port: int, messages: int) -> bool:
    with _amqp(port) as channel:
        return bool(channel.queue_declare("filled", durable=True, passive=True).method.message_count == messages)


@contextlib.contextmanager
def _amqp(port: int) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, connection_attempts=1))
    try:
        yield connection.channel()
    finally:
        connection.close()


def fill_kafka(port: int, records: int) -> None:
    servers: dict[str, str | int | float | bool] = {"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0}
    admin = AdminClient(servers)  # while it is asked it must stay
    admin.create_topics([NewTopic("filled", 1, 1)])["filled"].result(60)
    producer = Producer({**servers, "acks": "all", "linger.ms": 20, "queue.buffering.max.messages": 200_000})
    for n in range(records):
        producer.produce("filled", KILOBYTE, partition=0)
        if n % 50_000 == 49_999:
            producer.flush(60)
    assert producer.flush(120) == 0


def has_kafka(port: int, records: int) -> bool:
    consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "bench", "log_level": 0})
    try:
        consumer.assign([TopicPartition("filled", 0, records - 1)])
        message = consumer.poll(2.0)
        return message is not None and message.error() is None and message.offset() == records - 1
    finally:
        consumer.close()
