"""`mainstem query`: SQL over the log by DuckDB. Random statements are compared with a plain filter over all records."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mainstem.model.errors import InvalidArgument, NotFound
from mainstem.testing.process import BrokerProcess
from mainstem_ask.sql.engine import Answer, Engine, Place
from mainstem_ask.sql.statement import spelled
from mainstem_pipeline.client import BrokerClient
from tests.ask.conftest import produce, publish

BASE_MS = 1_700_000_000_000


def ask(broker: BrokerProcess, statement: str, **place: Any) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []

    def take(answer: Answer) -> None:
        found.extend(tuple(row) for row in answer.toLocalIterator())

    with Engine(Place({"url": broker.http_url, "retrySeconds": "1"}, **place)) as engine:
        engine.answer(statement, take)
    return found


def test_a_filter_a_topic_and_a_view_are_tables(broker: BrokerProcess, topic: str) -> None:
    publish(broker, [(f"{topic}/d{n % 3}", json.dumps({"celsius": n}).encode()) for n in range(30)])
    BrokerClient(broker.http_url).post("/v1/views", {"name": f"{topic}-view", "filter": f"{topic}/+"})
    counts = ask(broker, f"select topic, count(*) from '{topic}/#' group by 1 order by 1")
    assert counts == [(f"{topic}.d{n}", 10) for n in range(3)]
    assert ask(broker, f"select sum((json->>'$.celsius')::int) from '{topic}/d1'") == [(145,)]
    assert ask(broker, f"select count(*) from {topic}.d2") == [(10,)], "in Kafka's spelling, unquoted"
    assert ask(broker, f"select count(distinct offset) from `{topic}-view`") == [(30,)], "back-ticks quote names too"
    both = f"select count(*) from '{topic}/d0' a join '{topic}/#' b on a.offset = b.offset limit 5 offset 0"
    assert ask(broker, both) == [(10,)]


def test_every_column_says_what_sparks_says(broker: BrokerProcess, topic: str) -> None:
    produce(broker, [(f"{topic}.a", b"k", b'{"x": 1}', BASE_MS), (f"{topic}.a", None, None, BASE_MS + 1)])
    first, second = ask(broker, f"select * from '{topic}/a' order by offset")
    assert first[:5] == (b"k", b'{"x": 1}', f"{topic}.a", 0, 0)
    assert first[5].isoformat() == "2023-11-14T22:13:20"
    assert first[8:11] == (f"{topic}/a", [topic, "a"], "kafka")
    assert first[12:] == ('{"x": 1}', '{"x": 1}')
    assert second[:2] == (None, None)
    assert second[12:] == (None, None)


def test_values_that_are_no_text_or_no_json_are_null_and_end_nothing(broker: BrokerProcess, topic: str) -> None:
    values = [b"\xff\xfe", b"{broken", b'{"a": 1}', b"", b"\xc3\x28", b"plain"]
    produce(broker, [(topic, None, value, BASE_MS) for value in values])
    found = ask(broker, f"select text, json from {topic} order by offset")
    assert [row[0] for row in found] == [None, "{broken", '{"a": 1}', "", None, "plain"]
    assert [row[1] for row in found] == [None, None, '{"a": 1}', None, None, None]


def test_random_statements_answer_as_a_plain_filter_over_all_records(broker: BrokerProcess, topic: str) -> None:
    rng = random.Random(11)
    records = [
        (
            f"{topic}.{rng.choice('abc')}",
            rng.choice([b"k1", b"k2", None]),
            b'{"n": %d}' % n,
            BASE_MS + rng.randrange(5000),
        )
        for n in range(2000)
    ]
    produce(broker, records)
    every = ask(broker, f"select topic, offset, key, epoch_ms(timestamp), (json->>'$.n')::int from '{topic}/#'")
    assert sorted(row[4] for row in every) == list(range(2000))
    for _ in range(20):
        terms, checks = [], []
        for _ in range(rng.randrange(1, 4)):
            sql, check = random_term(rng, topic)
            terms.append(sql)
            checks.append(check)
        word = rng.choice([" and ", " or "])
        both = all if word == " and " else any
        wanted = sorted(row[4] for row in every if both(check(row) for check in checks))
        where = word.join(f"({one})" for one in terms)
        found = ask(broker, f"select (json->>'$.n')::int from '{topic}/#' where {where}")
        assert sorted(row[0] for row in found) == wanted, where


def random_term(rng: random.Random, topic: str) -> tuple[str, Any]:
    name, offset, time_ms = f"{topic}.{rng.choice('abcd')}", rng.randrange(800), BASE_MS + rng.randrange(5000)
    return rng.choice(
        [
            (f"topic = '{name}'", lambda row: row[0] == name),
            (f"canonical_topic = '{name.replace('.', '/')}'", lambda row: row[0] == name),
            (f"topic <> '{name}'", lambda row: row[0] != name),
            (f"offset >= {offset}", lambda row: row[1] >= offset),
            (f"offset between {offset} and {offset + 50}", lambda row: offset <= row[1] <= offset + 50),
            (f"offset in ({offset}, {offset + 7})", lambda row: row[1] in (offset, offset + 7)),
            (f"timestamp > make_timestamptz({time_ms * 1000})", lambda row: row[3] > time_ms),
            (f"timestamp <= make_timestamptz({time_ms * 1000})", lambda row: row[3] <= time_ms),
            ("key = 'k1'", lambda row: row[2] == b"k1"),
            ("key is null", lambda row: row[2] is None),
            ("(json->>'$.n')::int % 3 = 0", lambda row: row[4] % 3 == 0),
        ]
    )


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("drop table x", "only SELECT"),
        ("select 1; select 2", "one statement"),
        ("copy (select 1) to '/tmp/x'", "only SELECT"),
        ("attach '/tmp/x.db'", "only SELECT"),
        ("set memory_limit='99GB'", "only SELECT"),
        ("pragma version", "only SELECT"),
        ("select * from duckdb_settings()", "duckdb_settings"),
        ("select * from query('select 1')", "query"),
        ("select * from read_csv('/etc/passwd')", "disabled"),
        ("select * from read_text('/etc/passwd')", "disabled"),
        ("select * from glob('/*')", "disabled"),
        ("select from where", "syntax error"),
    ],
)
def test_only_topics_can_be_reached(broker: BrokerProcess, statement: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        ask(broker, statement)


def test_a_file_is_no_table(broker: BrokerProcess) -> None:
    with pytest.raises(NotFound):
        ask(broker, "select * from '/etc/passwd'")


def test_the_word_offset_is_a_column_where_it_is_no_clause() -> None:
    assert (
        spelled("select max(offset) from `a/b` limit 3 offset 2;") == 'select max("offset") from "a/b" limit 3 offset 2'
    )
    assert spelled("select 'offset `x`', \"offset\" -- offset\n") == "select 'offset `x`', \"offset\" -- offset"


def test_the_command_prints_as_sql_does(broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    produce(broker, [(topic, b"k", b"%d" % n, BASE_MS) for n in range(3)])

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        statement = f"select offset, text from {topic} order by offset"
        command = [sys.executable, "-m", "mainstem", "query", statement, "--url", broker.http_url, *more]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    table = run()
    assert table.stdout.splitlines()[2:] == ["0       0", "1       1", "2       2", "(3 rows)"], table.stderr
    assert run("--format", "csv").stdout.splitlines() == ["offset,text", "0,0", "1,1", "2,2"]
    assert [json.loads(line)["text"] for line in run("--format", "json").stdout.splitlines()] == ["0", "1", "2"]
    assert "--output" in run("--format", "parquet").stderr
    place = tmp_path / "answer.parquet"
    assert run("--format", "parquet", "--output", str(place)).returncode == 0
    import pyarrow.parquet as pq

    assert pq.read_table(place).column("text").to_pylist() == ["0", "1", "2"]


def test_a_topic_and_one_below_it_are_two_tables_of_one_statement(broker: BrokerProcess, topic: str) -> None:
    publish(broker, [(f"{topic}/b", b"1"), (f"{topic}/b/c", b"2"), (f"{topic}/b/c", b"3")])
    statement = f"select (select count(*) from {topic}.b), (select count(*) from '{topic}.b.c')"
    assert ask(broker, statement) == [(1, 2)]
    with pytest.raises(InvalidArgument) as refused:
        ask(broker, f"select * from {topic}.b, {topic}.b.c")
    assert f"{topic}.b.c" in refused.value.message
    assert f"'{topic}.b.c'" in refused.value.fix, "how it can be asked"
