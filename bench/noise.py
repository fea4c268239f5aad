"""A quiet client beside noisy ones: how long it waits.

One MQTT client publishes at QoS 1 and pings, each a hundred times a second, alone and beside each noise; latency counts from
when a message was due. `ack` ends on the disk, `ping` says what the loop alone adds. `turn` is the longest turn of the loop
beyond 20 ms that the broker's watchdog saw, and where. `no core` is how much of the time the loop's thread could have run
and had no core: the noise and the quiet client run on the same machine, and that part of a wait is the machine's. `still` is
how much of it every core stood still: that part of a wait is taken off it (`standstill.py`). `fsync` is the p99 of the
broker's syncs meanwhile (the upper end of a bucket), and `bare` that of a process that only appends a few bytes and syncs
them, a hundred times a second on the same disk (`noise_disk.py`): that part of an ack's wait is the disk's. Each noise meets
a fresh broker, and runs at idle priority in the same session: it takes the cores that broker and quiet client leave, as if
it came from other machines. The noise is in the default namespace, or one of its own; the quiet client is in the default
namespace, too, and then (second line) in another than any noise. As root it waits for no core, as if it had a machine of its
own, too.

mosquitto, RabbitMQ and Apache Kafka meet noises of their own protocol (`noise_peers.py`).

    python -m bench noise                                       # small noises, about ten minutes
    python -m bench.noise --records 10000000 --seconds 20       # those the targets are about
    python -m bench.noise --only scan,backup                    # the noises whose name has one of these words
    python -m bench.noise --only nobody --peers                 # the peers alone
    python -m bench.noise --seconds 4 --keep                    # writes bench/results/noise.md

Targets: p99 of the ack at most 5 times that of the quiet run; 2 times beside SQL, and for a client of another namespace
beside a tenant at its quota, one with ten thousand connections and one that catches up. No turn above 20 ms. They are shown,
never asserted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.machine import come_first, data_directory, fill_page_cache, write_result
from bench.mqtt import Server, mosquitto
from bench.noise_disk import beside
from bench.noise_load import NOISES, mqtt, publish
from bench.noise_peers import SERVERS, Publish, waits_of
from bench.standstill import Standstill, Wait, watched
from mainstem.testing import BrokerProcess

PERIOD_S = 0.005  # an ack and a ping in turn
PING = b"\xc0\0"
ANSWER_S_MAX = 60
TIMES_MAX, TURN_MS_MAX = 5.0, 20.0
TWICE = {"SQL questions"}  # 2 at the most
TWICE_FROM_ANOTHER = {"SQL questions", "replay by laggards", "many connections", "tenant at its quota"}
OTHER = "quiet"  # namespace
STALLS = re.compile(
    r'^mainstem_loop_stall_(seconds_sum|seconds_count|max_seconds)\{cause="([^"]+)"\} (\S+)', re.MULTILINE
)
SYNCS = re.compile(r'^mainstem_fsync_seconds_bucket\{le="([^"]+)"\} (\S+)', re.MULTILINE)
WARM_S = 1.0
READY_S_MAX = 120


SAID: list[str] = []  # what was printed


def say(line: str) -> None:
    SAID.append(line)
    print(line, flush=True)


@dataclass(slots=True)
class Waits:
    """Milliseconds, without what stood still."""

    acks: list[float]
    pings: list[float]
    standstill: Standstill


@dataclass(slots=True)
class Heard:
    acks: list[Wait] = field(default_factory=list)
    pings: list[Wait] = field(default_factory=list)


def listen(port: int, seconds: float, namespace: str = "") -> Waits:
    """The quiet client, for so long."""
    with watched() as standstill:
        heard = hear(port, seconds, namespace)
    return Waits(standstill.counted(heard.acks), standstill.counted(heard.pings), standstill)


def hear(port: int, seconds: float, namespace: str = "") -> Heard:
    """It sends when it is due, whatever has come back."""
    waits = Heard()
    with mqtt(port, "quiet", user=f"{namespace}:quiet" if namespace else "") as client, come_first():
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began, sent, heard, answers = time.monotonic(), 0, 0, b""
        last = int(seconds / PERIOD_S)
        while heard < last:
            due = began + sent * PERIOD_S
            left = max(0.0, due - time.monotonic()) if sent < last else ANSWER_S_MAX
            if select.select([client], [], [], left)[0]:
                piece = client.recv(65_536)
                if not piece:
                    raise ConnectionError("the quiet client was disconnected")
                answers += piece
            elif sent < last:
                client.sendall(
                    PING if sent & 1 else publish("quiet/topic", b"0123456789abcdef", qos=1, number=sent + 1)
                )
                sent += 1
            else:
                raise TimeoutError(f"{last - heard} answers did not come within {ANSWER_S_MAX} s")
            while len(answers) >= 2 and len(answers) >= 2 + answers[1]:
                ping = answers[0] == 0xD0  # in order, as acks are among themselves
                kept = waits.pings if ping else waits.acks
                due = began + (2 * len(kept) + ping) * PERIOD_S
                kept.append(Wait(due, (time.monotonic() - due) * 1000))
                answers, heard = answers[2 + answers[1] :], heard + 1
    return waits


def queued_s(pid: int) -> float:
    """How long the loop, a process's first thread, waited for a core so far."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def metrics(http_port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


def stalls(text: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for kind, cause, value in STALLS.findall(text):
        found.setdefault(cause, {})[kind] = float(value)
    found.pop("elsewhere", None)
    return found


def sync_p99_ms(before: str, after: str) -> float:
    """The upper end of the bucket that has it."""
    earlier = {upper: float(count) for upper, count in SYNCS.findall(before)}
    grown = [(float(upper), float(count) - earlier.get(upper, 0.0)) for upper, count in SYNCS.findall(after)]
    return next((upper * 1000 for upper, count in grown if count >= 0.99 * grown[-1][1]), 0.0) if grown else 0.0


def longest_turn(before: dict[str, dict[str, float]], after: dict[str, dict[str, float]]) -> tuple[float, str]:
    """(ms, cause) of the longest that came since. Where one before was longer, the mean of those since."""
    worst = (0.0, "")
    for cause, now in after.items():
        then = before.get(cause, dict.fromkeys(now, 0.0))
        count = now["seconds_count"] - then["seconds_count"]
        if count:
            grew = now["max_seconds"] > then["max_seconds"]
            took = now["max_seconds"] if grew else (now["seconds_sum"] - then["seconds_sum"]) / count
            worst = max(worst, (took * 1000, cause))
    return worst


@contextlib.contextmanager
def noise(name: str, scene: dict[str, object]) -> Iterator[None]:
    command = [sys.executable, "-m", "bench.noise_load", name, json.dumps(scene)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0) as process:
        try:
            assert process.stdout is not None
            if not select.select([process.stdout], [], [], READY_S_MAX)[0]:
                raise RuntimeError(f"{name}: the noise was not made within {READY_S_MAX} s")
            if b"ready" not in process.stdout.readline():
                raise RuntimeError(f"{name}: the noise could not be made")
            time.sleep(WARM_S)
            yield
            if process.poll() is not None:
                raise RuntimeError(f"{name}: the noise ended by itself")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def line(
    name: str,
    waits: Waits,
    quiet: Waits | None,
    turn: tuple[float, str] | None = None,
    times_max: float | None = TIMES_MAX,
    no_core: float | None = None,
    sync_ms: float | None = None,
    bare_ms: float | None = None,
) -> None:
    p99 = percentile(waits.acks, 0.99)
    told = f"{name:<28}{percentile(waits.acks, 0.5):>9.2f}{p99:>9.2f}"
    if waits.pings:
        told += f"{percentile(waits.pings, 0.5):>10.2f}{percentile(waits.pings, 0.99):>9.2f}"
    else:
        told += " " * 19
    told += f"{no_core:>9.0%}" if no_core is not None else " " * 9
    told += f"{waits.standstill.share:>7.1%}"
    told += f"{sync_ms:>8.1f}" if sync_ms is not None else " " * 8
    told += f"{bare_ms:>8.1f}" if bare_ms is not None else " " * 8
    if quiet is not None:
        times = p99 / percentile(quiet.acks, 0.99)
        told += f"{times:>8.1f}x "
        if times_max is not None:  # the targets are ours
            told += "reached" if times <= times_max else "MISSED "
    if turn is not None:
        told += f"{turn[0]:>7.0f} " + ("reached" if turn[0] <= TURN_MS_MAX else f"MISSED  {turn[1]}")
    say(told)


def ours(names: list[str], asked: argparse.Namespace) -> None:
    quiet: Waits | None = None
    sizes = {name: getattr(asked, name) for name in ("records", "stalled", "connects", "laggards")}
    for name in ["", *names]:
        with (
            data_directory("noise") as folder,
            BrokerProcess(folder / "data", "limits.connections_per_address_rate=100000") as broker,
        ):
            make_namespace(broker.http_port)
            hear(broker.mqtt_port, 0.5)  # its topic is there
            hear(broker.mqtt_port, 0.5, OTHER)
            fill_page_cache()
            if not name:
                quiet, no_core, bare = measured(broker, asked.seconds, folder)
                line("nobody else", quiet, None, no_core=no_core, bare_ms=bare)
                continue
            try:
                with noise(name, {"ports": broker.ports, **sizes}):
                    before = metrics(broker.http_port)
                    waits, no_core, bare = measured(broker, asked.seconds, folder)
                    other, no_core_of_other, bare_of_other = measured(broker, asked.seconds, folder, OTHER)
                    after = metrics(broker.http_port)
            except (RuntimeError, OSError) as error:
                say(f"{name:<28}MISSED: {error}")
                continue
            turn = longest_turn(stalls(before), stalls(after))
            sync_ms = sync_p99_ms(before, after)
            times_max = 2.0 if name in TWICE else TIMES_MAX
            line(name, waits, quiet, turn, times_max, no_core=no_core, sync_ms=sync_ms, bare_ms=bare)
            line(
                "  from another namespace",
                other,
                quiet,
                times_max=2.0 if name in TWICE_FROM_ANOTHER else TIMES_MAX,
                no_core=no_core_of_other,
                bare_ms=bare_of_other,
            )


def measured(broker: BrokerProcess, seconds: float, folder: Path, namespace: str = "") -> tuple[Waits, float, float]:
    """And the share of the time in which the broker's loop had no core, and what the disk alone took."""
    with beside(folder) as bare:
        began_s, before_s = time.monotonic(), queued_s(broker.pid)
        waits = listen(broker.mqtt_port, seconds, namespace)
        no_core = (queued_s(broker.pid) - before_s) / (time.monotonic() - began_s)
    return waits, no_core, percentile(waits.standstill.counted(bare), 0.99)


def make_namespace(http_port: int) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{http_port}/v1/namespaces", json.dumps({"name": OTHER}).encode()
    )
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


def peer(server: Server, asked: argparse.Namespace) -> None:
    fill_page_cache()
    hear(server.port, 0.5)
    quiet = listen(server.port, asked.seconds)
    line("mosquitto, nobody else", quiet, None)
    sizes = {"records": 0, "stalled": asked.stalled, "connects": asked.connects, "laggards": 0}
    for name in ("MQTT flood", "connects", "stalled subscribers"):
        with noise(name, {"ports": {"mqtt": server.port}, **sizes}):
            line(f"mosquitto, {name}", listen(server.port, asked.seconds), quiet, times_max=None)


def timed(publish_one: Publish, seconds: float) -> Waits:
    with watched() as standstill, come_first():
        waits = waits_of(publish_one, seconds)
    return Waits(standstill.counted(waits), [], standstill)


def peers(asked: argparse.Namespace) -> None:
    try:
        with mosquitto("true") as server:
            peer(server, asked)
    except OSError as error:
        say(f"mosquitto is not measured: {error}")
    for who, serve, client, name, port_name in SERVERS:
        try:
            with serve() as port, client(port) as publish_one:
                fill_page_cache()
                waits_of(publish_one, 1.0)  # a first second that does not count
                quiet = timed(publish_one, asked.seconds)
                line(f"{who}, {port_name}, nobody else", quiet, None)
                with noise(
                    name, {"ports": {port_name: port}, "records": 0, "stalled": 0, "connects": 0, "laggards": 0}
                ):
                    loud = timed(publish_one, asked.seconds)
                    line(f"{who}, {name}", loud, quiet, times_max=TIMES_MAX if who == "Mainstem" else None)
        except Exception as error:  # a peer that is not installed, or that fell over
            say(f"{who}, {name}: not measured: {error!r}"[:200])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="that each noise is listened to")
    parser.add_argument("--records", type=int, default=1_000_000, help="stored before a scan, replay or backup")
    parser.add_argument("--stalled", type=int, default=1_000, help="subscribers that read nothing")
    parser.add_argument("--connects", type=int, default=10_000, help="that come at once; topics of the listings")
    parser.add_argument("--laggards", type=int, default=10, help="that replay everything")
    parser.add_argument("--only", default="", help="noises whose name has one of these words, by commas")
    parser.add_argument("--keep", action="store_true", help="write bench/results/noise.md")
    parser.add_argument("--peers", action="store_true", help="the peers, too, although only some noises are asked for")
    asked = parser.parse_args()
    words = asked.only.lower().split(",")
    names = [name for name in NOISES if any(word in name.lower() for word in words)]
    say(f"{' '.join(sys.argv[1:]) or 'small noises'}: {asked.records:,} records stored, {asked.stalled:,} stalled, ")
    say(f"{asked.connects:,} connects, {asked.seconds:g} s each; load of the machine before: {os.getloadavg()[0]:.1f}")
    say(
        f"{'ms':<28}{'ack p50':>9}{'p99':>9}{'ping p50':>10}{'p99':>9}{'no core':>9}{'still':>7}{'fsync':>8}{'bare':>8}"
        f"{'p99 of quiet':>17}{'turn':>15}"
    )
    ours(names, asked)
    if asked.peers or not asked.only:
        peers(asked)
    if asked.keep:
        write_result("noise", __doc__.splitlines()[0].rstrip("."), "\n".join(SAID))
    return 0


if __name__ == "__main__":
    sys.exit(main())
