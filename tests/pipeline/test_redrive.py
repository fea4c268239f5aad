"""Any values through decode, dead letter and redrive: each is a row or a letter, and given back once, whatever fails."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from mainstem.testing.process import BrokerProcess
from mainstem_pipeline import sink
from mainstem_pipeline.cli import pipeline as command
from mainstem_pipeline.pipeline.checks import load_pipeline
from mainstem_pipeline.pipeline.redrive import flow_of, redrive
from mainstem_pipeline.pipeline.runner import Runner, RunOptions
from tests.pipeline.conftest import produce, read
from tests.pipeline.test_pipelines import Told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLOW = """
name: p
broker: {{url: {url}}}
flows:
  - name: f
    from: {{topic: {topic}}}
    decode: {decode}
    sql: "select _key as key, _value as value from input"
    to: [{{topic: {topic}-good, key: key, value: value}}]
    dead_letters: {{topic: {topic}-dead, max_ratio: 1}}
"""
JSON, RAW = '{format: json, schema: "n int, at timestamp, tags array<string>"}', "{format: raw}"


def some_value(chance: random.Random) -> bytes:
    whole = {"n": chance.randrange(1 << 30), "at": "2026-01-31T08:00:00Z", "tags": ["a", "b"][: chance.randrange(3)]}
    text = json.dumps(whole).encode()
    kinds: list[bytes] = [
        text,
        json.dumps({**whole, chance.choice(("n", "at", "tags")): chance.choice(("x", [1], {"y": 2}, 1.5))}).encode(),
        text[: chance.randrange(len(text))],
        chance.randbytes(chance.randrange(40)),
        b"[" * chance.randrange(1, 50),
    ]
    return chance.choice(kinds)


class Letters:
    def __init__(self, spark: SparkSession, broker: BrokerProcess, topic: str, folder: Path) -> None:
        self.spark, self.broker, self.topic, self.path = spark, broker, topic, folder / "p.yaml"
        self.write(JSON)

    def write(self, decode: str) -> None:
        self.path.write_text(FLOW.format(url=self.broker.http_url, topic=self.topic, decode=decode))

    def run(self) -> None:
        assert Runner(load_pipeline(self.path), RunOptions(once=True), Told(), self.spark).run() == 0

    def redrive(self) -> int:
        loaded = load_pipeline(self.path)
        return redrive(loaded, flow_of(loaded, "")).records

    def of(self, topic: str) -> Counter[tuple[bytes, bytes]]:
        rows = read(self.spark, self.broker, subscribe=topic, includeHeaders="true").collect()
        return Counter((bytes(row.key), bytes(row.value)) for row in rows)

    def good(self) -> Counter[tuple[bytes, bytes]]:
        return self.of(f"{self.topic}-good")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", range(2))
def test_every_value_is_a_row_or_a_letter_and_comes_back_once(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    values = [some_value(chance) for _ in range(150)]
    sent = Counter((b"k%d" % number, value) for number, value in enumerate(values))
    letters = Letters(spark, broker, topic, tmp_path)
    assert letters.redrive() == 0, "there is no letter yet"
    produce(broker, topic, values, headers=[("unit", b"C")])
    letters.run()
    good, dead = letters.good(), letters.of(f"{topic}-dead")
    assert good + dead == sent, "each in one of both, as it was"
    assert len(good) > 10 and len(dead) > 10

    real, calls = sink.commit_staged, []

    def cut(*arguments: Any) -> None:
        """The commit is done, or not; nobody hears of it."""
        calls.append(1)
        if seed:
            real(*arguments)
        raise ConnectionError("the wire was cut")

    with monkeypatch.context() as patch:
        patch.setattr(sink, "commit_staged", cut)
        with pytest.raises(ConnectionError):
            letters.redrive()
    assert calls
    again = letters.redrive()
    assert again == (0 if seed else len(dead)), "the broker remembers what was committed"
    assert letters.of(topic) == sent + dead
    assert letters.redrive() == 0
    headers = read(spark, broker, subscribe=topic, includeHeaders="true").select("headers").distinct().collect()
    assert [[(one.key, bytes(one.value)) for one in row.headers] for row in headers] == [[("unit", b"C")]]

    letters.write(RAW)  # the mistake is corrected: whatever comes is taken
    letters.run()
    assert letters.good() == sent
    told = CliRunner().invoke(command, ["redrive", str(letters.path)])
    assert told.output == "f: 0 records are back in their topics\n"
    told = CliRunner().invoke(command, ["redrive", str(letters.path), "f", "--all"])
    assert told.output == f"f: {len(dead)} records are back in their topics\n"
