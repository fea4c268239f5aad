"""What a process that only asks does first."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NotHere:
    """A finder before all others."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not imported here", name=name)
        return None


def without_pandas() -> None:
    """pyarrow and DuckDB import pandas wherever it is installed, for what is never used here: half a second."""
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _NotHere())
