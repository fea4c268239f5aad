"""The style rules that a machine can hold. They only ever get tighter."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
FILE_LINES_MAX = 600
COMPILED_LINES_MAX = 650  # a hot loop and what it inlines stay in one file
FUNCTION_LINES_MAX = 70
COMPILED_FUNCTION_LINES_MAX = 80
METHODS_MAX = 40  # properties are not counted
BY_NAME = {
    "mainstem.admin.api_reference",  # python -m: writes docs/http-api.md
    "mainstem.admin.metrics.reference",  # python -m: writes docs/metrics.md
    "mainstem.metadata.postgres",  # another store of the same contract, for whoever configures it
    "mainstem_pipeline.lake.rebuild",  # how stored bytes come back from a table
}
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


@pytest.mark.parametrize("path", sorted((ROOT / "src").rglob("*.pyx")), ids=shown)
def test_a_compiled_function_is_not_much_longer(path: Path) -> None:
    """No parser of Python reads these files: a function ends where its indentation does."""
    lines, long = path.read_text().splitlines(), []
    for start, line in enumerate(lines):
        found = re.match(r"( *)(?:cpdef|cdef(?! class)|def)\b[^=]*\(", line)
        if found is None:
            continue
        inside = f"{found[1]} "
        end = next(
            (n for n in range(start + 1, len(lines)) if lines[n].strip() and not lines[n].startswith(inside)),
            len(lines),
        )
        while not lines[end - 1].strip():
            end -= 1
        if end - start > COMPILED_FUNCTION_LINES_MAX:
            long.append(f"{line.strip()} {end - start} lines")
    assert not long


def test_every_module_is_imported_by_the_product() -> None:
    """What only tests import is dead, but for what is made for tests, and what is run by its name."""
    texts = {path: path.read_text() for folder in ("src", "bench", "examples") for path in all_code(ROOT / folder)}
    entry_points = (ROOT / "pyproject.toml").read_text()
    dead = []
    for path in [*SOURCES, *(ROOT / "src").rglob("*.pyx")]:
        name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        package, _, last = name.rpartition(".")
        if last.startswith("__") or package == "mainstem.testing" or name in BY_NAME or name in entry_points:
            continue
        known = re.compile(
            rf"\b{re.escape(name)}\b|from {re.escape(package)} c?import (\([^)]*|[^\n]*)\b{last}\b|[\"'.]{last}[:\"']"
        )
        # Most texts do not hold the name at all: a look for it spares the search, which takes minutes on a busy machine.
        if not any(last in text and known.search(text) for where, text in texts.items() if where != path):
            dead.append(name)
    assert not dead


def all_code(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.suffix in (".py", ".pyx", ".pxd")]


def test_no_module_is_named_after_nothing() -> None:
    assert not [shown(path) for path in SOURCES if path.stem in BANNED_NAMES or path.parent.name in BANNED_NAMES]


def test_nothing_is_left_for_later() -> None:
    marker = re.compile(r"#\s*(TODO|FIXME|XXX|HACK)\b")
    assert not [shown(path) for path in SOURCES if marker.search(path.read_text())]


@pytest.mark.parametrize("path", sorted((ROOT / "src").rglob("*.pyi")), ids=shown)
def test_a_stub_names_only_what_its_compiled_module_has(path: Path) -> None:
    module = importlib.import_module(".".join(path.relative_to(ROOT / "src").with_suffix("").parts))
    missing = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and not hasattr(module, node.name):
            missing.append(node.name)
        elif isinstance(node, ast.ClassDef) and "Protocol" not in map(ast.unparse, node.bases):
            there = getattr(module, node.name, None)
            missing += [f"{node.name}.{name}" for name in names_in(node) if not hasattr(there, name)]
    assert not missing


def test_every_pyx_is_a_module_that_can_be_imported() -> None:
    """Its path is its name: nothing else says what is compiled, so nothing can be left out."""
    sources = sorted((ROOT / "src").rglob("*.pyx"))
    for path in sources:
        importlib.import_module(".".join(path.relative_to(ROOT / "src").with_suffix("").parts))
    assert len(sources) >= 35


def names_in(node: ast.ClassDef) -> list[str]:
    functions = [item.name for item in node.body if isinstance(item, ast.FunctionDef)]
    return functions + [item.target.id for item in node.body if isinstance(item, ast.AnnAssign)]  # type: ignore[union-attr]


def test_the_architecture_names_every_folder() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    folders = [path.name for path in (ROOT / "src" / "mainstem").iterdir() if path.is_dir() and path.name[0] != "_"]
    assert not [name for name in folders if f"`{name}/`" not in text]


@pytest.mark.parametrize("drawing", ["way-of-a-message.svg"])
def test_every_file_that_a_drawing_names_exists(drawing: str) -> None:
    named = re.findall(r">([\w/]+\.pyx?)<", (ROOT / "docs/img" / drawing).read_text())
    assert len(named) > 20
    assert [name for name in named if not (ROOT / "src/mainstem" / name).exists()] == []


@pytest.mark.parametrize("path", SOURCES, ids=shown)
def test_a_class_has_one_subject(path: Path) -> None:
    crowded = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            methods = sum(
                isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
                and not any(isinstance(mark, ast.Name) and mark.id == "property" for mark in item.decorator_list)
                for item in node.body
            )
            if methods > METHODS_MAX:
                crowded.append(f"{node.name}: {methods} methods")
    assert crowded == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=shown)
def test_a_table_of_a_page_is_whole(page: Path) -> None:
    """A blank line inside one ends it: what follows is shown as text with bars."""
    lines, fenced, broken = [*page.read_text().splitlines(), ""], False, []
    for number, line in enumerate(lines[:-1]):
        fenced ^= line.startswith("```")
        begins = line.startswith("|") and not (number and lines[number - 1].startswith("|"))
        if begins and not fenced and not re.match(r"\|[ :|-]+\|$", lines[number + 1]):
            broken.append(f"line {number + 1}: {line[:60]}")
    assert not broken
