"""Every test of the codec runs twice: on the compiled modules and on the plain reference."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest

IMPLEMENTATIONS = {
    "compiled": ("mainstem.codec._batch", "mainstem.codec._frames", "mainstem.codec._records"),
    "plain": (
        "mainstem.codec._batch_reference",
        "mainstem.codec._frames_reference",
        "mainstem.codec._records_reference",
    ),
}


def load(name: str) -> SimpleNamespace:
    modules = [importlib.import_module(module) for module in IMPLEMENTATIONS[name]]
    return SimpleNamespace(**{key: value for module in modules for key, value in vars(module).items()})


@pytest.fixture(params=list(IMPLEMENTATIONS))
def codec(request: pytest.FixtureRequest) -> SimpleNamespace:
    try:
        return load(request.param)
    except ImportError:
        pytest.skip("the compiled modules are not built: cythonize -3 -i src/mainstem/codec/_*.pyx")


@pytest.fixture
def both() -> tuple[SimpleNamespace, SimpleNamespace]:
    """(compiled, plain), to be held equal."""
    try:
        return load("compiled"), load("plain")
    except ImportError:
        pytest.skip("the compiled modules are not built: cythonize -3 -i src/mainstem/codec/_*.pyx")
