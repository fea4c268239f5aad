"""Who may ask for a tier, and how a topic gets one while it is used."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest

from mainstem.testing import Broker


@pytest.mark.parametrize("kind", ["topic", "namespace"])
def test_a_tier_is_refused_where_the_broker_has_no_store(tmp_path: Path, kind: str) -> None:
    with Broker(engine="segment", data=tmp_path / "data") as broker:
        if kind == "topic":
            body = {"name": "a", "settings": {"tier": "s3"}}
            answer = httpx.post(f"{broker.http_url}/v1/topics", json=body, timeout=30)
        else:
            httpx.post(f"{broker.http_url}/v1/namespaces", json={"name": "n"}, timeout=30).raise_for_status()
            answer = httpx.patch(f"{broker.http_url}/v1/namespaces/n", json={"policy": {"tier": "s3"}}, timeout=30)
        assert answer.status_code == 400, answer.text
        assert "no object store" in answer.text


def test_a_topic_that_is_altered_gets_a_tier_and_shows_its_bytes_in_both_places(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    store = f"tier.store=file://{tmp_path / 'bucket'}"
    with Broker(store, engine="segment", data=tmp_path / "data") as broker:
        small = {"layout": "dedicated", "segment_bytes": 4096}
        made = httpx.post(f"{broker.http_url}/v1/topics", json={"name": "a", "settings": small}, timeout=30)
        made.raise_for_status()
        for _ in range(10):
            sent = {"topic": "a", "value": "x" * 2000}
            httpx.post(f"{broker.http_url}/v1/messages", json=sent, timeout=30).raise_for_status()
        settings = {"settings": {"tier": "s3", "local_retention_bytes": 0}}
        httpx.patch(f"{broker.http_url}/v1/topics/a", json=settings, timeout=30).raise_for_status()
        deadline = time.monotonic() + 30
        while True:
            told = httpx.get(f"{broker.http_url}/v1/topics/a", timeout=30).json()["placement"][0]["spans"][0]
            if told["remote_bytes"] and told["local_bytes"] < 8192:
                break
            assert time.monotonic() < deadline, told
            time.sleep(0.1)
        assert told["size_bytes"] >= 20_000, "both places count"
        assert told["engine"] == "segment"
        rows = httpx.get(f"{broker.http_url}/v1/messages", params={"topic": "a", "from": "earliest"}, timeout=30)
        assert len(rows.json()["items"]) == 10
