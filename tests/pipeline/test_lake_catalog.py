"""The lake through the broker's Iceberg REST catalog: pyiceberg and DuckDB read and commit, with rights and without harm."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import BadRequestError, CommitFailedException, ForbiddenError, NoSuchTableError, OAuthError
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from mainstem.codec.raw_table import iceberg_schema
from mainstem.testing import Broker
from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.cli import lake as lake_group
from mainstem_pipeline.lake.catalog import LakeOptions, open_catalog
from mainstem_pipeline.lake.commits import SOURCE, ensure_table
from tests.pipeline.test_lake_readers import _extension
from tests.s3_server import KEY, SECRET, s3_server
from tests.users import ANN, ROOT, add_users, allow

NUMBERS = Schema(NestedField(1, "n", LongType(), required=False))


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def broker(warehouse: Path) -> Iterator[Broker]:
    with Broker(f"lake.warehouse={warehouse}") as one:
        yield one


def rest(broker: Any, **properties: str) -> RestCatalog:
    return RestCatalog("mainstem", uri=f"{broker.http_url}/iceberg", **properties)


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


def attached(broker: Broker) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    for name in ("httpfs", "avro", "iceberg"):
        connection.load_extension(_extension(name))
    options = f"type iceberg, endpoint '{broker.http_url}/iceberg', authorization_type 'none'"
    connection.execute(f"attach 'lake' as lake ({options})")
    return connection


def test_pyiceberg_creates_appends_and_reads_what_the_lake_itself_has(broker: Broker, warehouse: Path) -> None:
    catalog = rest(broker)
    catalog.create_namespace("iot")
    table = catalog.create_table("iot.numbers", NUMBERS, properties={"commit.retry.num-retries": "0"})
    table.append(rows(1, 2))
    own = open_catalog(LakeOptions(str(warehouse)))
    assert own.list_tables("iot") == [("iot", "numbers")]
    own.load_table("iot.numbers").append(rows(3))
    assert sorted(catalog.load_table("iot.numbers").scan().to_arrow()["n"].to_pylist()) == [1, 2, 3]
    with pytest.raises(CommitFailedException):
        table.append(rows(4))  # it has not seen the other's commit, and was told not to try again
    table.refresh()
    table.append(rows(4))
    with table.update_schema() as change:
        change.add_column("more", LongType())
    assert own.load_table("iot.numbers").schema().find_field("more")
    catalog.drop_table("iot.numbers")
    assert own.list_tables("iot") == []
    with pytest.raises(NoSuchTableError):
        catalog.load_table("iot.numbers")


def test_duckdb_reads_inserts_deletes_and_commits_two_tables_at_once(broker: Broker, warehouse: Path) -> None:
    own = open_catalog(LakeOptions(str(warehouse)))
    own.create_namespace("iot")
    for name in ("a", "b"):
        own.create_table(("iot", name), NUMBERS).append(rows(1, 2, 3))
    connection = attached(broker)
    assert connection.execute("select sum(n) from lake.iot.a").fetchall() == [(6,)]
    connection.execute("insert into lake.iot.a values (10)")
    connection.execute("begin")
    connection.execute("insert into lake.iot.a values (20)")
    connection.execute("insert into lake.iot.b values (30)")
    connection.execute("commit")
    found = {name: sorted(own.load_table(("iot", name)).scan().to_arrow()["n"].to_pylist()) for name in ("a", "b")}
    assert found == {"a": [1, 2, 3, 10, 20], "b": [1, 2, 3, 30]}
    connection.execute("delete from lake.iot.a where n = 2")
    assert sorted(own.load_table("iot.a").scan().to_arrow()["n"].to_pylist()) == [1, 3, 10, 20]
    connection.close()


def test_a_transaction_whose_one_table_lost_its_race_changes_no_table(broker: Broker, warehouse: Path) -> None:
    own = open_catalog(LakeOptions(str(warehouse)))
    own.create_namespace("iot")
    tables = {name: own.create_table(("iot", name), NUMBERS) for name in ("a", "b")}
    changes = [
        {
            "identifier": {"namespace": ["iot"], "name": name},
            "requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}],
            "updates": [{"action": "set-properties", "updates": {"seen": "yes"}}],
        }
        for name in ("a", "b")
    ]
    tables["b"].append(rows(1))
    with httpx.Client(base_url=f"{broker.http_url}/iceberg/v1", timeout=60) as http:
        refused = http.post("/transactions/commit", json={"table-changes": changes})
        assert refused.status_code == 409 and refused.json()["error"]["type"] == "CommitFailedException"
        assert "seen" not in own.load_table("iot.a").properties
        assert http.post("/transactions/commit", json={"table-changes": changes[:1]}).status_code == 204
    assert own.load_table("iot.a").properties["seen"] == "yes"


def test_what_others_may_not_do(broker: Broker, warehouse: Path) -> None:
    raw = ensure_table(
        open_catalog(LakeOptions(str(warehouse))), "raw.t", iceberg_schema(), properties={SOURCE: "filter:t/#"}
    )
    catalog = rest(broker)
    with pytest.raises(ForbiddenError, match="archive of filter:t/#"):
        catalog.load_table("raw.t").append(raw.schema().as_arrow().empty_table())
    with pytest.raises(ForbiddenError):
        catalog.drop_table("raw.t")
    created = {"name": "x", "schema": NUMBERS.model_dump(by_alias=True)}
    update = "/namespaces/raw/tables/t"
    with httpx.Client(base_url=f"{broker.http_url}/iceberg/v1", timeout=60) as http:

        def status(path: str, body: Any) -> int:
            answer = http.post(path, json=body)
            assert answer.json()["error"]["code"] == answer.status_code
            return answer.status_code

        def change(**fields: Any) -> dict[str, Any]:
            return {"requirements": [], "updates": [fields]}

        assert status("/namespaces/raw/tables", {**created, "location": "/etc/lake"}) == 400
        assert status("/namespaces/raw/tables", {**created, "location": f"{warehouse}/../out"}) == 400
        assert status("/namespaces/raw/tables", {**created, "properties": {"py-io-impl": "os.x"}}) == 403
        assert status("/namespaces/raw/tables", {**created, "properties": {"format-version": "4"}}) == 400
        assert status("/namespaces/none/tables", created) == 404
        assert status(update, change(action="set-location", location="/tmp/x")) == 400
        assert status(update, change(action="remove-properties", removals=[SOURCE])) == 403
        assert status(update, change(action="set-properties", updates={"s3.endpoint": "http://x"})) == 403
        assert status(update, change(action="no-such-update")) == 400
        assert status(update, {"requirements": [{"type": "no-such"}], "updates": []}) == 400
        assert status("/namespaces/raw/tables/none", change(action="set-properties", updates={})) == 404
        assert http.get("/namespaces/raw/tables/none").status_code == 404
        assert http.head("/namespaces/raw/tables/t").status_code == 204
        assert "POST /v1/{prefix}/transactions/commit" in http.get("/config").json()["endpoints"]


def test_rights_are_asked_for_and_a_login_gets_a_token(broker: Broker, warehouse: Path) -> None:
    open_catalog(LakeOptions(str(warehouse))).create_namespace("iot")
    add_users(broker)
    root = rest(broker, credential=":".join(ROOT))
    root.create_table("iot.numbers", NUMBERS).append(rows(1))
    with pytest.raises((OAuthError, Exception), match="wrong user name or password"):
        rest(broker, credential="root:wrong").list_namespaces()
    assert httpx.get(f"{broker.http_url}/iceberg/v1/namespaces").status_code == 401
    ann = {"credential": ":".join(ANN)}
    with pytest.raises(ForbiddenError):
        rest(broker, **ann)
    allow(broker, "#", "consume")
    found = rest(broker, **ann).load_table("iot.numbers")
    assert found.scan().to_arrow()["n"].to_pylist() == [1]
    with pytest.raises(ForbiddenError):
        found.append(rows(2))
    allow(broker, "#", "publish")
    found.append(rows(2))
    forged = {"authorization": "Bearer cm9vdA.9999999999.AAAA"}
    assert httpx.get(f"{broker.http_url}/iceberg/v1/namespaces", headers=forged).status_code == 401


def test_a_broker_without_a_lake_says_so() -> None:
    with Broker() as broker:
        answer = httpx.get(f"{broker.http_url}/iceberg/v1/config")
        assert answer.status_code == 404 and "[lake] warehouse" in answer.json()["error"]["message"]


@pytest.mark.slow
def test_a_kill_during_commits_leaves_the_table_at_a_snapshot_that_was_committed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", f"lake.warehouse={tmp_path / 'lake'}") as broker:
        catalog = rest(broker)
        catalog.create_namespace("iot")
        table = catalog.create_table("iot.numbers", NUMBERS, properties={"commit.retry.num-retries": "0"})
        acked = 0
        enough = threading.Event()

        def commit() -> None:
            nonlocal acked
            try:
                for n in range(1_000):
                    table.append(rows(n))
                    acked += 1
                    if acked == 3:
                        enough.set()
            except Exception:
                enough.set()

        writing = threading.Thread(target=commit)
        writing.start()
        assert enough.wait(90)
        broker.kill()
        writing.join(90)
        broker.start()
        found = rest(broker).load_table("iot.numbers").scan().to_arrow()["n"].to_pylist()
        assert sorted(found) in (list(range(acked)), list(range(acked + 1)))


def test_a_namespace_tells_where_new_tables_lie_unless_it_was_told_another_place(
    broker: Broker, warehouse: Path
) -> None:
    catalog = rest(broker)
    catalog.create_namespace("iot", {"owner": "ann"})
    catalog.create_namespace("else", {"location": str(warehouse / "other")})
    told = catalog.load_namespace_properties("iot")
    assert told["owner"] == "ann"
    assert catalog.create_table("iot.numbers", NUMBERS).location() == f"{told['location']}/numbers"
    assert catalog.load_namespace_properties("else")["location"] == str(warehouse / "other")
    for number, place in enumerate((f"file:{warehouse}/iot/a", f"file://{warehouse}/iot/b")):  # both mean the folder
        table = catalog.create_table(f"iot.place{number}", NUMBERS, location=place)
        table.append(rows(1))
        assert catalog.load_table(f"iot.place{number}").scan().to_arrow()["n"].to_pylist() == [1]
    for place in (f"file:{warehouse}/../x", "file:/etc/x", f"file://host{warehouse}/x"):
        with pytest.raises(BadRequestError, match="lies outside the warehouse"):
            catalog.create_table("iot.outside", NUMBERS, location=place)


def test_engines_get_a_buckets_keys_with_a_table_if_they_may_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weed").mkdir()
    with s3_server(tmp_path / "weed") as store:
        own = {**store.environment, "AWS_ENDPOINT_URL": store.endpoint}
        for name, value in own.items():
            monkeypatch.setenv(name, value)
        place = ("lake.warehouse=s3://bucket/lake", f"lake.catalog=sqlite:///{tmp_path / 'catalog.db'}")
        with Broker(*place, "lake.share_keys=writers") as broker:
            httpx.get(
                f"{broker.http_url}/iceberg/v1/config", timeout=60
            ).raise_for_status()  # its process has the keys,
            for name in own:  # and nobody here
                monkeypatch.delenv(name)
            catalog = rest(broker)
            catalog.create_namespace("iot")
            catalog.create_table("iot.numbers", NUMBERS).append(rows(1, 2))
            assert rest(broker).load_table("iot.numbers").scan().to_arrow()["n"].to_pylist() == [1, 2]
            connection = attached(broker)
            connection.execute("insert into lake.iot.numbers values (3)")
            assert connection.execute("select sum(n) from lake.iot.numbers").fetchall() == [(6,)]
            connection.close()

            def told(user: tuple[str, str] | None, **headers: str) -> dict[str, Any]:
                path = f"{broker.http_url}/iceberg/v1/namespaces/iot/tables/numbers"
                answer = httpx.get(path, headers=headers, auth=user, timeout=60)
                return answer.raise_for_status().json()

            wanted = {"x-iceberg-access-delegation": "vended-credentials"}
            assert told(None, **wanted)["config"]["s3.secret-access-key"] == SECRET
            assert "s3.secret-access-key" not in told(None)["config"], "only who asks gets them"
            add_users(broker)
            allow(broker, "#", "consume")
            found = told(ANN, **wanted)
            assert found["config"]["s3.endpoint"] == store.endpoint and "storage-credentials" not in found
            assert SECRET not in str(found["config"]), "who may only read does not"
            allow(broker, "#", "publish")
            assert told(ANN, **wanted)["storage-credentials"][0]["config"]["s3.access-key-id"] == KEY


def test_a_raw_table_is_decoded_sorted_and_decoded_again_once_its_schema_is_known(
    broker: Broker, warehouse: Path
) -> None:
    """By the command alone: no Spark."""
    lake = LakeOptions(str(warehouse))
    raw = ensure_table(open_catalog(lake), "raw.t", iceberg_schema(), properties={SOURCE: "filter:t/#"})
    at = datetime(2026, 1, 2, tzinfo=UTC)
    values = [b'{"device": "b", "n": 1}', b'{"device": "a", "n": 2}', b"\0\0\0\0\1\2c\6"]
    facts = [
        {"log": 1, "partition": 0, "offset": n, "topic": "t/x", "timestamp": at + timedelta(days=n), "value": value}
        for n, value in enumerate(values)
    ]
    raw.append(pa.Table.from_pylist(facts, schema=raw.schema().as_arrow()))

    def run(*words: str) -> str:
        command = ["decode", "raw.t", "--url", broker.http_url, "--warehouse", str(warehouse), *words]
        done = CliRunner().invoke(lake_group, command)
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    def rows_now() -> list[tuple[Any, ...]]:
        found = open_catalog(lake).load_table("decoded.t").scan().to_arrow().to_pylist()
        return [(row["device"], row["n"], row["_reason"]) for row in found]

    made = run("--sort", "device", "--sort", "n desc", "--partition", "truncate(1, device)", "--partition", "_topic")
    assert "3 rows decoded into decoded.t" in made
    assert sorted(rows_now(), key=str)[:2] == [("a", 2, None), ("b", 1, None)]
    assert [row for row in rows_now() if row[2]] == [(None, None, "no schema of the registry fits the value")]
    table = open_catalog(lake).load_table("decoded.t")
    assert [str(one.transform) for one in table.spec().fields] == ["truncate[1]", "identity"]
    assert len(table.sort_order().fields) == 2
    run("--table", "decoded.s", "--sort", "n desc", "--sort", "device")
    assert open_catalog(lake).load_table("decoded.s").scan().to_arrow()["n"].to_pylist() == [2, 1, None]
    fields = [{"name": "device", "type": "string"}, {"name": "n", "type": "long"}]
    schema = {"schema": json.dumps({"type": "record", "name": "R", "fields": fields})}
    made_id = httpx.post(f"{broker.http_url}/subjects/t-value/versions", json=schema, timeout=60).json()["id"]
    assert made_id == 1, "the id that a value named before anybody registered it"
    assert "0 rows decoded" in run()
    assert "3 rows decoded" in run("--again")
    assert sorted(rows_now()) == [("a", 2, None), ("b", 1, None), ("c", 3, None)]


def test_tables_are_renamed_and_registered_and_namespaces_have_properties(broker: Broker, warehouse: Path) -> None:
    catalog = rest(broker)
    catalog.create_namespace("iot", {"owner": "ann"})
    table = catalog.create_table("iot.numbers", NUMBERS)
    table.append(rows(1, 2))
    catalog.rename_table("iot.numbers", "iot.figures")
    assert catalog.list_tables("iot") == [("iot", "figures")]
    location = catalog.load_table("iot.figures").metadata_location
    own = open_catalog(LakeOptions(str(warehouse)))
    own.drop_table("iot.figures")
    assert len(catalog.register_table("iot.again", location).scan().to_arrow()) == 2
    done = catalog.update_namespace_properties("iot", removals={"owner", "none"}, updates={"room": "7"})
    assert (done.removed, done.updated, done.missing) == (["owner"], ["room"], ["none"])
    told = catalog.load_namespace_properties("iot")
    assert told == {"room": "7", "location": str(warehouse / "iot")}


def test_a_namespace_within_another_has_tables(broker: Broker, warehouse: Path) -> None:
    catalog = rest(broker)
    for space in (("plant",), ("plant", "hall")):
        catalog.create_namespace(space)
        catalog.create_table((*space, "n"), NUMBERS).append(rows(len(space)))
        with catalog.create_table_transaction((*space, "staged"), NUMBERS) as made:
            made.append(rows(10))
    for space in (("plant",), ("plant", "hall")):
        assert catalog.load_table((*space, "n")).scan().to_arrow()["n"].to_pylist() == [len(space)]
        assert catalog.load_table((*space, "staged")).scan().to_arrow()["n"].to_pylist() == [10]


def test_what_would_give_an_archive_another_name_or_reach_outside_is_refused(broker: Broker, warehouse: Path) -> None:
    own = open_catalog(LakeOptions(str(warehouse)))
    own.create_namespace("iot")
    kept = ensure_table(own, "raw.t", iceberg_schema(), properties={SOURCE: "filter:x/#"})

    def asked(path: str, body: Any) -> tuple[int, str, str]:
        found = httpx.post(f"{broker.http_url}/iceberg/v1/{path}", json=body, timeout=60)
        told = found.json().get("error", {}) if found.content else {}
        return found.status_code, told.get("type", ""), told.get("message", "")

    def rename(source: str, target: str) -> tuple[int, str, str]:
        sides = {"source": source, "destination": target}
        return asked(
            "tables/rename",
            {side: {"namespace": [one.split(".")[0]], "name": one.split(".")[1]} for side, one in sides.items()},
        )

    assert rename("raw.t", "iot.t")[:2] == (403, "ForbiddenException")
    assert rename("iot.none", "iot.t")[:2] == (404, "NoSuchTableException")
    own.create_table("iot.a", NUMBERS)
    own.create_table("iot.b", NUMBERS)
    assert rename("iot.a", "iot.b") == (409, "AlreadyExistsException", "Table already exists: iot.b")
    assert rename("iot.a", "none.b") == (404, "NoSuchNamespaceException", "Namespace does not exist: none")
    copy = {"name": "copy", "metadata-location": kept.metadata_location}
    assert asked("namespaces/iot/register", copy)[:2] == (403, "ForbiddenException")
    outside = {"name": "copy", "metadata-location": "/etc/passwd"}
    assert asked("namespaces/iot/register", outside)[:2] == (400, "BadRequestException")
    gone = {"name": "copy", "metadata-location": f"{warehouse}/iot/none.metadata.json"}
    assert asked("namespaces/iot/register", gone)[:2] == (404, "NotFoundException")
    chosen = {"updates": {"py-io-impl": "evil.IO"}}
    assert asked("namespaces/iot/properties", chosen)[:2] == (403, "ForbiddenException")
    both = {"removals": ["a"], "updates": {"a": "1"}}
    assert asked("namespaces/iot/properties", both)[:2] == (422, "UnprocessableEntityException")
    listed = httpx.get(f"{broker.http_url}/iceberg/v1/namespaces", params={"parent": "none"}, timeout=60)
    assert listed.status_code == 404 and listed.json()["error"]["message"] == "Namespace does not exist: none"
    assert sorted(own.list_tables("iot")) == [("iot", "a"), ("iot", "b")]


def test_a_sort_order_under_an_id_that_is_taken_gets_another(broker: Broker, warehouse: Path) -> None:
    own = open_catalog(LakeOptions(str(warehouse)))
    own.create_namespace("iot")
    own.create_table("iot.a", NUMBERS)
    orders = []
    for direction in ("asc", "desc", "asc"):
        field = {"transform": "identity", "source-id": 1, "direction": direction, "null-order": "nulls-last"}
        updates = [
            {"action": "add-sort-order", "sort-order": {"order-id": 1, "fields": [field]}},
            {"action": "set-default-sort-order", "sort-order-id": -1},
        ]
        body = {"requirements": [], "updates": updates}
        done = httpx.post(f"{broker.http_url}/iceberg/v1/namespaces/iot/tables/a", json=body, timeout=60)
        assert done.status_code == 200, done.text
        orders.append(own.load_table("iot.a").sort_order())
    assert [(one.order_id, str(one.fields[0].direction)) for one in orders] == [(1, "ASC"), (2, "DESC"), (1, "ASC")]
