"""Are the SQL, the conditions and the schemas of a file well-formed? Asked of Spark's own parser, or of sqlglot.

Spark's parser needs a Java process, but no session: it is there within a second or two. Without Java sqlglot looks at the
statements and conditions; it is laxer than Spark. Whether columns and tables exist is found out when the flow is run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mainstem.model.errors import ConfigError
from mainstem_pipeline.pipeline.document import Problem

STATEMENT, CONDITION, SCHEMA = "SQL", "condition", "schema"


@dataclass(frozen=True, slots=True)
class Phrase:
    """A piece of SQL in a file, and its line."""

    line: int
    kind: str  # STATEMENT | CONDITION | SCHEMA
    text: str
    what: str  # "flow f: sql", "flow f: rule r", ...


def syntax_problems(phrases: list[Phrase]) -> tuple[list[Problem], str]:
    """What does not parse, and a note if Spark could not be asked."""
    if not phrases:
        return [], ""
    try:
        with _spark_parser() as parse:
            return _asked(phrases, parse), ""
    except (ConfigError, ImportError, OSError) as error:
        reason = error.message if isinstance(error, ConfigError) else str(error)
        try:
            return _asked(phrases, _glot), f"SQL was looked at by sqlglot only, not by Spark: {reason}"
        except ImportError:
            return [], f"SQL was not looked at: {reason}"


def _asked(phrases: list[Phrase], parse: Callable[[Phrase], str]) -> list[Problem]:
    found = [(one, parse(one)) for one in phrases]
    return [Problem(one.line, f"{one.what}: {said}") for one, said in found if said]


@contextmanager
def _spark_parser() -> Iterator[Callable[[Phrase], str]]:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from mainstem_pipeline.pipeline.failures import reason_of
    from mainstem_pipeline.session import spark_java

    with spark_java() as jvm:
        parser: Any = jvm.org.apache.spark.sql.execution.SparkSqlParser()
        calls = {STATEMENT: parser.parsePlan, CONDITION: parser.parseExpression, SCHEMA: parser.parseTableSchema}

        def parse(one: Phrase) -> str:
            try:
                calls[one.kind](one.text)
            except Py4JJavaError as error:
                return reason_of(str(error.java_exception.getMessage()))
            except PySparkException as error:  # what Java's becomes once a session was started in this process
                return reason_of(str(error))
            return ""

        yield parse


def _glot(one: Phrase) -> str:
    import sqlglot
    from sqlglot.errors import SqlglotError

    if one.kind == SCHEMA:
        return ""
    text = one.text if one.kind == STATEMENT else f"select {one.text}"
    try:
        found = sqlglot.parse(text, read="spark")
    except SqlglotError as error:
        return str(error).splitlines()[0]
    return (
        ""
        if len(found) == 1 and not isinstance(found[0], sqlglot.exp.Alias | sqlglot.exp.Command)
        else "this is not a query"
    )
