"""Every test of the codec runs twice: on the compiled modules and on their oracles."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest

IMPLEMENTATIONS = {
    "compiled": ("mainstem.codec._batch", "mainstem.codec._frames", "mainstem.codec._records"),
    "plain": (
        "tests.oracles.batch",
        "tests.oracles.frames",
        "tests.oracles.records",
    ),
}


def load(name: str) -> SimpleNamespace:
    modules = [importlib.import_module(module) for module in IMPLEMENTATIONS[name]]
    return SimpleNamespace(**{key: value for module in modules for key, value in vars(module).items()})


@pytest.fixture(params=list(IMPLEMENTATIONS))
def codec(request: pytest.FixtureRequest) -> SimpleNamespace:
    return load(request.param)


@pytest.fixture
def both() -> tuple[SimpleNamespace, SimpleNamespace]:
    """(compiled, plain), to be held equal."""
    return load("compiled"), load("plain")
