"""kill -9 during `mainstem restore` from a bucket: no broker serves what it leaves, and the next restore has everything."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mainstem.model.errors import ConfigError
from mainstem.storage.directory import FORMAT_FILE, DataDirectory
from mainstem.storage.tier.registry import Registry
from mainstem.testing.process import BrokerProcess
from tests.crossing.test_object_storage import COUNT, VALUES, eventually, publish, read_kafka

KILLS = 20


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["tier", "engine"])
def test_a_restore_that_was_killed_is_not_served_and_the_next_one_has_everything(tmp_path: Path, kind: str) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    rules = {
        "tier": ("tier=s3", "layout=dedicated", "segment_bytes=16KiB", "local_retention_bytes=0"),
        "engine": ("engine=object", "layout=dedicated"),
    }
    settings = (f"tier.store=file://{bucket}", "tier.manifest_ms=0s", *(f"policies.t/#.{one}" for one in rules[kind]))
    with BrokerProcess(tmp_path / "lost", *settings) as broker:
        publish(broker, "t.a")
        eventually(lambda: (bucket / "manifest").exists(), "the manifest is stored")
        time.sleep(12)  # a sweep: all that was uploaded is in the manifest
        broker.kill()
    seeded, cut_short = random.Random(24), 0
    for number in range(KILLS):
        target = tmp_path / f"restored{number}"
        process = subprocess.Popen([sys.executable, "-m", "mainstem", "restore", f"file://{bucket}", str(target)])
        while not target.exists() and process.poll() is None:
            time.sleep(0.001)
        time.sleep(seeded.uniform(0.0, 0.2) / 2 ** (number % 6))  # a quick machine is over in some milliseconds
        process.kill()
        process.wait(60)
        if target.exists() and any(target.iterdir()) and not (target / FORMAT_FILE).exists():
            cut_short += 1
            with pytest.raises(ConfigError, match="not empty"):  # so no broker starts with it
                DataDirectory(target)
    assert cut_short
    last = tmp_path / "last"
    subprocess.run([sys.executable, "-m", "mainstem", "restore", f"file://{bucket}", str(last)], check=True, timeout=60)
    with BrokerProcess(last, *settings) as broker:
        registry = Registry(last, read_only=True)
        uploaded = [one.footer.end_offset for log in registry.logs() for one in registry.parts_of(log)]
        registry.close()
        count = COUNT if kind == "engine" else max(uploaded)
        assert count >= COUNT // 2
        assert read_kafka(broker, "t.a", count) == VALUES[:count]
