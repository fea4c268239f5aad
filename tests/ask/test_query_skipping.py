"""`mainstem query` decodes only what its WHERE can mean: the same rows as a whole scan, from a few blocks."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest
from confluent_kafka import Producer

from mainstem.log import search_index
from mainstem.testing import Broker
from mainstem_ask.search.language import EVERYTHING, Both, Compared, Either, Literal, Node, Word
from mainstem_ask.search.skipping import Indexes
from mainstem_ask.sql import engine as sql_engine
from mainstem_ask.sql.wanted import wanted_of
from tests.ask.test_query import ask
from tests.ask.test_search import BASE_MS, random_value
from tests.ask.test_search_index import declare, fill, seal

HERE = ("log",)


def field(name: str, text: str | None = None) -> Compared:
    literal = Literal("*") if text is None else Literal(text, quoted=True)
    return Compared("", (name,), "exists" if text is None else "=", literal)


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("text = 'Up Stream'", Word(b"up stream")),
        ("text like 'GET /a%'", Word(b"get /a", prefix=True)),
        ("text like '%b_c d'", Both((Word(b"b", prefix=True, suffix=True), Word(b"c d", suffix=True)))),
        ("text ilike 'take%'", Both((Word(b"ta", prefix=True), Word(b"e", prefix=True, suffix=True)))),
        ("contains(text, 'x y')", Word(b"x y", prefix=True, suffix=True)),
        ("starts_with(text, 'x') and ends_with(text, 'y')", Both((Word(b"x", prefix=True), Word(b"y", suffix=True)))),
        ("key = 'k'", Compared("key", (), "=", Literal("k", quoted=True))),
        ("key in ('k')", Compared("key", (), "=", Literal("k", quoted=True))),
        ("'k' = l.key", Compared("key", (), "=", Literal("k", quoted=True))),
        ("header_of(headers, 'r') = 'eu'", Compared("header.r", (), "=", Literal("eu", quoted=True))),
        ("(json->>'$.a') = 'x'", field("a", "x")),
        ("json_extract_string(json, '$.a') = 'x' or (json->>'a') = 'y'", Either((field("a", "x"), field("a", "y")))),
        ("(json->>'$.a') = '7'", field("a")),
        ("(json->>'$.a')::int between 3 and 5", field("a")),
        ("cast(json->>'$.a' as int) <> 3", field("a")),
        ("(json->>'$.a') is not null and \"offset\" > 5", field("a")),
        # Nothing can be said of these.
        ("text like '%'", EVERYTHING),
        ("not text = 'a'", EVERYTHING),
        ("text = 'a' or \"offset\" = 5", EVERYTHING),
        ("text != 'a'", EVERYTHING),
        ("lower(text) = 'a'", EVERYTHING),
        ("text not like 'a%'", EVERYTHING),
        ("(json->>'$.a') is null", EVERYTHING),
        ("json->>'$.a' = 'x' and true", field("a", "x")),
        ("(json->>'$.*') = 'x'", EVERYTHING),
        ("key = '\\x41'", EVERYTHING),
        ("coalesce(text, 'a') = 'a'", EVERYTHING),
        ("text is not distinct from 'a'", EVERYTHING),
        ("other.text = 'a'", EVERYTHING),
    ],
)
def test_what_a_record_must_hold_is_taken_from_the_condition(where: str, wanted: Node) -> None:
    with duckdb.connect() as fresh:
        assert wanted_of(fresh, f"select count(*) from log as l where {where}").get(HERE, EVERYTHING) == wanted


@pytest.mark.parametrize(
    ("statement", "wanted"),
    [
        ("select * from (select * from log where text = 'a') where text = 'b'", Word(b"a")),
        (
            "select * from log where text = 'a' union all select * from log where text = 'b'",
            Either((Word(b"a"), Word(b"b"))),
        ),
        ("select * from log where text = 'a' union all select * from log", EVERYTHING),
        ("select * from log where text = 'a' and offset in (select offset from log)", EVERYTHING),
        ("select * from log l join log m using (offset) where l.text = 'a'", EVERYTHING),
        ("with log as (select * from log where text = 'a') select * from log", EVERYTHING),
        ("select * from log as l(text, value) where text = 'a'", EVERYTHING),
        ("select * from log tablesample 10% where text = 'a'", EVERYTHING),
        ("select * from log as l where exists (select 1 from x where l.text = 'a')", EVERYTHING),
        ("explain select * from log where text = 'a'", EVERYTHING),
    ],
)
def test_a_name_is_narrowed_only_where_each_use_of_it_is(statement: str, wanted: Node) -> None:
    with duckdb.connect() as fresh:
        assert wanted_of(fresh, statement).get(HERE, EVERYTHING) == wanted


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(engine="segment", data=tmp_path_factory.mktemp("skipping") / "data") as running:
        yield running


def random_condition(rng: random.Random) -> str:
    word = rng.choice(
        ("timeout", "Timeout", "refused", "GET", "api", "e", "ü", "50", "debug", "error", "kelvin", "x y")
    )
    number = rng.choice((200, 404, 500, 7))
    return rng.choice(
        (
            f"text like '%{word}%'",
            f"text like '{word}%'",
            f"text ilike '%{word}%'",
            f"contains(text, '{word}')",
            f"ends_with(text, '{word}')",
            f"(json->>'$.level') = '{word}'",
            f"(json->>'$.msg') like '%{word}%'",
            f"(json->>'$.status') = '{number}'",
            f"try_cast(json->>'$.status' as int) >= {number}",
            "(json->>'$.user.id') is not null",
            "key = 'k1'",
            "key in ('k1', 'k2')",
            f"text = '{word}'",
            f"not text like '%{word}%'",
            f"offset % {number} = 0",
            f"timestamp < make_timestamp({(BASE_MS + number) * 1000})",
        )
    )


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_random_conditions_answer_the_same_with_and_without_it(
    broker: Broker, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_index, "BLOCK_BYTES", 2_000)
    rng = random.Random(len(codec))
    topic = f"rows/{codec}"
    declare(broker, topic)
    values = [random_value(rng) for _ in range(500)]
    values += [json.dumps({"msg": "\u212aelvin", "level": "error\tx"}).encode(), "\u212aELV\u0130N x y".encode()]
    assert fill(broker, topic, values, codec)
    asked = [
        rng.choice((" and ", " or ")).join(random_condition(rng) for _ in range(rng.randint(1, 3))) for _ in range(50)
    ]
    asked += ["text ilike '%kelvin%'", "(json->>'$.level') = 'error\tx'"]
    sql = [f"select offset from '{topic}' where {one} order by offset" for one in asked]
    found = [ask(broker, one) for one in sql]
    monkeypatch.setattr(sql_engine, "wanted_of", lambda fresh, statement: {})
    for one, rows in zip(sql, found, strict=True):
        assert ask(broker, one) == rows, one
    assert len(found[-1]) == 1 and found[-2]
    assert sum(map(bool, found)) > 20


def test_a_needle_is_read_from_few_blocks_by_its_field_key_header_and_time(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_index, "BLOCK_BYTES", 4_000)
    declare(broker, "few/log", segment_bytes=256 << 10)
    producer = Producer({"bootstrap.servers": f"{broker.host}:{broker.kafka_port}", "batch.num.messages": 20})
    for number in range(6_000):
        producer.produce(
            "few.log",
            json.dumps({"trace": f"trace{number}", "n": number, "said": "upstream timeout, tried again " * 6}).encode(),
            key=f"key{number}",
            headers={"region": f"region{number}"},
            timestamp=BASE_MS + number,
        )
    assert producer.flush(30) == 0
    del producer  # or it asks for its broker when that is gone
    assert seal(broker, "few/log")
    read: list[int] = []
    whole = Indexes.spans

    def spans(self: Indexes, path: str, at: int, end: int) -> list[tuple[int, int]]:
        found = whole(self, path, at, end)
        read.append(sum(until - begin for begin, until in found))
        return found

    monkeypatch.setattr(Indexes, "spans", spans)

    def offsets(where: str) -> tuple[list[Any], int]:
        read.clear()
        rows = ask(broker, f"select offset from 'few/log' where {where}")
        return [row[0] for row in rows], sum(read)

    found, everything = offsets("text like '%trace%'")
    assert len(found) == 6_000 and everything > 400_000
    for where in (
        "(json->>'$.trace') = 'trace4321'",
        "key = 'key4321'",
        "header_of(headers, 'region') = 'region4321'",
        'text like \'{"trace": "trace4321"%\'',
        f"timestamp = make_timestamp({(BASE_MS + 4321) * 1000})",
    ):
        found, size = offsets(where)
        assert found == [4321], where
        assert 0 < size < everything / 20, (where, size)
    assert offsets("(json->>'$.trace') = 'nowhere'") == ([], 0)
