"""`bench`: load on any broker, by the compiled generator."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TextIO

import click

from mainstem.model.counted import counted
from mainstem.model.errors import InvalidArgument, MainstemError
from mainstem.server.cli.api import Api, segment, url_option
from mainstem.server.cli.output import BAR_WIDTH, PROGRESS_BAR_S, PROGRESS_LINE_S, json_option
from mainstem.server.clients.client import Address, read_address
from mainstem.server.protocols import PROTOCOLS

if TYPE_CHECKING:
    from mainstem.server.load.measure import Result, Timing

OWN_OPTIONS = {"qos": ("mqtt",), "persistent": ("amqp", "nats")}  # that mean nothing to the other protocols
HEAD_BYTES = 20  # of each message: who sent it, its number, and when
WINDOW_MAX = 60_000  # MQTT numbers what is not yet acknowledged by 16 bits
DRAIN_S = 5.0
FULL_CORE = 0.9
TOPICS_REMOVED_MAX = 1_000
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Shape:
    """What the options ask for, whatever the protocol."""

    publishers: int
    subscribers: int
    pairs: bool
    size: int
    window: int
    rate: float
    send_bytes: int
    topics: int
    qos: int
    persistent: bool | None  # None: as the protocol's clients mostly do

    def told(self, protocol: str) -> str:
        kinds = {
            "mqtt": f"QoS {self.qos}",
            "kafka": "acks=all",
            "amqp": "transient" if self.persistent is False else "persistent, confirmed",
            "nats": "JetStream, acknowledged" if self.persistent else "core",
        }
        clients = counted(self.publishers, "pair")
        if not self.pairs:
            clients = f"{counted(self.publishers, 'publisher')} → {counted(self.subscribers, 'subscriber')}"
        many = "" if self.topics == 1 else f", {self.topics} {'partitions' if protocol == 'kafka' else 'topics each'}"
        pace = f"{self.rate:g} a second" if self.rate else f"window {self.window}"
        return f"{kinds[protocol]}, {clients}{many}, {self.size} B, {pace}"


@click.command()
@click.argument("target", metavar="[URL]", required=False)
@click.option("--qos", type=click.IntRange(0, 2), help="MQTT: quality of service.  [default: 1]")
@click.option(
    "--persistent/--transient",
    default=None,
    help="AMQP: durable queues, persistent messages and confirms, or none of it.  [default: persistent]  "
    "NATS: a stream with acks and a pull consumer, or core.  [default: core]",
)
@click.option("--size", type=click.IntRange(HEAD_BYTES), default=64, show_default=True, help="Bytes of a message.")
@click.option("--publishers", type=click.IntRange(1), default=1, show_default=True)
@click.option(
    "--subscribers",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Each gets everything; those of AMQP share one queue, those of a stream one consumer.",
)
@click.option("--pairs", type=click.IntRange(1), help="So many publishers, each with a subscriber of its own, instead.")
@click.option(
    "--topics",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Topics of each MQTT or NATS publisher; partitions of the Kafka topic.",
)
@click.option(
    "--window",
    type=click.IntRange(1, WINDOW_MAX),
    default=1_000,
    show_default=True,
    help="Closed loop: messages of a publisher that are under way.",
)
@click.option(
    "--rate", type=click.FloatRange(0), default=0.0, help="Open loop: messages a second in all, whatever comes back."
)
@click.option(
    "--batch",
    type=click.IntRange(0),
    metavar="BYTES",
    help="Sent at once, at most; 0 is each message by itself.  [default: 65536; with --rate 0]",
)
@click.option("--seconds", type=click.FloatRange(0.1), default=5.0, show_default=True, help="Measured, each protocol.")
@click.option("--warm-seconds", type=click.FloatRange(0), default=0.5, show_default=True, help="Not measured, before.")
@click.option("--core", type=click.IntRange(0), help="Keep the generator on this core.")
@click.option("--pid", type=click.IntRange(1), help="The broker's process, if it is on this machine and not found.")
@click.option("--out", type=click.File("w", lazy=False), help="Write the results to a file, as JSON.")
@json_option
@url_option
def bench(target: str | None, url: str, as_json: bool, out: TextIO | None, core: int | None, **given: Any) -> None:
    """Publish to a broker and consume from it; say how fast, how late, and what was lost.

    \b
    mainstem bench                                           the local Mainstem, by each protocol
    mainstem bench mqtt://localhost --qos 0 --window 10000   pipelined, not acknowledged
    mainstem bench kafka://localhost --size 1000 --topics 4
    mainstem bench amqp://guest:guest@localhost:5672/vhost --transient
    mainstem bench nats://localhost --persistent             JetStream: publish, ack, pull
    mainstem bench mqtt://test-host:1883 --pairs 50 --window 1
    mainstem bench mqtt://localhost --rate 5000              latency at a rate the broker can hold

    URL is any broker's: mosquitto, RabbitMQ, Kafka and nats-server are measured alike. The generator is one process.
    Where it used all of its core, it and not the broker was the bound. Latency is counted from when a message was due
    until it was read; in a closed loop that is mostly the time in the window. Its topics, queues and streams are removed
    afterwards; topics of MQTT and NATS only if the broker was found by its HTTP address.
    """
    from mainstem.server.load import require_epoll

    require_epoll()
    shape = _shape(target, given)
    api, addresses = (None, [_given_address(target)]) if target else _local_addresses(url)
    _prepare(core, given["pid"])
    rows = []
    for address in addresses:
        row = _measured(address, shape, given, api)
        rows.append(row)
        click.echo(json.dumps(row) if as_json else _report(row))
    if out:
        json.dump(rows, out, indent=2)
        out.write("\n")


def _shape(target: str | None, given: Mapping[str, Any]) -> Shape:
    for option, protocols in OWN_OPTIONS.items():
        if given[option] is not None and target and not target.startswith(protocols):
            fix = f"it is for {' and '.join(f'{one}://' for one in protocols)}"
            raise InvalidArgument(f"--{option} means nothing to {target}", fix=fix)
    pairs = given["pairs"]
    if pairs and (given["publishers"] != 1 or given["subscribers"] != 1):
        raise InvalidArgument("--pairs says how many publishers and subscribers there are", fix="leave out the others")
    if pairs and given["topics"] > 1 and target and target.startswith("kafka"):
        raise InvalidArgument("with --pairs each Kafka publisher has one partition", fix="leave out --topics")
    batch = given["batch"]
    if batch is None:
        batch = 0 if given["rate"] else 64 * 1024
    return Shape(
        pairs or given["publishers"],
        pairs or given["subscribers"],
        bool(pairs),
        given["size"],
        given["window"],
        given["rate"],
        batch,
        given["topics"],
        1 if given["qos"] is None else given["qos"],
        given["persistent"],
    )


def _given_address(target: str) -> Address:
    address = read_address(target)
    if address.secure:
        raise InvalidArgument(
            f"{target}: the load goes over plain TCP; both sides would measure their encryption",
            fix="name the port without TLS",
        )
    return address


def _local_addresses(url: str) -> tuple[Api, list[Address]]:
    api = Api(url)
    ports = api.get("/v1/overview")["listeners"]
    names = [one.name for one in PROTOCOLS if one.load]
    found = [Address(name, api.host, ports[name], api.user, api.password) for name in names if name in ports]
    return api, found


def _prepare(core: int | None, pid: int | None) -> None:
    """As many connections as this user may have, on one core if asked for."""
    import resource

    import psutil

    from mainstem.server.load.measure import pin

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if pid is not None and not psutil.pid_exists(pid):
        raise InvalidArgument(f"there is no process {pid}", fix="leave out --pid, or see ps -e")
    if core is not None:
        if core not in os.sched_getaffinity(0):
            usable = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
            raise InvalidArgument(f"--core {core} may not be used by this process", fix=f"one of {usable}")
        pin(core)


def _measured(address: Address, shape: Shape, given: Mapping[str, Any], api: Api | None) -> dict[str, Any]:
    from mainstem.server.listeners import listening_pid
    from mainstem.server.load.measure import Timing

    pid = given["pid"] or (listening_pid(address.port) if address.host in LOCAL_HOSTS else None)
    progress = _Progress(address.scheme, given["warm_seconds"] + given["seconds"])
    timing = Timing(given["seconds"], given["warm_seconds"], DRAIN_S, pid=pid, tell=progress.tell)
    try:
        result = _run(address, shape, timing, api)
    finally:
        progress.clear()
    return {
        "protocol": address.scheme,
        "target": f"{address.scheme}://{address.host}:{address.port}",
        "workload": shape.told(address.scheme),
        **asdict(shape),
        "seconds": round(result.seconds, 3),
        "messages_per_s": round(result.rate),
        "mb_per_s": round(result.rate * shape.size / 1e6, 3),
        "p50_ms": _ms(result.p50_us),
        "p99_ms": _ms(result.p99_us),
        "p999_ms": _ms(result.p999_us),
        "lost": result.lost,
        "duplicated": result.duplicated,
        "reordered": result.reordered,
        "server_cpu_us": None if result.server_cpu_us is None else round(result.server_cpu_us, 3),
        "server_core": None if result.server_cpu_share is None else round(result.server_cpu_share, 2),
        "generator_core": round(result.generator_cpu_share, 2),
    }


def _run(address: Address, shape: Shape, timing: Timing, api: Api | None) -> Result:
    name = f"mainstem-bench-{os.urandom(3).hex()}"
    if address.scheme == "kafka":
        return _run_kafka(address, shape, timing)
    try:
        if address.scheme == "mqtt":
            return _run_mqtt(name, address, shape, timing)
        if address.scheme == "nats":
            return _run_nats(name, address, shape, timing)
        return _run_amqp(name, address, shape, timing)
    finally:
        if api is not None and shape.publishers * shape.topics <= TOPICS_REMOVED_MAX:
            with contextlib.suppress(MainstemError):  # what went wrong before says more
                for row in list(api.rows("/v1/topics", filter=f"{name}/#")):
                    api.delete(f"/v1/topics/{segment(row['name'])}")


def _run_kafka(address: Address, shape: Shape, timing: Timing) -> Result:
    from mainstem.server.load import kafka

    work = kafka.Workload("kafka", **_alike(shape, kafka.Workload), partitions=shape.topics)
    return kafka.run(work, address, timing)


def _run_mqtt(name: str, address: Address, shape: Shape, timing: Timing) -> Result:
    from mainstem.server.load import mqtt

    return mqtt.run(mqtt.Workload("mqtt", **_alike(shape, mqtt.Workload), prefix=name), address, timing)


def _run_nats(name: str, address: Address, shape: Shape, timing: Timing) -> Result:
    from mainstem.server.load import nats

    work = nats.Workload("nats", **_alike(shape, nats.Workload), stream=bool(shape.persistent), prefix=name)
    try:
        return nats.run(work, address, timing)
    finally:
        with contextlib.suppress(MainstemError):
            nats.remove(work, address)


def _run_amqp(name: str, address: Address, shape: Shape, timing: Timing) -> Result:
    from mainstem.server.load import amqp

    if shape.size > amqp.SIZE_MAX:
        raise InvalidArgument(
            f"--size {shape.size} is more than one AMQP frame", fix=f"--size {amqp.SIZE_MAX} is the most"
        )
    shape = replace(shape, persistent=shape.persistent is not False)
    work = amqp.Workload("amqp", **_alike(shape, amqp.Workload), consumers=shape.subscribers, prefix=name)
    try:
        return amqp.run(work, address, timing)
    finally:
        with contextlib.suppress(MainstemError):
            amqp.remove(work, address)


def _alike(shape: Shape, kind: Any) -> dict[str, Any]:
    """What a protocol's workload calls by the same name."""
    return {name: getattr(shape, name) for name in kind.__dataclass_fields__ if hasattr(shape, name)}


def _ms(us: float | None) -> float | None:
    return None if us is None else round(us / 1000, 3)


def _report(row: Mapping[str, Any]) -> str:
    """A few lines for people."""
    lines = [
        click.style(row["target"], bold=True) + f"  {row['workload']}",
        f"  throughput  {row['messages_per_s']:,} messages/s, {row['mb_per_s']:,.1f} MB/s",
    ]
    if row["p50_ms"] is not None:
        lines.append(f"  latency     p50 {row['p50_ms']} ms, p99 {row['p99_ms']} ms, p99.9 {row['p999_ms']} ms")
    lines.append(f"  faults      lost {row['lost']}, duplicated {row['duplicated']}, reordered {row['reordered']}")
    server = "server unknown (--pid)"
    if row["server_cpu_us"] is not None:
        server = f"server {row['server_cpu_us']} µs a message, {row['server_core']:.0%} of a core"
    lines.append(f"  CPU         {server}; generator {row['generator_core']:.0%} of a core")
    lines.append(f"  bound       {_bound(row)}")
    return "\n".join(lines)


def _bound(row: Mapping[str, Any]) -> str:
    """Which side had no more to give."""
    if row["lost"] and not row["rate"]:
        return "the broker dropped messages, and lost ones hold the window: see its log, or try a smaller --window"
    if row["rate"]:
        return "the rate that was asked for"
    if (row["server_core"] or 0) >= FULL_CORE:
        return "the server's core"
    if row["generator_core"] >= FULL_CORE:
        return "the generator's core: the broker could do more"
    return "neither core: the window, the network, the disk, or what else runs here"


class _Progress:
    """A bar with rate and time left on a terminal, a line every five seconds elsewhere."""

    def __init__(self, label: str, seconds: float) -> None:
        self._label, self._seconds = label, seconds
        self._terminal = sys.stderr.isatty()
        self._shown = time.monotonic()

    def tell(self, passed_s: float, done: int) -> None:
        now = time.monotonic()
        if now - self._shown < (PROGRESS_BAR_S if self._terminal else PROGRESS_LINE_S):
            return
        self._shown = now
        share = min(1.0, passed_s / self._seconds)
        bar = "█" * int(share * BAR_WIDTH)
        left_s = max(0.0, self._seconds - passed_s)
        text = f"{self._label} {bar:<{BAR_WIDTH}} {share:4.0%}, {left_s:.0f} s left, {done / passed_s:,.0f} messages/s"
        sys.stderr.write(f"\r{text}\x1b[K" if self._terminal else f"{text}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        if self._terminal:
            sys.stderr.write("\r\x1b[K")
