"""`mainstem bench` as a user runs it: against ours by each protocol, against mosquitto, and with what cannot be."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mainstem.server import load
from mainstem.server.cli.failures import MissingExtra
from mainstem.testing import Broker
from tests.cli.commands import free_port, rows, run, said

SHORT = ("--seconds", "0.5", "--warm-seconds", "0.1", "--window", "50")  # a small window stores little
MOSQUITTO = shutil.which("mosquitto") or "/usr/sbin/mosquitto"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(engine="segment") as broker:
        yield broker


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    if not Path(MOSQUITTO).exists():
        pytest.skip("mosquitto is not installed")
    port = free_port()
    file = tmp_path_factory.mktemp("mosquitto") / "mosquitto.conf"
    file.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nlog_dest none\n")
    process = subprocess.Popen([MOSQUITTO, "-c", str(file)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "mosquitto did not start"
        yield port
    finally:
        process.terminate()
        process.wait(20)


def sound(row: dict[str, Any]) -> None:
    """Something moved, nothing went wrong, and every figure is there."""
    assert row["messages_per_s"] > 0
    assert (row["lost"], row["duplicated"], row["reordered"]) == (0, 0, 0)
    assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["p999_ms"]
    assert row["generator_core"] >= 0


@pytest.mark.parametrize("protocol", ["mqtt", "kafka", "amqp", "nats"])
@pytest.mark.parametrize(
    "shape",
    ["--size 100", "--window 1 --pairs 3", "--rate 200", "--publishers 2 --subscribers 2 --batch 0 --window 10"],
)
def test_each_protocol_takes_each_shape(broker: Broker, protocol: str, shape: str) -> None:
    (row,) = rows("bench", f"{protocol}://127.0.0.1:{broker.ports[protocol]}", *SHORT, *shape.split())
    sound(row)
    assert row["protocol"] == protocol
    assert row["server_cpu_us"] is not None  # it found our process by its port


@pytest.mark.parametrize(
    ("protocol", "shape", "told"),
    [
        ("mqtt", "--qos 0", "QoS 0, 1 publisher → 1 subscriber"),
        ("mqtt", "--qos 2 --window 20", "QoS 2"),
        ("mqtt", "--topics 50 --subscribers 3", "50 topics each"),
        ("amqp", "--transient", "transient"),
        ("kafka", "--topics 3", "3 partitions"),
        ("nats", "--topics 20 --subscribers 2", "core, 1 publisher → 2 subscribers, 20 topics each"),
        ("nats", "--persistent", "JetStream, acknowledged"),
        ("kafka", "--size 5000 --batch 200000", "acks=all"),
    ],
)
def test_what_only_one_protocol_has(broker: Broker, protocol: str, shape: str, told: str) -> None:
    (row,) = rows("bench", f"{protocol}://127.0.0.1:{broker.ports[protocol]}", *SHORT, *shape.split())
    sound(row)
    assert told in row["workload"]


def test_without_subscribers_it_counts_what_was_acknowledged(broker: Broker) -> None:
    (row,) = rows("bench", f"kafka://127.0.0.1:{broker.kafka_port}", "--subscribers", "0", *SHORT)
    assert row["messages_per_s"] > 0
    assert row["p50_ms"] is None


def test_the_local_broker_is_found_and_left_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    with Broker() as own:
        text = said("bench", "--url", own.http_url, "--out", str(file), *SHORT)
        left = [row["name"] for row in rows("topic", "ls", "--url", own.http_url)]
        left += [row["name"] for row in rows("queue", "ls", "--url", own.http_url)]
    protocols = ["mqtt", "kafka", "amqp", "nats"]
    for protocol in protocols:
        assert f"{protocol}://127.0.0.1:{own.ports[protocol]}" in text
    for word in ("throughput", "p50", "p99.9", "lost 0, duplicated 0, reordered 0", "µs a message", "bound"):
        assert text.count(word) == len(protocols)
    assert [row["protocol"] for row in json.loads(file.read_text())] == protocols
    assert not [name for name in left if "bench" in name]


def test_another_broker_is_measured_alike(mosquitto: int) -> None:
    for shape in (["--qos", "0"], ["--qos", "1"], ["--rate", "300"]):
        (row,) = rows("bench", f"mqtt://127.0.0.1:{mosquitto}", *SHORT, *shape)
        sound(row)


def test_a_stopped_bench_ends_at_once_and_takes_its_topic_along() -> None:
    with Broker() as own:
        url = f"kafka://127.0.0.1:{own.kafka_port}"
        with subprocess.Popen(
            [sys.executable, "-m", "mainstem", "bench", url, "--seconds", "600", "--rate", "100"]
        ) as process:
            deadline = time.monotonic() + 30
            while not rows("topic", "ls", "--url", own.http_url) and time.monotonic() < deadline:
                pass
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
        assert not rows("topic", "ls", "--url", own.http_url)


@pytest.mark.parametrize(
    ("given", "code", "told"),
    [
        ("http://localhost", 1, "is not an address"),
        ("mqtts://localhost", 1, "name the port without TLS"),
        ("mqtt://127.0.0.1:FREE", 69, "nobody answers at mqtt://127.0.0.1:"),
        ("--url http://127.0.0.1:FREE", 69, "mainstem up"),
        ("kafka://127.0.0.1:FREE --qos 0", 1, "it is for mqtt://"),
        ("mqtt://127.0.0.1:FREE --transient", 1, "it is for amqp://"),
        ("--size 3", 2, "--size"),
        ("--rate -1", 2, "--rate"),
        ("--pairs 3 --publishers 2", 1, "leave out the others"),
        ("kafka://127.0.0.1:FREE --pairs 3 --topics 2", 1, "leave out --topics"),
        ("amqp://127.0.0.1:AMQP --size 200000", 1, "is the most"),
        ("mqtt://127.0.0.1:FREE --core 4095", 1, "--core 4095"),
        ("mqtt://127.0.0.1:FREE --pid 4194304", 1, "there is no process"),
        ("mqtt://127.0.0.1:FREE --out /nowhere/results.json", 2, "No such file"),
        ("mqtt://127.0.0.1:AMQP", 1, "is it the port of another protocol?"),
        ("amqp://127.0.0.1:MQTT", 1, "is it the port of another protocol?"),
        ("amqp://127.0.0.1:AMQP/nowhere", 1, "refuses connection.open"),
    ],
)
def test_what_cannot_be_is_said_with_a_way_out(broker: Broker, given: str, code: int, told: str) -> None:
    names = {"FREE": free_port(), "AMQP": broker.amqp_port, "MQTT": broker.mqtt_port}
    for name, port in names.items():
        given = given.replace(name, str(port))
    done = run("bench", *given.split(), *SHORT)
    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_without_epoll_it_refuses_and_says_where_to_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    load.require_epoll()
    monkeypatch.delattr("select.epoll")
    with pytest.raises(MissingExtra) as refused:
        load.require_epoll()
    assert "on Linux" in refused.value.fix
