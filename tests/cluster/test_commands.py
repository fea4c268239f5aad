"""`mainstem cluster ...` and `mainstem serve --cluster` as a person runs them: what they say, and what they exit with."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mainstem.cluster.checks import problems
from mainstem.storage.tier.store import StoreSettings
from tests.cluster.clocks import FAKETIME, INSTALLED, MONOTONIC_LEFT_ALONE
from tests.cluster.kit import Cluster, new_database
from tests.contract.postgres_server import PostgresServer
from tests.s3_faults import fault_proxy
from tests.s3_server import s3_server

pytestmark = pytest.mark.timeout(300)  # of a busy machine


def mainstem(*arguments: str, **environment: str) -> tuple[int, str]:
    """Exit code and everything it said."""
    command = [sys.executable, "-m", "mainstem", *arguments]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, **environment}, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


def test_commands_say_what_is_wrong_where_there_is_no_cluster(tmp_path: Path, postgres: PostgresServer) -> None:
    code, said = mainstem("cluster", "status", "--cluster", new_database(postgres))
    assert (code, "holds no cluster" in said) == (1, True), said
    code, said = mainstem("cluster", "ls", "--cluster", "mysql://db")
    assert (code, "postgresql://USER@HOST/DATABASE" in said) == (78, True), said
    code, said = mainstem("cluster", "status", "--cluster", "postgresql://nobody@127.0.0.1:1/none")
    assert (code, "does not answer" in said) == (1, True), said


def test_a_store_that_was_refused_is_bound_to_no_cluster(tmp_path: Path, postgres: PostgresServer) -> None:
    where = "--cluster", new_database(postgres), "--single-postgres"
    absent, good = tmp_path / "absent", tmp_path / "good"
    good.mkdir()
    for command in (("serve", "--data", str(tmp_path / "data")), ("cluster", "doctor")):
        code, said = mainstem(*command, *where, "--store", f"file://{absent}")
        assert code != 0
        assert f"mkdir -p {absent}" in said
    code, said = mainstem("cluster", "doctor", *where, "--store", f"file://{good}")
    assert code == 0, said
    assert list(good.rglob("*")) in ([], [good / "check"]), "the doctor leaves nothing behind"
    assert "holds no cluster" in mainstem("cluster", "status", *where[:2])[1], "and makes no tables"


@pytest.mark.skipif(not INSTALLED, reason="apt install libfaketime")
@pytest.mark.slow
@pytest.mark.parametrize(("offset", "taken"), [("+4s", True), ("-8s", False), ("+8s", False)])
def test_a_clock_more_than_five_seconds_from_postgresqls_is_refused(
    offset: str, taken: bool, tmp_path: Path, postgres: PostgresServer
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    places = "--cluster", new_database(postgres), "--store", f"file://{store}", "--single-postgres"
    clock = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": offset, **MONOTONIC_LEFT_ALONE}
    code, said = mainstem("cluster", "doctor", *places, **clock)
    assert (code == 0) is taken, said
    if not taken:
        assert "s apart; 5 s are the most allowed" in said
        code, said = mainstem("serve", "--data", str(tmp_path / "data"), *places, **clock)
        assert code == 78, said
        assert "timedatectl set-ntp true" in said


@pytest.mark.slow
def test_a_bucket_that_takes_no_objects_is_refused(tmp_path: Path, postgres: PostgresServer) -> None:
    with s3_server(tmp_path) as s3, fault_proxy(s3.endpoint) as proxy, pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment.items():
            patch.setenv(name, value)
        dsn = new_database(postgres)
        settings = StoreSettings("s3://bucket/a", proxy.endpoint, "us-east-1", path_style=True)
        assert not any(wrong for _, wrong, _ in problems(dsn, settings, single_postgres=True))
        proxy.faults["PUT"] = "503"
        wrong = problems(dsn, replace(settings, timeout_s=2.0), single_postgres=True)
        assert [name for name, why, _ in wrong if why] == ["object store"]
        proxy.faults.clear()
        patch.setenv("AWS_SECRET_ACCESS_KEY", "another")
        wrong = problems(dsn, settings, single_postgres=True)
        assert [name for name, why, _ in wrong if why] == ["object store"]


@pytest.mark.slow
def test_status_ls_move_drain_and_doctor_say_and_do_what_they_are_asked(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    with Cluster(tmp_path, postgres, "a", "b") as cluster:
        where = "--cluster", cluster.dsn

        def rows(command: str) -> list[dict[str, object]]:
            code, said = mainstem("cluster", command, "--json", *where)
            assert code == 0, said
            return [json.loads(line) for line in said.splitlines()]

        assert [(row["cell"], row["owner"], row["epoch"]) for row in rows("status")] == [("main", "a", 1)]
        assert [(row["name"], row["state"], row["owns"]) for row in rows("ls")] == [
            ("a", "alive", "main"),
            ("b", "alive", ""),
        ]
        refused = {
            ("move", "main", "nobody"): "no broker is called 'nobody'",
            ("move", "other", "b"): "there is no cell 'other'",
            ("move", "main", "a"): "a owns main already",
            ("drain", "nobody"): "no broker is called 'nobody'",
            ("export", str(tmp_path / "out"), "--store", f"file://{cluster.store}"): "a serves the cluster",
        }
        for command, why in refused.items():
            code, said = mainstem("cluster", *command, *where)
            assert code != 0
            assert why in said
        assert mainstem("cluster", "move", "main", "b", *where)[0] == 0
        assert cluster.wait_owner(other_than="a") == "b"
        assert [(row["owner"], row["taken_because"]) for row in rows("status")] == [("b", "it is moved to b")]
        cluster.until(lambda: [row["state"] for row in rows("ls")] == ["alive", "alive"])
        cluster.until(lambda: mainstem("cluster", "drain", "b", *where)[0] == 0)  # a has started over by then
        assert cluster.wait_owner(other_than="b") == "a"
        code, said = mainstem("cluster", "drain", "a", *where)
        assert (code, "no other broker could take over" in said) == (1, True)
        cluster.until(lambda: [row["state"] for row in rows("ls")] == ["alive", "draining"])
        assert mainstem("cluster", "drain", "b", "--off", *where)[0] == 0
        store = "--store", f"file://{cluster.store}"
        code, said = mainstem("cluster", "doctor", *where, *store)
        assert (code, "no synchronous standby" in said) == (1, True)
        assert mainstem("cluster", "doctor", *where, *store, "--single-postgres")[0] == 0
        shutil.rmtree(tmp_path / "store")
        code, said = mainstem("cluster", "doctor", *where, *store, "--single-postgres")
        assert (code, "mkdir -p" in said) == (1, True)


@pytest.mark.slow
def test_commands_name_every_cell_of_a_cluster_that_has_two(tmp_path: Path, postgres: PostgresServer) -> None:
    with Cluster(tmp_path, postgres, "a", "b", settings=("cluster.moves_per_hour=0",)) as cluster:
        cluster.run("namespace", "add", "factory", "--cell", "new")
        cluster.run("namespace", "add", "office", "--cell", "factory")
        where = "--cluster", cluster.dsn
        store = "--store", f"file://{cluster.store}"

        def rows(command: str) -> list[dict[str, object]]:
            return [json.loads(line) for line in mainstem("cluster", command, "--json", *where)[1].splitlines()]

        assert [(row["cell"], row["owner"], row["namespaces"]) for row in rows("status")] == [
            ("main", "a", "all others"),
            ("factory", "b", "factory, office"),
        ]
        code, said = mainstem("cluster", "move", "factory", "b", *where)
        assert (code, "b owns factory already" in said) == (1, True), said
        assert mainstem("cluster", "move", "factory", "a", *where)[0] == 0
        cluster.until(lambda: cluster.owner_of("factory") == "a")
        assert [(row["name"], row["owns"]) for row in rows("ls")] == [("a", "main, factory"), ("b", "")]
        assert mainstem("cluster", "doctor", *where, *store, "--single-postgres")[0] == 0
        for broker in cluster.brokers.values():
            assert broker.stop() == 0
        assert mainstem("cluster", "status", *where)[0] == 1, "nobody owns them"
        code, said = mainstem("cluster", "export", str(tmp_path / "out"), *where, *store)
        assert (code != 0, "factory" in said) == (True, True), said
