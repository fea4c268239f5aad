"""Brokers of one cluster as processes of their own, with a real PostgreSQL and a directory as object store."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import asyncpg
import psutil

from mainstem.testing.process import BrokerProcess, lasting_ports
from tests.contract.postgres_server import PostgresServer

SECONDS_MAX = 60.0


def run_apart(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """In a thread of its own: the caller's may run a loop, as a browser's does."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def new_database(postgres: PostgresServer) -> str:
    """A database of its own, and its address."""
    name = f"c{uuid.uuid4().hex}"

    async def make() -> None:
        connection = await asyncpg.connect(postgres.dsn)
        await connection.execute(f"CREATE DATABASE {name}")
        await connection.close()

    run_apart(make())
    return postgres.dsn.replace("/postgres?", f"/{name}?")


class Cluster:
    """`with Cluster(directory, postgres, "a", "b") as cluster: ...`: brokers by name; the first owns the cell."""

    def __init__(
        self,
        directory: Path,
        postgres: PostgresServer,
        *names: str,
        settings: tuple[str, ...] = (),
        own: dict[str, tuple[str, ...]] | None = None,
        environments: dict[str, dict[str, str]] | None = None,
    ) -> None:
        """`own`: settings of one broker; `environments`: variables of one."""
        self.postgres = postgres
        self.dsn = new_database(postgres)
        self.store = directory / "store"
        self.store.mkdir()
        self._directory, self._settings = directory, settings
        self._own, self._environments = own or {}, environments or {}
        ports = lasting_ports(len(names))
        self.brokers = {name: self._broker(name, port) for name, port in zip(names, ports, strict=True)}

    def _broker(self, name: str, relay_port: int) -> BrokerProcess:
        return BrokerProcess(
            self._directory / name,
            f"cluster.postgres={self.dsn}",
            f"tier.store=file://{self.store}",
            f"cluster.name={name}",
            f"cluster.relay_port={relay_port}",
            "cluster.single_postgres=true",
            *self._settings,
            *self._own.get(name, ()),
            environment=self._environments.get(name),
        )

    def add(self, name: str) -> BrokerProcess:
        """One more broker, started."""
        self.brokers = {**self.brokers, name: self._broker(name, *lasting_ports(1))}
        return self.brokers[name].start()

    def __enter__(self) -> Self:
        try:
            for broker in self.brokers.values():
                broker.start()
                self.wait_owner()
        except BaseException:
            self.__exit__()  # those that started must not outlive the test
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for broker in self.brokers.values():
            if broker.running:
                broker.kill()

    def __getitem__(self, name: str) -> BrokerProcess:
        return self.brokers[name]

    async def row(self, sql: str) -> Any:
        connection = await asyncpg.connect(self.dsn, server_settings={"search_path": "mainstem_cluster"})
        try:
            return await connection.fetchrow(sql)
        finally:
            await connection.close()

    def ask(self, sql: str) -> Any:
        return run_apart(self.row(sql))

    def owner(self) -> str:
        """Who owns the cell, "" while nobody does."""
        return self.owner_of("main")

    def owner_of(self, cell: str) -> str:
        row = self.ask(f"SELECT owner FROM cell WHERE name = '{cell}' AND lease_until > clock_timestamp()")
        return row["owner"] or "" if row else ""

    def process_of(self, cell: int) -> int:
        """The process that serves a cell other than the first: who listens on its relay port."""
        port = self.ask(f"SELECT relay_port FROM cell WHERE cell_id = {cell}")["relay_port"]
        found = (one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN)
        return next((one.pid for one in found if one.laddr.port == port and one.pid), 0)

    def run(self, *arguments: str, by: str = "a") -> str:
        """A command of a person's that asks a broker: what it says."""
        command = [sys.executable, "-m", "mainstem", *arguments, "--url", self.brokers[by].http_url]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run_cluster(self, *arguments: str) -> None:
        """`mainstem cluster ...`, as a person says it; whom it names may still be starting over."""
        command = [sys.executable, "-m", "mainstem", "cluster", *arguments, "--cluster", self.dsn]
        self.until(lambda: not subprocess.run(command, check=False, capture_output=True, timeout=60).returncode)

    def wait_owner(self, other_than: str = "") -> str:
        """Until a broker other than that owns it, and serves."""

        def found() -> str:
            name = self.owner()
            return name if name and name != other_than and self.serves(name) else ""

        return self.until(found)

    def serves(self, name: str) -> bool:
        last = self.brokers[name].log().rpartition("It starts over")[2].rpartition("handed cell 1 ")[2]
        return "serving cell 1," in last

    def until(self, found: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + SECONDS_MAX
        while not (value := found()):
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {name}\n{one.log()[-3000:]}" for name, one in self.brokers.items())
                raise AssertionError(f"it did not come within {SECONDS_MAX:.0f} s\n{logs}")
            time.sleep(0.05)
        return value
