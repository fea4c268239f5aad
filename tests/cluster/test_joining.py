"""What a broker is refused for, with the fix; users before there is anyone to ask; what Kafka clients are told."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest
from confluent_kafka.admin import AdminClient

from mainstem.cluster.checks import check_postgres, check_store, join
from mainstem.cluster.membership import Membership
from mainstem.cluster.schema import SCHEMA, VERSION
from mainstem.metadata.postgres_session import PostgresSession
from mainstem.model.errors import ConfigError
from mainstem.storage.tier.store import StoreSettings
from tests.cluster.kit import Cluster, new_database
from tests.cluster.owner import file_store
from tests.contract.postgres_server import PostgresServer


def mainstem(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "mainstem", *arguments], check=False, capture_output=True, text=True)


def run_sql(dsn: str, sql: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(dsn, server_settings={"search_path": SCHEMA})
        await connection.execute(sql)
        await connection.close()

    asyncio.run(run())


def test_a_postgresql_without_a_standby_is_refused_unless_it_is_meant(tmp_path: Path, postgres: PostgresServer) -> None:
    dsn, store = new_database(postgres), file_store(tmp_path)
    with pytest.raises(ConfigError, match="no synchronous standby") as refused:
        join(dsn, store, single_postgres=False)
    assert "--single-postgres" in (refused.value.fix or "")
    assert join(dsn, store, single_postgres=True) == join(dsn, store, single_postgres=True)


def test_a_postgresql_that_forgets_commits_is_refused(postgres: PostgresServer) -> None:
    dsn = new_database(postgres)
    run_sql(dsn, f"ALTER DATABASE {dsn.split('/')[3].split('?')[0]} SET synchronous_commit = off")
    with pytest.raises(ConfigError, match="synchronous_commit = off"):
        check_postgres(PostgresSession(dsn, SCHEMA), single_postgres=True)


def test_tables_of_a_newer_version_are_refused(tmp_path: Path, postgres: PostgresServer) -> None:
    dsn, store = new_database(postgres), file_store(tmp_path)
    join(dsn, store, single_postgres=True)
    run_sql(dsn, f"UPDATE cluster SET version = {VERSION + 1}")
    with pytest.raises(ConfigError, match="knows versions up to"):
        join(dsn, store, single_postgres=True)


def test_a_store_of_another_cluster_or_another_place_is_refused(tmp_path: Path, postgres: PostgresServer) -> None:
    store = file_store(tmp_path)
    one = join(new_database(postgres), store, single_postgres=True)
    with pytest.raises(ConfigError, match="belongs to another cluster"):
        join(new_database(postgres), store, single_postgres=True)
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigError, match="objects lie in"):
        check_store(StoreSettings(f"file://{tmp_path / 'other'}"), one)


def test_two_brokers_with_one_address_or_one_name_are_refused(tmp_path: Path, postgres: PostgresServer) -> None:
    dsn = new_database(postgres)
    join(dsn, file_store(tmp_path), single_postgres=True)
    members = [Membership(dsn, name, lambda reason: None, lambda view: None) for name in ("a", "b", "a")]
    members[0].register("127.0.0.1", 7071, {}, "1")
    with pytest.raises(ConfigError, match="could not reach each other"):
        members[1].register("127.0.0.1", 7071, {}, "1")
    with pytest.raises(ConfigError, match="a broker called a is at"):
        members[2].register("127.0.0.2", 7071, {}, "1")
    members[0].stop()


@pytest.mark.slow
def test_users_can_be_added_while_nobody_serves_and_kafka_clients_learn_of_all_brokers(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    with Cluster(tmp_path, postgres, "a", "b") as cluster:
        refused = mainstem("user", "add", "ann", "--admin", "--password", "a-long-secret", "--cluster", cluster.dsn)
        assert refused.returncode != 0
        assert "a serves the cluster" in refused.stderr
        told = AdminClient({"bootstrap.servers": f"127.0.0.1:{cluster['b'].ports['kafka']}"}).list_topics(timeout=20)
        assert {one.id: one.port for one in told.brokers.values()} == {
            1: cluster["a"].ports["kafka"],
            2: cluster["b"].ports["kafka"],
        }
        assert told.controller_id == 1
        assert "b  " in mainstem("cluster", "ls", "--cluster", cluster.dsn).stdout
        for broker in cluster.brokers.values():
            assert broker.stop() == 0
        added = mainstem("user", "add", "ann", "--admin", "--password", "a-long-secret", "--cluster", cluster.dsn)
        assert added.returncode == 0, added.stderr
        assert mainstem("cluster", "status", "--cluster", cluster.dsn).returncode == 1, "nobody owns it"
        cluster["b"].start()
        cluster.wait_owner(other_than="a")
        secured = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "ann"}
        servers = {"bootstrap.servers": f"127.0.0.1:{cluster['b'].ports['kafka']}", "sasl.password": "a-long-secret"}
        assert AdminClient({**servers, **secured}).list_topics(timeout=20).controller_id == 2
