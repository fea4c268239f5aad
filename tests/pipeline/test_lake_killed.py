"""kill -9 of the driver and of the broker while a topic is archived: the table's rows are the log's records, each once."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.lake.catalog import LakeOptions, open_catalog
from mainstem_pipeline.lake.commands import archive_pipeline
from mainstem_pipeline.lake.maintain import remove_unreferenced
from mainstem_pipeline.lake.rebuild import rebuilt_batches
from mainstem_pipeline.pipeline.progress import FlowProgress
from mainstem_pipeline.pipeline.runner import Runner, RunOptions
from tests.pipeline.conftest import eventually, produce, publish, read
from tests.pipeline.lake_kit import archive, orphans, rows_of, stored_frames
from tests.pipeline.test_exactly_once import kill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
JOB = Path(__file__).with_name("archive_job.py")
SOURCE, TABLE = "in/#", "raw.t"


def send(broker: BrokerProcess, first: int, count: int) -> None:
    """Half by MQTT into the shared log, half by Kafka into one of its own."""
    values = [b"%06d" % n for n in range(first, first + count)]
    publish(broker, [(f"in/{n % 3}", value) for n, value in enumerate(values[::2])])
    produce(broker, "in.kafka", values[1::2], **{"batch.size": 4_000})


def check_whole(spark: SparkSession, broker: BrokerProcess, lake: LakeOptions, count: int) -> None:
    """The table has the log's records and no other, byte for byte, and its folder no file that it does not know."""
    rows = rows_of(lake, TABLE)
    cold = [(row["log"], row["offset"], row["topic"], row["value"]) for row in rows.to_pylist()]
    assert len(cold) == len(set(cold)) == count
    assert sorted(row[3] for row in cold) == [b"%06d" % n for n in range(count)]
    hot = read(spark, broker, filter=SOURCE, columns="all").select("offset", "canonical_topic", "value").collect()
    assert {row[1:] for row in cold} == {(row[0], row[1], bytes(row[2])) for row in hot}
    stored = set(stored_frames(broker, {"kind": "filter", "filter": SOURCE}).values())
    assert {one.frame for one in rebuilt_batches(rows)} == stored
    assert not orphans(lake, TABLE)


@contextmanager
def job(
    broker: BrokerProcess, lake: LakeOptions, folder: Path, moment: str
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    stall, log = folder / f"stalled-{moment}", folder / "job.log"
    command = [sys.executable, str(JOB), broker.http_url, lake.warehouse, SOURCE, TABLE, "300", str(stall), moment]
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:
        eventually(lambda: stall.exists() or process.poll() is not None, f"a batch {moment}", 240)
        assert process.poll() is None, log.read_text()[-3000:]
        yield process, stall
    finally:
        kill(process)


@pytest.mark.parametrize("moment", ["written", "committed"])
def test_driver_killed(own_broker: BrokerProcess, spark: SparkSession, tmp_path: Path, moment: str) -> None:
    lake = LakeOptions(str(tmp_path / "lake"))
    send(own_broker, 0, 1200)
    with job(own_broker, lake, tmp_path, moment):
        before = len(rows_of(lake, TABLE))
        left = orphans(lake, TABLE)
    assert 0 < before < 1200
    assert bool(left) == (moment == "written"), "files that were written and never committed"
    if left:
        assert remove_unreferenced(open_catalog(lake), TABLE, 3600) == 0, "they may still be somebody's"
    send(own_broker, 1200, 200)
    assert archive(spark, own_broker, lake, SOURCE, TABLE)["rows"] == 1400 - before
    check_whole(spark, own_broker, lake, 1400)


class Silent:
    """A display that shows nothing."""

    def __init__(self) -> None:
        self.restarts = 0

    def batch(self, flow: FlowProgress) -> None:
        self.restarts = flow.restarts

    def within(self, flow: FlowProgress) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self, flows: list[FlowProgress], seconds: float) -> None: ...


def test_broker_killed(own_broker: BrokerProcess, spark: SparkSession, tmp_path: Path) -> None:
    """Three times, each while the archive has read part of what is there."""
    lake = LakeOptions(str(tmp_path / "lake"))
    made = archive_pipeline(
        SOURCE, TABLE, url=own_broker.http_url, warehouse=lake.warehouse, catalog="", state=None, trigger_ms=100
    )
    made = replace(made, flows=(replace(made.flows[0], rows_per_batch_max=100),))
    send(own_broker, 0, 600)
    runner = Runner(made, RunOptions(), Silent(), spark)
    ended: list[int | BaseException] = []

    def running() -> None:
        try:
            ended.append(runner.run())
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=running)
    thread.start()
    try:
        sent = 600
        for done in (100, 700, 1300):
            eventually(lambda enough=done: archived(lake) >= enough or ended, f"{done} rows archived", 120)
            own_broker.kill()
            own_broker.start()
            send(own_broker, sent, 600)
            sent += 600
        eventually(lambda: archived(lake) >= sent or ended, "all rows archived", 180)
    finally:
        runner.stop()
        thread.join(120)
    assert ended == [0]
    check_whole(spark, own_broker, lake, sent)


def archived(lake: LakeOptions) -> int:
    try:
        return len(rows_of(lake, TABLE))
    except Exception:  # not made yet
        return 0
