"""Brokers of one cluster as processes of their own, with a real PostgreSQL and a directory as object store."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import asyncpg

from mainstem.testing.process import BrokerProcess, lasting_ports
from tests.contract.postgres_server import PostgresServer

SECONDS_MAX = 60.0


def new_database(postgres: PostgresServer) -> str:
    """A database of its own, and its address."""
    name = f"c{uuid.uuid4().hex}"

    async def make() -> None:
        connection = await asyncpg.connect(postgres.dsn)
        await connection.execute(f"CREATE DATABASE {name}")
        await connection.close()

    asyncio.run(make())
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
        ports = lasting_ports(len(names))
        self.brokers = {
            name: BrokerProcess(
                directory / name,
                f"cluster.postgres={self.dsn}",
                f"tier.store=file://{self.store}",
                f"cluster.name={name}",
                f"cluster.relay_port={port}",
                "cluster.single_postgres=true",
                *settings,
                *(own or {}).get(name, ()),
                environment=(environments or {}).get(name),
            )
            for name, port in zip(names, ports, strict=True)
        }

    def __enter__(self) -> Self:
        for broker in self.brokers.values():
            broker.start()
            self.wait_owner()
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
        return asyncio.run(self.row(sql))

    def owner(self) -> str:
        """Who owns the cell, "" while nobody does."""
        row = self.ask("SELECT owner FROM cell WHERE lease_until > clock_timestamp()")
        return row["owner"] or "" if row else ""

    def wait_owner(self, other_than: str = "") -> str:
        """Until a broker other than that owns it, and serves."""

        def found() -> str:
            name = self.owner()
            return name if name and name != other_than and self.serves(name) else ""

        return self.until(found)

    def serves(self, name: str) -> bool:
        last = self.brokers[name].log().rpartition("It starts over")[2].rpartition("handed cell")[2]
        return "serving cell" in last

    def until(self, found: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + SECONDS_MAX
        while not (value := found()):
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {name}\n{one.log()[-3000:]}" for name, one in self.brokers.items())
                raise AssertionError(f"it did not come within {SECONDS_MAX:.0f} s\n{logs}")
            time.sleep(0.05)
        return value
