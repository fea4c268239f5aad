"""The style rules that a machine can hold. They only ever get tighter."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from mainstem.model.compiled import MODULES

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
FILE_LINES_MAX = 600
COMPILED_LINES_MAX = 650  # a hot loop and what it inlines stay in one file
FUNCTION_LINES_MAX = 70
BANNED_NAMES = {"utils", "util", "common", "core", "helpers", "helper", "manager", "misc", "base"}


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [*SOURCES, *sorted((ROOT / "src").rglob("*.pyx"))], ids=shown)
def test_a_source_file_can_be_read_in_one_sitting(path: Path) -> None:
    limit = FILE_LINES_MAX if path.suffix == ".py" else COMPILED_LINES_MAX
    assert len(path.read_text().splitlines()) <= limit


@pytest.mark.parametrize("path", SOURCES, ids=shown)
def test_a_function_fits_on_a_screen(path: Path) -> None:
    long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert not long


def test_no_module_is_named_after_nothing() -> None:
    assert not [shown(path) for path in SOURCES if path.stem in BANNED_NAMES or path.parent.name in BANNED_NAMES]


def test_nothing_is_left_for_later() -> None:
    marker = re.compile(r"#\s*(TODO|FIXME|XXX|HACK)\b")
    assert not [shown(path) for path in SOURCES if marker.search(path.read_text())]


def test_every_compiled_module_is_built_and_counted() -> None:
    """One that is built but not listed would be used beside plain ones; one listed but not built never exists."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    built = {module["name"] for module in project["tool"]["setuptools"]["ext-modules"]}
    sources = {".".join(path.relative_to(ROOT / "src").with_suffix("").parts) for path in (ROOT / "src").rglob("*.pyx")}
    assert built == sources
    assert set(MODULES) <= built


def test_the_architecture_names_every_folder() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    folders = [path.name for path in (ROOT / "src" / "mainstem").iterdir() if path.is_dir() and path.name[0] != "_"]
    assert not [name for name in folders if f"`{name}/`" not in text]
