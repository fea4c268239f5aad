"""Who serves: this broker, and others that a client may turn to. Alone it is node 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Node(NamedTuple):
    id: int
    host: str
    ports: dict[str, int]  # by listener


class Nodes:
    def __init__(self, own_id: int = 1, others: Callable[[], list[Node]] = list) -> None:
        self.own_id, self.others = own_id, others
