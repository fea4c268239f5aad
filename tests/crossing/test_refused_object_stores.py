"""A store that cannot work is refused at the start, and by `mainstem doctor`, with what is wrong and the fix."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainstem.server.checks import _object_store
from mainstem.testing.process import BrokerProcess
from tests.s3_faults import fault_proxy
from tests.s3_server import READER_KEY, READER_SECRET, S3Server, s3_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("store")) as server:
        yield server


WRONG = {
    "a bucket that is not there": ({"store": "s3://nowhere/x"}, {}, "NoSuchBucket", "make the bucket nowhere"),
    "an unknown key": ({}, {"AWS_ACCESS_KEY_ID": "nobody"}, "InvalidAccessKeyId", "check AWS_ACCESS_KEY_ID"),
    "a wrong secret": ({}, {"AWS_SECRET_ACCESS_KEY": "wrong"}, "SignatureDoesNotMatch", "check AWS_ACCESS_KEY_ID"),
    "a missing right": (
        {},
        {"AWS_ACCESS_KEY_ID": READER_KEY, "AWS_SECRET_ACCESS_KEY": READER_SECRET},
        "AccessDenied",
        "allow PutObject, GetObject and DeleteObject",
    ),
    "a clock that is off": ({}, {}, "RequestTimeTooSkewed", "set this machine's clock"),
}
FAULTS = {"a bucket that is not there": "nobucket", "a clock that is off": "skewed"}


@pytest.mark.parametrize("what", WRONG)
def test_a_store_that_cannot_work_is_refused_with_the_fix(
    server: S3Server, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier, environment, code, fix = WRONG[what]
    with fault_proxy(server.endpoint) as proxy:
        if what in FAULTS:
            proxy.faults["*"] = FAULTS[what]
        given = {"store": f"s3://bucket/{uuid.uuid4().hex}", "endpoint": proxy.endpoint, **tier}
        for name, value in {**server.environment, **environment}.items():
            monkeypatch.setenv(name, value)
        said = refusal(tmp_path, given)
        assert code in said
        assert fix in said
        config = tmp_path / "mainstem.toml"
        config.write_text("[tier]\n" + "".join(f'{name} = "{value}"\n' for name, value in given.items()))
        (found,) = _object_store(str(config), tmp_path / "data")
        assert found.state == "bad"
        assert code in found.reason
        assert fix in found.fix


def test_the_prefix_of_another_broker_is_refused_with_both_ways_out(server: S3Server, tmp_path: Path) -> None:
    url = f"s3://bucket/{uuid.uuid4().hex}"
    settings = (f"tier.store={url}", f"tier.endpoint={server.endpoint}")
    with BrokerProcess(tmp_path / "first", *settings, environment=server.environment):
        pass
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        said = refusal(tmp_path, {"store": url, "endpoint": server.endpoint})
    assert "belongs to another broker" in said
    assert f"tier.store = {url}-2" in said
    assert f"mainstem restore {url}" in said


def refusal(folder: Path, tier: dict[str, str]) -> str:
    """What a broker says that does not start."""
    command = [sys.executable, "-m", "mainstem", "serve", "--data", str(folder / "data")]
    for name in ("mqtt", "kafka", "amqp", "nats", "http"):
        command += [f"--{name}-port", "0"]
    for name, value in tier.items():
        command += ["--set", f"tier.{name}={value}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode not in {0, -9}
    return " ".join((ended.stdout + ended.stderr).split())
