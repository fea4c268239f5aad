"""`mainstem pipeline run` as a user runs it: a process of its own, stopped by a signal, seen from outside."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.client import BrokerClient
from tests.pipeline.conftest import eventually, produce
from tests.pipeline.test_exactly_once import kill

FILE = """
name: seen
flows:
  - name: copy
    from: {topic: seen-in}
    trigger: 500ms
    sql: select cast(_value as string) as v from input
    to: {topic: seen-out}
"""


@pytest.mark.timeout(300)
def test_a_run_is_seen_and_ends_on_a_signal(broker: BrokerProcess, tmp_path: Path) -> None:
    file = tmp_path / "seen.yaml"
    file.write_text(FILE)
    produce(broker, "seen-in", [b"%d" % n for n in range(50)])
    command = [sys.executable, "-m", "mainstem", "pipeline", "run", str(file), "--json", "--metrics-port", "0"]
    out = tmp_path / "out.jsonl"
    with out.open("wb") as stdout, (tmp_path / "err.txt").open("wb") as stderr:
        process = subprocess.Popen(
            [*command, "--master", "local[1]", "--fast-start"],
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, "MAINSTEM_URL": broker.http_url},
            start_new_session=True,
        )
    try:

        def events(kind: str) -> list[dict[str, object]]:
            lines = [json.loads(line) for line in out.read_text().splitlines() if line.endswith("}")]
            return [one for one in lines if one["event"] == kind]

        eventually(
            lambda: any(one["rows_total"] == 50 for one in events("batch")) or process.poll() is not None,
            "50 rows",
            180,
        )
        assert process.poll() is None, (tmp_path / "err.txt").read_text()[-2000:]
        port = next(
            found[1] for one in events("note") if (found := re.search(r"127\.0\.0\.1:(\d+)/metrics", str(one["text"])))
        )
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert 'mainstem_pipeline_rows_total{flow="copy",pipeline="seen"} 50.0' in answer.read().decode()

        def told() -> list[dict[str, object]]:
            items = BrokerClient(broker.http_url).get("/v1/pipelines")["items"]
            return [one for one in items if one["name"] == "seen" and one["flows"][0]["rows_total"] == 50]

        eventually(told, "the broker's list of pipelines")
        assert told()[0]["running"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, (tmp_path / "err.txt").read_text()[-2000:]
        (summary,) = events("summary")
        (flow,) = summary["flows"]  # type: ignore[misc]
        assert (flow["state"], flow["rows_total"], flow["lag"]) == ("stopped", 50, 0)
    finally:
        kill(process)
