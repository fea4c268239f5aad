"""The checks of `mainstem doctor`. Each looks at one thing and says what it saw."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mainstem import __version__
from mainstem.model.counted import counted
from mainstem.model.errors import MainstemError
from mainstem.server.config import load_config
from mainstem.server.listeners import LABELS, LISTENERS, owner_of
from mainstem.server.settings import Listeners
from mainstem.storage.disk import sync_data

if TYPE_CHECKING:
    from mainstem.storage.tier.store import ObjectStore
    from mainstem.storage.tier.tier import TierSettings

FILES_WANTED = 65_536
SPACE_WANTED = 2 << 30
JAVA_WANTED = 17


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    state: str  # ok | note | bad
    reason: str
    fix: str = ""


def run_checks(*, data: str, file: str | None, url: str, fsync: bool) -> Iterator[Check]:
    checks: list[Callable[[], Check | list[Check]]] = [
        _python,
        _event_loop,
        _file_limit,
        _memory_limit,
        lambda: _configuration(file),
        lambda: _directory(Path(data)),
        lambda: _space(Path(data)),
        _clock,
        lambda: _broker(url),
        lambda: _ports(file, url),
        lambda: _object_store(file, Path(data)),
        _java,
        _spark_python,
    ]
    if fsync:
        checks.append(lambda: _fsync(Path(data)))
    for check in checks:
        found = check()
        yield from found if isinstance(found, list) else [found]


def _python() -> Check:
    return Check("Python", "ok", f"{platform.python_version()}, Mainstem {__version__}, {platform.system()}")


def _event_loop() -> Check:
    try:
        import uvloop
    except ImportError:
        return Check(
            "event loop", "note", "uvloop is not installed; asyncio's is used, about half as fast", "pip install uvloop"
        )
    return Check("event loop", "ok", f"uvloop from {Path(uvloop.__file__).parent}")


def _file_limit() -> Check:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4096:
        return Check(
            "open files",
            "bad",
            f"limit {soft}: too low for connections and segments",
            f"ulimit -n {min(hard, FILES_WANTED)}",
        )
    if soft < FILES_WANTED:
        return Check(
            "open files",
            "note",
            f"limit {soft}; {FILES_WANTED} is better for many clients",
            f"ulimit -n {FILES_WANTED}, or LimitNOFILE= in the unit",
        )
    return Check("open files", "ok", f"limit {soft}")


def _memory_limit() -> Check:
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < 512 << 20:
            return Check(
                "memory limit",
                "note",
                f"the container allows {int(text) >> 20} MiB; buffers may take 512 MiB",
                "raise the limit, or lower [limits] *_bytes_max",
            )
        limited = text.isdigit() and int(text) < 1 << 60  # no limit is a very large one
        return Check("memory limit", "ok", f"{int(text) >> 20} MiB" if limited else "none")
    return Check("memory limit", "ok", "no control group")


def _object_store(file: str | None, data: Path) -> list[Check]:
    """Only where one is set: it answers, we may write and delete below its prefix, and it has what the registry names."""
    try:
        config = load_config(_chosen(file), os.environ)
        if not config.tier.store:
            return []
        from mainstem.server.app import tier_settings
        from mainstem.storage.tier.store import ObjectStore

        settings = tier_settings(config)
        assert settings is not None
        began, store = time.perf_counter(), ObjectStore(settings.store)
        store.put("check/doctor", b"mainstem\n")
        store.get("check/doctor", 0, 9)
        store.delete("check/doctor")
        took_ms = (time.perf_counter() - began) * 1000
        objects = _objects(data, store)
    except MainstemError as error:
        return [Check("object store", "bad", error.message, error.fix)]
    told = f"{config.tier.store}: put, get and delete took {took_ms:.0f} ms"
    return [Check("object store", "ok", told), *objects, *_iceberg_catalog(settings)]


def _objects(data: Path, store: ObjectStore) -> list[Check]:
    """Those that the data directory's registry names are in the store; none where there is no registry."""
    from mainstem.storage.tier.looking import missing_objects

    looked_for, missing = missing_objects(data, store)
    if not looked_for:
        return []
    if not missing:
        return [Check("objects", "ok", f"{counted(looked_for, 'object')} of {data} are in the store")]
    more = f" (and {counted(len(missing) - 1, 'more', 'more')})" if len(missing) > 1 else ""
    fix = f"put it back from a version or a copy of the bucket; mainstem log verify --data {data} names all"
    return [Check("objects", "bad", missing[0] + more, fix)]


def _iceberg_catalog(settings: TierSettings) -> list[Check]:
    """Only where `tier.catalog` names one: topics with `tier = "iceberg"` are uploaded only while it answers."""
    if not settings.catalog:
        return []
    from mainstem.storage.tier.iceberg.tables import check_catalog

    try:
        count = check_catalog(settings.catalog, settings.store)
    except MainstemError as error:
        return [Check("iceberg catalog", "bad", error.message, error.fix)]
    return [Check("iceberg catalog", "ok", f"it answers, and has {counted(count, 'namespace')}")]


def _configuration(file: str | None) -> Check:
    try:
        chosen = _chosen(file)
        config = load_config(chosen, os.environ)
    except MainstemError as error:
        return Check("configuration", "bad", str(error).splitlines()[0], "mainstem config check")
    changed = len(config.sources)
    return Check("configuration", "ok", f"{chosen or 'no file'}, {counted(changed, 'setting')} given")


def _chosen(file: str | None) -> Path | None:
    here = Path("mainstem.toml")
    return Path(file) if file else here if here.exists() else None


def _directory(data: Path) -> Check:
    if not data.exists():
        return Check("data directory", "ok", f"{data} is not there yet; the first start makes it")
    mode = data.stat().st_mode & 0o777
    if mode & 0o077:
        return Check("data directory", "bad", f"{data} is open to other users (mode {mode:o})", f"chmod 700 {data}")
    if not os.access(data, os.W_OK):
        return Check("data directory", "bad", f"{data} is not writable by this user", f"chown -R $USER {data}")
    return Check("data directory", "ok", f"{data.resolve()}, mode {mode:o}")


def _space(data: Path) -> Check:
    place = data if data.exists() else data.resolve().parent
    free = shutil.disk_usage(place).free
    if free < SPACE_WANTED:
        return Check(
            "disk space", "bad", f"{free >> 20} MiB free at {place}", "free space, or use another disk with --data"
        )
    return Check("disk space", "ok", f"{free >> 30} GiB free")


def _clock() -> Check:
    year = time.gmtime().tm_year
    if year < 2025:
        return Check(
            "clock", "bad", f"the clock says {year}; stamps and retention depend on it", "timedatectl set-ntp true"
        )
    return Check("clock", "ok", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))


def _broker(url: str) -> list[Check]:
    from mainstem.server.cli.api import Api
    from mainstem.server.cli.failures import Unreachable

    try:
        facts = Api(url, timeout_s=3).get("/v1/overview")
    except Unreachable:
        return [Check("broker", "note", f"none answers at {url}", "mainstem up")]
    except MainstemError as error:
        return [Check("broker", "bad", str(error), "mainstem doctor --url http://USER:PASSWORD@HOST:PORT")]
    found = [Check("broker", "ok", f"Mainstem {facts['version']} at {url}, up {facts['uptime_s']:.0f} s")]
    found += [Check(f"broker: {one['name']}", "ok" if one["ok"] else "bad", one["reason"]) for one in facts["health"]]
    return found


def _ports(file: str | None, url: str) -> list[Check]:
    """Who has the ports we would take."""
    import socket

    try:
        listeners = load_config(_chosen(file), os.environ).listeners
    except MainstemError:
        listeners = Listeners()
    found = []
    ours = _own_ports(url)
    for name, setting in LISTENERS.items():
        port = getattr(listeners, setting)
        if not port:
            continue
        if port in ours:
            found.append(Check(f"port {port}", "ok", f"{LABELS[name]}: the broker's own"))
            continue
        with socket.socket() as probe:
            probe.settimeout(0.5)
            taken = probe.connect_ex(("127.0.0.1", port)) == 0
        if taken:
            found.append(Check(f"port {port}", "note", f"{LABELS[name]}: used by {owner_of(port)}"))
    return found or [Check("ports", "ok", "all free")]


def _own_ports(url: str) -> set[int]:
    from mainstem.server.cli.api import Api

    try:
        return set(Api(url, timeout_s=3).get("/v1/overview")["listeners"].values())
    except MainstemError:
        return set()


def _java() -> Check:
    java = shutil.which("java")
    if java is None:
        return Check(
            "Java", "note", "not found; only Spark (pipeline, sql) needs it", "apt install openjdk-17-jre-headless"
        )
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr.split('"')
    version = said[1] if len(said) > 1 else "?"
    major = version.split(".")[0]
    if major.isdigit() and int(major) < JAVA_WANTED:
        return Check(
            "Java", "note", f"{version}; Spark needs {JAVA_WANTED} or later", "apt install openjdk-17-jre-headless"
        )
    return Check("Java", "ok", version)


def _spark_python() -> Check:
    chosen = os.environ.get("PYSPARK_PYTHON")
    if chosen and shutil.which(chosen) and Path(shutil.which(chosen) or "").resolve() != Path(sys.executable).resolve():
        return Check(
            "PYSPARK_PYTHON",
            "note",
            f"{chosen} is another Python than this one",
            f"export PYSPARK_PYTHON={sys.executable}",
        )
    return Check("PYSPARK_PYTHON", "ok", chosen or "not set; our launcher sets it")


def _fsync(data: Path) -> Check:
    """What a lone publisher with durability=sync will wait for."""
    place = data if data.exists() else data.resolve().parent
    path = place / f".fsync-test-{os.getpid()}"
    times: list[float] = []
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        ended = time.monotonic() + 1.0
        while time.monotonic() < ended:
            os.write(descriptor, b"x" * 512)
            began = time.perf_counter()
            sync_data(descriptor)
            times.append((time.perf_counter() - began) * 1000)
    finally:
        os.close(descriptor)
        path.unlink()
    times.sort()
    p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
    state = "ok" if p99 < 50 else "note"
    return Check(
        "fsync",
        state,
        f"p50 {p50:.2f} ms, p99 {p99:.2f} ms, {len(times)} in a second",
        "a slow disk: consider durability=interval:100 for data that may be lost",
    )
