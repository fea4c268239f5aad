"""Today's broker beside an older commit's, in turns: what a change costs or gains by MQTT, Kafka and AMQP.

    python -m bench before                                # beside the commit BASE, about ten minutes
    python -m bench.before COMMIT --only "1→1"            # workloads whose name has this word; nothing is written
    python -m bench.before COMMIT --protocols kafka

The older commit's sources are taken from git and compiled once into the user's cache; its broker runs them with the packages
of this environment. The generators are today's for both. Workloads, pinning and settling are those of `bench mqtt`, `kafka`
and `amqp`; the two brokers take turns within each round, and the median of the rounds is kept. A rate below 0.9 of before is
shown as SLOWER: figures of two equal brokers differ by up to a tenth here (`python -m bench.before HEAD` shows by how much).
Today's broker makes no index of words, for BASE had none: what that costs is in `bench search`.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import statistics
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench import amqp, kafka, mqtt
from bench.machine import ROOT, write_result
from mainstem.server.load.measure import Result, pin
from mainstem.testing import BrokerProcess

BASE = "18550ee"  # the last one before the seams for NATS, object stores and clusters
SLOWER = 0.9
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mainstem" / "commits"
BUILD = "import sys, setuptools; sys.argv[1:] = ['--quiet', 'build_ext', '--inplace']; setuptools.setup()"
BUILD_S_MAX = 1200
PROTOCOLS = ("mqtt", "kafka", "amqp")


def sources_of(commit: str) -> Path:
    """Compiled, in the cache."""
    name = subprocess.check_output(
        ["git", "rev-parse", "--verify", f"{commit}^{{commit}}"], cwd=ROOT, text=True
    ).strip()
    folder = CACHE / name[:12]
    if not (folder / "built").exists():
        folder.mkdir(parents=True, exist_ok=True)
        packed = subprocess.check_output(["git", "archive", name], cwd=ROOT)
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        print(f"compiling {name[:12]} ...", file=sys.stderr, flush=True)
        script = ["setup.py", "--quiet", "build_ext", "--inplace"] if (folder / "setup.py").exists() else ["-c", BUILD]
        subprocess.run(
            [sys.executable, *script], cwd=folder, check=True, timeout=BUILD_S_MAX, stdout=subprocess.DEVNULL
        )
        subprocess.run([sys.executable, "-m", "compileall", "-q", "src"], cwd=folder, check=True)
        (folder / "built").touch()
    return folder / "src"


def broker_of(sources: Path) -> type[BrokerProcess]:
    """A broker process that runs these sources, with the listeners they know."""
    variables = {"PYTHONPATH": str(sources)}
    told = subprocess.check_output(
        [sys.executable, "-m", "mainstem", "serve", "--help"], env={**os.environ, **variables}, text=True
    )
    known = set(re.findall(r"--(\w+)-port", told))

    class OlderBroker(BrokerProcess):
        listeners = tuple(name for name in BrokerProcess.listeners if name in known)

        def __init__(self, data: Path, *settings: str) -> None:
            super().__init__(data, *settings, environment=variables)

    return OlderBroker


class Today(BrokerProcess):
    def __init__(self, data: Path, *settings: str) -> None:
        super().__init__(data, "topics.search_index=off", *settings)


def row(name: str, before: float, now: float, cpu: tuple[float, float], unit: str = "/s") -> str:
    """More is better, of less CPU."""
    times = now / before
    verdict = "  SLOWER" if times < SLOWER else ""
    used = f"{cpu[0]:>9.2f}{cpu[1]:>9.2f}{cpu[1] / cpu[0]:>7.2f}x" if all(cpu) else ""
    return f"{name:<42}{before:>13,.0f}{now:>13,.0f} {unit:<5}{times:>6.2f}x{used}{verdict}"


def latency_row(name: str, before_us: float, now_us: float) -> str:
    return f"{name + ', p99':<42}{before_us:>13,.0f}{now_us:>13,.0f} {'µs':<5}{now_us / before_us:>6.2f}x"


def mqtt_rows(older: type[BrokerProcess], asked: argparse.Namespace) -> Iterator[str]:
    for work in mqtt.WORKS:
        if asked.only not in work.shape.name:
            continue
        with mqtt.mainstem(older) as before, mqtt.mainstem(Today) as now:
            runs = [
                [mqtt.measure(work.shape, server, asked.seconds) for server in (before, now)]
                for _ in range(asked.rounds)
            ]
        yield _result_row(f"MQTT {work.shape.name}", *map(list, zip(*runs, strict=True)), latency=bool(work.shape.rate))


def amqp_rows(older: type[BrokerProcess], asked: argparse.Namespace) -> Iterator[str]:
    servers: list[object] = [partial(amqp.mainstem, older, "before"), partial(amqp.mainstem, Today)]
    for work in amqp.WORKS:
        if asked.only not in work.shape.name:
            continue
        found = amqp.measure(servers, [work], asked.seconds, asked.rounds)
        name = work.shape.name
        yield _result_row(f"AMQP {name}", found["before", name], found["Mainstem", name], latency=bool(work.shape.rate))


def _result_row(name: str, before: list[Result], now: list[Result], *, latency: bool) -> str:
    def median(results: list[Result], field: str) -> float:
        return statistics.median(getattr(one, field) or 0.0 for one in results)

    if latency:
        return latency_row(name, median(before, "p99_us"), median(now, "p99_us"))
    cpu = median(before, "server_cpu_us"), median(now, "server_cpu_us")
    return row(name, median(before, "rate"), median(now, "rate"), cpu)


def kafka_rows(older: type[BrokerProcess], asked: argparse.Namespace) -> Iterator[str]:
    for _, durability, works, _ in kafka.PLANS:
        chosen = tuple(work for work in works if asked.only in work.name)
        if not chosen:
            continue
        with kafka.mainstem(durability, older) as before, kafka.mainstem(durability, Today) as now:
            was, found = kafka.measure([before, now], chosen, asked.seconds, asked.rounds, kafka.WARM_S)
        for work in chosen:
            mine, earlier = found[work.name], was[work.name]
            cpu = earlier["cpu_ms_per_mb"], mine["cpu_ms_per_mb"]
            yield row(f"Kafka {work.name}", earlier["mb_per_s"], mine["mb_per_s"], cpu, "MB/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", default=BASE, help=f"that today's broker is compared with ({BASE})")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="workloads whose name contains this; nothing is written then")
    parser.add_argument("--protocols", default=",".join(PROTOCOLS))
    asked = parser.parse_args()
    older = broker_of(sources_of(asked.commit))
    pin(mqtt.LOAD_CORE)
    rows = {"mqtt": mqtt_rows, "kafka": kafka_rows, "amqp": amqp_rows}
    lines = [f"{'':<42}{asked.commit:>13}{'today':>13}{'times':>13}{'CPU µs, ms/MB':>18}{'times':>8}"]
    print(lines[0], flush=True)
    for protocol in asked.protocols.split(","):
        for line in rows[protocol](older, asked):
            lines.append(line)
            print(line, flush=True)
    if not asked.only and asked.protocols == ",".join(PROTOCOLS):
        write_result("before", "Today's broker beside an older commit's", "\n".join(lines))


if __name__ == "__main__":
    main()
