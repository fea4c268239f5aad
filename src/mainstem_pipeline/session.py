"""Starting Spark so that it just runs: finds Java, keeps its noise in a file, says what is happening, retries a start.

Nothing here is needed to use the data source in a session of your own; `mainstem pipeline`, `sql` and `lake` use it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

from mainstem.model.errors import ConfigError
from mainstem_pipeline.options import PUSHDOWN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSION_MIN = 17
STARTS_MAX = 3
# Rows handed to Python at once. A limit in bytes makes Spark measure the batch with each row, in time that grows with the
# rows before it where an array is null (50 µs a row in batches of 50,000); so it is this limit alone, and small.
ARROW_ROWS_MAX = 2_000
HEAP_MIB_MIN, HEAP_MIB_MAX = 1024, 4096  # of a local driver: a quarter of the machine's memory within these
# For the Python processes that a local Spark starts:
WORKER_SETTINGS = {
    # Tasks have all cores already: a pool of numpy's own threads costs each process 0.1 s of CPU at its start.
    "OPENBLAS_NUM_THREADS": "1",
    # Milliseconds until Arrow's allocator returns memory. After its own 10 a writer faults in each row group's again: 5 %.
    "MIMALLOC_PURGE_DELAY": "1000",
}
# Spark's driver waits a fixed 10 s for a planning process to answer; on a busy machine that is too short now and then.
# Nothing has run when it gives up, so asking again is safe.
HANDSHAKE = re.compile(
    r"(worker failed to connect back|worker exited unexpectedly \(crashed\)|Accept timed out|"
    r"PYTHON_DATA_SOURCE_ERROR.*Connection reset|SocketTimeoutException|CANNOT_OPEN_SOCKET)",
    re.DOTALL,
)
T = TypeVar("T")
logger = logging.getLogger("mainstem.pipeline")


@dataclass(frozen=True, slots=True)
class SparkOptions:
    master: str = "local[*]"
    name: str = "mainstem"
    log: Path | None = None  # where Spark's own log goes; by default a file in the state directory
    settings: Mapping[str, str] = field(default_factory=dict)
    fast_start: bool = False  # for sessions of seconds: compile less
    announce: Callable[[str], None] | None = None  # told what is happening while Spark starts


def find_java(environment: Mapping[str, str] | None = None) -> Path:
    """The home of a Java of 17 or later: $JAVA_HOME, `java` on the path, then where Debian and others put it."""
    environment = os.environ if environment is None else environment
    seen: list[str] = []
    for home in _java_homes(environment):
        version = _java_version(home)
        if version is not None and version >= JAVA_VERSION_MIN:
            return home
        if version is not None:
            seen.append(f"{home} is Java {version}")
    found = f" ({'; '.join(seen)})" if seen else ""
    raise ConfigError(
        f"Spark needs Java {JAVA_VERSION_MIN} or later, and none is found{found}",
        fix="sudo apt-get install --yes openjdk-17-jre-headless   (or set JAVA_HOME)",
    )


def _java_homes(environment: Mapping[str, str]) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"])
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path is not None:
        yield Path(on_path).resolve().parent.parent
    yield from sorted(Path("/usr/lib/jvm").glob("*"), reverse=True)


def _java_version(home: Path) -> int | None:
    java = home / "bin" / "java"
    if not java.is_file():
        return None
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', told.stderr + told.stdout)
    if found is None:
        return None
    return int(found[2]) if found[1] == "1" and found[2] else int(found[1])


def state_directory() -> Path:
    """Where logs of sessions go when nothing else is said."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "mainstem"


def start_session(options: SparkOptions) -> SparkSession:
    """A SparkSession with `format("mainstem")`, quiet on the terminal, its log kept in a file."""
    log = options.log or state_directory() / "spark.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    os.environ["JAVA_HOME"] = str(find_java())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1" if options.master.startswith("local") else "")
    if not os.environ["SPARK_LOCAL_IP"]:
        del os.environ["SPARK_LOCAL_IP"]
    if options.master.startswith("local"):
        for name, value in WORKER_SETTINGS.items():
            os.environ.setdefault(name, value)
    os.environ[PUSHDOWN] = "true"  # the setting below allows it; Spark's planning processes have this one's environment
    with _announced(options.announce, log), _stderr_to(log), _own_home(options.master):
        return _build(options, log)


def _build(options: SparkOptions, log: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    java = [f"-Dlog4j2.configurationFile={_log_settings(log)}"]
    if options.fast_start:
        java.append("-XX:TieredStopAtLevel=1")
    settings = {
        "spark.app.name": options.name,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_ROWS_MAX),
        "spark.sql.execution.arrow.maxBytesPerBatch": str((1 << 31) - 1),
        "spark.sql.inMemoryColumnarStorage.compressed": "false",  # batches are kept for seconds
        "spark.sql.streaming.metricsEnabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.python.worker.reuse": "true",
        "spark.sql.parquet.fieldId.read.enabled": "true",
        "spark.sql.parquet.fieldId.read.ignoreMissing": "true",
        "spark.sql.warehouse.dir": str(state_directory() / "spark-warehouse"),
        "spark.driver.extraJavaOptions": " ".join(java),
        **_local_settings(options.master),
        **options.settings,
    }
    builder: Any = SparkSession.builder
    builder = builder.master(options.master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    # pyspark logs each error it raises, stack traces and all, besides raising it.
    # So does py4j with those of foreachBatch.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j.clientserver"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return session


@contextlib.contextmanager
def spark_java() -> Iterator[Any]:
    """A Java process with Spark's classes and no session, for seconds; the session's own if there is one."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        yield SparkContext._gateway.jvm
        return
    log = state_directory() / "spark.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    os.environ["JAVA_HOME"] = str(find_java())
    with _stderr_to(log):
        gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()  # it ends with its standard input
        gateway.proc.wait(10)


def _local_settings(master: str) -> dict[str, str]:
    """For a single machine: Spark's own defaults are a cluster's (200 partitions, each a state store) and a toy's (1 GB)."""
    found = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\d+)?\])?", master)
    if found is None:
        return {}
    cores = len(os.sched_getaffinity(0)) if found[1] == "*" else int(found[1] or 1)
    memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    heap_mib = max(HEAP_MIB_MIN, min(HEAP_MIB_MAX, memory_mib // 4))
    return {"spark.sql.shuffle.partitions": str(cores), "spark.driver.memory": f"{heap_mib}m"}


def _log_settings(log: Path) -> Path:
    """Spark's log in a file of at most 2 × 50 MB; nothing on the terminal."""
    path = log.with_suffix(".log4j2.properties")
    path.write_text(
        "\n".join(
            (
                "rootLogger.level = warn",
                "rootLogger.appenderRef.file.ref = file",
                "appender.file.type = RollingFile",
                "appender.file.name = file",
                f"appender.file.fileName = {log}",
                f"appender.file.filePattern = {log}.1",
                "appender.file.layout.type = PatternLayout",
                "appender.file.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex",
                "appender.file.policies.type = Policies",
                "appender.file.policies.size.type = SizeBasedTriggeringPolicy",
                "appender.file.policies.size.size = 50MB",
                "appender.file.strategy.type = DefaultRolloverStrategy",
                "appender.file.strategy.max = 1",
                "",
            )
        )
    )
    return path


@contextlib.contextmanager
def _own_home(master: str) -> Iterator[None]:
    """Start Spark on this machine in a home of links to the installed one's, without its `python` folder.

    Spark puts `python/lib/pyspark.zip` in front of the path of every Python process it starts, and what lies in a zip is
    compiled anew in each: half a second, for modules that are installed beside us, compiled.
    """
    home = None
    if master.startswith("local") and "SPARK_HOME" not in os.environ and os.environ["PYSPARK_PYTHON"] == sys.executable:
        with contextlib.suppress(OSError):  # no room for it: a slower start
            home = _linked_home()
    if home is None:
        yield
        return
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


def _linked_home() -> Path | None:
    import pyspark

    installed = Path(pyspark.__file__).resolve().parent
    if not (installed / "jars").is_dir():
        return None  # not installed as a package
    home = state_directory() / f"spark-home-{pyspark.__version__}-{crc32(bytes(installed)):08x}"
    home.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "jars"):
        with contextlib.suppress(FileExistsError):
            (home / name).symlink_to(installed / name)
    return home


@contextlib.contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """The launcher and the JVM write to the process's own stderr before any log setting counts."""
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


@contextlib.contextmanager
def _announced(announce: Callable[[str], None] | None, log: Path) -> Iterator[None]:
    if announce is None:
        yield
        return
    started, done = time.monotonic(), threading.Event()

    def tell() -> None:
        announce(f"starting Spark (its log: {log})")
        while not done.wait(5.0):
            announce(f"starting Spark ... {time.monotonic() - started:.0f} s")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()
    announce(f"Spark is up after {time.monotonic() - started:.0f} s")


def retried(start: Callable[[], T], *, starts_max: int = STARTS_MAX) -> T:
    """Call what plans a query, again if Spark's own ten seconds for a planning process were too short."""
    for attempt in range(1, starts_max + 1):
        try:
            return start()
        except Exception as error:
            if attempt == starts_max or not HANDSHAKE.search(str(error)):
                raise
            logger.warning("Spark's planning process did not answer in time; starting the query again (%d)", attempt)
    raise AssertionError("unreachable")
