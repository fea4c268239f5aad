"""Exchanges, bindings, sessions, contexts and the one-line check, as an operator runs them."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import httpx
import paho.mqtt.client as paho
import pika
import pytest

from mainstem.testing import Broker
from tests.cli.commands import free_port, rows, run, said

pytestmark = pytest.mark.usefixtures("address")


def test_what_a_binding_sends_to_a_queue_arrives_there(broker: Broker) -> None:
    said("exchange", "create", "events", "--type", "topic")
    said("exchange", "create", "events", "--type", "topic")  # the same again
    assert run("exchange", "create", "events", "--type", "fanout").returncode == 1
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("jobs")
        said("binding", "add", "events", "jobs", "--key", "made.*")
        [row] = rows("binding", "ls", "--exchange", "events")
        assert (row["destination"], row["routing_key"]) == ("jobs", "made.*")
        channel.confirm_delivery()
        channel.basic_publish("events", "made.here", b"one")
        assert channel.basic_get("jobs", auto_ack=True)[2] == b"one"
        assert "made.*" in said("exchange", "describe", "events")
        said("binding", "rm", "events", "jobs", "--key", "made.*")
        assert rows("binding", "ls", "--exchange", "events") == []
        again = run("binding", "rm", "events", "jobs", "--key", "made.*")
        assert again.returncode == 1
        assert "mainstem binding ls --exchange events" in again.stderr
    said("exchange", "rm", "events", "--yes")
    assert "events" not in {row["name"] for row in rows("exchange", "ls")}


def test_arguments_that_are_no_table_are_refused(broker: Broker) -> None:
    for text in ("{", "[1]"):
        done = run("exchange", "create", "bad", "--arguments", text)
        assert done.returncode == 1
        assert "--arguments" in done.stderr


def test_a_session_shows_its_subscriptions_and_is_removed_while_its_client_is_away(broker: Broker) -> None:
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, "kept", clean_session=False)
    client.connect("127.0.0.1", broker.mqtt_port)
    client.loop_start()
    granted: list[int] = []
    client.on_subscribe = lambda *_: granted.append(1)
    client.subscribe("kept/#", 1)
    while not granted:
        pass
    [row] = [one for one in rows("session", "ls") if one["name"] == "kept"]
    assert (row["state"], row["reads"]) == ("connected", "kept/#")
    assert run("session", "rm", "kept", "--yes").returncode == 1
    client.disconnect()
    client.loop_stop()
    said("pub", f"mqtt://127.0.0.1:{broker.mqtt_port}/kept/a", "1")
    facts = rows("session", "describe", "kept")[0]
    assert (facts["state"], facts["lag"]) == ("away", 1)
    assert facts["subscriptions"] == [{"filter": "kept/#", "qos": 1}]
    said("session", "rm", "kept", "--yes")
    missing = run("session", "describe", "kept")
    assert missing.returncode == 1
    assert "mainstem session ls" in missing.stderr


def test_the_health_is_one_line_and_an_exit_code(broker: Broker) -> None:
    done = run("check")
    assert done.stdout.startswith(("ok: Mainstem", "not well: "))
    assert done.returncode == int(not done.stdout.startswith("ok"))
    assert len(done.stdout.splitlines()) == 1
    assert run("check", "--url", f"http://127.0.0.1:{free_port()}").returncode == 69


def test_a_context_says_which_broker_is_meant(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("MAINSTEM_URL")
    said("context", "add", "here", broker.http_url)
    said("context", "add", "gone", f"http://me:secret@127.0.0.1:{free_port()}")
    listed = said("context", "ls")
    assert "secret" not in listed
    assert (tmp_path / "mainstem" / "contexts.json").stat().st_mode & 0o077 == 0
    assert run("topic", "ls").returncode == 69
    assert run("topic", "ls", MAINSTEM_CONTEXT="here").returncode == 0
    said("context", "use", "here")
    assert run("topic", "ls").returncode == 0
    assert run("context", "use", "nowhere").returncode == 1
    assert run("context", "add", "bad", "ftp://x").returncode == 1
    said("context", "rm", "here")
    assert [row["name"] for row in rows("context", "ls")] == ["gone"]
    (tmp_path / "mainstem" / "contexts.json").write_text("{")
    assert "is not a file of contexts" in run("topic", "ls").stderr


def test_every_error_code_is_listed() -> None:
    listed = said("explain").splitlines()
    assert len(listed) > 20
    assert all(line.startswith("MS-") for line in listed)
    assert os.linesep.join(listed).count("MS-1001") == 1


def test_a_dead_letter_is_redriven_by_the_position_that_is_printed(broker: Broker) -> None:
    made = {"name": "jobs-dead", "filter": "dying/#", "deliveries_max": 1}
    httpx.post(f"{broker.http_url}/v1/queues", json=made).raise_for_status()
    for value in ("one", "two"):
        httpx.post(f"{broker.http_url}/v1/messages", json={"topic": "dying/a", "value": value}).raise_for_status()
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        for _ in range(2):
            deadline = time.monotonic() + 30
            while (got := channel.basic_get("jobs-dead"))[0] is None:
                assert time.monotonic() < deadline
            channel.basic_reject(got[0].delivery_tag, requeue=False)
    positions = re.findall(r"^\s*(\S+)", said("queue", "dead", "jobs-dead"), re.MULTILINE)[1:]
    assert len(positions) == 2
    assert "1 message" in said("queue", "redrive", "jobs-dead", "--position", positions[1])
    assert [str(one["position"]) for one in rows("queue", "dead", "jobs-dead")] == positions[:1]
