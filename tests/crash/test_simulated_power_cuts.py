"""A seeded simulator: appends, syncs, rolls, trims, rewrites, and the power goes at any disk operation.

Whatever happens: nothing synced is lost, nothing torn is served, what is kept is a prefix of what was written, no
offset ever holds two values, and none of it is taken for damage. `run_seed(N)` runs a failing seed again.
"""

from __future__ import annotations

import pytest

from tests.crash.simulated_log import SimulatedLog

STEPS = 150


def run_seed(seed: int, steps: int = STEPS) -> None:
    log = SimulatedLog(seed)
    for _ in range(steps):
        log.step()


@pytest.mark.parametrize("block", range(10))
def test_nothing_synced_is_lost_and_nothing_torn_is_served(block: int) -> None:
    for seed in range(block * 30, block * 30 + 30):
        try:
            run_seed(seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(20))
def test_the_same_for_twenty_thousand_seeds(block: int) -> None:
    for seed in range(1_000 + block * 1_000, 2_000 + block * 1_000):
        try:
            run_seed(seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed}") from error
