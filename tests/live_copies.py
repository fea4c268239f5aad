"""A copy of the data of a broker that runs: what a kill at this moment would leave."""

from __future__ import annotations

import shutil
from pathlib import Path


def copy_live(data: Path, copy: Path) -> None:
    """Without files that a thread is about to put in place: they may have another name by the time they are copied, and a
    start takes no notice of them."""
    shutil.copytree(data, copy, ignore=shutil.ignore_patterns("*.new"))
