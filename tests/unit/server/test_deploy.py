"""What is shipped for running it: the dashboard asks for metrics that exist, the unit and the image for files that do."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import httpx

from mainstem.server.config import load_config
from mainstem.testing import Broker

DEPLOY = Path(__file__).parents[3] / "deploy"


def test_the_dashboard_is_what_its_script_makes_and_asks_only_for_metrics_that_exist() -> None:
    spec = importlib.util.spec_from_file_location("make_dashboard", DEPLOY / "make_dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kept = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    assert kept == module.dashboard()
    asked = set(re.findall(r"\b(?:mainstem|process)_\w+", json.dumps(kept["panels"])))
    with Broker() as broker:
        httpx.post(f"{broker.http_url}/v1/messages", json={"topic": "a", "value": "x"})
        answer = httpx.get(f"{broker.http_url}/metrics").text
        per_object = httpx.get(f"{broker.http_url}/metrics/per-object").text
    told = set(re.findall(r"^# TYPE (\w+)|^(\w+)[ {]", answer + per_object, re.MULTILINE))
    assert asked <= {name for pair in told for name in pair}


def test_the_example_configuration_has_no_problems() -> None:
    assert load_config(DEPLOY / "mainstem.toml").policies["cache/#"].engine == "memory"


def test_the_unit_and_the_image_run_commands_that_exist() -> None:
    unit = (DEPLOY / "mainstem.service").read_text()
    assert "Type=notify" in unit
    assert "mainstem serve --config" in unit
    image = (DEPLOY / "Dockerfile").read_text()
    assert "USER mainstem" in image
    assert "HEALTHCHECK" in image
    for copied in re.findall(r"^COPY (?!--from)(.+) \S+$", image, re.MULTILINE):
        for name in copied.split():
            assert (DEPLOY.parent / name).exists() or name == "README.md"
