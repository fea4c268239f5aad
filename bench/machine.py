"""What every result says of itself: the machine, the versions, the date; and the file it is written to."""

from __future__ import annotations

import atexit
import contextlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from mainstem import __version__
from mainstem.storage.reclaiming import RECLAIMER, remove_tree

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
LIBRARIES = ("uvloop", "rocksdict", "crc32c")
BACKED_BYTES = 2 << 30  # what a measurement of a second or two may write
PIECE = bytes(16 << 20)
ROOM_BYTES_MIN = 20 << 30  # on the disk, for data of measurements that are over

HOLES_BYTES = 1 << 40
FREE_BYTES = 3 << 30
MEMINFO = Path("/proc/meminfo")

_backing: IO[bytes] | None = None
_holes: Any = None  # io.FileIO


def settle_machine(size: int = BACKED_BYTES) -> None:
    """Before a measurement of a server that writes: what the last one left is on the disk, and there is memory for this one.

    A virtual machine gets its memory page by page as it is first touched, and gives back what was freed after some
    seconds: a page that is new in this sense costs some 10 µs where it is measured, fifteen times the copy of its bytes.
    Whoever writes a log takes new pages all the time on a machine that has just started, and none on one that has been up
    for a day. A file that is written, synced and dropped from the cache leaves pages that the next file gets. It is written
    over each time, and deleted with the process (see `data_directory`). Size 0 is for who writes nothing.
    """
    global _backing
    os.sync()
    if not size:
        return
    if _backing is None:
        _backing = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  as long as the process
    for at in range(0, size, len(PIECE)):
        os.pwrite(_backing.fileno(), PIECE, at)
    os.fdatasync(_backing.fileno())
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(_backing.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fill_page_cache() -> None:
    """Before minutes of writing beside which somebody else is timed: memory is as on a machine that has been up for a day,
    full of pages that were read once and are given to whoever needs one. (See `settle_machine`: a megabyte written into
    pages that are new to a virtual machine took 1.8 ms instead of 0.2, whoever wrote it.) What is read has no blocks on the
    disk.
    """
    global _holes
    if not MEMINFO.exists():
        return
    if _holes is None:
        _holes = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  as long as the process
        _holes.truncate(HOLES_BYTES)
    piece = bytearray(1 << 20)
    while _free_bytes() > FREE_BYTES:
        for _ in range(64):
            if _holes.readinto(piece) < len(piece):
                _holes.seek(0)


def _free_bytes() -> int:
    found = re.search(r"^MemFree:\s+(\d+)", MEMINFO.read_text(), re.MULTILINE)
    return int(found[1]) << 10 if found else 0


@contextlib.contextmanager
def data_directory(name: str) -> Iterator[Path]:
    """For a server's data. It is deleted when the process ends, if there is room until then, and in pieces: where a file
    system gives deleted blocks back to the disk at once (ext4 with `discard`), single syncs take a tenth of a second for
    half a minute after gigabytes were deleted, whoever asks for them.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"mainstem-{name}-"))
    try:
        yield folder
    finally:
        if shutil.disk_usage(folder).free > ROOM_BYTES_MIN:
            atexit.register(_remove, folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _remove(folder: Path) -> None:
    remove_tree(folder)
    while not RECLAIMER.idle:
        time.sleep(0.01)


def step_back() -> None:
    """This process and its children take only what others leave of the cores: in earnest they run on other machines."""
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


@contextlib.contextmanager
def come_first() -> Iterator[None]:
    """The thread that measures waits for no core, as if it had a machine of its own, where it may ask for that (root). What
    it starts meanwhile does not come first."""
    if not hasattr(os, "SCHED_RESET_ON_FORK"):
        yield
        return
    before, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, before, parameters)


def machine_line() -> str:
    """Processor, cores, memory, kernel, and how busy it was: figures of a loaded machine are too low."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    load = os.getloadavg()[0]
    return (
        f"{_processor()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, Linux {platform.release()}, "
        f"load {load:.1f} at the start"
    )


def versions_line() -> str:
    parts = [f"Python {platform.python_version()}", f"mainstem {_commit()}"]
    for name in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            parts.append(f"{name} {metadata.version(name)}")
    return ", ".join(parts)


def write_result(name: str, title: str, output: str) -> Path:
    """Put a bench's output into bench/results/<name>.md; what it missed is said above the figures."""
    missed = [line for line in output.splitlines() if "MISSED" in line or "SLOWER" in line]
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.md"
    head = [
        f"# {title}",
        "",
        f"- date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"- machine: {machine_line()}",
        f"- versions: {versions_line()}",
        f"- command: `python -m bench {name}`",
        f"- targets missed: {len(missed) or 'none'}",
        "",
        "```text",
        output.rstrip(),
        "```",
        "",
    ]
    path.write_text("\n".join(head))
    return path


def figure(
    name: str,
    value: float,
    unit: str,
    *,
    baseline: float | None = None,
    cpu: float | None = None,
    target: float | None = None,
) -> None:
    """One line: ours, the plain baseline of the same run, ours by the processor's time (what an idle core would give), the
    target and whether ours reached it. More is better."""
    line = f"{name:<58}{value:>10.2f} {unit:<12}"
    line += f" baseline {baseline:>8.2f}" if baseline is not None else " " * 18
    line += f" cpu {cpu:>8.2f}" if cpu is not None else " " * 13
    if target is not None:
        line += f"  target {target:g}: " + ("reached" if value >= target else "MISSED")
    print(line, flush=True)


def ceiling(name: str, value: float, unit: str, *, target: float) -> None:
    """The same where less is better."""
    print(
        f"{name:<58}{value:>10.2f} {unit:<12}{'':31}  target {target:g} at most: "
        + ("reached" if value <= target else "MISSED"),
        flush=True,
    )


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return f"{__version__} ({found.stdout.strip()})" if found.returncode == 0 else __version__
