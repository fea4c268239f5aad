"""What an ack costs in the journal does not grow with what is in flight."""

from __future__ import annotations

from pathlib import Path

from mainstem.testing.state_bytes import measure

ALONE_MAX, TOGETHER_MAX = 200, 100


async def test_an_ack_costs_little_however_much_is_in_flight(tmp_path: Path) -> None:
    found = await measure(tmp_path / "data", [10, 3_000])
    assert {one.kind for one in found} == {"session", "queue", "group", "transaction"}
    for one in found:
        assert 0 < one.alone <= ALONE_MAX, one
        assert 0 < one.together <= TOGETHER_MAX, one
