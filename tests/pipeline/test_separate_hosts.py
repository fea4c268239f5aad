"""A pipeline on a Spark cluster whose machines see neither the broker's files nor each other's (`separate_hosts.py`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.network import allowed
from tests.protocol.kafka.java_clients import Unavailable, jars_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
HADOOP_S3 = (  # as Hadoop 3.5's own description of hadoop-aws names them
    "org.apache.hadoop:hadoop-aws:3.5.0",
    "software.amazon.awssdk:bundle:2.35.4",
    "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
)


def test_machines_that_share_only_a_network_run_a_pipeline_exactly_once(tmp_path: Path) -> None:
    if not allowed():
        pytest.skip("network namespaces are not permitted here (root, unshare and ip are needed)")
    try:
        jars = jars_of(*HADOOP_S3)
    except Unavailable as error:
        pytest.skip(str(error))
    command = ["unshare", "--net", "--mount", sys.executable, "-m", "tests.pipeline.separate_hosts"]
    done = subprocess.run([*command, str(tmp_path), jars], check=False, capture_output=True, text=True, timeout=1400)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert done.stdout.rstrip().endswith("well"), done.stdout
