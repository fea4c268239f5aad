"""Where a read starts and ends, asked of the broker, without Spark."""

from __future__ import annotations

import json

import pytest

from mainstem.model.errors import InvalidArgument
from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.options import read_options
from mainstem_pipeline.scans import Offsets, Scan
from tests.pipeline.conftest import create_topic, produce


def ranges(broker: BrokerProcess, **options: str) -> tuple[Offsets, Offsets]:
    scan = Scan(read_options({"url": broker.http_url, **options}, streaming=False))
    try:
        return scan.batch_range()
    finally:
        scan.close()


def test_a_time_is_asked_of_its_own_partition_only(broker: BrokerProcess, topic: str) -> None:
    """That another topic has nothing as late as that is no mistake."""
    old, new = f"{topic}-old", f"{topic}-new"
    for name, time_ms in ((old, 1_000_000), (new, 5_000_000)):
        create_topic(broker, name)
        produce(broker, name, [b"x"] * 3, time_ms=lambda n, at=time_ms: at + n)  # type: ignore[misc]
    by_time = json.dumps({old: {"0": 1_000_001}, new: {"0": 5_000_002}})
    start, end = ranges(broker, subscribe=f"{old},{new}", startingOffsetsByTimestamp=by_time)
    assert start == {old: {"0": 1}, new: {"0": 2}}
    assert end == {old: {"0": 3}, new: {"0": 3}}
    late = json.dumps({old: {"0": 2_000_000}})
    with pytest.raises(InvalidArgument, match=f"{old} partition 0 has no record"):
        ranges(broker, subscribe=f"{old},{new}", startingOffsetsByTimestamp=late)


def test_offsets_are_given_by_either_spelling_of_a_topic(broker: BrokerProcess, topic: str) -> None:
    produce(broker, f"{topic}.a", [b"x"] * 3)
    for name in (f"{topic}/a", f"{topic}.a"):
        start, _ = ranges(broker, subscribe=f"{topic}/a", startingOffsets=json.dumps({name: {"0": 2}}))
        assert start == {f"{topic}.a": {"0": 2}}
