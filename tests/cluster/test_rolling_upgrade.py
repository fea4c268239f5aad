"""Brokers of two neighbouring versions in one cluster: each relays to the other, and takes over from it."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.kit import Cluster
from tests.cluster.load import start_all
from tests.cluster.reading import judge, read_topic
from tests.contract.postgres_server import PostgresServer

ROOT = Path(__file__).resolve().parents[2]
COMPILED = ("*.pyx", "*.pxd", "*.pxi", "*.h", "*.c")
NAMESPACE = "tenant"
PREVIOUS = os.environ.get("MAINSTEM_PREVIOUS", "HEAD~1")  # the commit that is older


def previous_build(directory: Path) -> Path:
    """The sources of the commit before this one, compiled."""
    found = subprocess.run(
        ["git", "archive", PREVIOUS, "src", "setup.py", "pyproject.toml", "README.md"],
        cwd=ROOT,
        check=False,
        capture_output=True,
    )
    if found.returncode:
        pytest.skip("the commit before this one is not here")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(directory, filter="data")
    for compiled in (ROOT / "src").rglob("*.so"):
        target = directory / compiled.relative_to(ROOT)
        if target.parent.is_dir():  # else it has moved since, and is built below
            shutil.copy(compiled, target)
    if any(changed(directory, pattern) for pattern in COMPILED):
        build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace", "--force"]
        subprocess.run(build, cwd=directory, check=True, timeout=1200)
    return directory / "src"


def changed(directory: Path, pattern: str) -> bool:
    """Whether files like these are others here than there; what Cython makes of them is not in the commit."""
    there = {path.relative_to(directory): path.read_bytes() for path in (directory / "src").rglob(pattern)}
    return any(not (ROOT / path).exists() or (ROOT / path).read_bytes() != data for path, data in there.items())


def code_of(environment: dict[str, str]) -> Path:
    """Where a broker with these variables has its code from."""
    line = [sys.executable, "-c", "import mainstem; print(mainstem.__file__)"]
    return Path(subprocess.check_output(line, env={**os.environ, **environment}, text=True).strip())


def make_topic(port: int, name: str) -> None:
    """The other version reads its settings when it takes over."""
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
    admin.create_topics([NewTopic(name, 2)])[name].result(20)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_brokers_of_the_commit_before_and_of_this_one_serve_together(tmp_path: Path, postgres: PostgresServer) -> None:
    (tmp_path / "previous").mkdir()
    previous = previous_build(tmp_path / "previous")
    environments = {"old": {"PYTHONPATH": str(previous)}}
    assert code_of(environments["old"]).is_relative_to(previous)
    with Cluster(tmp_path, postgres, "old", "new", environments=environments) as cluster:
        publishers = start_all(cluster)
        if (previous / "mainstem" / "server" / "cell_children.py").exists():  # it knows of several cells
            cluster.run("namespace", "add", NAMESPACE, "--cell", "new", by="new")
            publishers += start_all(cluster, NAMESPACE)
        for owner, other in (("old", "new"), ("new", "old")):
            assert cluster.wait_owner() == owner
            for one in publishers:
                one.wait_acked(20)  # by both: each connection goes to the next broker
            make_topic(cluster[owner].ports["kafka"], f"made-by-{owner}")
            assert cluster[owner].stop() == 0
            assert cluster.wait_owner(other_than=owner) == other
            cluster[owner].start()
        for one in publishers:
            one.wait_acked(20)
            one.stop()
        ports = cluster[cluster.wait_owner()].ports
        assert [read_topic(ports["kafka"], f"made-by-{name}") for name in cluster.brokers] == [[], []]
        assert judge(publishers, ports) == {}
