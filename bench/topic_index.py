"""The shared log's topic index at 10 million records and 1 million topics: python bench/topic_index.py [records topics]"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mainstem.log.topic_index import TopicIndex
from mainstem.model.topic_tries import TopicTrie

BATCH = 10_000


def timed(work: Callable[[], Any], rounds: int = 1) -> tuple[float, Any]:
    """The median time of some rounds, and what the last one returned."""
    times, result = [], None
    for _ in range(rounds):
        begin = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - begin)
    return sorted(times)[len(times) // 2], result


def row(name: str, value: str, target: str = "") -> None:
    print(f"{name:<58}{value:>22}   {target}")


def filled(path: Path, records: int, topic_count: int) -> TopicIndex:
    """Every topic gets its share of records, in random order; every hundredth topic ends in `rare`."""
    topics = TopicTrie()
    names = [b"fleet/%06d/%s" % (i, b"rare" if i % 100 == 0 else b"temp") for i in range(topic_count)]
    took, numbers = timed(lambda: [topics.number(name) for name in names])
    row(f"number {topic_count:,} topics", f"{topic_count / took / 1e6:.2f} M/s")
    row("memory a topic, trie", f"{topics.memory_bytes() / topic_count:.0f} bytes", "target <= 150")
    order = array("I", numbers * (records // topic_count))
    random.Random(1).shuffle(order)
    index = TopicIndex.open(path, topics)

    def add() -> None:
        view = memoryview(order)
        for at in range(0, len(order), BATCH):
            index.add(at, view[at : at + BATCH])
            if len(index.waiting) > 1:
                index.checkpoint()

    took, _ = timed(add)
    row(f"add {records:,} records, with checkpoints", f"{records / took / 1e6:.1f} M/s")
    row("memory a topic, index", f"{index.memory_bytes() / topic_count:.0f} bytes")
    return index


def searched(index: TopicIndex, records: int, topic_count: int) -> None:
    rng, end = random.Random(2), index.covered_end
    some = [rng.randrange(1, topic_count + 1) for _ in range(200)]
    took, _ = timed(lambda: [index.find_one(number, 0, end) for number in some], 3)
    row(f"one topic's {records // topic_count} records", f"{took / len(some) * 1e3:.3f} ms", "target < 2 ms")
    took, bitmap = timed(lambda: index.topics.bitmap(b"fleet/+/rare"), 3)
    row("a filter's topics as bits", f"{took * 1e3:.0f} ms")
    took, (found, _) = timed(lambda: index.find_many(bitmap, 0, end), 3)
    row(f"wildcard that means {len(found) / records:.1%}", f"{records / took / 1e6:.0f} M scanned/s", "target > 10 M/s")
    took, _ = timed(lambda: index.count(bitmap, 5, end - 5), 3)
    row("count of the same", f"{records / took / 1e6:.0f} M counted/s")


def main() -> None:
    records, topic_count = (int(arg) for arg in sys.argv[1:3]) if len(sys.argv) > 2 else (10_000_000, 1_000_000)
    print(f"topic index, {records:,} records, {topic_count:,} topics")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        index = filled(path, records, topic_count)
        searched(index, records, topic_count)
        took, _ = timed(index.close)
        row("close", f"{took:.2f} s")
        size = sum(file.stat().st_size for file in path.iterdir())
        row("bytes on disk a record", f"{size / records:.1f}")
        took, index = timed(lambda: TopicIndex.open(path, TopicTrie()))
        row("open", f"{took:.2f} s")
        searched(index, records, topic_count)


if __name__ == "__main__":
    main()
