"""`mainstem lake archive --once` that a test may kill at a chosen moment.

python archive_job.py URL WAREHOUSE SOURCE TABLE ROWS_PER_BATCH STALL_FILE MOMENT

At the second batch STALL_FILE is touched and the driver waits for ever: with MOMENT `written` its files are there and not
committed, with `committed` the table has them and Spark's own log does not know it.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from mainstem_pipeline.lake.commands import archive_pipeline
from mainstem_pipeline.lake.commits import Committer
from mainstem_pipeline.pipeline.progress import Lines
from mainstem_pipeline.pipeline.runner import Runner, RunOptions

BATCHES_BEFORE = 1


def main() -> int:
    url, warehouse, source, table, rows, stall, moment = sys.argv[1:8]
    commit, commits = Committer.commit, 0

    def stalling(self: Committer, *arguments: Any, **options: Any) -> bool:
        nonlocal commits
        commits += 1
        done = commits > BATCHES_BEFORE and moment == "written"
        result = done or commit(self, *arguments, **options)
        if commits > BATCHES_BEFORE:
            Path(stall).touch()
            time.sleep(600)
        return result

    Committer.commit = stalling  # type: ignore[method-assign]
    made = archive_pipeline(source, table, url=url, warehouse=warehouse, catalog="", state=None)
    flow = replace(made.flows[0], rows_per_batch_max=int(rows))
    options = RunOptions(once=True, master="local[2]", fast_start=True)
    return Runner(replace(made, flows=(flow,)), options, Lines()).run()


if __name__ == "__main__":
    sys.exit(main())
