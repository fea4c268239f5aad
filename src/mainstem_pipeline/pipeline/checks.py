"""From a file to a Pipeline: every problem at once, each with its line and what was probably meant. Without Spark."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from mainstem.model.errors import MainstemError
from mainstem_pipeline.lake.catalog import LakeOptions, identifier
from mainstem_pipeline.options import CONNECTION_OPTIONS
from mainstem_pipeline.pipeline.document import BadPipeline, Document, Place, Problem, read_document
from mainstem_pipeline.pipeline.flow_checks import FlowChecks
from mainstem_pipeline.pipeline.loops import HINT, loops, nodes_of
from mainstem_pipeline.pipeline.model import Decode, Pipeline, SideTable
from mainstem_pipeline.pipeline.syntax import SCHEMA, Phrase, syntax_problems

TOP = ("name", "broker", "state", "lake", "spark", "tables", "flows", "record")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
FLOWS_MAX = 100
STORES = ("file", "s3", "s3a", "gs", "abfs", "hdfs")


def load_pipeline(path: Path) -> Pipeline:
    """The pipeline, or BadPipeline with all that is wrong with the file."""
    document = read_document(path)
    pipeline = PipelineChecks(document).made()
    if document.problems or pipeline is None:
        raise BadPipeline(path, document.problems)
    return pipeline


def load_parsed(path: Path) -> tuple[Pipeline, str]:
    """The same, with its SQL parsed too; and a note if Spark's parser was not there."""
    document = read_document(path)
    checks = PipelineChecks(document)
    pipeline = checks.made()
    problems, note = syntax_problems(checks.phrases)
    if document.problems or problems or pipeline is None:
        raise BadPipeline(path, [*document.problems, *problems])
    return pipeline, note


class Checks:
    """Asking a document for what should be there, noting what is not."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.phrases: list[Phrase] = []  # SQL of the file, to be parsed where a parser is at hand

    def phrase(self, place: Place, kind: str, text: str) -> None:
        if text:
            self.phrases.append(Phrase(self.document.line(*place), kind, text, _shown(place)))

    def problem(self, place: Place, what: str, hint: str = "") -> None:
        self.document.problem(place, what, hint)

    def mapping(self, value: Any, place: Place, known: tuple[str, ...]) -> dict[str, Any]:
        """A mapping with only known names; what is unknown is a problem with a suggestion."""
        if not isinstance(value, dict):
            self.problem(place, f"{_shown(place)} must be a mapping", f"with {', '.join(known)}")
            return {}
        for name in value:
            if name not in known:
                close = get_close_matches(name, known, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
                self.problem((*place, name), f"unknown word {name!r} in {_shown(place)}", hint)
        return value

    def text(self, value: Any, place: Place, *, default: str = "", required: bool = False) -> str:
        if value is None:
            if required:
                self.problem(place, f"{_shown(place)} is missing")
            return default
        if isinstance(value, bool | dict | list):
            self.problem(place, f"{_shown(place)} must be a text, not {_kind(value)}")
            return default
        return str(value).strip()

    def number(self, value: Any, place: Place, default: float, *, least: float, most: float) -> float:
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            self.problem(place, f"{_shown(place)} must be a number from {least:g} to {most:g}, not {value!r}")
            return default
        return float(value)

    def one_of(self, value: str, place: Place, allowed: tuple[str, ...]) -> str:
        if value not in allowed:
            close = get_close_matches(value, allowed, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"allowed are {', '.join(allowed)}"
            self.problem(place, f"{_shown(place)} cannot be {value!r}", hint)
            return allowed[0]
        return value

    def checked(self, place: Place, check: Callable[[], object]) -> None:
        """Note what the check raises."""
        try:
            check()
        except MainstemError as error:
            self.problem(place, error.message, error.fix)

    def texts(self, value: Any, place: Place) -> dict[str, str]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.problem(place, f"{_shown(place)} must be a mapping of names to texts")
            return {}
        return {str(name): self.text(one, (*place, name)) for name, one in value.items()}

    def file(self, name: str, place: Place) -> Path | None:
        """A file named relative to the pipeline's own."""
        path = (self.document.path.parent / name).resolve()
        if not path.is_file():
            near = get_close_matches(
                path.name, [one.name for one in path.parent.glob("*")] if path.parent.is_dir() else [], 1
            )
            self.problem(place, f"there is no file {path}", f"did you mean {near[0]}?" if near else "")
            return None
        return path


def _shown(place: Place) -> str:
    parts = [f"[{part}]" if isinstance(part, int) else str(part) for part in place]
    return ".".join(parts).replace(".[", "[") or "the file"


def _kind(value: Any) -> str:
    return {bool: "true or false", dict: "a mapping", list: "a list"}[type(value)]


class PipelineChecks(Checks):
    def made(self) -> Pipeline | None:
        content = self.document.content
        if content is None:
            self.problem((), "the file is empty", "it needs name and flows; see docs/pipelines.md")
            return None
        content = self.mapping(content, (), TOP)
        name = self.text(content.get("name"), ("name",), required=True)
        if name and not NAME.fullmatch(name):
            self.problem(("name",), f"name {name!r} must be letters, digits, - and _, beginning with a letter")
        lake = self._lake(content.get("lake"))
        tables = self._tables(content.get("tables"), lake)
        flows = self._flows(content.get("flows"), name, lake)
        state = self.text(content.get("state"), ("state",), default=f".mainstem/{name}")
        return Pipeline(
            path=self.document.path,
            name=name,
            flows=flows,
            broker=self._broker(content.get("broker")),
            lake=lake,
            state=self._place(state, ("state",)),
            spark=self._spark(content.get("spark")),
            tables=tables,
            record=content.get("record") is not False,
        )

    def _place(self, text: str, place: Place) -> str:
        """A folder beside the file, or a URL of a store that pyarrow and Hadoop know."""
        scheme, found, _ = text.partition("://")
        if found and scheme not in STORES:
            hint = f"a folder, or one of {', '.join(f'{one}://' for one in STORES)}"
            self.problem(place, f"{_shown(place)}: there is no store {scheme}://", hint)
        return text if found else str((self.document.path.parent / text).absolute())

    def _broker(self, value: Any) -> dict[str, str]:
        if value is None:
            return {}
        told = self.mapping(value, ("broker",), CONNECTION_OPTIONS)
        return {name: self.text(one, ("broker", name)) for name, one in told.items()}

    def _spark(self, value: Any) -> dict[str, str]:
        settings = self.texts(value, ("spark",))
        for name in settings:
            if not name.startswith("spark."):
                self.problem(("spark", name), f"{name!r} is not a Spark setting", f"did you mean spark.{name}?")
        return settings

    def _lake(self, value: Any) -> LakeOptions | None:
        if value is None:
            return None
        told = self.mapping(value, ("lake",), ("warehouse", "catalog", "properties"))
        warehouse = self.text(told.get("warehouse"), ("lake", "warehouse"), required=True)
        warehouse = self._place(warehouse, ("lake", "warehouse")) if warehouse else ""
        catalog = self.text(told.get("catalog"), ("lake", "catalog"))
        if warehouse and "://" in warehouse and not warehouse.startswith("file://") and not catalog:
            self.problem(
                ("lake",), "a warehouse that is not a folder needs a catalog", "catalog: sqlite:////var/lib/catalog.db"
            )
        return LakeOptions(warehouse, catalog, self.texts(told.get("properties"), ("lake", "properties")))

    def _tables(self, value: Any, lake: LakeOptions | None) -> tuple[SideTable, ...]:
        if value is None:
            return ()
        if not isinstance(value, dict):
            self.problem(("tables",), "tables must be a mapping of names to tables")
            return ()
        return tuple(made for name, one in value.items() if (made := self._table(str(name), one, lake)) is not None)

    def _table(self, name: str, value: Any, lake: LakeOptions | None) -> SideTable | None:
        place: Place = ("tables", name)
        kinds = ("csv", "json", "parquet", "table", "topic")
        told = self.mapping(value, place, (*kinds, "schema", "decode"))
        if name == "input":
            self.problem(place, "a table cannot be called 'input': that is what a flow reads")
        chosen = [kind for kind in kinds if kind in told]
        if len(chosen) != 1:
            self.problem(place, f"tables.{name} needs exactly one of {', '.join(kinds)}")
            return None
        kind, target = chosen[0], self.text(told[chosen[0]], (*place, chosen[0]), required=True)
        if kind == "table":
            self.needs_lake(lake, (*place, kind), target)
        elif kind != "topic" and "://" not in target:
            path = (self.document.path.parent / target).resolve()
            if not path.exists():
                self.problem((*place, kind), f"there is nothing at {path}")
            target = str(path)
        decode = FlowChecks(self, lake).decode(told.get("decode"), (*place, "decode")) if kind == "topic" else Decode()
        schema = self.text(told.get("schema"), (*place, "schema"))
        self.phrase((*place, "schema"), SCHEMA, schema)
        return SideTable(name, kind, target, schema, decode)

    def needs_lake(self, lake: LakeOptions | None, place: Place, table: str) -> None:
        if lake is None:
            self.problem(place, f"table {table!r} needs a lake", "add at the top: lake: {warehouse: ./lake}")
        self.checked(place, lambda: identifier(table))

    def _flows(self, value: Any, pipeline: str, lake: LakeOptions | None) -> Any:
        if not isinstance(value, list) or not value:
            self.problem(("flows",), "flows must be a list with at least one flow", "see docs/pipelines.md")
            return ()
        if len(value) > FLOWS_MAX:
            self.problem(("flows",), f"{len(value)} flows, at most {FLOWS_MAX} are allowed in one file")
        flows, names = [], set[str]()
        for index, one in enumerate(value):
            flow = FlowChecks(self, lake).flow(one, ("flows", index), pipeline)
            if flow is None:
                continue
            if flow.name in names:
                self.problem(("flows", index, "name"), f"two flows are called {flow.name!r}")
            names.add(flow.name)
            flows.append(flow)
        for loop in loops(nodes_of(pipeline, flows)):
            if loop.is_sure:
                self.document.problems.append(Problem(loop.nodes[0].line, str(loop), HINT))
        return tuple(flows)
