"""Indexes travel with a cell's images: a taker adds what they lack, instead of reading every record."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import pytest

from mainstem.cluster import image
from mainstem.log.topic_index import TopicIndex
from mainstem.model.topic_tries import TopicTrie
from tests.cluster.kit import new_database
from tests.cluster.owner import Owner, file_store
from tests.contract.postgres_server import PostgresServer

RECORDS = 5_000


def save_index(root: Path, records: int) -> None:
    """As the owner of log 1 saves it: every third record is of another topic."""
    topics = TopicTrie()
    index = TopicIndex.open(root / "logs" / "1" / "topics", topics)
    numbers = [topics.number(b"a/%d" % one) for one in range(3)]
    index.add(index.covered_end, array("I", [numbers[n % 3] for n in range(index.covered_end, records)]))
    index.close()


def found_in(root: Path) -> list[int]:
    topics = TopicTrie()
    index = TopicIndex.open(root / "logs" / "1" / "topics", topics)
    try:
        return list(index.find_one(topics.number(b"a/1"), 0, index.covered_end)) if index.covered_end else []
    finally:
        index._path = None  # it is only looked at
        index.close()


def objects(store: Path) -> set[str]:
    return {path.name for path in store.glob("cells/1/files/*")}


@pytest.mark.parametrize("inline", [True, False])
def test_the_next_owner_has_the_topic_index_as_it_was_saved_and_uploads_it_once(
    inline: bool, tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "INLINE_BYTES_MAX", 1 << 16 if inline else 10)
    dsn, store, rng = new_database(postgres), file_store(tmp_path), random.Random(1)
    owner = Owner(dsn, tmp_path, store, 0)
    for _ in range(10):
        owner.change(rng, stores=False)
    save_index(owner.root, RECORDS)
    segment_index = owner.root / "logs" / "1" / f"{0:020}.index"
    segment_index.write_bytes(b"of a segment")
    owner.images.run()
    stored, first = objects(tmp_path / "store"), owner.root
    owner.end()
    for number in (1, 2):
        owner = Owner(dsn, tmp_path, store, number)
        assert found_in(owner.root) == list(range(1, RECORDS, 3)), "nothing has to be read again"
        assert (owner.root / segment_index.relative_to(first)).read_bytes() == b"of a segment"
        owner.images.run()
        assert objects(tmp_path / "store") == stored, "what did not change is not uploaded again, nor deleted"
        owner.end()
    owner = Owner(dsn, tmp_path, store, 3)
    save_index(owner.root, 2 * RECORDS)
    owner.images.run()
    owner.end()
    assert len(objects(tmp_path / "store")) == len(stored), "the older ones are deleted"
    owner = Owner(dsn, tmp_path, store, 4)
    assert found_in(owner.root) == list(range(1, 2 * RECORDS, 3))
    for path in (owner.root / "logs" / "1" / "topics").iterdir():
        path.unlink()
    owner.images.run()
    owner.end()
    assert found_in(Owner(dsn, tmp_path, store, 5).root) == [], "a cache that is gone comes not back"


def test_an_image_that_has_no_caches_is_an_older_mainstems(tmp_path: Path, postgres: PostgresServer) -> None:
    dsn, store, rng = new_database(postgres), file_store(tmp_path), random.Random(2)
    owner = Owner(dsn, tmp_path, store, 0)
    for _ in range(10):
        owner.change(rng, stores=False)
    owner.images._keep_caches = lambda contents, now: []  # type: ignore[method-assign]
    save_index(owner.root, RECORDS)
    owner.images.run()
    expected = {name: data for name, data in owner.files().items() if "/topics/" not in name}
    owner.end()
    owner = Owner(dsn, tmp_path, store, 1)
    assert owner.files() == expected
    owner.end()
