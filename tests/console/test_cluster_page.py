"""The page of a cluster with two cells: who owns which, as it changes, at whichever broker it is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.cluster.kit import Cluster
from tests.contract.postgres_server import PostgresServer, binaries

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # of a busy machine
Shoot = Callable[[Page, str], None]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if binaries() is None:
        pytest.skip("no PostgreSQL server is installed (apt install postgresql)")
    server = PostgresServer()
    try:
        with Cluster(tmp_path, server, "a", "b", settings=("cluster.moves_per_hour=0",)) as started:
            started.run("namespace", "add", "factory", "--cell", "new")
            yield started
    finally:
        server.remove()


@pytest.mark.parametrize("opened_at", ["a", "b"])
def test_two_cells_and_two_brokers_are_shown_as_they_change(
    opened_at: str, cluster: Cluster, browser: Browser, shoot: Shoot
) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, base_url=cluster[opened_at].http_url)
    page, said = context.new_page(), list[str]()
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.goto("/cluster")
    expect(page.locator("#cells tr")).to_have_count(2)
    expect(page.locator("#cells tr", has_text="main")).to_contain_text("all others")
    second = page.locator("#cells tr", has_text="factory")
    expect(second.locator("td").nth(2)).to_have_text("b")
    expect(page.locator("#brokers tr")).to_have_count(2)
    shoot(page, "cluster")
    cluster.run_cluster("move", "factory", "a")
    expect(second.locator("td").nth(2)).to_have_text("a")
    expect(second).to_contain_text("it is moved to a")
    expect(page.locator("#brokers tr", has_text="alive").first).to_contain_text("main, factory")
    cluster.run_cluster("drain", "b")
    expect(page.locator("#brokers")).to_contain_text("draining")
    assert said == []
    context.close()
