"""Rows on which a flow's SQL or Python fails (a cast, a division by zero), found so that they die alone.

A batch that failed is looked at again. Where the first SQL takes each row by itself (`select ... from input [join ...]
[where ...]`) each of its expressions is tried over all rows in one pass, with Spark's own TryEval. For what is left (groups,
windows, Python, a sink's expressions) the batch is halved until single rows fail, in at most PROBES_MAX runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mainstem.model.errors import MainstemError
from mainstem_pipeline.pipeline.decoding import REASON, tried
from mainstem_pipeline.pipeline.failures import FlowFailed, is_transient, reason_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PROBES_MAX = 400
IDENTITY = ("_topic", "_partition", "_offset")
NUMBER = "_mainstem_number"
PARTITION_BITS = 33  # of monotonically_increasing_id: the rows of a partition
EAGER = "spark.sql.subexpressionElimination.enabled"  # it computes what expressions share before any of them is tried


@dataclass(frozen=True, slots=True)
class Found:
    """The rows that fail, with `_reason`, and the others."""

    bad: DataFrame
    rest: DataFrame


def failing_rows(
    rows: DataFrame, sql: str, make: Callable[[DataFrame], DataFrame], session: SparkSession
) -> Found | None:
    """Which of `rows` make `make` fail; None if it does not. `sql`: the first step of it, if that is SQL.

    The error itself is raised if no rows can be told apart that it depends on.
    """
    error = _failure(make(rows))
    if error is None:
        return None
    found: list[DataFrame] = []
    marked = _by_expression(rows, sql, session) if sql and set(IDENTITY) <= set(rows.columns) else None
    rest = rows
    if marked is not None:
        found.append(rows.join(marked, [*IDENTITY]).select(*rows.columns, REASON))
        # Apart from the rows that fail for good: Spark would compute conditions on both sides of a join before it.
        rest = rows.join(marked, [*IDENTITY], "left_anti").select(*rows.columns).localCheckpoint()
        error = _failure(make(rest))
    if error is not None:
        halved = _Halving(rest, make, error).found()
        found.append(halved.bad)
        rest = halved.rest
    bad = found[0] if len(found) == 1 else found[0].unionByName(found[1])
    return Found(bad, rest)


def _failure(frame: DataFrame) -> Exception | None:
    """Why the frame cannot be computed; None if it can."""
    try:
        frame.write.format("noop").mode("overwrite").save()
    except Exception as error:
        if isinstance(error, MainstemError) or is_transient(error):
            raise
        return error
    return None


def told(error: Exception) -> str:
    """The expression that failed, if Spark says which, and its sentence."""
    fragments: list[str] = []
    with contextlib.suppress(Exception):  # errors of other kinds have no context
        fragments = [one.fragment() for one in error.getQueryContext()]  # type: ignore[attr-defined]
    where = next((f" at {one}" for one in fragments if one), "")
    return f"SQL failed{where}: {reason_of(str(error))}" if where else reason_of(str(error))


# -- one pass, by expression


def _by_expression(rows: DataFrame, sql: str, session: SparkSession) -> DataFrame | None:
    """The identity of each row that an expression of `sql` fails on, with the expression; None if there is no such row."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    before = session.conf.get(EAGER, "true") or "true"
    session.conf.set(EAGER, "false")
    try:
        rows.createOrReplaceTempView("input")
        parsed = _row_by_row(sql, session)
        if parsed is None:
            return None
        source, reason = parsed
        marked = source.select(*IDENTITY, reason.alias(REASON)).where(F.col(REASON).isNotNull())
        marked = marked.groupBy(*IDENTITY).agg(F.first(REASON).alias(REASON))
        marked = marked.localCheckpoint()  # computed here, with this setting, and never again with another
        return marked if marked.count() else None
    except PySparkException:  # aggregates, windows, names that are no longer one: it is halved
        return None
    finally:
        session.conf.set(EAGER, before)


def _row_by_row(sql: str, session: SparkSession) -> tuple[DataFrame, Column] | None:
    """What stands behind FROM, and the first expression that fails on a row of it."""
    from pyspark.sql import Column, DataFrame
    from pyspark.sql import functions as F

    jvm: Any = session.sparkContext._jvm
    plan = jvm.org.apache.spark.sql.execution.SparkSqlParser().parsePlan(sql)
    if plan.nodeName() != "Project":
        return None
    selected, below = list(_each(plan.projectList())), plan.child()
    condition = None
    if below.nodeName() == "Filter":
        condition, below = below.condition(), below.child()

    def column(expression: Any) -> Column:
        return Column(jvm.org.apache.spark.sql.classic.ExpressionUtils.column(expression))

    def fails(expression: Any) -> Column:
        whole = F.struct(column(expression))  # of a null it is none itself
        return F.when(tried(whole).isNull(), F.lit(f"SQL failed at {_text(expression, sql)}"))

    may_fail = [one for one in selected if one.nodeName() not in ("UnresolvedAttribute", "UnresolvedStar")]
    reasons = [fails(one) for one in may_fail]
    if condition is not None:
        holds = tried(column(condition))
        reasons = [fails(condition), *(F.when(holds, one) for one in reasons)]
    if not reasons:
        return None
    source = DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, below), session)
    return source, F.coalesce(*reasons)


def _each(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(index) for index in range(sequence.size()))


def _text(expression: Any, sql: str) -> str:
    """The expression as the file has it."""
    inner = expression.child() if expression.nodeName() in ("Alias", "UnresolvedAlias") else expression
    origin = inner.origin()
    start, stop = origin.startIndex(), origin.stopIndex()
    if start.isDefined() and stop.isDefined():
        return sql[start.get() : stop.get() + 1]
    return str(inner.sql())


# -- halving


class _Halving:
    def __init__(self, rows: DataFrame, make: Callable[[DataFrame], DataFrame], error: Exception) -> None:
        from pyspark.sql import functions as F

        self._columns, self._make, self._error = rows.columns, make, error
        self._rows = rows.withColumn(NUMBER, F.monotonically_increasing_id()).localCheckpoint()
        self._probes = 0

    def found(self) -> Found:
        """FlowFailed if it takes too many runs, or if the rows fail only together."""
        from pyspark.sql import functions as F

        reasons: dict[int, str] = {}
        for start, end in self._partitions():
            self._search(start, end, reasons)
        numbers = list(reasons)
        rest = self._rows.where(~F.col(NUMBER).isin(numbers)) if numbers else self._rows
        rest = rest.select(*self._columns).localCheckpoint()
        left = _failure(self._make(rest))
        if left is not None or not numbers:
            raise FlowFailed(told(left or self._error)) from left
        reason = F.create_map(*(F.lit(one) for pair in reasons.items() for one in pair))[F.col(NUMBER)]
        bad = self._rows.where(F.col(NUMBER).isin(numbers)).withColumn(REASON, reason)
        return Found(bad.select(*self._columns, REASON), rest)

    def _partitions(self) -> list[tuple[int, int]]:
        """The numbers of each partition's rows, from and up to."""
        from pyspark.sql import functions as F

        number = F.col(NUMBER)
        spans = self._rows.groupBy(F.shiftright(number, PARTITION_BITS)).agg(F.min(number), F.max(number)).collect()
        return sorted((row[1], row[2] + 1) for row in spans)

    def _search(self, start: int, end: int, reasons: dict[int, str]) -> None:
        waiting = [(start, end)]
        while waiting:
            start, end = waiting.pop()
            error = self._probe(start, end)
            if error is None:
                continue
            if end - start == 1:
                reasons[start] = told(error)
                continue
            middle = (start + end) // 2
            waiting += [(middle, end), (start, middle)]

    def _probe(self, start: int, end: int) -> Exception | None:
        from pyspark.sql import functions as F

        self._probes += 1
        if self._probes > PROBES_MAX:
            raise FlowFailed(
                f"{told(self._error)}; more rows fail than {PROBES_MAX} runs can tell apart",
                fix="make the SQL take them (try_cast, try_divide), or name them in rules",
            ) from self._error
        number = F.col(NUMBER)
        return _failure(self._make(self._rows.where((number >= start) & (number < end)).select(*self._columns)))
