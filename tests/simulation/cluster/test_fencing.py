"""Leases, epochs, lanes and images while brokers are paused and killed and answers lost: no acknowledged record is lost."""

from __future__ import annotations

import os

import pytest

from tests.simulation.cluster.brokers import History

SEEDS = int(os.environ.get("MAINSTEM_SIMULATED_CLUSTERS", "20"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_is_acknowledged_under_an_old_epoch_and_no_offset_is_used_twice(seed: int) -> None:
    notes = History(seed).run()
    assert notes.wrong == []
    assert notes.takes > 3
    assert notes.acked


def test_the_simulator_notices_a_cluster_whose_commits_do_not_name_their_epoch() -> None:
    assert any(_is_wrong(seed) for seed in range(10))


def _is_wrong(seed: int) -> bool:
    try:
        return bool(History(seed, fences=False).run().wrong)
    except AssertionError:
        return True
