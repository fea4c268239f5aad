"""How every fuzz target runs: `python -m fuzz.fuzz_NAME [seconds] [seed]`, or `--input HEX` to repeat one input.

Coverage-guided where `atheris` can be imported and no seed is given, else by the target's own random inputs. A failure
prints the seed and the input as hex.
"""

from __future__ import annotations

import importlib
import random
import sys
import time
from collections.abc import Callable
from typing import Any

SECONDS = 30.0


Check = Callable[[bytes], None]
OneInput = Callable[[random.Random], bytes]


def main(check: Check, one_input: OneInput) -> None:
    """`check` raises if the input broke a promise."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["--input"]:
        check(bytes.fromhex(arguments[1]))
        print("nothing found")
        return
    seconds = float(arguments[0]) if arguments else SECONDS
    if len(arguments) > 1:
        run_random(check, one_input, seconds, int(arguments[1]))
    elif not run_guided(check, seconds):
        run_random(check, one_input, seconds, random.randrange(1 << 32))


def run_guided(check: Check, seconds: float) -> bool:
    """It follows the code's branches."""
    try:
        atheris: Any = importlib.import_module("atheris")
    except ImportError:
        return False
    atheris.Setup([sys.argv[0], f"-max_total_time={int(seconds)}"], check)
    atheris.Fuzz()
    return True


def run_random(check: Check, one_input: OneInput, seconds: float, seed: int) -> None:
    rng, end, count = random.Random(seed), time.monotonic() + seconds, 0
    while time.monotonic() < end:
        data = one_input(rng)
        try:
            check(data)
        except BaseException:
            print(f"seed {seed}, input {count}: --input {data.hex()}")
            raise
        count += 1
    print(f"{count} inputs, seed {seed}: nothing found")
