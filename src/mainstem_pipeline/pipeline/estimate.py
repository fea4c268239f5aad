"""How far the batch that runs is: tasks of its jobs that Spark has finished, and the time that the rest will take."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mainstem_pipeline.pipeline.progress import FlowProgress

LOOK_S = 1.0


class Estimate:
    """Of one flow. Spark runs the jobs of a query in a group that has the name of its run."""

    def __init__(self) -> None:
        self._batch_began_s = 0.0
        self._looked_s = 0.0

    def look(self, spark: SparkSession, run_id: str, flow: FlowProgress) -> bool:
        """Note it; True if there is something to tell."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_S:
            return False
        self._looked_s = now_s
        done, total = tasks_of(spark, run_id)
        if not total:
            self._batch_began_s = 0.0
        elif not self._batch_began_s:
            self._batch_began_s = now_s
        seconds = now_s - self._batch_began_s
        flow.tasks_done, flow.tasks = done, total
        flow.left_s = round(seconds * (total - done) / done + flow.later_s(), 1) if total and done else None
        return bool(total)


def tasks_of(spark: SparkSession, run_id: str) -> tuple[int, int]:
    """Finished and all tasks of the jobs that run now; of a stage that is not known yet none are counted. Nothing where
    Spark does not tell: it is stopping, or Spark Connect has no context here. No flow fails for want of an estimate."""
    try:
        tracker: Any = spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(run_id)]
        running = [job for job in jobs if job is not None and job.status == "RUNNING"]
        stages = [tracker.getStageInfo(stage) for job in running for stage in job.stageIds]
    except Exception:
        return 0, 0
    known = [one for one in stages if one is not None]
    return sum(one.numCompletedTasks for one in known), sum(one.numTasks for one in known)
