"""A YAML file with the line of everything in it, so that each problem can say where it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mainstem.model.errors import ConfigError

Place = tuple[str | int, ...]
FILE_BYTES_MAX = 1 << 20
DEPTH_MAX = 50
PLACES_MAX = 100_000  # aliases can make a small file large
TOO_MUCH = "too much is nested here"


@dataclass(frozen=True, slots=True)
class Problem:
    line: int
    what: str
    hint: str = ""

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}" + (f" ({self.hint})" if self.hint else "")


class BadPipeline(ConfigError):
    """Everything that is wrong with a file, at once."""

    code = "MS-7001"

    def __init__(self, path: Path, problems: list[Problem]) -> None:
        self.path, self.problems = path, sorted(problems, key=lambda one: one.line)
        count = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
        lines = "".join(f"\n  {path.name}:{one.line}: {_rest(one)}" for one in self.problems)
        super().__init__(f"{path}: {count}{lines}", fix=f"mainstem pipeline validate {path}")


def _rest(problem: Problem) -> str:
    return problem.what + (f"; {problem.hint}" if problem.hint else "")


@dataclass(slots=True)
class Document:
    path: Path
    content: Any
    lines: dict[Place, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line(self, *place: str | int) -> int:
        """The line of a place, or of the nearest place around it."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)

    def problem(self, place: Place, what: str, hint: str = "") -> None:
        self.problems.append(Problem(self.line(*place), what, hint))


def read_document(path: Path) -> Document:
    """Parse; syntax errors and duplicate keys are problems too."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"{path} is larger than {FILE_BYTES_MAX} bytes")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}", fix="give the path of a pipeline's YAML file"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a text in UTF-8: {error}", fix="save it as UTF-8") from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        raise BadPipeline(path, [Problem(line, f"not valid YAML: {error.problem}", error.context or "")]) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise BadPipeline(path, [Problem(line, f"not valid YAML: {error.reason}")]) from None
    document = Document(path, None)
    if root is not None:
        document.content = _content(root, (), document)
    return document


def _content(node: yaml.Node, place: Place, document: Document) -> Any:
    if len(place) > DEPTH_MAX or len(document.lines) > PLACES_MAX:
        if not any(one.what == TOO_MUCH for one in document.problems):
            document.problem(place, TOO_MUCH, "does an alias stand within what it names?")
        return None
    document.lines[place] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            at = (*place, key)
            if key in found:
                first = document.line(*at)
                document.lines[at] = key_node.start_mark.line + 1
                document.problem(at, f"{key!r} is there twice", f"the first is in line {first}")
            found[key] = _content(value_node, at, document)
            document.lines[at] = key_node.start_mark.line + 1
        return found
    if isinstance(node, yaml.SequenceNode):
        return [_content(one, (*place, index), document) for index, one in enumerate(node.value)]
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node)
    except yaml.YAMLError as error:
        document.problem(place, f"cannot read {node.value!r}: {error}")
        return None
