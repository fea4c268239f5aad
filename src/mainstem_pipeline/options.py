"""The options of `format("mainstem")`: the Kafka source's names and rules, plus `filter` and `view`.

| option | |
|---|---|
| `url`, `user`, `password`, `namespace` | the broker's HTTP address (default `$MAINSTEM_URL`, then http://127.0.0.1:7070) |
| `subscribe`, `subscribePattern`, `assign` | topics, as for Kafka; a name with `/` is an MQTT spelling |
| `filter`, `view` | any topic filter over all history, or a view; one of the five is required |
| `startingOffsets`, `endingOffsets` | earliest, latest, `stamp:<µs>`, `table:<name>`, or JSON `{"topic": {"0": 23}}` |
| `startingTimestamp`, `endingTimestamp` | milliseconds; also `...OffsetsByTimestamp` as JSON |
| `maxOffsetsPerTrigger`, `minPartitions`, `maxRecordsPerPartition`, `failOnDataLoss` | as for Kafka |
| `columns` | kafka (default of the first three), all (default of the last two), or a list of names |
| `includeHeaders` | add the column `headers` |
| `pushdown` | true: push filters on topic, partition and offset down (needs Spark's setting, see docs/spark.md) |
| `direct` | false: never read the broker's files, always through the broker |
| `compress` | true, false: of frames that come through the broker; by default those from another machine are |
| `warehouse`, `catalog`, `s3.*` | where the lake of `table:<name>` is |
| `descriptors` | true: rows are tasks to be read elsewhere, as the lakehouse's archive does |
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from mainstem.codec.arrow_rows import COLUMNS, KAFKA_COLUMNS, OWN_COLUMNS
from mainstem.model.errors import InvalidArgument
from mainstem_pipeline.client import DEFAULT_PORT, DEFAULT_URL, RETRY_S, BrokerClient

PUSHDOWN = "MAINSTEM_SPARK_PUSHDOWN"  # set by sessions of ours: Spark refuses it where its own setting is off
EARLIEST, LATEST = -2, -1
OFFSET_MAX = (1 << 63) - 1
BATCH_ROWS = 32_768

SELECTIONS = ("subscribe", "subscribePattern", "assign", "filter", "view")
SOURCE_OPTIONS = (
    *SELECTIONS,
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "columns",
    "includeHeaders",
    "pushdown",
    "direct",
    "batchRows",
    "taskBytes",
    "catalog",
    "warehouse",
    "descriptors",
)
CONNECTION_OPTIONS = ("url", "user", "password", "namespace", "retrySeconds", "compress")


@dataclass(frozen=True, slots=True)
class Connection:
    url: str = DEFAULT_URL
    user: str = ""
    password: str = ""
    namespace: str = ""
    retry_s: float = RETRY_S
    compress: bool | None = None  # frames that come through the broker; None: where it is on another machine

    def client(self) -> BrokerClient:
        return BrokerClient(
            self.url, user=self.user, password=self.password, namespace=self.namespace, retry_s=self.retry_s
        )


@dataclass(frozen=True, slots=True)
class Position:
    """A starting or ending point: one word for all, or offsets by topic and partition, or times."""

    word: str = ""  # earliest | latest | stamp:<µs> | table:<name>
    offsets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    time_ms: int | None = None
    times_ms: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Clip:
    """What pushed-down filters leave of a read."""

    first: int = 0
    end: int = OFFSET_MAX
    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    time_ms: int = 0  # nothing older is asked for
    keys: frozenset[bytes] | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    connection: Connection
    select: Mapping[str, Any]
    start: Position
    end: Position
    columns: tuple[str, ...]
    rows_per_trigger_max: int | None = None
    bytes_per_trigger_max: int | None = None
    slices_min: int = 0
    slice_rows_max: int = 0
    fail_on_data_loss: bool = True
    latest_if_no_time: bool = False
    pushdown: bool = False
    direct: bool = True
    batch_rows: int = BATCH_ROWS
    task_bytes: int = 0  # 0: by how much there is
    catalog: str = ""
    warehouse: str = ""
    lake_properties: Mapping[str, str] = field(default_factory=dict)
    descriptors: bool = False
    clip: Clip = Clip()


class Given:
    """The options as a user gave them, in any case; asks by the documented name."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        self._check_names({name.lower(): name for name in (*known, *CONNECTION_OPTIONS)})

    def _check_names(self, known: Mapping[str, str]) -> None:
        """A misspelt option must not be ignored; what resembles none of ours is Spark's or Kafka's own."""
        for name in self._values:
            if name in known or name.startswith("kafka."):
                continue
            close = get_close_matches(name, known, 1, cutoff=0.8)
            if close:
                raise InvalidArgument(f"unknown option {name!r}; did you mean {known[close[0]]}?")

    def text(self, name: str, default: str = "") -> str:
        return str(self._values.get(name.lower(), default)).strip()

    def starting_with(self, prefix: str) -> dict[str, str]:
        return {name: str(value) for name, value in self._values.items() if name.startswith(prefix)}

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name).lower()
        if value not in ("", "true", "false"):
            raise InvalidArgument(f"option {name} must be true or false, not {value!r}")
        return default if not value else value == "true"

    def number(self, name: str, least: int = 1) -> int | None:
        value = self.text(name)
        if not value:
            return None
        if not re.fullmatch(r"-?\d+", value) or int(value) < least:
            raise InvalidArgument(f"option {name} must be a whole number of at least {least}, not {value!r}")
        return int(value)

    def _seconds(self, name: str, default: float) -> float:
        value = self.text(name)
        if value and not re.fullmatch(r"\d+(\.\d*)?|\.\d+", value):
            raise InvalidArgument(f"option {name} must be a number of seconds, not {value!r}")
        return float(value or default)

    def connection(self) -> Connection:
        url = self.text("url") or os.environ.get("MAINSTEM_URL", "")
        bootstrap = self.text("kafka.bootstrap.servers")
        if not url and bootstrap:  # a job of the Kafka source that changed one word: the same host, our HTTP port
            url = f"http://{bootstrap.split(',')[0].rsplit(':', 1)[0]}:{DEFAULT_PORT}"
        return Connection(
            url or DEFAULT_URL,
            self.text("user") or os.environ.get("MAINSTEM_USER", ""),
            self.text("password") or os.environ.get("MAINSTEM_PASSWORD", ""),
            self.text("namespace"),
            self._seconds("retrySeconds", RETRY_S),
            self.flag("compress", False) if self.text("compress") else None,
        )


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    given = Given(options, SOURCE_OPTIONS)
    kind, select = _selection(given)
    start = _position(given, "starting", "latest" if streaming else "earliest")
    end = _position(given, "ending", "latest")
    _check_positions(given, start, end, streaming)
    strategy = given.text("startingOffsetsByTimestampStrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise InvalidArgument(f"option startingOffsetsByTimestampStrategy must be error or latest, not {strategy!r}")
    return ReadOptions(
        connection=given.connection(),
        select=select,
        start=start,
        end=end,
        columns=_columns(given, kind),
        rows_per_trigger_max=given.number("maxOffsetsPerTrigger"),
        bytes_per_trigger_max=given.number("maxBytesPerTrigger"),
        slices_min=given.number("minPartitions") or 0,
        slice_rows_max=given.number("maxRecordsPerPartition") or 0,
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        latest_if_no_time=strategy == "latest" or streaming,
        pushdown=given.flag("pushdown", os.environ.get(PUSHDOWN) == "true"),
        direct=given.flag("direct", True),
        batch_rows=given.number("batchRows") or BATCH_ROWS,
        task_bytes=given.number("taskBytes") or 0,
        catalog=given.text("catalog"),
        warehouse=given.text("warehouse"),
        lake_properties=given.starting_with("s3."),
        descriptors=given.flag("descriptors", False),
    )


def _selection(given: Given) -> tuple[str, dict[str, Any]]:
    chosen = [name for name in SELECTIONS if given.text(name)]
    if len(chosen) != 1:
        what = f"{' and '.join(chosen)} are given" if chosen else "none is given"
        raise InvalidArgument(
            f"exactly one of the options {', '.join(SELECTIONS)} is needed; {what}",
            fix='.option("subscribe", "TOPIC") or .option("filter", "sensors/#")',
        )
    name, value = chosen[0], given.text(chosen[0])
    if name == "subscribe":
        topics = [topic.strip() for topic in value.split(",") if topic.strip()]
        if not topics:
            raise InvalidArgument(f"option subscribe names no topic: {value!r}")
        return name, {"kind": "topics", "topics": topics}
    if name == "subscribePattern":
        try:
            re.compile(value)
        except re.error as error:
            raise InvalidArgument(f"option subscribePattern {value!r} is not a regular expression: {error}") from None
        return name, {"kind": "pattern", "pattern": value}
    if name == "assign":
        partitions = _json(name, value)
        if not partitions or not all(
            isinstance(numbers, list) and numbers and all(_is_number(one, 0) for one in numbers)
            for numbers in partitions.values()
        ):
            raise InvalidArgument(f'option assign must look like {{"topic": [0, 1]}}, not {value}')
        return name, {"kind": "partitions", "partitions": partitions}
    return name, {"kind": name, name: value}


def _columns(given: Given, kind: str) -> tuple[str, ...]:
    asked = given.text("columns") or ("all" if kind in ("filter", "view") else "kafka")
    headers = ("headers",) if given.flag("includeHeaders", False) else ()
    if asked.lower() == "kafka":
        return (*KAFKA_COLUMNS, *headers)
    if asked.lower() == "all":
        return (*KAFKA_COLUMNS, *headers, *OWN_COLUMNS)
    names = tuple(name.strip() for name in asked.split(","))
    for name in names:
        if name not in COLUMNS:
            close = get_close_matches(name, COLUMNS, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(COLUMNS)}"
            raise InvalidArgument(f"option columns: no column {name!r}; {hint}")
    return tuple(dict.fromkeys((*names, *headers)))


def _position(given: Given, side: str, default: str) -> Position:
    offsets, by_time = given.text(f"{side}Offsets"), given.text(f"{side}OffsetsByTimestamp")
    time_ms = given.number(f"{side}Timestamp", least=0)
    if time_ms is not None:
        return Position(time_ms=time_ms)
    if by_time:
        return Position(times_ms=_numbers(f"{side}OffsetsByTimestamp", by_time, least=0))
    if offsets.startswith("{"):
        return Position(offsets=_numbers(f"{side}Offsets", offsets, least=EARLIEST))
    word = (offsets or default).lower() if not offsets.startswith("table:") else offsets
    if word not in ("earliest", "latest") and not re.fullmatch(r"stamp:\d+|table:\S+", word):
        raise InvalidArgument(
            f"option {side}Offsets must be earliest, latest, stamp:<µs>, table:<name> or JSON like "
            f'{{"topic": {{"0": 23}}}}, not {offsets!r}'
        )
    return Position(word=word)


def _check_positions(given: Given, start: Position, end: Position, streaming: bool) -> None:
    if streaming:
        if any(given.text(f"ending{part}") for part in ("Offsets", "Timestamp", "OffsetsByTimestamp")):
            raise InvalidArgument("a stream has no ending offsets; use trigger(availableNow=True), or spark.read")
        return
    if start.word == "latest" or any(n == LATEST for parts in start.offsets.values() for n in parts.values()):
        raise InvalidArgument("a batch read cannot start at the latest offset: there is nothing behind it")
    if end.word == "earliest" or any(n == EARLIEST for parts in end.offsets.values() for n in parts.values()):
        raise InvalidArgument("a batch read cannot end at the earliest offset: there is nothing before it")
    if end.word.startswith("table:"):
        raise InvalidArgument("endingOffsets cannot be a table; startingOffsets can")


def _json(name: str, value: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value)
    except ValueError as error:
        raise InvalidArgument(f"option {name} is not valid JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise InvalidArgument(f"option {name} must be a JSON object by topic, not {value}")
    return parsed


def _numbers(name: str, value: str, *, least: int) -> dict[str, dict[str, int]]:
    parsed = _json(name, value)
    if not parsed or not all(
        isinstance(parts, dict) and parts and all(_is_number(number, least) for number in parts.values())
        for parts in parsed.values()
    ):
        raise InvalidArgument(f'option {name} must look like {{"topic": {{"0": 23}}}}, not {value}')
    return parsed


def _is_number(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= OFFSET_MAX
