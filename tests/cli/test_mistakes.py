"""What people type by mistake: one message that says what to do, the right exit code, never a mistake of ours."""

from __future__ import annotations

import base64
import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from mainstem.server.cli.run import next_commands
from mainstem.server.clients.client import read_start
from mainstem.testing import Broker
from tests.cli.commands import run, said

NO_TEXT = os.fsdecode(b"\xff\xfe")


pytestmark = pytest.mark.usefixtures("address")


def refused(*arguments: str, code: int = 1, given: str | None = None) -> str:
    done = run(*arguments, given=given)
    assert done.returncode == code, done.stderr
    assert "MS-0000" not in done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("pub", "mqtt://localhost/a", "x", "--every", "soon"),
        ("pub", "mqtt://localhost/a", "x", "--count", "-5"),
        ("sub", "mqtt://localhost/a", "--idle", "-1s"),
        ("sub", "mqtt://localhost/a", "--idle", "0"),
        ("sub", "mqtt://localhost/a", "--count", "0"),
        ("sub", "mqtt://localhost/a", "--format", "{topic}"),
        ("queue", "create", "q", "a/#", "--lock", "abc"),
        ("queue", "create", "q", "a/#", "--ttl", "9999999999999999d"),
    ],
    ids=" ".join,
)
def test_a_number_or_duration_that_cannot_be_is_wrong_usage(arguments: tuple[str, ...]) -> None:
    assert f"Invalid value for '{arguments[-2]}'" in refused(*arguments, code=2)


@pytest.mark.parametrize("url", ["mqtt://[::1/a", "mqtt://localhost:abc/a", "kafka://localhost:99999/a"])
def test_an_address_that_cannot_be_is_told(url: str) -> None:
    assert "fix: " in refused("pub", url, "x")


@pytest.mark.parametrize("url", ["http://localhost:abc", "http://[::1", "ftp://localhost"])
def test_an_http_address_that_cannot_be_is_told(url: str) -> None:
    assert "fix: http://HOST:PORT" in refused("topic", "ls", "--url", url)


def test_https_where_there_is_none_is_not_called_silence(broker: Broker) -> None:
    text = refused("topic", "ls", "--url", broker.http_url.replace("http://", "https://"))
    assert "MS-6002" in text
    assert "https://" in text


def test_names_that_are_not_utf_8_are_told_and_values_are_published_as_they_are(broker: Broker) -> None:
    for arguments in (
        ("pub", f"mqtt://localhost:{broker.mqtt_port}/a/{NO_TEXT}", "x"),
        ("topic", "create", NO_TEXT),
        ("topic", "ls", NO_TEXT),
    ):
        assert r"b'\xff\xfe' is not UTF-8" in refused(*arguments)
    kafka = f"kafka://localhost:{broker.kafka_port}/raw"
    said("pub", kafka, NO_TEXT, "--key", NO_TEXT, "--header", f"h={NO_TEXT}")
    row = json.loads(said("sub", kafka, "--from", "earliest", "--count", "1", "--json"))
    assert base64.b64decode(row["value_base64"]) == base64.b64decode(row["key_base64"]) == b"\xff\xfe"
    mqtt = f"mqtt://localhost:{broker.mqtt_port}/raw"
    assert "MQTT carries keys and headers as UTF-8" in refused("pub", mqtt, "x", "--key", NO_TEXT)


def test_a_value_reaches_a_file_as_it_came(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "value").write_bytes(bytes(range(256)))
    url = f"mqtt://localhost:{broker.mqtt_port}/all/bytes"
    said("pub", url, f"@{tmp_path / 'value'}")
    command = [sys.executable, "-m", "mainstem", "sub", url, "--from", "earliest", "--count", "1"]
    assert subprocess.run(command, capture_output=True, check=True, timeout=60).stdout == bytes(range(256)) + b"\n"


@pytest.mark.parametrize("scheme", ["mqtt", "kafka", "amqp"])
def test_what_sub_prints_as_json_is_published_again_as_it_was(broker: Broker, scheme: str, tmp_path: Path) -> None:
    (tmp_path / "value").write_bytes(b"\x00\xff")
    url = f"{scheme}://localhost:{getattr(broker, f'{scheme}_port')}"
    said("pub", f"{url}/again-{scheme}", f"@{tmp_path / 'value'}", "--header", "h=v")
    line = said("sub", f"{url}/again-{scheme}", "--from", "earliest", "--count", "1", "--json")
    row = {**json.loads(line), "topic": f"twice-{scheme}"}
    said("pub", f"{url}/elsewhere", "-", "--json", given=json.dumps(row))
    twice = json.loads(said("sub", f"{url}/twice-{scheme}", "--from", "earliest", "--count", "1", "--json"))
    assert base64.b64decode(twice["value_base64"]) == b"\x00\xff"
    assert ["h", "v"] in twice["headers"]


@pytest.mark.parametrize(
    "line", ['{"valu": 1}', "[1]", '{"value": 1, "headers": 5}', r'{"value": "\ud800"}', '{"value_base64": "!"}']
)
def test_a_json_line_that_cannot_be_published_is_shown(broker: Broker, line: str) -> None:
    url = f"mqtt://localhost:{broker.mqtt_port}/lines"
    assert line in refused("pub", url, "-", "--json", given=line)


@pytest.mark.parametrize("start", [f"@{10**23}", f"-{10**23}", f"ts:{10**20}", "ts:²", "-²"])
def test_a_start_that_cannot_be_is_told(broker: Broker, start: str) -> None:
    assert "is not understood" in refused("sub", f"kafka://localhost:{broker.kafka_port}/a", "--from", start)


def test_longer_than_time_itself_is_everything() -> None:
    assert read_start("99999999999d").value == 0


def test_a_reader_who_has_seen_enough_is_no_failure(broker: Broker) -> None:
    for number in range(3):
        said("topic", "create", f"enough/{number}")
    command = f"set -o pipefail; {sys.executable} -m mainstem topic ls --json | head -c 1"
    assert subprocess.run(["bash", "-c", command], capture_output=True, check=True, timeout=60).stdout == b"{"


def test_output_that_cannot_be_written_is_told_with_its_reason(broker: Broker) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mainstem", "view", "create", "unseen", "a/#"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert "error[MS-6005] No space left on device" in done.stderr


def test_a_log_that_is_not_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for verb in ("verify", "dump"):
        assert "there is no log 999" in refused("log", verb, "999", "--data", str(tmp_path))


def test_a_host_that_is_not_ours_is_not_called_a_taken_port(tmp_path: Path) -> None:
    text = refused("serve", "--host", "no-such-host.invalid", "--data", str(tmp_path / "d"), code=78)
    assert "fix: --host H" in text
    assert "other process" not in text


def test_the_commands_to_try_reach_the_address_that_is_listened_on() -> None:
    ports = {"kafka": 9092, "mqtt": 2883, "http": 7070}
    assert [line.split("mainstem ", 1)[1] for line in next_commands(ports)] == [
        "sub kafka://localhost/sensors.kitchen.temp --from earliest",
        "pub mqtt://localhost:2883/sensors/kitchen/temp 21.5",
        "view create all-sensors 'sensors/#'",
    ]
    sub, pub, view = next_commands(ports, "fd00::7")
    assert "kafka://[fd00::7]/" in sub
    assert "mqtt://[fd00::7]:2883/" in pub
    assert view.endswith("--url http://[fd00::7]:7070")


def test_the_commands_to_try_use_tls_where_there_is_nothing_else() -> None:
    sub, pub, view = next_commands({"kafkas": 9093, "mqtts": 8883, "https": 7443})
    assert "kafkas://localhost:9093/sensors.kitchen.temp --ca FILE" in sub
    assert "mqtts://localhost:8883/sensors/kitchen/temp --ca FILE 21.5" in pub
    assert view.startswith("MAINSTEM_CA=FILE ")
    assert view.endswith("--url https://localhost:7443")
    sub, _, view = next_commands({"kafkas": 9093, "mqtts": 8883, "https": 7443}, ca="/etc/own.pem")
    assert "--ca /etc/own.pem" in sub
    assert view.startswith("MAINSTEM_CA=/etc/own.pem ")


def test_a_refusal_of_kafka_has_a_name(broker: Broker) -> None:
    assert "Kafka error 17 (invalid topic exception)" in refused(
        "pub", f"kafka://localhost:{broker.kafka_port}/no name", "x"
    )


def test_a_publish_that_a_full_disk_refuses_is_told_by_every_protocol(tmp_path: Path) -> None:
    with Broker("data.space_low_bytes=1000TiB", engine="segment", data=tmp_path) as full:
        deadline = time.monotonic() + 30
        body = {"topic": "a/b", "value": "x"}
        while httpx.post(f"{full.http_url}/v1/messages", json=body).status_code != 507 and time.monotonic() < deadline:
            pass
        words = {"mqtt": "quota exceeded (0x97)", "kafka": "less than the mark", "amqp": "it is low on disk"}
        for scheme, told in words.items():
            assert told in refused("pub", f"{scheme}://127.0.0.1:{full.ports[scheme]}/a", "x")


@pytest.mark.parametrize(
    ("target", "arguments", "told"),
    [
        ("mqtt/$SYS/a", ("--qos", "0"), "nobody publishes to $SYS"),
        ("mqtt/a", ("--qos", "0", "-H", "ms-ts=-5"), "ms-ts is '-5', not a whole number"),
        ("mqtt/a", ("-H", "ms-ts=-5"), "implementation specific (0x83)"),
        ("amqp/a?exchange=amq.direct", (), "312 NO_ROUTE"),
        ("amqp/no-such-queue?exchange=", (), "312 NO_ROUTE"),
        ("amqp/a?exchange=nowhere", (), "no exchange 'nowhere'"),
        ("amqp/a?exchnage=amq.direct", (), "did you mean exchange?"),
        ("mqtt/a?qos=2", (), "qos is 0 or 1"),
    ],
)
def test_a_publish_that_nobody_takes_is_told(
    broker: Broker, target: str, arguments: tuple[str, ...], told: str
) -> None:
    scheme, _, path = target.partition("/")
    assert told in refused("pub", f"{scheme}://127.0.0.1:{broker.ports[scheme]}/{path}", "x", *arguments)


@pytest.mark.parametrize(
    "command",
    ["topic rm", "topic erase", "view rm", "queue rm", "queue purge", "group rm", "user rm"],
)
def test_what_cannot_be_taken_back_needs_a_yes_where_nobody_can_be_asked(command: str) -> None:
    text = refused(*command.split(), "precious", given="y\n")
    assert "standard input is not a terminal" in text
    assert "fix: add --yes" in text
    assert "terminal" not in run(*command.split(), "precious", "--yes").stderr


def test_what_cannot_be_taken_back_is_asked_for_on_a_terminal() -> None:
    said("view", "create", "asked-for", "asked/#")
    for answer, code in ((b"n\n", 130), (b"y\n", 0)):
        ours, theirs = pty.openpty()
        os.write(ours, answer)
        command = [sys.executable, "-m", "mainstem", "view", "rm", "asked-for"]
        done = subprocess.run(command, stdin=theirs, capture_output=True, text=True, timeout=60, check=False)
        os.close(ours)
        os.close(theirs)
        assert "Delete view asked-for?" in done.stdout
        assert done.returncode == code, done.stderr


def test_who_wants_to_alter_a_view_is_told_what_to_do_instead() -> None:
    assert "mainstem view create OTHER FILTER" in refused("view", "alter", "any", "--filter", "a/#")


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("topic describe near.miss.topic", "near/miss/topic"),
        ("topic rm near/miss/topc --yes", "near/miss/topic"),
        ("topic alter Near/Miss/Topic --retention 1d", "near/miss/topic"),
        ("view describe near-veiw", "near-view"),
        ("queue purge near-quue --yes", "near-queue"),
    ],
)
def test_a_name_that_is_nearly_right_is_told(broker: Broker, asked: str, meant: str) -> None:
    with httpx.Client(base_url=broker.http_url) as http:
        http.post("/v1/messages", json={"topic": "near/miss/topic", "value": "x"})
        http.post("/v1/views", json={"name": "near-view", "filter": "near/#"})
        http.post("/v1/queues", json={"name": "near-queue", "filter": "near/#"})
    assert f"fix: did you mean {meant}?" in refused(*asked.split())


@pytest.mark.parametrize(
    ("arguments", "told", "code"),
    [
        ("topic ls --limit -1", "Invalid value for '--limit'", 2),
        ("topic create t --set retention.ms", "must be KEY=VALUE", 1),
        ("queue alter any", "fix: --ttl, --length", 1),
        ("sub mqtt://localhost", "names no topic", 1),
        ("sub amqp://localhost:99", "amqp://localhost:99/?queue=NAME", 1),
        ("pub kafka://localhost:KAFKA/a/b x", "fix: Kafka spells it a.b", 1),
        ("user add someone", "no terminal to ask for one", 1),
        ("pub kafka://localhost/a x --retain", "--retain is MQTT's", 1),
    ],
)
def test_what_is_missing_or_wrong_is_named(broker: Broker, arguments: str, told: str, code: int) -> None:
    assert told in refused(*arguments.replace("KAFKA", str(broker.kafka_port)).split(), code=code, given="")


def test_top_prints_once_where_there_is_no_terminal() -> None:
    assert "connections" in said("top")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("topic delete a", "mainstem topic rm"),
        ("queue remove a", "mainstem queue rm"),
        ("topic list", "mainstem topic ls"),
        ("user create ann", "mainstem user add"),
        ("topic creat a", "mainstem topic create"),
    ],
)
def test_a_verb_that_others_use_is_answered_with_ours(given: str, meant: str) -> None:
    done = run(*given.split())
    assert done.returncode == 2
    assert f"Did you mean '{meant}'?" in done.stderr or f"'{meant.split()[-1]}'?" in done.stderr


@pytest.mark.parametrize("command", [["sql", "select 1"], ["lake", "ls"], ["pipeline", "run", "p.yaml"]])
def test_without_its_extra_a_command_names_the_one_to_install(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("name: p\n")
    script = (
        "import sys\nfor name in ('pyspark', 'pyarrow', 'pyiceberg', 'yaml'): sys.modules[name] = None\n"
        f"from mainstem.server.cli.group import run\nsys.exit(run({command!r}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "error[MS-6003]" in done.stderr
    assert "pip install 'mainstem[pipeline]'" in done.stderr


def test_logs_are_listed_and_verified_while_they_are_written(tmp_path: Path) -> None:
    with Broker(engine="segment", data=tmp_path) as busy:
        url = f"mqtt://127.0.0.1:{busy.mqtt_port}/busy"
        command = [sys.executable, "-m", "mainstem", "pub", url, "x", "--count", "100000", "--rate", "200"]
        writer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            for _ in range(3):
                for verb in ("ls", "verify"):
                    assert run("log", verb, "--data", str(tmp_path)).returncode == 0
            assert writer.poll() is None
        finally:
            writer.kill()
            writer.wait()


def test_a_publish_that_is_denied_advises_a_right_and_no_login() -> None:
    with Broker() as guarded:
        for name, admin in (("root", True), ("ada", False)):
            body = {"name": name, "password": "secret-1", "admin": admin}
            httpx.post(f"{guarded.http_url}/v1/users", json=body, auth=("root", "secret-1")).raise_for_status()
        for scheme in ("mqtt", "kafka", "amqp", "nats"):
            text = refused("pub", f"{scheme}://ada:secret-1@127.0.0.1:{guarded.ports[scheme]}/denied", "x")
            assert "mainstem user allow" in text
            assert "USER:PASSWORD" not in text
