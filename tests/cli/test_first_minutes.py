"""The first commands a newcomer is told, on an empty broker, in the printed order."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mainstem.server.cli.run import next_commands
from mainstem.server.listeners import LISTENERS
from mainstem.testing import Broker
from tests.cli.commands import run, said

OTHER_PORTS = [word for name in LISTENERS for word in (f"--{name}-port", "0")]


def as_module(line: str) -> list[str]:
    """A printed command, whatever it is called here."""
    words = shlex.split(line)
    return [sys.executable, "-m", "mainstem", *words[words.index("sub" if "sub" in words else "pub") :]]


def start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def line_of(pipe: Any, within_s: float = 30) -> str:
    """The next line; the test's own time limit ends a pipe that stays silent."""
    began = time.monotonic()
    line: str = pipe.readline()
    assert time.monotonic() - began < within_s
    return line.rstrip("\n")


def test_the_printed_commands_work_in_the_printed_order(broker: Broker) -> None:
    ports = {name: getattr(broker, f"{name}_port") for name in ("mqtt", "kafka", "http")}
    consume, publish, view = next_commands(ports)
    consumer = start(as_module(consume))
    try:
        assert "does not exist yet" in line_of(consumer.stderr)
        done = subprocess.run(as_module(publish), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert line_of(consumer.stdout) == "21.5"
    finally:
        consumer.send_signal(signal.SIGINT)
        consumer.communicate(timeout=30)
    words = shlex.split(view)
    created = run(*words[words.index("view") :])
    assert created.returncode == 0, created.stderr
    assert "1 record stored so far" in created.stdout


@pytest.mark.parametrize(
    ("scheme", "consumed", "published"),
    [
        ("kafka", "late.kafka", "late.kafka"),
        ("mqtt", "late/mqtt", "late/mqtt"),
        ("amqp", "late.amqp", "late.amqp"),
        ("nats", "late.nats", "late.nats"),
    ],
)
def test_a_consumer_waits_for_a_topic_that_does_not_exist_yet(
    broker: Broker, scheme: str, consumed: str, published: str
) -> None:
    port = getattr(broker, f"{scheme}_port")
    url = f"{scheme}://127.0.0.1:{port}/{consumed}"
    consumer = start([sys.executable, "-u", "-m", "mainstem", "sub", url, "--count", "1"])
    try:
        deadline = time.monotonic() + 30
        while (
            consumer.poll() is None and time.monotonic() < deadline
        ):  # live ones miss what comes before they are there
            said("pub", f"{scheme}://127.0.0.1:{port}/{published}", "late")
        out, err = consumer.communicate(timeout=30)
        assert (consumer.returncode, out.strip()) == (0, "late"), err
    finally:
        consumer.kill()


def test_a_consumer_that_waits_ends_when_it_was_idle_for_long_enough(broker: Broker) -> None:
    for url in (
        f"kafka://127.0.0.1:{broker.kafka_port}/never",
        f"amqp://127.0.0.1:{broker.amqp_port}/?queue=never",
    ):
        done = run("sub", url, "--idle", "100ms")
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert done.stderr.strip() == "waiting: never does not exist yet; Ctrl-C stops"


def test_a_topic_is_created_by_an_address_and_says_its_other_names(broker: Broker) -> None:
    url = f"http://127.0.0.1:{broker.http_port}"
    text = said("topic", "create", f"kafka://127.0.0.1:{broker.kafka_port}/made.by.url", "--url", url)
    assert text.startswith("created made/by/url: ")
    assert "kafka made.by.url" in text
    text = said("topic", "create", "dotted.name", "--url", url)
    assert "kafka dotted" in text, "who meant dotted/name sees here that it is another topic"


def test_settings_are_shown_as_one_writes_them(broker: Broker) -> None:
    url = f"http://127.0.0.1:{broker.http_port}"
    said("topic", "create", "shown", "--set", "retention.ms=3d", "--url", url)
    text = said("topic", "describe", "shown", "--url", url)
    assert "3d  (topic)" in text, text
    settings = text[text.index("settings") :]
    for raw in ("259200000", "False", "True", " -1 ", "{"):
        assert raw not in settings


def test_a_list_that_was_cut_says_so(broker: Broker) -> None:
    url = f"http://127.0.0.1:{broker.http_port}"
    for number in range(3):
        said("topic", "create", f"many/{number}", "--url", url)
    done = run("topic", "ls", "many/#", "--limit", "2", "--url", url)
    assert done.stderr.strip() == "there are more than 2: --limit N shows more of them"
    assert run("topic", "ls", "many/#", "--limit", "3", "--url", url).stderr == ""


def test_a_server_that_cannot_start_leaves_nothing_behind(tmp_path: Path, broker: Broker) -> None:
    directory = tmp_path / "deep" / "data"
    taken = run("serve", "--data", str(directory), "--mqtt-port", str(broker.mqtt_port))
    assert taken.returncode == 78, taken.stderr
    assert list(tmp_path.iterdir()) == []
    unsafe = run("serve", "--data", str(directory), "--host", "0.0.0.0", *OTHER_PORTS)
    assert unsafe.returncode == 78, unsafe.stderr
    assert "no user is defined" in unsafe.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("address")
def test_who_names_a_queue_as_a_topic_is_told_how_to_take_from_it(broker: Broker) -> None:
    """It would wait for ever, and say nothing of the messages that lie in the queue."""
    created = said("queue", "create", "parcels", "parcels/#")
    assert "?queue=parcels" in created
    said("pub", f"mqtt://{broker.host}:{broker.mqtt_port}/parcels/a", "one")
    waited = run("sub", f"amqp://{broker.host}:{broker.amqp_port}/parcels", "--idle", "100ms")
    fix = re.search(r"mainstem sub '(\S+)'", waited.stderr)
    assert fix is not None and "parcels is a queue" in waited.stderr
    assert said("sub", fix[1], "--count", "1").strip() == "one"
    assert (
        "is a queue" not in run("sub", f"amqp://{broker.host}:{broker.amqp_port}/parcels.*", "--idle", "100ms").stderr
    )
    assert "is a queue" not in run("sub", f"amqp://{broker.host}:{broker.amqp_port}/no.such", "--idle", "100ms").stderr
