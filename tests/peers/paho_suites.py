"""Eclipse Paho's interoperability suites against this broker: python -m tests.peers.paho_suites CHECKOUT [case]...

CHECKOUT is of eclipse/paho.mqtt.testing. Its `client_test.py` (3.1.1) and `client_test5.py` (5.0) are run to their end, each
with a broker of its own, whose keep alive is at most 60 s and whose receive maximum is 1,000, as two of the cases assume.
Exits with how many suites have a case that does not pass.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from mainstem.testing import BrokerProcess

SUITES = {"client_test": "", "client_test5": "client_test5/"}  # and what the topics of each begin with
SUITE_S_MAX = 900
RUN = """
import sys, unittest
import {name} as suite
suite.host, suite.port, suite.topic_prefix = "127.0.0.1", {port}, {prefix!r}
suite.topics = [{prefix!r} + topic for topic in ("TopicA", "TopicA/B", "Topic/C", "TopicA/C", "/TopicA")]
suite.wildtopics = [{prefix!r} + one for one in ("TopicA/+", "+/C", "#", "/#", "/+", "+/+", "TopicA/#")]
suite.nosubscribe_topics = ("test/nosubscribe",)
unittest.main(module=suite, argv=["suite", *sys.argv[1:]])
"""


def run(checkout: Path, name: str, cases: list[str]) -> int:
    settings = "mqtt.keep_alive_max_s=60", "mqtt.receive_max=1000"
    with tempfile.TemporaryDirectory() as spare, BrokerProcess(Path(spare, "data"), *settings) as broker:
        script = RUN.format(name=name, port=broker.mqtt_port, prefix=SUITES[name])
        command = [sys.executable, "-c", script, *(f"Test.{case}" for case in cases)]
        folder = checkout / "interoperability"
        return subprocess.run(command, cwd=folder, timeout=SUITE_S_MAX, check=False).returncode


if __name__ == "__main__":
    sys.exit(sum(run(Path(sys.argv[1]).resolve(), name, sys.argv[2:]) != 0 for name in SUITES))
