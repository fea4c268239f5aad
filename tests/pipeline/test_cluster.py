"""The same job on a standalone cluster: a master and two workers on loopback. And Spark's own Kafka connector."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.session import find_java
from tests.pipeline.conftest import eventually, produce, read, values_of
from tests.pipeline.test_exactly_once import kill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
CONNECTOR = (
    "https://repo1.maven.org/maven2/org/apache/spark/spark-sql-kafka-0-10_2.13/{0}/spark-sql-kafka-0-10_2.13-{0}.pom"
)


@contextmanager
def daemon(folder: Path, name: str, *arguments: str) -> Iterator[Path]:
    """One of Spark's own servers; yields its log."""
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java()),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
    }
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        command = [str(home / "bin" / "spark-class"), *arguments]
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=folder, start_new_session=True)
    try:
        yield log
    finally:
        kill(process)


def test_a_job_runs_on_a_standalone_cluster(own_broker: BrokerProcess, spark: SparkSession, tmp_path: Path) -> None:
    sent = [b"%05d" % n * 20 for n in range(5000)]
    produce(own_broker, "in", sent, **{"batch.size": 20_000})
    package = "org.apache.spark.deploy"
    flags = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with daemon(tmp_path, "master", f"{package}.master.Master", *flags) as master_log:
        found = eventually(lambda: re.search(r"spark://127\.0\.0\.1:\d+", master_log.read_text()), "the master", 120)
        master = found[0]
        worker = (f"{package}.worker.Worker", *flags, "--cores", "1", "--memory", "600m", master)
        with daemon(tmp_path, "worker1", *worker) as one, daemon(tmp_path, "worker2", *worker) as two:
            for log in (one, two):
                eventually(lambda text=log: "Successfully registered with master" in text.read_text(), "a worker", 120)
            command = [sys.executable, str(Path(__file__).with_name("cluster_job.py"))]
            command += [master, own_broker.http_url, "in", "out", str(tmp_path / "job.log")]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"count": 5000, "executors": 2}
    assert values_of(read(spark, own_broker, subscribe="out")) == sorted(sent)


def connector_version() -> str | None:
    """This Spark's own version of its Kafka connector, if Maven Central is reachable and has it."""
    import pyspark

    try:
        with urllib.request.urlopen(CONNECTOR.format(pyspark.__version__), timeout=10) as answer:
            return pyspark.__version__ if answer.status == 200 else None
    except (urllib.error.URLError, TimeoutError):
        return None


KAFKA_JOB = """
import sys
from pathlib import Path
from mainstem_pipeline.session import SparkOptions, start_session
version, servers, folder = sys.argv[1:4]
packages = {"spark.jars.packages": f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}"}
spark = start_session(SparkOptions(master="local[2]", log=Path(folder) / "kafka.log", settings=packages, fast_start=True))
options = {"kafka.bootstrap.servers": servers, "subscribe": "in", "startingOffsets": "earliest"}
print(spark.read.format("kafka").options(**options).load().count())
rows = spark.readStream.format("kafka").options(**options).load().select("key", "value")
writer = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", "out")
query = writer.option("checkpointLocation", f"{folder}/c").trigger(availableNow=True).start()
query.awaitTermination()
spark.stop()
"""


def test_sparks_own_kafka_connector_reads_and_writes(
    own_broker: BrokerProcess, spark: SparkSession, tmp_path: Path
) -> None:
    version = connector_version()
    if version is None:
        pytest.skip("Maven Central is not reachable, or has no Kafka connector of this Spark version")
    sent = [b"%04d" % n for n in range(1000)]
    produce(own_broker, "in", sent)
    command = [sys.executable, "-c", KAFKA_JOB, version, own_broker.bootstrap_servers, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "1000"
    assert values_of(read(spark, own_broker, subscribe="out")) == sent
