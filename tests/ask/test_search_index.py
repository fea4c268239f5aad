"""The search index of sealed parts: it hides nothing, whatever is asked and however it is damaged, and it spares reading."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainstem.log import search_index
from mainstem.log.search_index import SearchIndex, holds_all, index_path, token_hashes
from mainstem.model.errors import ConfigError
from mainstem.storage.tier.store import ObjectStore
from mainstem.testing import Broker
from mainstem.testing.process import BrokerProcess
from mainstem_ask.search.engine import Asked, Search, connection_of
from mainstem_ask.search.language import parse_query
from mainstem_ask.search.skipping import Indexes, may_hold
from mainstem_pipeline.broker_frames import BrokerFrames
from tests.ask.conftest import produce
from tests.ask.test_search import BASE_MS, hits, random_query, random_value
from tests.crossing.test_object_storage import eventually, local_bytes

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(engine="segment", data=tmp_path_factory.mktemp("search") / "data") as running:
        yield running


def declare(broker: Broker, topic: str, **settings: Any) -> None:
    body = {"name": topic, "settings": {"layout": "dedicated", "segment_bytes": 64 << 10, **settings}}
    assert httpx.post(f"{broker.http_url}/v1/topics", json=body).is_success


def seal(broker: Broker, topic: str) -> list[Path]:
    """Seal what was written, have it indexed; the parts."""
    assert broker.app is not None and broker.loop is not None
    core = broker.app.broker
    found = core.namespace("/").find_topic(topic.encode())
    assert found is not None
    log = found.partitions[0].spans[-1].log
    broker.loop.call_soon_threadsafe(log.engine.roll)
    asyncio.run_coroutine_threadsafe(core.search_indexing.round(), broker.loop).result(30)
    stat = log.engine.stat()
    return [Path(str(stat.path)) / part.name for part in stat.parts if part.sealed and part.size_bytes]


def fill(broker: Broker, topic: str, values: list[bytes], codec: str = "none") -> list[Path]:
    name = topic.replace("/", ".")
    produce(
        broker,
        [(name, b"k1" if n % 7 == 0 else None, value, BASE_MS + n) for n, value in enumerate(values)],
        **{"compression.type": codec, "batch.num.messages": 20},
    )
    return seal(broker, topic)


def without_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Indexes, "spans", lambda self, path, at, end: [(at, end)])


@pytest.mark.parametrize("codec", CODECS)
def test_random_queries_find_the_same_with_and_without_it(
    broker: Broker, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_index, "BLOCK_BYTES", 2_000)
    rng = random.Random(CODECS.index(codec))
    topic = f"same/{codec}"
    declare(broker, topic)
    values = [random_value(rng) for _ in range(600)]
    values += [json.dumps({"msg": f"a\n{word}\t{word}b", "status": 200}).encode() for word in ("refused", "timeout")]
    parts = fill(broker, topic, values, codec)
    assert parts and all(SearchIndex.load(part) is not None for part in parts)
    queries = [random_query(rng, 2)[0] for _ in range(40)]
    queries += ["msg:refused", "msg:timeout", "nrefused", "msg:ref*", "$.msg = 'x'", "key:k1", "key = 'k1'", "ünlike"]
    found = [hits(broker, query, topic) for query in queries]
    without_index(monkeypatch)
    assert found == [hits(broker, query, topic) for query in queries]
    assert len(found[-8]) == 1 and len(found[-6]) == 1 and len(found[-5]) == 1  # refused: by its field, and as bytes


def test_a_needle_is_found_by_reading_a_few_blocks(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_index, "BLOCK_BYTES", 8_000)
    rng = random.Random(1)
    declare(broker, "needle/log", segment_bytes=256 << 10)
    values = [
        json.dumps({"trace": f"{rng.getrandbits(64):016x}", "msg": "upstream timeout", "n": n}).encode()
        for n in range(12_000)
    ]
    values[7_000] = b'{"trace":"needle7f3a","msg":"here","n":7000}'
    parts = fill(broker, "needle/log", values)
    assert len(parts) >= 2
    read: list[int] = []
    whole = Indexes.spans

    def spans(self: Indexes, path: str, at: int, end: int) -> list[tuple[int, int]]:
        found = whole(self, path, at, end)
        read.append(sum(until - begin for begin, until in found))
        return found

    monkeypatch.setattr(Indexes, "spans", spans)
    stored = sum(part.stat().st_size for part in parts)
    for query in ("needle7f3a", "$.trace = needle7f3a", "trace:needle7f3a AND msg:here"):
        read.clear()
        assert [one["offset"] for one in hits(broker, query, "needle/log")] == [7_000]
        assert 0 < sum(read) < stored / 10, query
    read.clear()
    assert not hits(broker, "timeout", "needle/log", before_ms=BASE_MS)
    assert sum(read) == 0
    assert len(hits(broker, "timeout", "needle/log", since_ms=BASE_MS + 11_990)) == 10
    indexed = sum(index_path(part).stat().st_size for part in parts)
    assert indexed < stored / 15


def test_a_damaged_index_hides_nothing_wherever_it_is_damaged(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_index, "BLOCK_BYTES", 1_000)
    declare(broker, "damaged/log")
    (part,) = fill(broker, "damaged/log", [b"common word%d" % n for n in range(200)])
    path = index_path(part)
    good, rng = path.read_bytes(), random.Random(7)
    wanted = [one["offset"] for one in hits(broker, "common word77", "damaged/log")]
    assert wanted == [77]
    places = [*range(24), *rng.sample(range(24, len(good)), 60)]
    for place in places:
        path.write_bytes(good[:place] + bytes([good[place] ^ (1 << rng.randrange(8))]) + good[place + 1 :])
        assert [one["offset"] for one in hits(broker, "common word77", "damaged/log")] == wanted, place
    for size in (0, 10, 23, 24, 60, 96, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:size])
        assert [one["offset"] for one in hits(broker, "common word77", "damaged/log")] == wanted, size


def test_an_index_that_is_damaged_cut_off_or_of_an_old_format_is_built_again(broker: Broker) -> None:
    declare(broker, "again/log")
    (part,) = fill(broker, "again/log", [b"common word%d" % n for n in range(200)])
    path = index_path(part)
    good = path.read_bytes()
    in_filter = good[:-1] + bytes([good[-1] ^ 1])  # its head is whole: only who uses it can tell
    for bad in (good[: len(good) // 2], good[:-1], b"MSSRCH01" + good[8:], in_filter, b""):
        path.write_bytes(bad)
        assert [one["offset"] for one in hits(broker, "common word77", "again/log")] == [77]
        seal(broker, "again/log")
        assert path.read_bytes() == good
    path.write_bytes(good[:100])
    assert broker.app is not None
    broker.app.broker.search_indexing._whole.clear()  # as after a start, and nobody has asked yet
    seal(broker, "again/log")
    assert path.read_bytes() == good


def test_an_index_goes_with_its_part_and_is_made_again_if_it_is_lost(broker: Broker) -> None:
    declare(broker, "gone/log")
    (part,) = fill(broker, "gone/log", [b"x%d" % n for n in range(50)])
    path = index_path(part)
    made = path.read_bytes()
    path.unlink()
    path.with_suffix(".part").write_bytes(b"cut off by a kill")
    seal(broker, "gone/log")
    assert path.read_bytes() == made and not path.with_suffix(".part").exists()
    assert httpx.delete(f"{broker.http_url}/v1/topics/gone/log").is_success
    declare(broker, "gone/other")
    produce(broker, [("gone.other", None, b"x", BASE_MS)])
    seal(broker, "gone/other")
    assert not path.parent.exists()


def test_a_topic_may_have_none(broker: Broker) -> None:
    declare(broker, "off/log", search_index="off")
    (part,) = fill(broker, "off/log", [b"word"])
    assert not index_path(part).exists()
    assert len(hits(broker, "word", "off/log")) == 1


def test_binary_data_gets_no_filter_and_is_found(broker: Broker) -> None:
    rng = random.Random(2)
    declare(broker, "binary/log")
    parts = fill(broker, "binary/log", [rng.randbytes(900) for _ in range(100)] + [b"\x00 needle \x00"])
    assert sum(index_path(part).stat().st_size for part in parts) < sum(part.stat().st_size for part in parts) / 15
    assert len(hits(broker, "needle", "binary/log")) == 1


def test_what_is_concluded_from_a_query_holds_for_all_that_it_means() -> None:
    def asks(text: str, *held: str, escapes: bool = False) -> bool:
        known = {one for word in held for one in token_hashes(word.encode())}
        return may_hold(parse_query(text), lambda wanted: known.issuperset(wanted), escapes=escapes)

    assert asks("timeout", "timeout") and not asks("timeout", "time")
    assert asks("TIMEOUT", "Timeout") and asks('"connection reset"', "reset connection")
    assert asks("time*") and asks('"time"') is False
    assert asks("a b*", "a") and not asks("a b*", "b")
    assert asks("NOT a") and asks("a OR NOT b") and not asks("a OR b") and asks("a OR b", "b")
    assert not asks("status>=500") and asks("status>=500", "status") and asks("status>=500", escapes=True)
    assert asks("status=500", "status") and not asks("status='500'", "status") and asks("status='500'", "status 500")
    assert asks("$.a.b = x", "a b x") and not asks("$.a.b = x", "b x") and asks("$.a.b = 'x\\\\y'", "a b")
    assert asks("msg:re*", "msg") and not asks("msg:'re*'", "msg")
    assert asks("topic = nothing") and asks("header.x = y") and not asks("key = y") and asks("key > y")
    assert holds_all(b"", token_hashes(b"anything"))


def test_headers_of_kafka_clients_are_indexed_and_those_of_others_are_not_concluded_from() -> None:
    def asks(text: str, *held: str, crossed: bool = False) -> bool:
        known = {one for word in held for one in token_hashes(word.encode())}
        return may_hold(parse_query(text), lambda wanted: known.issuperset(wanted), escapes=False, crossed=crossed)

    assert asks("header.region = eu", "region eu") and not asks("header.region = eu", "region us")
    assert asks("header.region = eu", crossed=True) and asks("header.ms-topic = a")
    assert asks("header.n = 5", "n") and asks("header.n > a", "n") and not asks("header.n:*", "m")
    assert asks("header.n != a", "n") and asks("NOT header.n = a")


def test_a_search_by_a_process_of_its_own_uses_it(broker: Broker) -> None:
    declare(broker, "asked/log")
    fill(broker, "asked/log", [b"alpha%d beta" % n for n in range(300)])
    found = list(Search(Asked("alpha17", "asked/log"), connection_of(broker.http_url)).events())
    assert [one["hit"]["offset"] for one in found if "hit" in one] == [17]
    assert found[-1]["done"]["hits"] == 1


@pytest.fixture
def tiered(tmp_path: Path) -> Iterator[BrokerProcess]:
    (tmp_path / "bucket").mkdir()
    policy = ("layout=dedicated", "segment_bytes=64KiB", "tier=s3", "local_retention_bytes=0")
    settings = (f"tier.store=file://{tmp_path / 'bucket'}", *(f"policies.t/#.{one}" for one in policy))
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        yield broker


@pytest.mark.parametrize("reached", ["the store", "the broker"])
def test_a_needle_in_parts_that_lie_in_a_store_fetches_few_of_them(
    tiered: BrokerProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reached: str
) -> None:
    rng = random.Random(4)
    values = [b"%d " % n + rng.randbytes(120).hex().encode() + b" word" for n in range(4000)]
    values[1234] += b" needle"
    records = [("t.a", None, value, BASE_MS + n) for n, value in enumerate(values)]
    for at in range(0, len(records), 400):  # each call fills a segment at least, however large its batches are
        produce(tiered, records[at : at + 400], **{"batch.num.messages": 20})
    eventually(lambda: local_bytes(tiered) == 0, "every sealed segment is in the store only")
    got, fetched, get, fetch = list[int](), list[int](), ObjectStore.get_view, BrokerFrames.read

    def noted_get(store: ObjectStore, key: str, start: int, size: int) -> memoryview:
        if reached == "the broker":
            raise ConfigError("not for us")
        got.append(size)
        return get(store, key, start, size)

    def noted_fetch(frames: BrokerFrames, start: int) -> tuple[bytes, int]:
        data, after = fetch(frames, start)
        fetched.append(len(data))
        return data, after

    monkeypatch.setattr(ObjectStore, "get_view", noted_get)
    monkeypatch.setattr(BrokerFrames, "read", noted_fetch)
    found = hits(tiered, "needle", "t/a")
    assert [one["offset"] for one in found] == [1234]
    stored = sum(path.stat().st_size for path in (tmp_path / "bucket").rglob("*") if path.is_file())
    assert sum(got) + sum(fetched) < stored / 4
    assert [one["offset"] for one in hits(tiered, "word", "t/a", limit=10_000)] == list(range(3999, -1, -1))
    for index in (tmp_path / "data" / "search").rglob("*.search"):
        index.write_bytes(b"damaged")
    assert [one["offset"] for one in hits(tiered, "needle", "t/a")] == [1234]


def test_behind_a_frame_larger_than_a_block_blocks_are_small_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_index, "BLOCK_BYTES", 4_000)
    declare(broker, "large/one", segment_bytes=1 << 20)
    values = [b'{"n":%d,"msg":"small"}' % n for n in range(400)]
    values[100] = b'{"msg":"' + b"x" * 300_000 + b' rare9one"}'
    parts = fill(broker, "large/one", values)
    index = SearchIndex.load(parts[0])
    assert index is not None
    large = [zone for zone in index.zones if zone.size > 300_000]
    assert len(large) == 1 and large[0] is not index.zones[-1]
    assert all(zone.size <= 4_000 for zone in index.zones if zone is not large[0])
    assert [one["offset"] for one in hits(broker, "rare9one", "large/one")] == [100]
