"""Run histories for a while on every core, or one of them again:

python -m tests.simulation --seconds 60
python -m tests.simulation --seed 94
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.history import run_for, run_seed

SEEDS_EACH = 10_000_000  # of one process; more than it can ever run
SECONDS_LEFT = 120  # for the last history of each process


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--first", type=int, help="the first seed; without it one that no run had before")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument(
        "--calm",
        action="store_true",
        help="it without bursts, small windows and crashes three seconds apart, as before there were any",
    )
    parser.add_argument("--failures", type=int, default=3, help="each process stops after so many")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.seed is not None:
        run_seed(options.seed, calm=options.calm)
        return 0
    first = options.first if options.first is not None else int(time.time()) * SEEDS_EACH
    firsts = [first + n * SEEDS_EACH for n in range(options.processes)]
    began = time.monotonic()
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:  # tells when one dies
        asked = [pool.submit(run_for, options.seconds, one, options.failures) for one in firsts]
        told = [one.result(options.seconds + SECONDS_LEFT) for one in asked]
    for _, failed in told:
        for one in failed:
            print(one, file=sys.stderr)
    count, failures = sum(count for count, _ in told), sum(len(failed) for _, failed in told)
    rate = count / (time.monotonic() - began) * 60
    print(f"seeds from {', '.join(map(str, firsts))} on: {count} histories, {rate:.0f} a minute, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
