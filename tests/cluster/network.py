"""A cluster in network namespaces of its own: each broker in one, with a link for each thing that it may be cut off from.

Run within `unshare --net --mount`: the namespace around the brokers is the test's own as well, and all of them are gone with
the last process. Clients, PostgreSQL and the object store are in the middle:

    link        middle      broker       carries
    clients     10.9.X0.1   10.9.X0.2    clients of every protocol
    postgres    10.9.X1.1   10.9.X1.2
    store       10.9.X2.1   10.9.X2.2    S3
    brokers     10.9.X3.1   10.9.X3.2    relayed clients and knocking, routed through the middle

A link is cut by taking its middle end down: what the broker sends vanishes, nobody is told.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from mainstem.testing.process import BrokerProcess, lasting_ports
from tests.cluster.kit import Cluster, new_database
from tests.contract.postgres_server import PostgresServer

LINKS = ("clients", "postgres", "store", "brokers")
PORT, STANDBY_PORT = 5432, 5433


def allowed() -> bool:
    """Whether this machine lets us have namespaces."""
    command = [
        "unshare",
        "--net",
        "--mount",
        "sh",
        "-c",
        "mount -t tmpfs none /run && mkdir /run/netns && ip netns add a",
    ]
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


def prepare_middle() -> None:
    """Before anything listens in it."""
    run("mount", "-t", "tmpfs", "none", "/run")
    Path("/run/netns").mkdir()
    run("ip", "link", "set", "lo", "up")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


class Network:
    def __init__(self, names: tuple[str, ...]) -> None:
        self._numbers = {name: number for number, name in enumerate(names, 1)}
        for name in names:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
            for link in LINKS:
                self._connect(name, link)
            run("ip", "-n", name, "route", "add", "default", "via", self.address(name, "brokers", middle=True))

    def _connect(self, name: str, link: str) -> None:
        outer, inner = f"{name}-{link}", link
        run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name)
        run("ip", "addr", "add", f"{self.address(name, link, middle=True)}/24", "dev", outer)
        run("ip", "link", "set", outer, "up")
        run("ip", "-n", name, "addr", "add", f"{self.address(name, link)}/24", "dev", inner)
        run("ip", "-n", name, "link", "set", inner, "up")

    def address(self, name: str, link: str, *, middle: bool = False) -> str:
        return f"10.9.{10 * self._numbers[name] + LINKS.index(link)}.{1 if middle else 2}"

    def cut(self, name: str, link: str) -> None:
        run("ip", "link", "set", f"{name}-{link}", "down")

    def heal(self, name: str, link: str) -> None:
        run("ip", "link", "set", f"{name}-{link}", "up")


class NetworkCluster(Cluster):
    """With a PostgreSQL at PORT, perhaps a standby at STANDBY_PORT, and S3 at `s3_port` of every middle address, or a
    directory as store. `postgres_ports`: of proxies before the two servers."""

    def __init__(
        self,
        directory: Path,
        postgres: PostgresServer,
        *names: str,
        s3_port: int = 0,
        postgres_ports: tuple[int, int] = (PORT, STANDBY_PORT),
        environments: dict[str, dict[str, str]] | None = None,
    ) -> None:
        self.network = Network(names)
        self.postgres, self.store = postgres, directory / "store"
        self.store.mkdir()
        self.dsn = new_database(postgres)
        database = self.dsn.split("/")[3].partition("?")[0]
        self.brokers = {}
        first, second = postgres_ports
        for name, port in zip(names, lasting_ports(len(names)), strict=True):
            server = self.network.address(name, "postgres", middle=True)
            store = f"tier.store=file://{self.store}"
            s3 = self.network.address(name, "store", middle=True)
            broker = BrokerProcess(
                directory / name,
                f"cluster.postgres=postgresql://mainstem@{server}:{first},{server}:{second}/{database}",
                *(("tier.store=s3://bucket/cluster", f"tier.endpoint=http://{s3}:{s3_port}") if s3_port else (store,)),
                "tier.timeout_ms=2000",
                f"cluster.name={name}",
                f"cluster.host={self.network.address(name, 'brokers')}",
                f"cluster.relay_port={port}",
                f"kafka.advertised_host={self.network.address(name, 'clients')}",
                "cluster.single_postgres=true",
                "listeners.host=0.0.0.0",
                "listeners.allow_anonymous=true",
                environment=(environments or {}).get(name),
            )
            broker.host = self.network.address(name, "clients")
            broker.prefix = ["ip", "netns", "exec", name]
            self.brokers[name] = broker
