"""Deployed pipelines are kept running: one of a name, started again with back-off, ended with their supervisor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mainstem.model.errors import AlreadyExists, NotFound
from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.cli import pipeline as command
from mainstem_pipeline.deploy import supervisor as module
from mainstem_pipeline.deploy.deployments import STOP, Deployment, Deployments
from mainstem_pipeline.deploy.supervisor import Supervisor, told
from tests.pipeline.conftest import eventually, produce

FILE = """
name: p
broker: {{url: {url}}}
lake: {{warehouse: ./lake}}
flows:
  - name: f
    from: {{topic: {topic}}}
    decode: {{format: json, schema: "n int"}}
    to: {{table: t.n}}
    trigger: 1s
"""


@pytest.fixture
def deployments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployments:
    monkeypatch.setattr(module, "PAUSE_S_MIN", 0.01)
    monkeypatch.setenv("MAINSTEM_DEPLOYMENTS", str(tmp_path / "deployments"))
    return Deployments(tmp_path / "deployments")


class Machine:
    """A supervisor whose runs are shell scripts."""

    def __init__(self, deployments: Deployments, script: str) -> None:
        self.deployments = deployments
        self.supervisor = Supervisor(deployments, lambda one: ["/bin/sh", "-c", script, "sh", *one.first_arguments])

    def until(self, state: str, **facts: Any) -> None:
        def looks() -> bool:
            self.supervisor.look()
            status = self.deployments.status("p")
            return status.state == state and all(getattr(status, name) == value for name, value in facts.items())

        eventually(looks, f"{state} {facts}", 20)

    def log(self) -> list[str]:
        return [line for line in self.deployments.log("p").read_text().splitlines() if not line.startswith("---")]


@pytest.fixture
def machines() -> Iterator[list[Machine]]:
    made: list[Machine] = []
    yield made
    for one in made:
        one.supervisor._end_all()


def deployed(deployments: Deployments, tmp_path: Path, **more: Any) -> Deployment:
    return deployments.deploy(Deployment("p", str(tmp_path / "p.yaml"), **more))


def test_a_run_that_fails_is_started_again_and_a_flow_is_reset_only_once(
    deployments: Deployments, tmp_path: Path, machines: list[Machine]
) -> None:
    machine = Machine(deployments, 'echo "got $1"; echo "error[MS-6001] no broker answers"; exit 69')
    machines.append(machine)
    deployed(deployments, tmp_path, first_arguments=["--reset"])
    machine.until("waiting", exit_code=69, restarts=2)
    assert machine.log()[0] == "got --reset"
    assert {line for line in machine.log()[1:] if line.startswith("got")} == {"got "}
    status = deployments.status("p")
    assert status.said == "error[MS-6001] no broker answers"
    assert told(status, is_supervised=True).startswith("waiting: ended with 69, starts again in")
    run = machine.supervisor._runs["p"]
    assert run.pause_s >= 0.01 * 2**3, "each pause is twice the one before"


def test_a_run_that_needs_a_person_waits_until_it_is_deployed_again(
    deployments: Deployments, tmp_path: Path, machines: list[Machine]
) -> None:
    machine = Machine(deployments, "test -e fixed && sleep 60; exit 4")
    machines.append(machine)
    deployed(deployments, tmp_path)
    machine.until("failed", exit_code=4)
    (tmp_path / "fixed").touch()
    for _ in range(5):
        machine.supervisor.look()
    assert deployments.status("p").state == "failed"
    assert deployed(deployments, tmp_path).serial == 2
    machine.until("running", serial=2, restarts=0)
    with pytest.raises(AlreadyExists, match=r"p is deployed from .*p\.yaml"):
        deployments.deploy(Deployment("p", str(tmp_path / "other.yaml")))
    first = deployments.status("p").pid
    deployments.deploy(Deployment("p", str(tmp_path / "other.yaml")), moves=True)
    machine.until("running", serial=3)
    assert deployments.status("p").pid != first
    assert not Path(f"/proc/{first}").exists(), "one run of a name at a time"
    deployments.put(replace(deployments.get("p"), wanted=STOP))
    machine.until("stopped")
    deployments.forget("p")
    machine.supervisor.look()
    assert not machine.supervisor._runs
    with pytest.raises(NotFound):
        deployments.get("p")


def test_runs_end_with_a_supervisor_that_is_killed_and_the_next_one_waits_for_them(
    deployments: Deployments, tmp_path: Path, machines: list[Machine]
) -> None:
    slow_to_end = "trap 'while ! test -e enough; do sleep 0.05; done; exit 0' TERM; while :; do sleep 0.05; done"
    deployed(deployments, tmp_path)
    code = (
        "import sys, threading\n"
        "from pathlib import Path\n"
        "from mainstem_pipeline.deploy.deployments import Deployments\n"
        "from mainstem_pipeline.deploy.supervisor import Supervisor\n"
        f"Supervisor(Deployments(Path({str(deployments.root)!r})), lambda one: ['/bin/sh', '-c', {slow_to_end!r}])"
        ".run(threading.Event())\n"
    )
    first = subprocess.Popen([sys.executable, "-c", code])
    eventually(lambda: deployments.status("p").state == "running", "the first run", 20)
    pid = deployments.status("p").pid
    first.kill()
    first.wait()
    machine = Machine(deployments, "sleep 60")
    machines.append(machine)
    for _ in range(5):
        machine.supervisor.look()
    assert deployments.status("p").pid == pid, "its batch is not done yet"
    (tmp_path / "enough").touch()
    machine.until("running", restarts=1)
    assert deployments.status("p").pid != pid


def test_a_log_that_grew_too_long_begins_anew_and_the_last_one_is_kept(
    deployments: Deployments, tmp_path: Path, machines: list[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOG_BYTES_MAX", 1000)
    machine = Machine(deployments, "while :; do echo 0123456789; sleep 0.002; done")
    machines.append(machine)
    deployed(deployments, tmp_path)
    log = deployments.log("p")
    machine.until("running")
    eventually(lambda: machine.supervisor.look() or log.with_name("log.1").exists(), "log.1", 20)
    assert log.with_name("log.1").stat().st_size > 1000
    assert b"\0" not in log.read_bytes()


def test_the_commands_tell_what_is_deployed_and_how_to_go_on(deployments: Deployments, tmp_path: Path) -> None:
    runner = CliRunner()
    assert "nothing is deployed here" in runner.invoke(command, ["ls"]).output
    file = tmp_path / "p.yaml"
    file.write_text(FILE.format(url="http://127.0.0.1:1", topic="t"))
    done = runner.invoke(command, ["deploy", str(file), "--no-supervisor", "--reset", "f"], catch_exceptions=False)
    assert "p: deployed (1)" in done.output
    assert deployments.get("p").arguments == ["run", str(file), "--master", "local[*]"]
    assert deployments.get("p").first_arguments == ["--reset", "f"]
    listed = runner.invoke(command, ["ls"])
    assert f"p: not running: no supervisor  {file}" in listed.output
    assert "mainstem pipeline supervise" in listed.output
    told_as_json = json.loads(runner.invoke(command, ["ls", "--json"]).output.splitlines()[0])
    assert told_as_json["flows"][0]["state"] == "never ran"
    for words, said in (
        (["logs", "p"], "p was not started yet"),
        (["logs", "q"], "no pipeline 'q' is deployed here; deployed are p"),
        (["deploy", str(file), "--from", "earliest"], "--from needs --version"),
        (["deploy", str(file), "--version", "V 2"], "cannot be a version"),
    ):
        failed = runner.invoke(command, words)
        assert said in str(failed.exception), failed.output
    runner.invoke(command, ["deploy", str(file), "--version", "v2", "--from", "earliest", "--no-supervisor"])
    assert deployments.get("p-v2").arguments[:5] == ["replay", str(file), "v2", "--from", "earliest"]
    deployments.log("p").write_text("one\ntwo\nthree\n")
    assert runner.invoke(command, ["logs", "p", "-n", "2"]).output == "two\nthree\n"
    assert runner.invoke(command, ["stop", "p", "--forget"]).output == "p: forgotten\n"
    assert [one.name for one in deployments.all()] == ["p-v2"]


@pytest.mark.slow
def test_a_deployed_pipeline_outlives_its_run_and_the_broker(deployments: Deployments, tmp_path: Path) -> None:
    from mainstem_pipeline.lake.catalog import LakeOptions, load_table, open_catalog

    environment = {**os.environ, "MAINSTEM_DEPLOYMENTS": str(deployments.root)}

    def mainstem(*words: str) -> str:
        made = [sys.executable, "-m", "mainstem", "pipeline", *words]
        return subprocess.run(made, check=True, capture_output=True, text=True, env=environment).stdout

    def numbers() -> list[int]:
        try:
            return sorted(
                load_table(open_catalog(LakeOptions(str(tmp_path / "lake"))), "t.n").scan().to_arrow()["n"].to_pylist()
            )
        except NotFound:
            return []

    with BrokerProcess(tmp_path / "data") as broker:
        (tmp_path / "p.yaml").write_text(FILE.format(url=broker.http_url, topic="t"))
        produce(broker, "t", [b'{"n": 1}'])
        mainstem("deploy", str(tmp_path / "p.yaml"), "--master", "local[1]")
        try:
            eventually(lambda: numbers() == [1], "the first row", 180)
            first = deployments.status("p").pid
            os.kill(first, signal.SIGKILL)
            broker.kill()
            broker.start()
            produce(broker, "t", [b'{"n": 2}'])
            eventually(lambda: numbers() == [1, 2], "the second row, once", 240)
            assert deployments.status("p").pid not in (0, first)
            assert "p: running, 1 restart" in mainstem("ls")
            assert "rows" in mainstem("logs", "p")
        finally:
            mainstem("stop", "p")
            pid = int((deployments.root / "lock").read_text())
            os.kill(pid, signal.SIGTERM)
            eventually(lambda: not deployments.is_supervised(), "the supervisor's end", 60)
    assert deployments.status("p").state == "stopped"
