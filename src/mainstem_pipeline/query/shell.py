"""`mainstem sql`: statements over topics, views and tables; results as a table, CSV, JSON lines or Parquet."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

import click

from mainstem.model.errors import InvalidArgument, MainstemError
from mainstem_pipeline.lake.catalog import LakeOptions
from mainstem_pipeline.pipeline.failures import reason_of, understood
from mainstem_pipeline.query.predicates import quoted
from mainstem_pipeline.query.relations import Relations
from mainstem_pipeline.query.results import opened, print_result
from mainstem_pipeline.session import SparkOptions, retried, start_session, state_directory
from mainstem_pipeline.slices import DataLoss

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RELATIONS_MAX = 50  # in one statement
ANSWERS_MAX = 3  # attempts, when data moves from the log to a table while it is read
HISTORY_LINES_MAX = 1_000
# Spark's errors for a name that it does not know, and where they say it; the second is of names of three parts and more.
UNKNOWN = {"TABLE_OR_VIEW_NOT_FOUND": "relationName", "REQUIRES_SINGLE_PART_NAMESPACE": "identifier"}
T = TypeVar("T")
_PART = re.compile(r"`((?:[^`]|``)*)`|([^.`]+)")
_STRING = re.compile(r"('(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\")")


class SqlShell:
    def __init__(
        self,
        url: str,
        warehouse: str,
        catalog: str,
        master: str,
        announce: Callable[[str], None],
        *,
        fast_start: bool = False,
        accept_loss: bool = False,
    ) -> None:
        self._broker = {"url": url}
        self._accept_loss = accept_loss
        self._lake = LakeOptions(warehouse, catalog)
        self._options = SparkOptions(master=master, name="mainstem sql", announce=announce, fast_start=fast_start)
        self._spark: SparkSession | None = None
        self._stops = True
        self.notices: list[str] = []  # of the last statement

    def __enter__(self) -> Self:
        os.environ["TZ"] = "UTC"  # pyspark shows times in this process's zone; Spark's own is UTC
        time.tzset()
        self._spark = start_session(self._options)
        return self

    def __exit__(self, *_: object) -> None:
        if self._spark is not None and self._stops:
            self._spark.stop()

    @classmethod
    def over(cls, spark: SparkSession, broker: dict[str, str], lake: LakeOptions) -> SqlShell:
        """In a session that is there already, and stays."""
        shell = cls("", lake.warehouse, lake.catalog, "", lambda text: None)
        shell._spark, shell._broker, shell._lake, shell._stops = spark, broker, lake, False
        return shell

    # -- statements

    def query(self, statement: str) -> DataFrame:
        """The statement with every name it uses as of now; its rows are read when it is asked for them."""
        return self._analysed(statement, self._relations())

    def answer(self, statement: str, ask: Callable[[DataFrame], T]) -> T:
        """What `ask` makes of the statement's rows.

        Between looking up an archive's end and reading the log from there, the archive may have gone on and the log have
        dropped that stretch. Then the lookup is out of date, nothing has been read yet, and it is made again.
        """
        for attempt in range(1, ANSWERS_MAX + 1):
            relations = self._relations()
            frame = self._analysed(statement, relations)
            try:
                answered = retried(lambda frame=frame: ask(frame))  # type: ignore[misc]
                self.notices = relations.json.notices
                return answered
            except MainstemError:
                raise
            except Exception as error:
                told = understood(error, "sql")
                if not isinstance(told, DataLoss) or attempt == ANSWERS_MAX or not relations.moved_on():
                    raise _in_our_words(error) from error
        raise AssertionError("unreachable")

    def _relations(self) -> Relations:
        assert self._spark is not None
        return Relations(self._spark, self._broker, self._lake, accept_loss=self._accept_loss)

    def _analysed(self, statement: str, relations: Relations) -> DataFrame:
        """A name Spark does not know is looked up and made a view until the statement is understood."""
        from pyspark.errors import AnalysisException

        spark = self._spark
        assert spark is not None
        text, views = statement.strip().rstrip(";"), set[str]()
        try:
            for _ in range(RELATIONS_MAX):
                try:
                    return retried(lambda sql=text: spark.sql(sql))  # type: ignore[misc]
                except AnalysisException as error:
                    told = UNKNOWN.get(error.getCondition() or "")
                    if told is None:
                        raise _in_our_words(error) from error
                    parts = name_parts((error.getMessageParameters() or {}).get(told, ""))
                frame = retried(lambda parts=parts: relations.frame(parts))  # type: ignore[misc]
                view = parts[0]
                if len(parts) > 1 or has_other_case(text, parts):
                    view = f"mainstem_{len(views)}_" + re.sub(r"\W", "_", "_".join(parts))
                    text = renamed(text, parts, view)
                frame.createOrReplaceTempView(quoted(view))
                views.add(view)
        finally:
            for view in views:  # the next statement looks again
                spark.catalog.dropTempView(view)
        raise InvalidArgument(f"the statement uses more than {RELATIONS_MAX} relations")

    def run(self, statement: str, *, form: str, output: Path | None, limit: int) -> None:
        if form == "parquet":
            if output is None:
                raise InvalidArgument("Parquet needs a folder to go to", fix="--output DIR")
            self.answer(statement, lambda frame: frame.write.mode("errorifexists").parquet(str(output)))
        else:
            with opened(output) as out:
                self.answer(statement, lambda frame: print_result(frame, form, limit, out))
        for notice in self.notices:
            click.echo(f"note: {notice}", err=True)

    def prompt(self, *, limit: int) -> None:
        """Statements end with `;`; history is kept; \\q or Ctrl-D ends."""
        history = state_directory() / "sql-history"
        with _history(history):
            for statement in _statements():
                try:
                    self.run(statement, form="table", output=None, limit=limit)
                except MainstemError as error:
                    click.echo(
                        f"error[{error.code}] {error}" + (f"\n  fix: {error.fix}" if error.fix else ""), err=True
                    )


def _in_our_words(error: Exception) -> MainstemError:
    told = understood(error, "sql")
    if isinstance(told, DataLoss):
        told.fix = "read what is there with --accept-loss"
        return told
    return InvalidArgument(reason_of(str(error)))


def name_parts(name: str) -> list[str]:
    """`a`.`b/#` as [a, b/#]."""
    return [(one[1] or one[2] or "").replace("``", "`") for one in _PART.finditer(name)]


def has_other_case(text: str, parts: list[str]) -> bool:
    """Whether the name stands there in another case, but before a column: topics differ by case, Spark's names do not."""
    named = _named(parts, re.IGNORECASE, r"(?!\s*\.)")
    exact = _named(parts)
    return any(not exact.fullmatch(found[0]) for piece in _STRING.split(text)[::2] for found in named.finditer(piece))


def renamed(text: str, parts: list[str], view: str) -> str:
    """The statement with the relation's name replaced, outside of strings, however it was quoted."""
    pattern = _named(parts, re.NOFLAG if has_other_case(text, parts) else re.IGNORECASE)
    pieces = _STRING.split(text)
    changed = [piece if index % 2 else pattern.sub(view, piece) for index, piece in enumerate(pieces)]
    made = "".join(changed)
    if made == text:
        raise InvalidArgument(
            f"cannot find {'.'.join(parts)!r} in the statement", fix=f"write it as `{'.'.join(parts)}`"
        )
    return made


def _named(parts: list[str], flags: re.RegexFlag = re.NOFLAG, behind: str = "") -> re.Pattern[str]:
    spelled = r"\s*\.\s*".join(f"(?:`{re.escape(part.replace('`', '``'))}`|{re.escape(part)})" for part in parts)
    return re.compile(rf"(?<![\w.`]){spelled}(?![\w`]){behind}", flags)


# -- the prompt


@contextlib.contextmanager
def _history(path: Path) -> Iterator[None]:
    import readline

    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES_MAX)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            readline.write_history_file(path)


def _statements() -> Iterator[str]:
    held = ""
    while True:
        try:
            line = input("mainstem> " if not held else "       -> ")
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            held = ""
            click.echo()
            continue
        if not held and line.strip() in ("\\q", "quit", "exit"):
            return
        held = f"{held}\n{line}" if held else line
        if held.rstrip().endswith(";"):
            yield held
            held = ""
