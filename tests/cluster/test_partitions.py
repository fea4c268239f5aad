"""Brokers in network namespaces, cut off from PostgreSQL, the object store and each other (`partitions.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.network import allowed
from tests.contract.postgres_server import binaries

CYCLES = int(os.environ.get("MAINSTEM_PARTITION_CYCLES", "20"))


def go_through(directory: Path, cycles: int, seed: int) -> None:
    if binaries() is None:
        pytest.skip("no PostgreSQL server is installed (apt install postgresql)")
    if not allowed():
        pytest.skip("network namespaces are not permitted here (root, unshare and ip are needed)")
    scene = ["unshare", "--net", "--mount", sys.executable, "-m", "tests.cluster.partitions"]
    command = [*scene, str(directory), str(cycles), str(seed)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120 + 90 * cycles)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert done.stdout.rstrip().endswith("well"), done.stdout


@pytest.mark.timeout(240)
def test_an_owner_that_is_cut_off_from_postgresql_stops_and_the_other_goes_on_with_everything(tmp_path: Path) -> None:
    go_through(tmp_path, 1, 1)


@pytest.mark.slow
@pytest.mark.timeout(120 + 90 * CYCLES)
def test_what_was_acknowledged_outlives_any_mix_of_partitions_pauses_and_failovers(tmp_path: Path) -> None:
    go_through(tmp_path, CYCLES, int(os.environ.get("MAINSTEM_CLUSTER_SEED", "1")))
