"""The command line, as a user runs it: a process, its output, its exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainstem.server.cli import VERBS
from mainstem.testing import Broker
from tests.cli.commands import free_port, rows, run, said

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.usefixtures("address")


# -- without a broker


def test_version_and_help() -> None:
    assert re.fullmatch(r"mainstem \d+\.\d+\.\d+\n", said("--version"))
    text = said("--help")
    for verb in VERBS:
        assert f"  {verb}" in text


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("pipeline", "sql", "lake")])
def test_every_verb_has_help_that_says_what_it_does(verb: str) -> None:
    text = said(verb, "--help")
    assert "Usage: mainstem" in text
    assert len(text) > 150


def test_the_version_is_the_packages() -> None:
    assert f'version = "{said("--version").split()[1]}"' in (ROOT / "pyproject.toml").read_text()


def test_a_verb_that_does_not_exist_is_usage() -> None:
    done = run("tpic")
    assert done.returncode == 2
    assert "did you mean 'topic'?" in done.stderr


def test_config_check_lists_every_problem(tmp_path: Path) -> None:
    file = tmp_path / "mainstem.toml"
    file.write_text("[topics]\nretention.mss = 3\n[mqtt]\nreceive_max = 0\n")
    done = run("config", "check", str(file))
    assert done.returncode == 78
    assert "mainstem.toml:2" in done.stderr
    assert "did you mean `retention.ms`?" in done.stderr
    assert "2 problems; nothing was started" in done.stderr
    file.write_text("[topics]\nretention.ms = '3d'\n")
    assert "no problems" in said("config", "check", str(file))
    shown = {row["key"]: row for row in rows("config", "show", str(file), MAINSTEM_HTTP__CONSOLE="false")}
    assert shown["topics.retention_ms"]["value"] == "3d"
    assert shown["topics.retention_ms"]["source"] == "mainstem.toml:2"
    assert shown["http.console"]["source"] == "MAINSTEM_HTTP__CONSOLE"


def test_explain_says_what_a_code_means() -> None:
    assert "Unknown key" in said("explain", "MS-4001")
    assert run("explain", "MS-9999").returncode == 1


def test_nobody_answers() -> None:
    done = run("topic", "ls", "--url", f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 69
    assert "error[MS-6001]" in done.stderr
    assert "mainstem up" in done.stderr
    assert run("pub", f"mqtt://127.0.0.1:{free_port()}/a", "x").returncode == 69


def test_the_wrong_protocol_is_told(broker: Broker) -> None:
    done = run("pub", f"kafka://127.0.0.1:{broker.http_port}/a", "x")
    assert done.returncode == 1
    assert "error[MS-6002]" in done.stderr
    for scheme, port in (("kafka", broker.mqtt_port), ("amqp", broker.kafka_port), ("mqtt", broker.amqp_port)):
        done = run("pub", f"{scheme}://127.0.0.1:{port}/a", "x")
        assert done.returncode == 1
        assert "is it the port of another protocol?" in done.stderr or "another version of AMQP" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script(shell: str) -> None:
    assert "_MAINSTEM_COMPLETE" in said("completion", shell)


def test_completion_knows_verbs() -> None:
    done = run(_MAINSTEM_COMPLETE="bash_complete", COMP_WORDS="mainstem to", COMP_CWORD="1")
    assert "plain,topic" in done.stdout


def test_completion_knows_names_of_objects_and_is_silent_without_a_broker(broker: Broker) -> None:
    for name in ("finish/one", "finish/two", "other"):
        said("topic", "create", name)
    words = {"_MAINSTEM_COMPLETE": "bash_complete", "COMP_CWORD": "3"}
    done = run(**words, COMP_WORDS="mainstem topic describe fin")
    assert sorted(done.stdout.split()) == ["plain,finish/one", "plain,finish/two"]
    assert run(**words, COMP_WORDS="mainstem topic create fin").stdout.strip() == ""
    away = run(**words, COMP_WORDS="mainstem topic describe fin", MAINSTEM_URL="http://127.0.0.1:9")
    assert (away.stdout.strip(), away.stderr) == ("", "")


# -- messages


@pytest.mark.parametrize("scheme", ["mqtt", "kafka", "amqp"])
def test_what_pub_publishes_sub_prints(broker: Broker, scheme: str) -> None:
    topic = f"cli/{scheme}" if scheme == "mqtt" else f"cli.{scheme}"
    url = f"{scheme}://127.0.0.1:{broker.ports[scheme]}/{topic}"
    said("pub", url, "hello {{n}}", "--template", "--count", "3", "-H", "region=eu", "-k", "key-1")
    kafka = f"kafka://127.0.0.1:{broker.kafka_port}/cli.{scheme}"
    lines = rows("sub", kafka, "--from", "earliest", "--count", "3")
    assert [line["value"] for line in lines] == ["hello 1", "hello 2", "hello 3"]
    assert lines[0]["key"] == "key-1"
    assert ["region", "eu"] in lines[0]["headers"]


@pytest.mark.parametrize("scheme", ["mqtt", "kafka", "amqp"])
def test_sub_starts_where_it_is_told(broker: Broker, scheme: str) -> None:
    said("pub", f"mqtt://127.0.0.1:{broker.mqtt_port}/cli/start/{scheme}", "-", "--lines", given="1\n2\n3\n4\n")
    separator = "/" if scheme == "mqtt" else "."
    url = f"{scheme}://127.0.0.1:{broker.ports[scheme]}/cli{separator}start{separator}{scheme}"
    assert said("sub", url, "--from", "earliest", "--count", "4") == "1\n2\n3\n4\n"
    assert said("sub", url, "--from", "-2", "--count", "2") == "3\n4\n"
    assert said("sub", url, "--from", "5m", "--count", "1") == "1\n"
    assert said("sub", url, "--from", "ts:2026-01-31T12:00:00Z", "--count", "1") == "1\n"
    assert said("sub", url, "--from", "latest", "--idle", "300ms") == ""
    first = rows("sub", url, "--from", "earliest", "--count", "1")[0]["offset"]
    assert said("sub", url, "--from", f"@{first + 1}", "--count", "1") == "2\n"


@pytest.mark.parametrize(
    ("scheme", "target"), [("mqtt", "cli/wild/+"), ("amqp", "cli.wild.*"), ("amqp", "?queue=wild")]
)
def test_sub_counts_back_over_many_topics(broker: Broker, scheme: str, target: str) -> None:
    for number in range(6):  # half of them in a log of their own
        if number % 2:
            said("pub", f"mqtt://127.0.0.1:{broker.mqtt_port}/cli/wild/a", str(number))
        else:
            said("pub", f"kafka://127.0.0.1:{broker.kafka_port}/cli.wild.b", str(number))
    if "queue" in target:
        said("view", "create", "wild", "cli/wild/+")
    url = f"{scheme}://127.0.0.1:{broker.ports[scheme]}/{target}"
    assert said("sub", url, "--from", "-3", "--count", "3") == "3\n4\n5\n"
    if "queue" in target:
        said("view", "rm", "wild", "--yes")


def test_sub_follows_live_with_a_wildcard(broker: Broker) -> None:
    url = f"mqtt://127.0.0.1:{broker.mqtt_port}/cli/live/#"
    command = [sys.executable, "-m", "mainstem", "sub", url, "--count", "1", "--format", "{{topic}}={{value}}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        deadline = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < deadline:
            said("pub", f"kafka://127.0.0.1:{broker.kafka_port}/cli.live.a", "now")
        assert process.stdout.read() == "cli/live/a=now\n"


def test_pub_takes_json_lines_and_files(broker: Broker, tmp_path: Path) -> None:
    url = f"mqtt://127.0.0.1:{broker.mqtt_port}/cli/json"
    said("pub", url, "--json", given='{"value": {"a": 1}, "key": "k", "headers": {"h": "v"}}\n{"value": "text"}\n')
    file = tmp_path / "payload.bin"
    file.write_text("from a file")
    said("pub", url, f"@{file}")
    kafka = f"kafka://127.0.0.1:{broker.kafka_port}/cli.json"
    assert said("sub", kafka, "--from", "earliest", "--count", "3") == '{"a": 1}\ntext\nfrom a file\n'
    assert run("pub", url, f"@{tmp_path}/missing").returncode == 1


# -- things


def test_topics_are_made_listed_changed_and_removed() -> None:
    said("topic", "create", "things/topic", "--partitions", "2", "--set", "retention.ms=1d", "--durability", "os")
    listed = {row["name"]: row for row in rows("topic", "ls", "things/#")}
    assert listed["things/topic"]["partitions"] == 2
    facts = rows("topic", "describe", "things/topic")[0]
    assert facts["settings"]["retention_ms"]["value"] == 86_400_000
    said("topic", "alter", "things/topic", "--retention", "2d")
    assert rows("topic", "describe", "things/topic")[0]["settings"]["retention_ms"]["value"] == 172_800_000
    done = run("topic", "alter", "things/topic", "--set", "retntion=3")
    assert done.returncode == 1
    assert "unknown topic setting" in done.stderr
    said("topic", "rm", "things/topic", "--yes")
    assert run("topic", "describe", "things/topic").returncode == 1


def test_tables_are_for_people() -> None:
    said("topic", "create", "things/table")
    head, *lines = said("topic", "ls", "things/table").splitlines()
    assert head.split()[:3] == ["NAME", "LAYOUT", "ENGINE"]
    assert lines[0].split()[0] == "things/table"


def test_views_are_made_and_read(broker: Broker) -> None:
    said("pub", f"mqtt://127.0.0.1:{broker.mqtt_port}/viewed/1", "one")
    assert "1 record stored so far" in said("view", "create", "viewed-all", "viewed/#")
    assert [row["name"] for row in rows("view", "ls")] == ["viewed-all"]
    assert said("sub", f"kafka://127.0.0.1:{broker.kafka_port}/viewed-all", "--from", "earliest", "-n", "1") == "one\n"
    said("view", "rm", "viewed-all", "--yes")


def test_groups_cursors_and_connections_are_listed() -> None:
    assert isinstance(rows("group", "ls"), list)
    assert isinstance(rows("cursor", "ls"), list)
    assert isinstance(rows("conn", "ls"), list)
    assert isinstance(rows("queue", "ls"), list)
    assert "Mainstem" in said("top", "--once")


def test_doctor_says_what_it_saw(tmp_path: Path) -> None:
    checks = {row["check"]: row for row in rows("doctor", "--data", str(tmp_path / "none"))}
    assert checks["Python"]["state"] == "ok"
    assert checks["broker"]["state"] == "ok"
    open_directory = tmp_path / "open"
    open_directory.mkdir(mode=0o755)
    done = run("doctor", "--data", str(open_directory))
    assert done.returncode == 1
    assert f"fix: chmod 700 {open_directory}" in done.stdout


# -- starting and stopping


def free_ports() -> list[str]:
    return [part for name in ("mqtt", "ws", "kafka", "amqp", "nats", "http") for part in (f"--{name}-port", "0")]


def test_a_taken_port_is_an_error_in_production_and_moved_in_development(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("serve", "--data", str(tmp_path / "a"), *free_ports(), "--mqtt-port", str(port))
        assert done.returncode == 78
        assert f"port {port} (MQTT) is used by" in done.stderr
        command = [sys.executable, "-m", "mainstem", "up", "--ephemeral", *free_ports(), "--mqtt-port", str(port)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            text = ""
            while "Try:" not in text:
                text += process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        assert f"{port} is used by" in text
        assert "MQTT moved to" in text


def test_an_unsafe_bind_is_refused_with_the_two_ways_out(tmp_path: Path) -> None:
    done = run("serve", "--data", str(tmp_path / "a"), "--host", "0.0.0.0", *free_ports())
    assert done.returncode == 78
    assert "error[MS-4006]" in done.stderr
    assert "mainstem user add" in done.stderr
    assert "--insecure-allow-anonymous" in done.stderr


def test_a_user_added_offline_lets_the_network_in(tmp_path: Path) -> None:
    data = str(tmp_path / "a")
    said("user", "add", "root", "--admin", "--data", data, "--password", "secret")
    command = [sys.executable, "-m", "mainstem", "serve", "--data", data, "--host", "0.0.0.0", *free_ports()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        text = ""
        while "Try:" not in text:
            text += process.stdout.readline()
        port = re.search(r"console +http://[^:]+:(\d+)", text)
        assert port is not None
        assert run("topic", "ls", "--url", f"http://127.0.0.1:{port[1]}").returncode == 1
        assert run("topic", "ls", "--url", f"http://root:secret@127.0.0.1:{port[1]}").returncode == 0
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_a_directory_in_use_or_of_something_else_is_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir(mode=0o700)
    (foreign / "family.jpg").write_text("x")
    done = run("serve", "--data", str(foreign), *free_ports())
    assert done.returncode == 78
    assert "error[MS-4009]" in done.stderr


def test_hangup_reloads_what_can_be(tmp_path: Path) -> None:
    file = tmp_path / "mainstem.toml"
    file.write_text("[limits]\nconnections_max = 30\n")
    command = [sys.executable, "-m", "mainstem", "serve", "-c", str(file), "--data", str(tmp_path / "a"), *free_ports()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while "Try:" not in process.stdout.readline():
            pass
        file.write_text("[limits]\nconnections_max = 20\n[topics]\nengine = 'memory'\n")
        process.send_signal(signal.SIGHUP)
        seen = ""
        while "needs a restart" not in seen:
            seen += process.stderr.readline()
        assert "reloaded: limits.connections_max" in seen
        assert "topics.engine" in seen
        file.write_text("[nonsense")
        process.send_signal(signal.SIGHUP)
        while "the old one stays" not in seen:
            seen += process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_systemd_is_told(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(path))
        receiver.settimeout(30)
        command = [sys.executable, "-m", "mainstem", "serve", "--data", str(tmp_path / "a"), *free_ports()]
        environment = {**os.environ, "NOTIFY_SOCKET": str(path)}
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
        ) as process:
            assert receiver.recv(4096).startswith(b"READY=1")
            process.send_signal(signal.SIGHUP)
            assert receiver.recv(4096) == b"RELOADING=1"
            assert receiver.recv(4096) == b"READY=1"
            process.send_signal(signal.SIGTERM)
            assert receiver.recv(4096) == b"STOPPING=1"
            assert process.wait(30) == 0


def test_the_demo_crosses_all_protocols() -> None:
    text = said("demo", "--no-sql")
    assert "22 legs, one append each, no bridge" in text


# -- the bytes on disk


def test_logs_are_listed_dumped_verified_backed_up_and_restored(start_broker: Any, tmp_path: Path) -> None:
    one = start_broker()
    said("pub", f"mqtt://127.0.0.1:{one.mqtt_port}/disk/a", "kept", "--count", "5", "--retain")
    target = tmp_path / "backup"
    assert "backed up to" in said("backup", str(target), "--url", one.http_url)
    one.stop()
    data = str(one.data)
    listed = rows("log", "ls", "--data", data)
    assert [row["engine"] for row in listed] == ["segment"]
    assert listed[0]["clean"]
    (counted,) = rows("log", "ls", "--data", data, "--state")
    assert 0 < counted["state_bytes"] < counted["size_bytes"]
    assert counted["state_share"] == f"{counted['state_bytes'] / counted['size_bytes']:.1%}"
    frames = rows("log", "dump", str(listed[0]["log"]), "--data", data, "--records")
    assert counted["state_bytes"] == sum(frame["size"] for frame in frames if frame["kind"] == "state")
    values = [record["value"] for frame in frames if frame["kind"] == "data" for record in frame["records"]]
    assert values == ["kept"] * 5
    assert " frame" in said("log", "verify", "--data", data)
    restored = tmp_path / "restored"
    said("restore", str(target), str(restored))
    again = start_broker(data=restored)
    url = f"kafka://127.0.0.1:{again.kafka_port}/disk.a"
    assert said("sub", url, "--from", "earliest", "--count", "5") == "kept\n" * 5


def test_logs_are_listed_and_verified_while_they_are_written_to(start_broker: Any) -> None:
    one = start_broker()
    began, ended = threading.Event(), threading.Event()

    def write() -> None:
        with httpx.Client() as client:
            while not ended.is_set():
                client.post(f"{one.http_url}/v1/messages", json={"topic": "busy", "value": "x" * 300})
                began.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert began.wait(60)
        for _ in range(3):
            engines = [row["engine"] for row in rows("log", "ls", "--data", str(one.data))]
            assert "segment" in engines  # the history may have a log, too
            assert " frame" in said("log", "verify", "--data", str(one.data))
    finally:
        ended.set()
        writer.join()


def test_a_log_that_nothing_was_written_to_has_no_engine_yet(tmp_path: Path) -> None:
    with Broker(engine="segment", data=tmp_path) as broker:
        said("topic", "create", "quiet", "--partitions", "2", MAINSTEM_URL=broker.http_url)
        said("pub", f"mqtt://127.0.0.1:{broker.mqtt_port}/heard", "x")
        described = said("topic", "describe", "quiet", MAINSTEM_URL=broker.http_url)
        assert len(re.findall(r"layout +dedicated", described)) == 2
        engines = [row["engine"] for row in rows("log", "ls", "--data", str(tmp_path))]
    assert engines[0] == "segment" and engines.count(None) >= 2  # the history may have a log, too, with or without one


def test_damage_of_acked_data_is_found_and_given_up_only_on_request(start_broker: Any) -> None:
    one = start_broker()
    for _ in range(3):
        said("pub", f"mqtt://127.0.0.1:{one.mqtt_port}/disk/a", "x" * 1000)
    one.stop()
    data = str(one.data)
    log_id = str(rows("log", "ls", "--data", data)[0]["log"])
    segment = max((one.data / "logs" / log_id).glob("*.log"), key=lambda path: path.stat().st_size, default=None)
    segment = segment or next(path for path in (one.data / "logs" / log_id).iterdir() if path.stat().st_size > 2000)
    with segment.open("r+b") as file:
        file.seek(500)
        file.write(b"\xff" * 20)
    done = run("log", "verify", "--data", data)
    assert done.returncode == 1
    assert "error[MS-5002]" in done.stderr
    assert run("log", "repair", log_id, "--data", data).returncode == 1
    assert "kept aside" in said("log", "repair", log_id, "--quarantine", "--data", data)
    said("log", "verify", "--data", data)
    one.start()
    url = f"kafka://127.0.0.1:{one.kafka_port}/disk.a"
    assert said("sub", url, "--from", "earliest", "--idle", "1s").count("\n") >= 1


def test_a_queue_is_made_used_and_removed(broker: Broker) -> None:
    said("pub", f"mqtt://127.0.0.1:{broker.mqtt_port}/queued/1", "before")
    assert "1 message ready" in said("queue", "create", "cli-jobs", "queued/#", "--from", "earliest")
    said("pub", f"kafka://127.0.0.1:{broker.kafka_port}/queued.2", "after")
    url = f"amqp://127.0.0.1:{broker.amqp_port}/?queue=cli-jobs"
    assert said("sub", url, "--count", "2") == "before\nafter\n"
    listed = {row["name"]: row for row in rows("queue", "ls")}
    assert listed["cli-jobs"]["filters"] == ["queued/#"]
    said("queue", "rm", "cli-jobs", "--yes")
    assert run("queue", "describe", "cli-jobs").returncode == 1


def test_what_is_made_is_told_as_json_too() -> None:
    said("topic", "create", "told")
    assert rows("queue", "create", "told-queue", "told/#")[0]["ready"] == 0
    assert rows("group", "create", "told-group", "told")[0]["lag"] == 0


def test_limits_of_a_queue_are_changed_while_it_holds_messages(broker: Broker) -> None:
    said("queue", "create", "narrow", "cli/narrow")
    assert "0 messages" in said("queue", "create", "wide", "cli/#")  # what was published before is not counted
    said("pub", f"mqtt://127.0.0.1:{broker.mqtt_port}/cli/narrow", "-", "--lines", given="1\n2\n3\n")
    assert "1 message ready" in said("queue", "alter", "narrow", "--length", "1")
    assert said("sub", f"amqp://127.0.0.1:{broker.amqp_port}/?queue=narrow", "--count", "1") == "3\n"
    settings = rows("queue", "alter", "narrow", "--length", "none", "--ttl", "1h", "--attempts", "3")[0]["settings"]
    assert (settings["length_max"], settings["message_ttl_ms"], settings["deliveries_max"]) == (None, 3_600_000, 3)
    assert "nothing to change" in run("queue", "alter", "narrow").stderr
    assert run("queue", "alter", "narrow", "--ttl", "soon").returncode == 1


def test_a_group_is_given_its_place_before_its_consumers_start(broker: Broker) -> None:
    said("pub", f"kafka://127.0.0.1:{broker.kafka_port}/cli.placed", "-", "--lines", given="1\n2\n3\n")
    assert "2 records" in said("group", "create", "placed", "cli.placed", "--from", "-2")
    assert run("group", "create", "placed", "cli.placed").returncode == 1
    assert run("group", "create", "other", "nowhere").returncode == 1
    assert rows("cursor", "alter", "placed", "--to", "earliest", "--execute")[0]["to"] == 0
    assert rows("cursor", "describe", "placed")[0]["lag"] == 3
    assert "removed group placed" in said("cursor", "rm", "placed", "--yes")
    assert "there is no cursor placed" in run("cursor", "describe", "placed").stderr


def test_a_session_is_forgotten_once_its_client_is_away(broker: Broker) -> None:
    import paho.mqtt.client as paho
    from paho.mqtt.enums import CallbackAPIVersion

    client = paho.Client(CallbackAPIVersion.VERSION2, client_id="cli-session", clean_session=False)
    client.connect(broker.host, broker.mqtt_port)
    client.loop_start()
    try:
        deadline = time.monotonic() + 20
        while (seen := run("cursor", "describe", "cli-session", "--json")).returncode and time.monotonic() < deadline:
            pass
        assert json.loads(seen.stdout)["state"] == "connected"
        refused = run("cursor", "rm", "cli-session", "--yes")
        assert refused.returncode == 1
        assert "is connected" in refused.stderr
    finally:
        client.disconnect()
        client.loop_stop()
    while run("cursor", "rm", "cli-session", "--yes").returncode and time.monotonic() < deadline:
        pass
    assert run("cursor", "describe", "cli-session").returncode == 1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("topic alter t --set retention.mss=1d", "did you mean retention.ms?"),
        ("topic create t --set nonsense=1", "mainstem config reference"),
        ("pub mqtt://localhost/", "names no topic"),
        ("pub http://localhost/a x", "is not an address"),
        ("sub mqtt://localhost/a --from yesterday", "is not understood"),
        ("pub mqtt://127.0.0.1:MQTT_PORT/a @nofile", "cannot be read"),
        ("view create v a/#/+b", "'+'"),
        ("explain MS-9999", "there is no error code"),
        ("conn rm mqtt-1", "there is no connection"),
    ],
)
def test_what_is_wrong_is_said_with_a_way_out(broker: Broker, given: str, told: str) -> None:
    done = run(*given.replace("MQTT_PORT", str(broker.mqtt_port)).split())
    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_knows_the_broker_by_its_own_ports(tmp_path: Path) -> None:
    """Our own ports are no surprise; those of others are named with their owner."""
    file = tmp_path / "mainstem.toml"
    with Broker() as own, socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        taken = other.getsockname()[1]
        file.write_text(f"[listeners]\nmqtt_port = {own.mqtt_port}\nkafka_port = {taken}\namqp_port = {free_port()}\n")
        text = run("doctor", "--config", str(file), MAINSTEM_URL=own.http_url).stdout
    assert re.search(rf"✔ port {own.mqtt_port}\s+MQTT: the broker's own", text)
    assert re.search(rf"! port {taken}\s+Kafka: used by \S+ \(pid {os.getpid()}\)", text)
    assert "AMQP" not in text
