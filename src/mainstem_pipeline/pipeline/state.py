"""What a pipeline keeps between runs, beside its file by default.

<state>/<flow>/checkpoint/     Spark's: offsets, state, commits
<state>/<flow>/flow.json       what the checkpoint depends on; a change of it is refused
<state>/<flow>/schema.ddl      a schema that was inferred
<state>/<flow>/status.json     the last batch, for `status`
<state>/lock                   one runner at a time
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from mainstem.model.errors import ConfigError, NotFound
from mainstem_pipeline.pipeline.model import Flow, Pipeline


class ChangedFlow(ConfigError):
    code = "MS-7004"


class State:
    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.directory = pipeline.state
        self._lock: IO[str] | None = None

    # -- one runner

    def take(self) -> None:
        """Hold the state directory; ConfigError if another run does."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock = (self.directory / "lock").open("a+")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            assert self._lock is not None
            self._lock.seek(0)
            holder = self._lock.read().strip() or "another process"
            raise ConfigError(
                f"pipeline {self._pipeline.name} is running already (process {holder})",
                fix="stop it first, or give this run a state of its own with state: DIR",
            ) from None
        except OSError as error:
            raise ConfigError(f"cannot write to {self.directory}: {error.strerror}", fix="state: DIR") from None
        self._lock.truncate(0)
        self._lock.write(str(os.getpid()))
        self._lock.flush()

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # -- flows

    def flow_directory(self, flow: str) -> Path:
        return self.directory / flow

    def checkpoint(self, flow: str) -> Path:
        return self.flow_directory(flow) / "checkpoint"

    def check_changed(self, flow: Flow) -> None:
        """ChangedFlow, with the flag that permits it, for a change that the checkpoint cannot follow."""
        before, now = self._read(self._flow_file(flow)), flow.fingerprint()
        if before is None or before == now or not self.checkpoint(flow.name).exists():
            return
        changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        raise ChangedFlow(
            f"flow {flow.name}: {', '.join(changed)} changed since its checkpoint was written",
            fix=f"--reset {flow.name} begins it anew; --accept-change {flow.name} goes on with the checkpoint",
        )

    def check_unchanged(self, flow: Flow, accepted: frozenset[str]) -> None:
        """Before a run: refuse such a change unless it is accepted, and remember what runs now."""
        if flow.name not in accepted:
            self.check_changed(flow)
        self._write(self._flow_file(flow), flow.fingerprint())

    def _flow_file(self, flow: Flow) -> Path:
        return self.flow_directory(flow.name) / "flow.json"

    def reset(self, flow: str) -> bool:
        """Forget the flow's checkpoint; it begins anew. Returns whether there was one."""
        if self._pipeline.flow(flow) is None:
            names = ", ".join(one.name for one in self._pipeline.flows)
            raise NotFound(f"pipeline {self._pipeline.name} has no flow {flow!r}; it has {names}")
        path = self.flow_directory(flow)
        existed = path.exists()
        shutil.rmtree(path, ignore_errors=True)
        return existed

    # -- schema and status

    def schema(self, flow: str) -> str:
        path = self.flow_directory(flow) / "schema.ddl"
        return path.read_text() if path.exists() else ""

    def keep_schema(self, flow: str, ddl: str) -> None:
        path = self.flow_directory(flow) / "schema.ddl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(ddl)

    def keep_status(self, flow: str, status: Mapping[str, Any]) -> None:
        self._write(self.flow_directory(flow) / "status.json", {**status, "at": time.time()})

    def statuses(self) -> list[dict[str, Any]]:
        """The last known status of each flow."""
        return [
            {
                "flow": flow.name,
                **(self._read(self.flow_directory(flow.name) / "status.json") or {"state": "never ran"}),
            }
            for flow in self._pipeline.flows
        ]

    @staticmethod
    def _read(path: Path) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = json.loads(path.read_text())
        except (OSError, ValueError):
            return None
        return content

    @staticmethod
    def _write(path: Path, content: Mapping[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".new")
        part.write_text(json.dumps(content))
        part.rename(path)
