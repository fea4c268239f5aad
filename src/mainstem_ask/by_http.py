"""The same questions for callers who may not read everything: the broker answers, of what they may consume."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from mainstem_pipeline.client import BrokerClient

ROWS_MAX = 10_000  # what the broker answers at most


class ToldRows:
    """An answer of `/v1/query`, as far as it is printed (`query/results.py`)."""

    def __init__(self, told: Mapping[str, Any], count: int | None = None) -> None:
        self._told, self._items = told, told["items"][:count]

    @property
    def notices(self) -> list[str]:
        return list(self._told.get("notices") or ())

    @property
    def columns(self) -> list[str]:
        return [one["name"] for one in self._told["columns"]]

    def toLocalIterator(self, prefetchPartitions: bool = False) -> Iterator[ToldRow]:
        return iter(self.collect())

    def limit(self, num: int) -> ToldRows:
        return ToldRows(self._told, num)

    def collect(self) -> list[ToldRow]:
        return [ToldRow(item) for item in self._items]


class ToldRow(tuple[Any, ...]):
    def __new__(cls, item: Mapping[str, Any]) -> ToldRow:
        made = super().__new__(cls, item.values())
        made._item = item  # type: ignore[attr-defined]
        return made

    def asDict(self) -> dict[str, Any]:
        return dict(self._item)  # type: ignore[attr-defined]


def query(url: str, statement: str) -> ToldRows:
    client = BrokerClient(url, retry_s=1.0)
    try:
        return ToldRows(client.post("/v1/query", {"sql": statement, "limit": ROWS_MAX}))
    finally:
        client.close()


def search(url: str, asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    client = BrokerClient(url, retry_s=1.0)
    try:
        lines = client.post_lines("/v1/search", {name: value for name, value in asked.items() if value != ""})
    finally:
        client.close()
    return map(json.loads, lines)
