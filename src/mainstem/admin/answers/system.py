"""What the API answers of the broker as a whole, and to questions."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

from mainstem.admin.answers import says


class HealthCheck(TypedDict):
    name: str
    ok: bool
    reason: str


class DiskFacts(TypedDict):
    total_bytes: int
    free_bytes: int
    space_low: Annotated[bool, says("Publishes are refused for want of space.")]


class OverviewFacts(TypedDict):
    version: str
    uptime_s: float
    ready: Annotated[bool, says("Whether listeners are open.")]
    listeners: Annotated[dict[str, int], says("Port of each.")]
    notices: list[str]
    topics: int
    views: int
    logs: int
    rates: Annotated[dict[str, dict[str, float]], says("By protocol and counter, a second; for admins.")]
    connections: Annotated[dict[str, int], says("By protocol; of one namespace `all`.")]
    loop_lag_ms: float
    resident_bytes: int
    disk: DiskFacts
    health: list[HealthCheck]


class SettingRow(TypedDict):
    key: Annotated[str, says("Its section and name.")]
    value: str
    default: str
    source: Annotated[str, says("default, file, environment or command line.")]
    doc: str
    live: Annotated[bool, says("Whether a reload of the configuration changes it.")]


class LogRow(TypedDict):
    log: int
    engine: str
    shared: Annotated[bool, says("Whether several topics are in it.")]
    durability: str
    start_offset: int
    end_offset: int
    written: int
    stable: Annotated[int, says("Offsets below it are durable.")]
    parts: Annotated[int, says("Segments, or files of its engine.")]
    size_bytes: int


class WorkRow(TypedDict):
    kind: Annotated[str, says("erase or backup.")]
    what: str
    user: Annotated[str, says("Who began it.")]
    done_bytes: int
    total_bytes: int
    seconds: Annotated[float, says("Since it began.")]
    left_s: Annotated[float | None, says("An estimate; null before there can be one.")]


class Series(TypedDict):
    """Columns, as a chart draws them."""

    time: Annotated[list[float], says("Seconds since 1970.")]
    series: Annotated[dict[str, list[float | None]], says("A value for each time; null where there was none.")]


class HistorySeries(Series):
    step_s: Annotated[int, says("Seconds between two points of what is kept.")]


class Column(TypedDict):
    name: str
    type: Annotated[str, says("Arrow's name of it.")]


class Rows(TypedDict):
    columns: list[Column]
    items: Annotated[list[dict[str, Any]], says("Values by column.")]
    more: Annotated[bool, says("Whether there were more than `limit`.")]
    notices: Annotated[list[str], says("What could not be read, and why.")]


class SearchEvent(TypedDict):
    """One of: a hit, how far the search is, the bars, the top values, notices, the end, an error."""

    hit: NotRequired[dict[str, Any]]
    progress: NotRequired[dict[str, Any]]
    buckets: NotRequired[Annotated[list[tuple[int, int]], says("Begin in ms, and hits.")]]
    bucket_ms: NotRequired[int]
    top: NotRequired[Annotated[list[tuple[Any, int]], says("Value, and how often.")]]
    exact: NotRequired[Annotated[bool, says("Whether all values could be counted.")]]
    notices: NotRequired[list[str]]
    done: NotRequired[dict[str, Any]]
    error: NotRequired[dict[str, str]]


class GrafanaHealth(TypedDict):
    status: str


class GrafanaAnswer(TypedDict):
    """A series, or a table."""

    refId: str
    target: NotRequired[str]
    datapoints: NotRequired[Annotated[list[tuple[Any, Any]], says("Value, and milliseconds since 1970.")]]
    type: NotRequired[str]
    columns: NotRequired[list[dict[str, str]]]
    rows: NotRequired[list[list[Any]]]


GrafanaValue = TypedDict("GrafanaValue", {"__text": str, "__value": str})
