"""A pipeline on a Spark cluster whose machines share nothing but a network: broker, object store, driver and two workers.

`unshare --net --mount python -m tests.pipeline.separate_hosts DIRECTORY JARS`. Each of the driver and the workers is in a
network namespace of its own, where the broker's files (and for a worker everything else in DIRECTORY, too) are hidden by an
empty file system. So executors read through the broker, compressed, and state, checkpoints and tables lie in a bucket. The
executors of one worker are killed in the middle. JARS, separated by colons, are Hadoop's for S3. Prints "well" at the end.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil

from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.lake.catalog import LakeOptions, load_table, open_catalog
from mainstem_pipeline.session import find_java
from tests.cluster.network import Network, prepare_middle
from tests.pipeline.conftest import eventually, produce
from tests.s3_server import KEY, SECRET, s3_server

DEPLOY = "org.apache.spark.deploy"
WORKERS = ("one", "two")
RECORDS, BAD_SHARE, DEVICES = 6_000, 10, 5
END_S_MAX = 400
FILE = """
name: p
state: s3://bucket/state
broker: {{url: "{broker}"}}
lake: {{warehouse: s3://bucket/lake, catalog: "sqlite:///{folder}/catalog.db"}}
spark:
  spark.executor.memory: 512m
  spark.cores.max: "2"
  spark.driver.host: "{driver}"
  spark.driver.extraClassPath: "{jars}"
  spark.executor.extraClassPath: "{jars}"
  spark.sql.shuffle.partitions: "2"
flows:
  - name: rows
    from: {{topic: in}}
    decode: {{format: json, schema: "n int, device int"}}
    sql: select n from input
    max_rows_per_batch: 1000
    to: [{{table: t.n}}, {{topic: out}}]
    dead_letters: {{table: t.dead, max_ratio: 1}}
  - name: counts
    from: {{topic: in}}
    decode: {{format: json, schema: "n int, device int"}}
    sql: select device, count(*) as readings from input group by device
    mode: update
    to: {{table: t.counts, key: [device]}}
    dead_letters: {{topic: dead, max_ratio: 1}}
"""


class Scene:
    def __init__(self, folder: Path, jars: str, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.network = Network(("driver", *WORKERS))
        self.middle = self.network.address("driver", "brokers", middle=True)
        self.data = folder / "data"
        settings = ("listeners.host=0.0.0.0", "listeners.allow_anonymous=true")
        self.broker = stack.enter_context(BrokerProcess(self.data, *settings))
        (folder / "weed").mkdir()
        store = stack.enter_context(s3_server(folder / "weed", bind="0.0.0.0"))
        self.environment = {
            **os.environ,
            "JAVA_HOME": str(find_java()),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "256m",
            "AWS_ENDPOINT_URL": f"http://{self.middle}:{store.ports['s3.port']}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }
        self.file = folder / "p.yaml"
        self.file.write_text(
            FILE.format(
                broker=f"http://{self.middle}:{self.broker.http_port}",
                folder=folder,
                driver=self.network.address("driver", "brokers"),
                jars=jars,
            )
        )

    def start(
        self, name: str, address: str, command: list[str], prefix: list[str]
    ) -> tuple[subprocess.Popen[bytes], Path]:
        log = self.folder / f"{name}.log"
        with log.open("ab") as out:
            environment = {**self.environment, "SPARK_LOCAL_IP": address}
            process = subprocess.Popen([*prefix, *command], stdout=out, stderr=out, env=environment)
        self.stack.callback(end, process)
        return process, log

    def on(self, host: str, hidden: Path) -> list[str]:
        """What a command begins with that runs on that host, without `hidden`."""
        hide = f'mount -t tmpfs none "{hidden}" && cd "{hidden}" && exec "$@"'
        return ["ip", "netns", "exec", host, "unshare", "--mount", "sh", "-c", hide, "sh"]

    def start_cluster(self) -> tuple[str, dict[str, subprocess.Popen[bytes]]]:
        import pyspark

        spark = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        ports = ["--port", "0", "--webui-port", "0"]
        master = [spark, f"{DEPLOY}.master.Master", "--host", self.middle, *ports]
        _, log = self.start("master", self.middle, master, [])
        url = eventually(lambda: re.search(r"spark://[\d.]+:\d+", log.read_text()), "the master", 120)[0]
        workers = {}
        for name in WORKERS:
            address = self.network.address(name, "brokers")
            worker = [
                spark,
                f"{DEPLOY}.worker.Worker",
                "--host",
                address,
                *ports,
                "--cores",
                "1",
                "--memory",
                "600m",
                url,
            ]
            workers[name], log = self.start(name, address, worker, self.on(name, self.folder))
            eventually(lambda text=log: "Successfully registered" in text.read_text(), f"worker {name}", 120)
        return url, workers

    def run_pipeline(self, master: str, name: str) -> tuple[subprocess.Popen[bytes], Path]:
        command = [sys.executable, "-m", "mainstem", "pipeline", "run", str(self.file), "--once", "--master", master]
        address = self.network.address("driver", "brokers")
        return self.start(name, address, [*command, "--fast-start"], self.on("driver", self.data))

    def finished(self, process: subprocess.Popen[bytes], log: Path) -> None:
        eventually(lambda: process.poll() is not None, "the end of the pipeline", END_S_MAX)
        assert process.returncode == 0, log.read_text()[-4000:]


def end(process: subprocess.Popen[bytes]) -> None:
    """With all that it started."""
    try:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for one in family:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()


def kill_executors(worker: subprocess.Popen[bytes], driver: subprocess.Popen[bytes]) -> None:
    """Once it runs a task."""

    def found() -> list[psutil.Process]:
        assert driver.poll() is None, "the pipeline ended before an executor was killed"
        family = psutil.Process(worker.pid).children(recursive=True)
        backends = [one for one in family if any("CoarseGrainedExecutorBackend" in word for word in one.cmdline())]
        return [one for one in backends if one.children()]  # a Python process that runs a task

    for one in eventually(found, "an executor with a task", 240):
        one.kill()


def reading(number: int) -> bytes:
    return b"bad %d" % number if number % BAD_SHARE == 0 else b'{"n": %d, "device": %d}' % (number, number % DEVICES)


def is_good(number: int) -> bool:
    return number % BAD_SHARE != 0


def check(scene: Scene, count: int) -> None:
    for name in ("ENDPOINT_URL", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "REGION"):
        os.environ[f"AWS_{name}"] = scene.environment[f"AWS_{name}"]
    catalog = open_catalog(LakeOptions("s3://bucket/lake", f"sqlite:///{scene.folder}/catalog.db"))
    numbers, dead, counts = (load_table(catalog, name).scan().to_arrow() for name in ("t.n", "t.dead", "t.counts"))
    good = [n for n in range(count) if is_good(n)]
    assert sorted(numbers["n"].to_pylist()) == good
    assert len(dead) == count - len(good)
    wanted = {device: sum(1 for n in good if n % DEVICES == device) for device in range(DEVICES)}
    found = dict(zip(counts["device"].to_pylist(), counts["readings"].to_pylist(), strict=True))
    assert found == {device: number for device, number in wanted.items() if number}, found
    assert counted(scene, "out") == len(good)
    assert counted(scene, "dead") == count - len(good)


def counted(scene: Scene, topic: str) -> int:
    answer = httpx.get(f"{scene.broker.http_url}/v1/topics/{topic}").raise_for_status().json()
    return int(answer["records"])


def main() -> None:
    folder, jars = Path(sys.argv[1]), sys.argv[2]
    prepare_middle()
    with ExitStack() as stack:
        scene = Scene(folder, jars, stack)
        produce(scene.broker, "in", [reading(number) for number in range(RECORDS // 2)], **{"batch.size": 20_000})
        master, workers = scene.start_cluster()
        driver, log = scene.run_pipeline(master, "driver")
        kill_executors(workers["one"], driver)
        scene.finished(driver, log)
        check(scene, RECORDS // 2)
        produce(scene.broker, "in", [reading(number) for number in range(RECORDS // 2, RECORDS)])
        scene.finished(*scene.run_pipeline(master, "driver"))  # goes on from the bucket
        check(scene, RECORDS)
        assert not (folder / "s3:").exists(), "nothing was written here instead"
    print("well")


if __name__ == "__main__":
    main()
