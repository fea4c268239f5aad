"""One PostgreSQL for all tests of the cluster; each makes a database of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.postgres_server import PostgresServer, binaries


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    if binaries() is None:
        pytest.skip("no PostgreSQL server is installed (apt install postgresql)")
    server = PostgresServer()
    yield server
    server.remove()
