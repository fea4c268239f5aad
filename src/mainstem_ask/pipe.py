"""Between the broker and the process it started for a question: the process asks for plans and frames, and tells its answer.

    message   u32 size of the head | head, JSON | as many bytes as head["bytes"] says

    broker → process   {"ask": {...}}, once; then an answer to each call: {"status", "headers", "bytes"} and a body
    process → broker   {"call": {"method", "path", "query", "kind"}, "bytes"} and a body, {"event": {...}};
                       at last {"end": true} or {"error": {"code", "detail", "fix"}}

One call at a time. The process has no login and no socket: what it may call is what the broker answers here.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any, BinaryIO, ClassVar

from mainstem_pipeline.client import BrokerClient, problem
from mainstem_pipeline.options import Connection


class Pipe:
    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source, self._sink = source, sink
        self._calling, self._writing = threading.Lock(), threading.Lock()

    def read(self) -> tuple[dict[str, Any], bytes]:
        """EOFError when the broker has gone, or wants no answer any more."""
        head: dict[str, Any] = json.loads(self._exactly(int.from_bytes(self._exactly(4), "big")))
        return head, self._exactly(int(head.get("bytes", 0)))

    def write(self, head: Mapping[str, Any], body: bytes = b"") -> None:
        data = json.dumps({**head, "bytes": len(body)} if body else head, default=str).encode()
        with self._writing:
            self._sink.write(len(data).to_bytes(4, "big") + data + body)
            self._sink.flush()

    def call(self, head: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        with self._calling:
            self.write(head, body)
            return self.read()

    def _exactly(self, size: int) -> bytes:
        data = self._source.read(size) if size else b""
        if len(data) < size:
            raise EOFError("the broker has gone")
        return data


class PipeConnection(Connection):
    """Instead of HTTP."""

    pipe: ClassVar[Pipe]

    def client(self) -> BrokerClient:
        return PipeClient(self.pipe)


class PipeClient(BrokerClient):
    def __init__(self, pipe: Pipe) -> None:
        super().__init__(retry_s=0.0)
        self._pipe = pipe

    def _try(
        self, method: str, path: str, query: Mapping[str, Any], data: bytes | None, kind: str, accepted: str
    ) -> tuple[bytes, Mapping[str, str]]:
        given = {name: value for name, value in query.items() if value is not None}
        head, body = self._pipe.call(
            {"call": {"method": method, "path": path, "query": given, "kind": kind}}, data or b""
        )
        if head["status"] >= 400:
            raise problem(head["status"], body)
        return body, head["headers"]
