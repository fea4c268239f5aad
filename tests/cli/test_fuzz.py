"""Every fuzz target starts, takes its own inputs for a moment and finds nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("target", sorted((ROOT / "fuzz").glob("fuzz_*.py")), ids=lambda path: path.stem)
def test_a_fuzz_target_runs(target: Path) -> None:
    command = [sys.executable, "-m", f"fuzz.{target.stem}", "0.5", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 1: nothing found" in done.stdout
