"""`mainstem pipeline run` that a test may kill at a chosen moment.

python pipeline_job.py FILE STALL_FILE SINK_NAME

Once the sink of that name has taken its first batch, STALL_FILE is touched and the driver waits for ever: what comes
after that sink (others, or Spark's own commit) never happens. An empty SINK_NAME runs to the end.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from mainstem_pipeline.pipeline.checks import load_pipeline
from mainstem_pipeline.pipeline.progress import Lines
from mainstem_pipeline.pipeline.runner import Runner, RunOptions
from mainstem_pipeline.pipeline.sinks import Sinks


def main() -> int:
    file, stall, name = sys.argv[1:4]
    write = Sinks.write

    def stalling(self: Sinks, sink: Any, frame: Any, batch: Any) -> None:
        write(self, sink, frame, batch)
        if sink.name == name:
            Path(stall).touch()
            time.sleep(600)

    Sinks.write = stalling  # type: ignore[method-assign]
    options = RunOptions(once=True, master="local[2]", fast_start=True)
    return Runner(load_pipeline(Path(file)), options, Lines()).run()


if __name__ == "__main__":
    sys.exit(main())
