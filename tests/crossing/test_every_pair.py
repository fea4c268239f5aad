"""What one protocol publishes, each other reads, live and from history, on every engine and layout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainstem.testing import BrokerProcess
from tests.crossing.matrix import PAGE, Lost, Run, page
from tests.crossing.probes import PROBES
from tests.crossing.speakers import PROTOCOLS, READERS, WITH_HISTORY

# A pairwise cover of engine × layout; `make test-all` runs the whole product.
COVER = [("segment", "shared"), ("memory", "dedicated")]
REST = [("rocksdb", "shared"), ("segment", "dedicated"), ("memory", "shared"), ("rocksdb", "dedicated")]
SETTINGS = [*COVER, *(pytest.param(setting, marks=pytest.mark.slow) for setting in REST)]


@pytest.fixture(scope="module", params=SETTINGS, ids="-".join)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    engine, layout = request.param
    data: Path = tmp_path_factory.mktemp("crossing") / "data"
    with BrokerProcess(data, f"topics.layout={layout}", engine=engine) as broker:
        yield Run(broker)


@pytest.mark.parametrize("writer", PROTOCOLS)
@pytest.mark.parametrize(("when", "reader"), [(when, reader) for when in READERS for reader in READERS[when]])
def test_every_field_arrives(run: Run, when: str, writer: str, reader: str) -> None:
    lost = []
    for probe in PROBES:
        try:
            run.cell(when, probe, writer, reader)
        except Lost as failure:
            lost.append(str(failure))
    assert not lost, "\n".join(lost)


@pytest.mark.parametrize(("when", "reader"), [(when, reader) for when in READERS for reader in READERS[when]])
def test_no_reader_hears_anything_else_or_anything_twice(run: Run, when: str, reader: str) -> None:
    assert run.surplus[when, reader] == []


def test_live_and_history_tell_the_same(run: Run) -> None:
    for probe in PROBES:
        for writer in PROTOCOLS:
            for reader in WITH_HISTORY:
                live, history = (run.cell(when, probe, writer, reader) for when in ("live", "history"))
                assert live == history, f"{probe.row}, {writer} to {reader}"


def test_the_committed_matrix_is_what_was_observed(run: Run) -> None:
    assert PAGE.read_text() == page(run), "docs/crossing.md is out of date: .venv/bin/python -m tests.crossing.matrix"
