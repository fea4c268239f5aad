"""`mainstem search`: random queries are compared with a plain filter over all records; newest first; stops early."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from mainstem.model.errors import InvalidArgument
from mainstem.testing.process import BrokerProcess
from mainstem_ask.search.engine import Asked, Search, connection_of
from mainstem_ask.search.language import Both, Compared, Either, Literal, Not, Word, parse_query, required
from mainstem_ask.search.matcher import keep_frames, mark_rows
from tests.ask.conftest import produce, publish

BASE_MS = 1_700_000_000_000
WORDS = ("timeout", "Timeout", "reset", "connection", "time", "out", "ünlike", "a_b", "10.0.0.1", "x")


def events_of(broker: BrokerProcess, asked: Asked) -> list[dict[str, Any]]:
    return list(Search(asked, connection_of(broker.http_url)).events())


def hits(broker: BrokerProcess, query: str, topic: str, **more: Any) -> list[dict[str, Any]]:
    more.setdefault("limit", 10_000)
    return [one["hit"] for one in events_of(broker, Asked(query, topic, **more)) if "hit" in one]


def test_a_query_is_a_tree() -> None:
    assert parse_query("timeout AND status>=500") == Both(
        (Word(b"timeout"), Compared("", ("status",), ">=", Literal("500")))
    )
    assert parse_query('a OR "B c" -d pre*') == Either(
        (Word(b"a"), Both((Word(b"b c"), Not(Word(b"d")), Word(b"pre", True))))
    )
    assert parse_query("NOT ($.user.id = '7' OR topic:logs)") == Not(
        Either((Compared("", ("user", "id"), "=", Literal("7", True)), Compared("topic", (), ":", Literal("logs"))))
    )
    assert parse_query("items[0].sku:*") == Compared("", ("items", 0, "sku"), "exists", Literal("*"))
    assert parse_query("") == Both(())


@pytest.mark.parametrize(
    ("text", "column"),
    [("a AND", 6), ("(a", 3), ("a)", 2), ('"a', 1), ("status>=", 9), ("OR a", 1), ("$.a", 4), ('""', 3), ("a b '", 5)],
)
def test_what_is_wrong_is_told_with_its_column(text: str, column: int) -> None:
    with pytest.raises(InvalidArgument, match=f"column {column}:"):
        parse_query(text)


def test_a_query_that_is_too_deep_or_too_long_is_refused() -> None:
    for text in ("(" * 1000 + "a" + ")" * 1000, "NOT " * 1000 + "a", "a " * 1000, "a" * 20_000):
        with pytest.raises(InvalidArgument):
            parse_query(text)


def test_only_what_every_meant_record_holds_is_required() -> None:
    assert required(parse_query("a AND timeout")) == (b"timeout",)
    assert required(parse_query("a OR timeout")) == (b"a", b"timeout")
    assert required(parse_query("a OR NOT b")) is None
    assert required(parse_query("NOT b")) is None
    assert required(parse_query("topic:x")) is None
    assert required(parse_query("a OR topic:x")) is None


def test_words_are_found_as_a_regular_expression_would_find_them() -> None:
    import numpy as np

    rng = random.Random(3)
    for _ in range(300):
        needle = "".join(rng.choice("ab_.") for _ in range(rng.randrange(1, 5))).encode()
        rows = ["".join(rng.choice("abAB_. é") for _ in range(rng.randrange(0, 90))).encode() for _ in range(20)]
        offsets = np.cumsum([0, *map(len, rows)]).astype(np.int32)
        marks = np.zeros(20, np.uint8)
        start, end = rng.random() < 0.5, rng.random() < 0.5
        mark_rows(b"".join(rows), offsets, 20, needle, start, end, marks)
        edge = rb"[0-9A-Za-z_\x80-\xff]"
        pattern = (rb"(?<!%s)" % edge if start else b"") + re.escape(needle) + (rb"(?!%s)" % edge if end else b"")
        wanted = [bool(re.search(pattern, row, re.IGNORECASE)) for row in rows]
        assert marks.astype(bool).tolist() == wanted, (needle, rows)


def test_bytes_that_are_no_frames_are_told_wherever_they_are_cut() -> None:
    frame = b"MSF1" + bytes([1, 1, 0, 0]) + (70).to_bytes(4, "big") + bytes(36) + bytes(61) + b"my needle"
    two = bytearray(frame + frame.replace(b"needle", b"things"))
    for size in range(len(two) + 1):
        buffer = bytearray(two[:size])
        kept, looked_at, damaged = keep_frames(buffer, size, (b"needle",))
        assert not damaged
        assert looked_at == size // len(frame) * len(frame)
        assert buffer[:kept] == (frame if size >= len(frame) else b"")
    assert keep_frames(bytearray(b"x" * 60), 60, (b"n",))[2]


def test_random_queries_mean_what_a_plain_filter_over_all_records_means(broker: BrokerProcess, topic: str) -> None:
    rng = random.Random(5)
    records = [(rng.choice("abc"), rng.choice([b"k1", b"timeout", None]), random_value(rng)) for _ in range(1500)]
    produce(broker, [(f"{topic}.{name}", key, value, BASE_MS + n) for n, (name, key, value) in enumerate(records)])
    publish(broker, [(f"{topic}/{name}/m", value) for name, _, value in records[:100]])
    known = [(f"{topic}/{name}", key, value, "kafka") for name, key, value in records]
    known += [(f"{topic}/{name}/m", f"{topic}/{name}/m".encode(), value, "mqtt") for name, _, value in records[:100]]
    for _ in range(60):
        text, holds = random_query(rng, 3)
        wanted = sorted(_identity(one[0], one[2]) for one in known if holds(one))
        found = sorted(_identity(one["topic"], _bytes(one)) for one in hits(broker, text, f"{topic}/#"))
        assert found == wanted, text


def _identity(name: str, value: bytes) -> tuple[str, bytes]:
    return name, value


def _bytes(hit: dict[str, Any]) -> bytes:
    return bytes.fromhex(hit["value"]) if hit.get("encoding") else hit["value"].encode()


def random_value(rng: random.Random) -> bytes:
    words = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 5)))
    kind = rng.random()
    if kind < 0.6:
        document = {
            "status": rng.choice([200, 404, 500, 503, "500", None, 2.5]),
            "msg": words,
            "user": {"id": rng.randrange(9)},
        }
        if rng.random() < 0.3:
            del document["status"]
        return json.dumps(document, ensure_ascii=rng.random() < 0.5).encode()
    return words.encode() if kind < 0.9 else b"\xff\x00" + words.encode() + b"\xfe"


def random_query(rng: random.Random, depth: int) -> tuple[str, Any]:
    if depth and rng.random() < 0.6:
        left, holds_left = random_query(rng, depth - 1)
        right, holds_right = random_query(rng, depth - 1)
        how = rng.randrange(4)
        if how == 0:
            return f"({left} AND {right})", lambda one: holds_left(one) and holds_right(one)
        if how == 1:
            return f"({left} OR {right})", lambda one: holds_left(one) or holds_right(one)
        if how == 2:
            return f"({left} {right})", lambda one: holds_left(one) and holds_right(one)
        return f"NOT {left}", lambda one: not holds_left(one)
    word = rng.choice(WORDS)
    number = rng.choice([200, 404, 500])
    return rng.choice(
        [
            (word, lambda one: has_word(one, word)),
            (f'"{word}"', lambda one: has_word(one, word)),
            (f"{word[:3]}*", lambda one: has_word(one, word[:3], prefix=True)),
            (f"status>={number}", lambda one: is_number(status(one)) and status(one) >= number),
            (f"status<{number}", lambda one: is_number(status(one)) and status(one) < number),
            (f"status = {number}", lambda one: status(one) == number or status(one) == str(number)),
            ("$.status = '500'", lambda one: status(one) == "500"),
            (f"status != {number}", lambda one: status(one) is not ... and status(one) not in (number, str(number))),
            ("status:*", lambda one: status(one) is not ... and status(one) is not None),
            ("$.user.id = 3", lambda one: document(one).get("user", {}).get("id") == 3),
            ("key = k1", lambda one: one[1] == b"k1"),
            ("level.2 = b", lambda one: one[0].split("/")[1] == "b"),
            ("origin = mqtt", lambda one: one[3] == "mqtt"),
            ("size > 30", lambda one: len(one[2]) > 30),
        ]
    )


def document(one: Any) -> dict[str, Any]:
    try:
        found = json.loads(one[2])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def status(one: Any) -> Any:
    return document(one).get("status", ...)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def has_word(one: Any, word: str, *, prefix: bool = False) -> bool:
    edge, wanted = rb"[0-9A-Za-z_\x80-\xff]", re.escape(word.encode())
    pattern = rb"(?<!%s)" % edge + wanted + (b"" if prefix else rb"(?!%s)" % edge)
    return any(re.search(pattern, data, re.IGNORECASE) for data in (one[1] or b"", one[2]))


def test_hits_come_newest_first_over_all_logs_and_end_at_the_limit(broker: BrokerProcess, topic: str) -> None:
    for turn in range(5):  # into the stem and into logs of their own, one after the other
        publish(broker, [(f"{topic}/m", b"word m%d" % turn)])
        produce(broker, [(f"{topic}.k", None, b"word k%d" % turn, BASE_MS)])
        produce(broker, [(f"{topic}.l", None, b"word l%d" % turn, BASE_MS)], **{"compression.type": "zstd"})
    wanted = [f"word {one}{turn}" for turn in reversed(range(5)) for one in "lkm"]
    assert [one["value"] for one in hits(broker, "word", f"{topic}/#")] == wanted
    assert [one["value"] for one in hits(broker, "word", f"{topic}/#", limit=4)] == wanted[:4]
    assert [one["value"] for one in hits(broker, "", f"{topic}/k")] == wanted[1::3]


def test_times_bound_a_search_and_are_counted(broker: BrokerProcess, topic: str) -> None:
    values = [json.dumps({"service": f"s{n % 3}", "n": n}).encode() for n in range(100)]
    produce(broker, [(topic, None, value, BASE_MS + n * 1000) for n, value in enumerate(values)])
    within = hits(broker, "", topic, since_ms=BASE_MS + 10_000, before_ms=BASE_MS + 20_000)
    assert [json.loads(one["value"])["n"] for one in within] == list(range(19, 9, -1))
    told = events_of(broker, Asked("n>=50", topic, limit=0, bucket_ms=10_000, top="$.service", top_count=2))
    buckets = next(one["buckets"] for one in told if "buckets" in one)
    wanted = Counter((BASE_MS + n * 1000) // 10_000 * 10_000 for n in range(50, 100))
    assert buckets == sorted(wanted.items())
    assert sorted(next(one["top"] for one in told if "top" in one)) == [("s0", 17), ("s2", 17)]
    assert told[-1]["done"]["hits"] == 0


def test_the_command_prints_counts_and_follows(broker: BrokerProcess, topic: str) -> None:
    produce(
        broker, [(topic, None, b'{"status": 503, "m": "gone"}', BASE_MS), (topic, None, b"gone too", BASE_MS + 60_000)]
    )
    command = [sys.executable, "-m", "mainstem", "search", "gone", "--topic", topic, "--url", broker.http_url]

    def run(*more: str) -> str:
        ran = subprocess.run([*command, *more], capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    assert run().splitlines() == [
        f"2023-11-14T22:14:20.000Z  {topic}  gone too",
        f'2023-11-14T22:13:20.000Z  {topic}  {{"status": 503, "m": "gone"}}',
    ]
    assert [line.split()[1] for line in run("--histogram", "1m").splitlines()] == ["1", "1"]
    assert run("--top", "$.status", "3").split() == ["1", "503"]
    assert json.loads(run("--json", "--limit", "1").splitlines()[0])["value"] == "gone too"
    with subprocess.Popen([*command, "--follow", "--limit", "1"], stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert "gone too" in following.stdout.readline()
        produce(broker, [(topic, None, b"not this", BASE_MS), (topic, None, b"gone again", BASE_MS)])
        assert "gone again" in following.stdout.readline()
        following.terminate()
