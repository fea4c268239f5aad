"""Limits in the configuration arrive where they are kept, and what is refused says so."""

from __future__ import annotations

from pathlib import Path

import httpx

from mainstem.server.config import load_config
from mainstem.server.lifecycle import apply_live
from mainstem.testing import Broker


def test_beyond_its_topics_a_shared_log_takes_no_new_ones_and_goes_on_with_the_others() -> None:
    with Broker("limits.topics_max=3") as broker, httpx.Client(base_url=broker.http_url) as http:
        answers = [http.post("/v1/messages", json={"topic": f"t/{n}", "value": "x"}) for n in range(5)]
        assert [one.status_code for one in answers[:3]] == [200, 200, 200]
        assert answers[4].status_code == 503
        assert "limit 3" in answers[4].json()["detail"]
        assert http.post("/v1/messages", json={"topic": "t/0", "value": "x"}).status_code == 200


def test_beyond_the_dedicated_logs_the_way_out_is_told() -> None:
    with Broker("limits.dedicated_logs_max=3") as broker, httpx.Client(base_url=broker.http_url) as http:
        settings = {"layout": "dedicated", "partitions": 2}
        assert http.post("/v1/topics", json={"name": "a", "settings": settings}).status_code == 200
        refused = http.post("/v1/topics", json={"name": "b", "settings": settings})
        assert refused.status_code == 503
        assert "--layout shared" in refused.json()["fix"]


def test_the_rest_arrives_where_it_is_kept(tmp_path: Path) -> None:
    given = (
        "limits.open_files_max=20",
        "limits.output_bytes_max=64KiB",
        "limits.unsynced_bytes_max=8MiB",
        "limits.unsynced_bytes_per_log_max=2MiB",
        "mqtt.session_held_messages_max=7",
        "mqtt.session_held_bytes_max=1KiB",
    )
    with Broker(*given, data=tmp_path / "data") as broker:
        app = broker.app
        assert app is not None
        logs, held = app.broker.logs, app.servers["mqtt"].service.held
        assert logs.files.files.files_max == 20
        assert {app.servers[name].out_bytes_max for name in ("mqtt", "ws", "kafka", "amqp")} == {64 << 10}
        assert app.broker.ticker.unsynced_bytes_max == 8 << 20
        assert {log.unsynced_bytes_max for log in logs.by_id.values()} == {2 << 20}
        assert (held.messages_max, held.bytes_max) == (7, 1 << 10)
        new = load_config(flags=[*given[:2], "limits.unsynced_bytes_per_log_max=3MiB", f"data.directory={tmp_path}"])
        applied, _ = apply_live(app.config, new)
        assert "limits.unsynced_bytes_per_log_max" in applied
        app.apply_live_settings()
        assert {log.unsynced_bytes_max for log in logs.by_id.values()} == {3 << 20}
