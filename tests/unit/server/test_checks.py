"""What `mainstem doctor` says of an object store and the catalog of its tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainstem.server.checks import _object_store


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "bucket").mkdir()
    return tmp_path / "mainstem.toml"


def checks(config: Path, **tier: str) -> dict[str, tuple[str, str]]:
    store = {"store": f"file://{config.parent / 'bucket'}", **tier}
    config.write_text("[tier]\n" + "".join(f'{name} = "{value}"\n' for name, value in store.items()))
    return {one.name: (one.state, one.reason) for one in _object_store(str(config), config.parent / "data")}


def test_the_catalog_is_asked_where_one_is_named(config: Path) -> None:
    assert list(checks(config)) == ["object store"]
    found = checks(config, catalog=f"sqlite:///{config.parent / 'catalog.db'}")
    assert found["object store"][0] == "ok"
    assert found["iceberg catalog"] == ("ok", "it answers, and has 0 namespaces")


def test_a_catalog_that_does_not_answer_is_told_without_its_password(config: Path) -> None:
    for url in ("postgresql+psycopg2://me:secret@127.0.0.1:9/db", "http://127.0.0.1:9", "nonsense"):
        found = checks(config, catalog=url)
        assert found["object store"][0] == "ok"
        state, reason = found["iceberg catalog"]
        assert state == "bad"
        assert "secret" not in reason
