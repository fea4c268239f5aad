"""The power is cut under a process that appends and syncs: an ext4 of our own, shut down without a flush."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mainstem.testing.power_cut import PowerCutMount, why_not
from tests.crash.killed_log import KilledLog

pytestmark = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")

WRITER = """
import os, sys, time
synced, unsynced, new = sys.argv[1:]
for path in (synced, unsynced):
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.fsync(fd)
    os.write(fd, b"x" * 8192)
    if path == synced:
        os.fdatasync(fd)
directory = os.open(os.path.dirname(synced), os.O_RDONLY)
os.fsync(directory)
os.write(os.open(new, os.O_RDWR | os.O_CREAT), b"never synced")
print("written", flush=True)
time.sleep(600)
"""


def test_the_harness_loses_what_was_not_synced_and_nothing_else(tmp_path: Path) -> None:
    """Otherwise the tests below would prove nothing."""
    with PowerCutMount(tmp_path, size_mib=64) as mount:
        synced, unsynced, new = (mount.path / name for name in ("synced", "unsynced", "new"))
        command = [sys.executable, "-c", WRITER, str(synced), str(unsynced), str(new)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"written\n"
            mount.cut(process.pid)
        assert synced.read_bytes() == b"x" * 8192
        assert unsynced.stat().st_size == 0
        assert not new.exists()


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_the_disk_is_back_though_another_mount_namespace_holds_the_old_one(tmp_path: Path) -> None:
    """As the brokers of the tests with partitioned networks do, when they run beside this one."""
    with PowerCutMount(tmp_path, size_mib=64) as mount:
        holder = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", "echo held; read end"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        with subprocess.Popen(["sleep", "600"]) as process:
            mount.cut(process.pid)
        (mount.path / "new").mkdir()
        holder.stdin.close()
        holder.wait()


@pytest.mark.parametrize("engine", ["segment", "rocksdb"])
def test_an_acked_append_survives_a_power_cut(engine: str, tmp_path: Path) -> None:
    with PowerCutMount(tmp_path) as mount:
        log = KilledLog(engine, mount.path / "log", seed=os.getpid())
        for _ in range(4):
            log.cycle(mount.cut)
        assert len(log.acked) > 20, "nothing was acknowledged, so nothing was shown"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("engine", ["segment", "rocksdb"])
def test_an_acked_append_survives_a_hundred_power_cuts(engine: str, tmp_path: Path) -> None:
    with PowerCutMount(tmp_path) as mount:
        log = KilledLog(engine, mount.path / "log", seed=3)
        for _ in range(100):
            log.cycle(mount.cut)
