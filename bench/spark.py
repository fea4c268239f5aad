"""Spark reading a topic beside its own Kafka connector: `python -m bench.spark [--keep DIR] [--piece NAME] [--share N]`.

Topics of four partitions are filled with Kafka batches of 500 records (10 million of 100 bytes, key of 16 included, and 1
million of 1 KiB; 100,000 different ones each), then read by local[2] into Spark's no-op sink and into Parquet: with
`mainstem`, and with the connector over the same broker's Kafka port, each in a process of its own. The best of some runs is
told; the first warms the JVM. The connector is the newest that Maven has whole, in the Spark it belongs to (see
tests/pipeline/connector_kit.py); where it cannot be had, the reason is told instead.

--keep DIR    fill once, measure only what DIR does not know yet
--piece NAME  measure this one now, e.g. `small-mainstem-noop`; the page is written once all are known
--share N     1/N of the records: for a look
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.machine import write_result
from mainstem.codec.batch import BatchBuilder
from mainstem.protocols.kafka import wire
from mainstem.protocols.kafka.messages import ProduceRequest
from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.session import find_java
from tests.pipeline.connector_kit import Connector, connector
from tests.protocol.kafka.java_clients import Unavailable

ROOT = Path(__file__).resolve().parent.parent
TITLE = "Spark reading a topic beside Spark's own Kafka connector"
PARTITIONS = 4
KEY_BYTES = 16
BATCH_RECORDS, BATCHES = 500, 200
UNANSWERED_MAX = 8
NOOP_TARGET = 1_200_000  # rows a second of small records


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    words: str
    rows: int
    size: int  # of key and value


@dataclass(frozen=True, slots=True)
class Reader:
    name: str
    words: str
    options: dict[str, str]


CASES = (Case("small", "10 million of 100 B", 10_000_000, 100), Case("large", "1 million of 1 KiB", 1_000_000, 1024))
OURS = Reader("mainstem", "mainstem", {})
OURS_CHOSEN = Reader("chosen", "mainstem, value and offset", {"columns": "value,offset"})
THEIRS = Reader("connector", "Kafka connector", {})
SINKS = ("noop", "parquet")
PIECES = {
    f"{case.name}-{reader.name}-{sink}": (case, reader, sink)
    for case in CASES
    for reader in (OURS, OURS_CHOSEN, THEIRS)
    for sink in SINKS
    if reader is not OURS_CHOSEN or sink == "noop"
}


def produce_requests(topic: str, size: int) -> list[bytes]:
    """Different records, so that no column is a dictionary of one value."""
    requests = []
    for batch in range(BATCHES):
        builder = BatchBuilder()
        now_ms = int(time.time() * 1000)
        for number in range(BATCH_RECORDS):
            key = b"%0*d" % (KEY_BYTES, batch * BATCH_RECORDS + number)
            builder.add(key, os.urandom(size - KEY_BYTES), (), now_ms)
        part = ProduceRequest.PartitionProduceData(index=batch % PARTITIONS, records=bytes(builder.seal_batch(0)))
        data = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
        request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data])
        requests.append(b"".join(wire.encode_request("ProduceRequest", 9, request, correlation=1, client_id="fill")))
    return requests


def answer(connection: socket.socket) -> None:
    """The next one, checked: errors are fast, and would leave the topic empty."""
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack(">i", data[:4])[0]:
        wanted = 4 if len(data) < 4 else 4 + struct.unpack(">i", data[:4])[0]
        part = connection.recv(wanted - len(data))
        assert part, "the broker hung up"
        data += part
    line = wire.decode("ProduceResponse", 9, data[4 + 5 :]).responses[0].partition_responses[0]
    assert line.error_code == 0, f"produce: error {line.error_code}"


def fill(broker: BrokerProcess, case: Case, rows: int) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(case.name, PARTITIONS, 1)])[case.name].result(30)
    requests = produce_requests(case.name, case.size)
    with socket.create_connection((broker.host, broker.kafka_port)) as connection:
        count = rows // BATCH_RECORDS
        for number in range(count):
            connection.sendall(requests[number % BATCHES])
            if number >= UNANSWERED_MAX:
                answer(connection)
        for _ in range(min(count, UNANSWERED_MAX)):
            answer(connection)


def measure(broker: BrokerProcess, pieces: list[str], folder: Path, peer: Connector | None) -> dict[str, Any]:
    """Pieces of one case and one reader, in one Spark."""
    case, reader, _ = PIECES[pieces[0]]
    asked: dict[str, Any] = {
        "sinks": [PIECES[name][2] for name in pieces],
        "folder": str(folder),
        "broker": broker.pid,
        "options": {"subscribe": case.name, **reader.options},
    }
    if peer is None:
        asked |= {"format": "mainstem"}
        asked["options"]["url"] = broker.http_url
        python, environment = sys.executable, {**os.environ, "JAVA_HOME": str(find_java())}
        environment |= {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}
    else:
        asked |= {"format": "kafka", "jars": peer.jars}
        asked["options"]["kafka.bootstrap.servers"] = broker.bootstrap_servers
        python, environment = str(peer.python), peer.environment()
    load = os.getloadavg()[0]
    command = [python, str(ROOT / "bench" / "spark_load.py"), json.dumps(asked)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{pieces}: {done.stderr[-3000:]}")
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {name: {**one, "load": load} for name, one in zip(pieces, told, strict=True)}


class Bench:
    def __init__(self, folder: Path, share: int) -> None:
        self._folder, self._share = folder, share
        self._file = folder / "measured.json"
        self.known: dict[str, Any] = json.loads(self._file.read_text()) if self._file.exists() else {}

    def rows(self, case: Case) -> int:
        return case.rows // self._share

    def run(self, pieces: list[str]) -> None:
        wanted = [name for name in pieces if name not in self.known]
        if not wanted:
            return
        data = self._folder / "data"
        fresh = not data.exists()
        with BrokerProcess(data) as broker:
            if fresh:
                for case in CASES:
                    fill(broker, case, self.rows(case))
                    print(f"filled {case.name}", file=sys.stderr, flush=True)
            for group in self._groups(wanted):
                self._measure(broker, group)

    @staticmethod
    def _groups(pieces: list[str]) -> list[list[str]]:
        """Those of the same case and reader share a Spark."""
        groups: dict[tuple[str, str], list[str]] = {}
        for name in pieces:
            case, reader, _ = PIECES[name]
            groups.setdefault((case.name, reader.name), []).append(name)
        return list(groups.values())

    def _measure(self, broker: BrokerProcess, pieces: list[str]) -> None:
        peer = None
        if PIECES[pieces[0]][1] is THEIRS:
            try:
                peer = connector(self._folder)
            except Unavailable as error:
                self.known |= {name: {"why": str(error).splitlines()[0]} for name in pieces}
                return
        self.known |= measure(broker, pieces, self._folder, peer)
        self._file.write_text(json.dumps(self.known, indent=1))

    # -- the page

    def told(self) -> str:
        lines = [
            f"{'':<42}{'M rows/s':>9}{'MB/s':>7}{'wall s':>8}{'CPU s':>8}{'JVM':>7}{'Python':>8}{'broker':>8}{'load':>6}"
        ]
        for sink in SINKS:
            for case in CASES:
                lines += ["", f"{case.words}, into {'the no-op sink' if sink == 'noop' else 'Parquet'}"]
                for name, (its_case, reader, its_sink) in PIECES.items():
                    if (its_case, its_sink) == (case, sink):
                        lines.append(self._line(name, case, reader))
                lines += self._verdicts(case, sink)
        versions = {name: one["version"] for name, one in self.known.items() if "version" in one}
        ours = next((v for name, v in versions.items() if "connector" not in name), "")
        theirs = next((v for name, v in versions.items() if "connector" in name), "none")
        lines += ["", f"mainstem in Spark {ours}, the connector of Spark {theirs} in its own; local[2] each"]
        lines += [f"only 1/{self._share} of the records"] if self._share > 1 else []
        return "\n".join(lines)

    def _line(self, name: str, case: Case, reader: Reader) -> str:
        one = self.known.get(name, {"why": "not measured"})
        if "why" in one:
            return f"  {reader.words:<40}{one['why']}"
        cpu = one["jvm_s"] + one["python_s"] + one["broker_s"]
        rate = self.rows(case) / one["wall_s"]
        return (
            f"  {reader.words:<40}{rate / 1e6:>9.2f}{rate * case.size / 1e6:>7.0f}{one['wall_s']:>8.1f}{cpu:>8.1f}"
            f"{one['jvm_s']:>7.1f}{one['python_s']:>8.1f}{one['broker_s']:>8.1f}{one['load']:>6.1f}"
        )

    def _verdicts(self, case: Case, sink: str) -> list[str]:
        ours, theirs = (self.known.get(f"{case.name}-{name}-{sink}", {}) for name in ("mainstem", "connector"))
        found = []
        if "wall_s" in ours and "wall_s" in theirs:
            times = theirs["wall_s"] / ours["wall_s"]
            found.append(f"  {times:.2f} times the connector's rate, target 1: {'reached' if times >= 1 else 'MISSED'}")
        if "wall_s" in ours and case.name == "small" and sink == "noop":
            rate = self.rows(case) / ours["wall_s"]
            reached = "reached" if rate >= NOOP_TARGET else "MISSED"
            found.append(f"  {rate / 1e6:.2f} M rows/s, target {NOOP_TARGET / 1e6:g}: {reached}")
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, default=None)
    parser.add_argument("--piece", choices=PIECES, action="append", default=None)
    parser.add_argument("--share", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(asked.keep or Path(name), asked.share)
        bench.run(asked.piece or list(PIECES))
        print(bench.told(), flush=True)
        if asked.share == 1 and all(piece in bench.known for piece in PIECES):
            write_result("spark", TITLE, bench.told())


if __name__ == "__main__":
    main()
