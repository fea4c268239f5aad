"""One broker process for what attacks it: a broker that hangs is killed, and takes no test run with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mainstem.testing import BrokerProcess


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Every port of it, in memory, logins limited to a second; each test of a module finds it alive."""
    directory = tmp_path_factory.mktemp("attacked") / "data"
    with BrokerProcess(directory, "limits.login_ms=1s", engine="memory") as broker:
        yield broker
