"""After a lost disk: bundles that were stored and acked since the manifest was made are found in the bucket.

`<prefix>/runs` names the lives of the writer. Of each, bundles are asked for one after the other, until one is missing:
those that were acked have no gap (`bundle.py`). Nothing is listed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from mainstem.codec.batch import crc32c
from mainstem.model.errors import CorruptFrame
from mainstem.storage.backup import Progress
from mainstem.storage.object.bundle import Bundle, bundle_key, parse_bundle
from mainstem.storage.object.pieces import Pieces
from mainstem.storage.tier.registry import Registry
from mainstem.storage.tier.store import ObjectMissing, ObjectStore

RUNS = "runs"  # an object: the list of runs, the newest last


def catch_up(
    store: ObjectStore, registry: Registry, known: set[int], progress: Progress = lambda done, total: None
) -> int:
    """How many bundles the registry learned of. Logs that are not `known` are younger than the metadata: left out.
    `progress` is told how many of how many were read."""
    pieces, count = Pieces(registry), 0
    try:
        runs: list[str] = json.loads(store.get_all(RUNS))
    except ObjectMissing:
        return 0
    run, last = pieces.last_bundle
    if run in runs:
        runs = runs[runs.index(run) :]
    starts = [last + 1 if one == run else 0 for one in runs]
    total = sum(_count_of(store, one, start) for one, start in zip(runs, starts, strict=True))
    progress(0, total)
    for one, start in zip(runs, starts, strict=True):
        for bundle in _bundles(store, one, start):
            now_ms = time.time_ns() // 1_000_000
            pieces.ignore({piece.log_id for piece in bundle.footer.pieces} - known)
            registry.begin(bundle, bundle.footer.body_size, now_ms)
            pieces.commit(bundle, now_ms)
            count += 1
            progress(count, max(total, count))
    return count


def _count_of(store: ObjectStore, run: str, first: int) -> int:
    """About how many bundles there are from `first` on, by steps that double and then halve."""
    step = 1
    while _exists(store, run, first + step - 1):
        step *= 2
    low, high = step // 2, step - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _exists(store, run, first + middle - 1) else (low, middle - 1)
    return low


def _exists(store: ObjectStore, run: str, sequence: int) -> bool:
    try:
        return store.size(bundle_key(run, sequence)) >= 0
    except ObjectMissing:
        return False


def _bundles(store: ObjectStore, run: str, sequence: int) -> Iterator[Bundle]:
    while True:
        key = bundle_key(run, sequence)
        try:
            stored = store.get_all(key)
        except ObjectMissing:
            return
        bundle = parse_bundle(key, stored)
        footer = bundle.footer
        for number, checksum in enumerate(footer.crcs):
            start = number * footer.chunk_bytes
            if crc32c(stored[start : start + footer.chunk_size(number)]) != checksum:
                raise CorruptFrame(f"{store.url}/{key}: the bytes at {start} do not match their checksum")
        yield bundle
        sequence += 1
