"""A batch that runs tells how many of its tasks are done and how long the rest will take; real Spark."""

from __future__ import annotations

import io
import threading
import time
from typing import Any

from mainstem_pipeline.pipeline import estimate
from mainstem_pipeline.pipeline.estimate import Estimate, tasks_of
from mainstem_pipeline.pipeline.progress import FlowProgress, Lines


def test_tasks_of_a_running_job_are_counted(spark: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(estimate, "LOOK_S", 0.0)
    context = spark.sparkContext
    run_id, seen = "estimate-run", list[tuple[int, int]]()

    def work() -> None:
        context.setJobGroup(run_id, "estimate")
        context.parallelize(range(12), 12).map(lambda one: time.sleep(0.3) or one).count()

    thread = threading.Thread(target=work)
    thread.start()
    flow, looked = FlowProgress("archive"), Estimate()
    while thread.is_alive():
        if looked.look(spark, run_id, flow):
            seen.append((flow.tasks_done, flow.tasks))
            assert flow.left_s is None or flow.left_s >= 0
        time.sleep(0.05)
    thread.join()
    assert {total for _, total in seen} == {12}
    dones = [done for done, _ in seen]
    assert dones == sorted(dones) and dones[-1] > dones[0]
    assert tasks_of(spark, run_id) == (0, 0)


def test_a_long_batch_is_a_line_now_and_then(monkeypatch: Any) -> None:
    out = io.StringIO()
    lines = Lines(out)
    flow = FlowProgress("archive", batch=3, tasks_done=5, tasks=20, left_s=12.4)
    lines.within(flow)
    assert out.getvalue() == ""  # it has only begun
    monkeypatch.setattr("mainstem_pipeline.pipeline.progress.WITHIN_EVERY_S", 0.0)
    lines.within(flow)
    assert out.getvalue() == "archive: batch 4  5 of 20 tasks, about 12 s left\n"
    flow.lag, flow.rows_per_s = 1_000, 100.0
    assert flow.later_s() == 10
