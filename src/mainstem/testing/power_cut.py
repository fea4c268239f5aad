"""A real power cut without pulling a plug: a file system of our own that is shut down without a flush.

    with PowerCutMount(tmp_path) as mount:
        process = start_a_broker(data=mount.path)
        ...
        mount.cut(process.pid)      # everything not synced is gone, the process is dead, the file system is back

The process is stopped first: an fdatasync that is under way during the shutdown may report success for data that is
lost, so what it would acknowledge after the stop counts as unknown. What is mounted after a cut is a copy of the image:
a process in a mount namespace of its own (`unshare --mount`) may keep the file system that was shut down alive, and
mounting the same image again would then return that one, where everything is EIO. Needs root and loop devices (`why_not`).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path
from types import TracebackType

SHUTDOWN = 0x8004587D  # FS_IOC_SHUTDOWN of ext4 and xfs
NO_LOG_FLUSH = 2
BUSY_WAIT_S = 10.0


def why_not() -> str | None:
    """Why power cannot be cut here; None if it can."""
    if os.geteuid() != 0:
        return "needs root to mount a file system"
    if not Path("/dev/loop-control").exists():
        return "needs loop devices"
    missing = [tool for tool in ("mkfs.ext4", "mount", "umount", "cp") if shutil.which(tool, path=_PATH) is None]
    return f"needs {', '.join(missing)}" if missing else None


_PATH = f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin"


class PowerCutMount:
    """An ext4 image on a loop device, mounted at `path` for the length of the block."""

    def __init__(self, directory: Path, *, size_mib: int = 256) -> None:
        self._image = directory / "power-cut.img"
        self._cuts = 0
        self._size_mib = size_mib
        self.path = directory / "power-cut"

    def __enter__(self) -> PowerCutMount:
        self.path.mkdir()
        with self._image.open("wb") as image:
            image.truncate(self._size_mib << 20)
        _run("mkfs.ext4", "-qF", str(self._image))
        self._mount()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._unmount()
        except subprocess.CalledProcessError:
            _run("umount", "-l", str(self.path))  # someone still looks: it goes when they do
            raise
        finally:
            self._image.unlink()

    def cut(self, *pids: int) -> None:
        """Stop the processes, cut the power, kill them, and bring the file system back as the disk has it."""
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        for pid in pids:
            _wait_stopped(pid)
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(fd)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self._unmount()
        self._copy_image()
        self._mount()

    def _copy_image(self) -> None:
        """The next mount has a file system of its own, whoever still holds the one before."""
        self._cuts += 1
        copy = self._image.with_name(f"power-cut-{self._cuts}.img")
        _run("cp", "--sparse=always", "--reflink=auto", str(self._image), str(copy))
        self._image.unlink()
        self._image = copy

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.path))

    def _unmount(self) -> None:
        """A killed process may hold its files a moment longer."""
        deadline = time.monotonic() + BUSY_WAIT_S
        while True:
            try:
                _run("umount", str(self.path))
                return
            except subprocess.CalledProcessError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)


def _wait_stopped(pid: int) -> None:
    """Until every thread stands still."""
    deadline = time.monotonic() + BUSY_WAIT_S
    while time.monotonic() < deadline:
        states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
        if all(state in "TtZX" for state in states):
            return
        time.sleep(0.001)
    raise TimeoutError(f"process {pid} did not stop")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PATH": _PATH})
