"""The Celery application that test_celery.py runs: a worker process and the test share it."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

app = Celery(
    "application",
    broker=os.environ.get("MAINSTEM_TEST_BROKER", "amqp://guest:guest@127.0.0.1:5672//"),
    backend=os.environ.get("MAINSTEM_TEST_BACKEND", "rpc://"),
)
app.conf.update(
    task_default_queue=os.environ.get("MAINSTEM_TEST_QUEUE", "celery"),
    task_acks_late=True,
    worker_prefetch_multiplier=4,
    worker_send_task_events=True,
    task_send_sent_event=True,
    broker_connection_retry_on_startup=True,
    task_track_started=True,
)


@app.task
def add(one: int, other: int) -> int:
    return one + other


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(bind=True, max_retries=3)
def fail_twice(self: Any) -> int:
    """Succeeds at the third try."""
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return int(self.request.retries)


@app.task
def moment() -> float:
    return time.time()
