"""A broker starts while the object store refuses some requests: it tries again for a while, then says what mends it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mainstem.cluster.checks import join
from mainstem.storage.tier.patience import START_S, Patience
from mainstem.storage.tier.store import StoreAway, StoreSettings
from mainstem.testing.process import BrokerProcess, lasting_ports
from tests.cluster.kit import new_database
from tests.contract.postgres_server import PostgresServer
from tests.s3_faults import FaultProxy, fault_proxy
from tests.s3_server import S3Server, s3_server

pytestmark = pytest.mark.timeout(300)  # of a busy machine


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("store")) as started:
        yield started


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(server.endpoint) as before_it:
        yield before_it


def broker_of(directory: Path, postgres: PostgresServer, server: S3Server, proxy: FaultProxy) -> BrokerProcess:
    return BrokerProcess(
        directory / "a",
        f"cluster.postgres={new_database(postgres)}",
        f"tier.store=s3://bucket/{directory.name}",
        f"tier.endpoint={proxy.endpoint}",
        f"cluster.relay_port={lasting_ports(1)[0]}",
        "cluster.name=a",
        "cluster.single_postgres=true",
        environment=server.environment,
    )


@pytest.mark.parametrize(
    "fault",
    ["503", pytest.param("500", marks=pytest.mark.slow), "reset", pytest.param("lost", marks=pytest.mark.slow)],
)
def test_a_store_that_fails_each_request_twice_delays_a_start(
    fault: str, tmp_path: Path, postgres: PostgresServer, server: S3Server, proxy: FaultProxy
) -> None:
    proxy.faults["*"] = f"{fault}*2"
    with broker_of(tmp_path, postgres, server, proxy) as broker:
        deadline = time.monotonic() + 60
        while "serving cell 1," not in broker.log():
            assert broker.running, broker.log()
            assert time.monotonic() < deadline, broker.log()
            time.sleep(0.05)
        assert "does not serve yet" in broker.log()


@pytest.mark.slow
def test_a_store_that_refuses_for_longer_ends_a_start_with_what_it_answered_and_what_mends_it(
    tmp_path: Path, postgres: PostgresServer, server: S3Server, proxy: FaultProxy
) -> None:
    proxy.faults["*"] = "503"
    began = time.monotonic()
    with pytest.raises(RuntimeError) as told, broker_of(tmp_path, postgres, server, proxy):
        pass
    assert START_S - 1 < time.monotonic() - began < START_S + 20
    said = str(told.value)
    for expected in (
        f"s3://bucket/{tmp_path.name}",
        f"at {proxy.endpoint}",
        "SlowDown: Please reduce your request rate.",
        "mainstem cluster doctor",
        "tier.endpoint",
    ):
        assert expected in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_whoever_stops_a_broker_that_waits_for_the_store_does_not_wait_for_it(
    tmp_path: Path, postgres: PostgresServer, server: S3Server, proxy: FaultProxy
) -> None:
    proxy.faults["*"] = "503"
    broker = broker_of(tmp_path, postgres, server, proxy)
    with ThreadPoolExecutor(1) as starting:
        started = starting.submit(broker.start)
        deadline = time.monotonic() + 60
        while not broker.log_path.exists() or "does not serve yet" not in broker.log():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        began = time.monotonic()
        broker.signal(signal.SIGINT)
        with pytest.raises(RuntimeError, match="ended at once"):
            started.result()
        assert time.monotonic() - began < 5


def test_whoever_starts_over_is_told_at_once_and_waits_elsewhere(
    tmp_path: Path, postgres: PostgresServer, server: S3Server, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    proxy.faults["*"] = "503"
    store = StoreSettings(f"s3://bucket/{tmp_path.name}", proxy.endpoint)
    with pytest.raises(StoreAway, match="SlowDown"):
        join(new_database(postgres), store, single_postgres=True, patience=Patience(store, 0.0))
    assert proxy.requests["PUT"] == 1
