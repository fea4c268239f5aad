"""A quiet client beside noisy ones: how long it waits.

One MQTT client publishes at QoS 1 and pings, each a hundred times a second, alone and beside each noise; latency counts from
when a message was due. `ack` ends on the disk, `ping` says what the loop alone adds. `turn` is the longest turn of the loop
beyond 20 ms that the broker's watchdog saw, and where. Each noise meets a fresh broker. The noise is in the default
namespace; the quiet client is there, too, and then (second line) in a namespace of its own.

    python -m bench noise                                       # small noises, less than ten minutes
    python -m bench.noise --records 10000000 --seconds 20       # those the targets are about
    python -m bench.noise --only scan                           # the noises whose name has this word

Targets: p99 of the ack at most 5 times that of the quiet run, 2 times from another namespace; no turn above 20 ms. They are
shown, never asserted.
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
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.mqtt import Server, mosquitto
from bench.noise_load import NOISES, mqtt, publish
from mainstem.testing import BrokerProcess

PERIOD_S = 0.005  # an ack and a ping in turn
PING = b"\xc0\0"
ANSWER_S_MAX = 60
TIMES_MAX, TIMES_MAX_OF_ANOTHER, TURN_MS_MAX = 5.0, 2.0, 20.0
OTHER = "quiet"  # namespace
STALLS = re.compile(
    r'^mainstem_loop_stall_(seconds_sum|seconds_count|max_seconds)\{cause="([^"]+)"\} (\S+)', re.MULTILINE
)
WARM_S = 1.0
READY_S_MAX = 120


@dataclass(slots=True)
class Waits:
    """Milliseconds."""

    acks: list[float] = field(default_factory=list)
    pings: list[float] = field(default_factory=list)


def listen(port: int, seconds: float, namespace: str = "") -> Waits:
    """The quiet client, for so long: it sends when it is due, whatever has come back."""
    waits = Waits()
    with mqtt(port, "quiet", user=f"{namespace}:quiet" if namespace else "") as client:
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
                kept.append((time.monotonic() - began - (2 * len(kept) + ping) * PERIOD_S) * 1000)
                answers, heard = answers[2 + answers[1] :], heard + 1
    return waits


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def stalls(http_port: int) -> dict[str, dict[str, float]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    found: dict[str, dict[str, float]] = {}
    for kind, cause, value in STALLS.findall(text):
        found.setdefault(cause, {})[kind] = float(value)
    found.pop("elsewhere", None)
    return found


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
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
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
    times_max: float = TIMES_MAX,
) -> None:
    p99 = percentile(waits.acks, 0.99)
    told = f"{name:<28}{percentile(waits.acks, 0.5):>9.2f}{p99:>9.2f}"
    told += f"{percentile(waits.pings, 0.5):>10.2f}{percentile(waits.pings, 0.99):>9.2f}"
    if quiet is not None:
        times = p99 / percentile(quiet.acks, 0.99)
        told += f"{times:>8.1f}x " + ("reached" if times <= times_max else "MISSED ")
    if turn is not None:
        told += f"{turn[0]:>7.0f} " + ("reached" if turn[0] <= TURN_MS_MAX else f"MISSED  {turn[1]}")
    print(told, flush=True)


def ours(names: list[str], asked: argparse.Namespace) -> None:
    quiet: Waits | None = None
    sizes = {name: getattr(asked, name) for name in ("records", "stalled", "connects", "laggards")}
    for name in ["", *names]:
        with (
            tempfile.TemporaryDirectory(prefix="mainstem-noise-") as folder,
            BrokerProcess(Path(folder) / "data", "limits.connections_per_address_rate=100000") as broker,
        ):
            make_namespace(broker.http_port)
            listen(broker.mqtt_port, 0.5)  # its topic is there
            listen(broker.mqtt_port, 0.5, OTHER)
            if not name:
                quiet = listen(broker.mqtt_port, asked.seconds)
                line("nobody else", quiet, None)
                continue
            try:
                with noise(name, {"ports": broker.ports, **sizes}):
                    before = stalls(broker.http_port)
                    waits = listen(broker.mqtt_port, asked.seconds)
                    other = listen(broker.mqtt_port, asked.seconds, OTHER)
                    turn = longest_turn(before, stalls(broker.http_port))
            except (RuntimeError, OSError) as error:
                print(f"{name:<28}MISSED: {error}", flush=True)
                continue
            line(name, waits, quiet, turn)
            line("  from another namespace", other, quiet, times_max=TIMES_MAX_OF_ANOTHER)


def make_namespace(http_port: int) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{http_port}/v1/namespaces", json.dumps({"name": OTHER}).encode()
    )
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


def peer(server: Server, asked: argparse.Namespace) -> None:
    listen(server.port, 0.5)
    quiet = listen(server.port, asked.seconds)
    line("mosquitto, nobody else", quiet, None)
    sizes = {"records": 0, "stalled": asked.stalled, "connects": asked.connects, "laggards": 0}
    for name in ("MQTT flood", "connects", "stalled subscribers"):
        with noise(name, {"ports": {"mqtt": server.port}, **sizes}):
            line(f"mosquitto, {name}", listen(server.port, asked.seconds), quiet)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="that each noise is listened to")
    parser.add_argument("--records", type=int, default=1_000_000, help="stored before a scan, replay or backup")
    parser.add_argument("--stalled", type=int, default=1_000, help="subscribers that read nothing")
    parser.add_argument("--connects", type=int, default=10_000, help="that come at once; topics of the listings")
    parser.add_argument("--laggards", type=int, default=10, help="that replay everything")
    parser.add_argument("--only", default="", help="noises whose name has this word")
    asked = parser.parse_args()
    names = [name for name in NOISES if asked.only.lower() in name.lower()]
    print(f"{asked.records:,} records stored, {asked.stalled:,} stalled, {asked.connects:,} connects")
    print(f"{'ms':<28}{'ack p50':>9}{'p99':>9}{'ping p50':>10}{'p99':>9}{'p99 of quiet':>17}{'turn':>15}")
    ours(names, asked)
    if not asked.only:
        try:
            with mosquitto("true") as server:
                peer(server, asked)
        except OSError as error:
            print(f"mosquitto is not measured: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
