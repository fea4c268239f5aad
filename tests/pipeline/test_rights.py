"""Spark as users who may consume some topics: batch, stream, SQL views and pipelines show those and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from mainstem.testing.process import BrokerProcess
from tests.pipeline.conftest import values_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT, PASSWORD = ("root", "secret"), "pass word"
ANN_READS = ("site/a/1", "site/a/2", "own/a")
EVERY = (*ANN_READS, "site/a/secret", "site/b/1", "own/b")
RULES = {
    "ann": [("consume", "site/a/#", True), ("consume", "site/a/secret", False), ("consume", "own/a", True)],
    "ben": [("consume", "site/b/#", True), ("consume", "odd", True)],
    "eve": [("consume", "#", True), ("publish", "#", True)],
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Ann and Ben share a namespace, Eve has another, with topics of the same names."""
    with (
        BrokerProcess(tmp_path_factory.mktemp("guarded") / "data") as broker,
        httpx.Client(base_url=broker.http_url, timeout=30) as http,
    ):
        http.post("/v1/users", json={"name": "root", "password": "secret", "admin": True}).raise_for_status()
        http.auth = httpx.BasicAuth(*ROOT)
        http.post("/v1/namespaces", json={"name": "t2"}).raise_for_status()
        for user, rules in RULES.items():
            place = {"namespace": "t2"} if user == "eve" else {}
            http.post("/v1/users", json={"name": user, "password": PASSWORD, **place}).raise_for_status()
            for action, topic_filter, allow in rules:
                rule = {"allow": allow, "actions": [action], "filter": topic_filter}
                http.post(f"/v1/users/{user}/rules", json=rule).raise_for_status()
        allowed = {"allow": True, "actions": ["publish", "create"], "filter": "out/ann/#"}
        http.post("/v1/users/ann/rules", json=allowed).raise_for_status()
        for name in ("own/a", "own/b"):
            http.post("/v1/topics", json={"name": name, "settings": {"layout": "dedicated"}}).raise_for_status()
        http.post("/v1/views", json={"name": "odd", "filter": "site/a/#", "where": "header.n = '1'"}).raise_for_status()
        for number in range(10):
            for topic in EVERY:
                message = {"topic": topic, "value": f"{topic} {number}", "headers": {"n": str(number % 2)}}
                http.post("/v1/messages", json=message).raise_for_status()
        for topic in EVERY:
            http.post("/v1/messages?namespace=t2", json={"topic": topic, "value": f"t2 {topic}"}).raise_for_status()
        yield broker


def as_user(spark: SparkSession, broker: BrokerProcess, user: str, **options: str) -> DataFrame:
    given = {"url": broker.http_url, "user": user, "password": PASSWORD, **options}
    return spark.read.format("mainstem").options(**given).load()


def of(*topics: str, numbers: range = range(10)) -> list[bytes]:
    return sorted(f"{topic} {number}".encode() for topic in topics for number in numbers)


@pytest.mark.parametrize(
    ("user", "options", "shown"),
    [
        ("ann", {"filter": "#"}, of(*ANN_READS)),
        ("ann", {"subscribe": "site.a.1,own.a"}, of("site/a/1", "own/a")),
        ("ann", {"subscribePattern": r"(site|own)\..*"}, of(*ANN_READS)),
        ("ben", {"filter": "#"}, of("site/b/1")),
        ("ben", {"view": "odd"}, of("site/a/1", "site/a/2", "site/a/secret", numbers=range(1, 10, 2))),
        ("eve", {"filter": "#"}, sorted(f"t2 {topic}".encode() for topic in EVERY)),
    ],
)
def test_a_read_has_the_rows_that_its_user_may_consume(
    spark: SparkSession, guarded: BrokerProcess, user: str, options: dict[str, str], shown: list[bytes]
) -> None:
    assert values_of(as_user(spark, guarded, user, **options)) == shown


@pytest.mark.parametrize(
    ("user", "options", "fix"),
    [
        ("ann", {"subscribe": "site.a.secret"}, "mainstem user allow ann consume 'site/a/secret'"),
        ("ann", {"subscribe": "own.a,own.b"}, "mainstem user allow ann consume 'own/b'"),
        ("ben", {"filter": "own/#"}, "mainstem user allow ben consume 'own/#'"),
        ("ann", {"view": "odd"}, "mainstem user allow ann consume 'odd'"),
    ],
)
def test_what_is_named_and_denied_is_told_with_the_command_that_allows_it(
    spark: SparkSession, guarded: BrokerProcess, user: str, options: dict[str, str], fix: str
) -> None:
    with pytest.raises(Exception, match="may not consume") as caught:
        as_user(spark, guarded, user, **options).collect()
    assert fix in str(caught.value)


def test_a_stream_with_limits_reads_and_writes_what_its_user_may(
    spark: SparkSession, guarded: BrokerProcess, tmp_path: Path
) -> None:
    login = {"url": guarded.http_url, "user": "ann", "password": PASSWORD}
    source = {**login, "filter": "#", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "12"}
    rows = spark.readStream.format("mainstem").options(**source).load()

    def run(topic: str, state: str) -> Any:
        sink = {**login, "topic": topic, "checkpointLocation": str(tmp_path / state)}
        query = rows.select("value").writeStream.format("mainstem").options(**sink).trigger(availableNow=True).start()
        query.awaitTermination(120)
        return query

    run("out.ann.copy", "state")
    with httpx.Client(base_url=guarded.http_url, auth=ROOT, timeout=30) as http:
        written = http.get("/v1/messages", params={"topic": "out/ann/copy", "limit": 500}).json()["items"]
    assert sorted(one["value"].encode() for one in written) == of(*ANN_READS), "as Ann she may not even read it back"
    with pytest.raises(Exception, match=r"may not publish site/b/1.*mainstem user allow ann publish 'site/b/1'"):
        run("site.b.1", "refused")
