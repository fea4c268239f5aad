"""What a pipeline keeps between runs, beside its file by default; `store.py` says where else.

<state>/<flow>/checkpoint/     Spark's: offsets, state, commits
<state>/<flow>/flow.json       what the checkpoint depends on; a change of it is refused
<state>/<flow>/schema.ddl      a schema that was inferred
<state>/<flow>/status.json     the last batch, for `status`
<state>/<flow>/redrive.json    the dead letters that were given back last
<state>/lock                   one runner at a time: held by the process, or in a bucket renewed while it runs
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from mainstem.model.errors import ConfigError, NotFound
from mainstem_pipeline.pipeline.model import Flow, Pipeline
from mainstem_pipeline.pipeline.store import LocalStore, open_store
from mainstem_pipeline.session import state_directory

LOCK_S = 60.0  # that a lock in a bucket is believed without being renewed
RUNNING = ("starting", "waiting", "running", "restarting")
KILLED = "its run ended without a word; the next one goes on where its checkpoint is"


class ChangedFlow(ConfigError):
    code = "MS-7004"


class State:
    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.store = open_store(pipeline.state, pipeline.store_properties)
        self._lock: IO[str] | None = None
        self._holder = ""  # what a lock in a bucket says of us
        self._renewed_s = 0.0

    @property
    def log(self) -> Path:
        """Where Spark's own log goes: a folder of this machine."""
        if isinstance(self.store, LocalStore):
            return self.store.directory / "spark.log"
        return state_directory() / f"{self._pipeline.name}.spark.log"

    # -- one runner

    def take(self) -> None:
        """Hold the state; ConfigError if another run does."""
        if not isinstance(self.store, LocalStore):
            self._take_remote()
            return
        directory = self.store.directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = (directory / "lock").open("a+")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            assert self._lock is not None
            self._lock.seek(0)
            raise self._held(f"process {self._lock.read().strip() or 'unknown'}") from None
        except OSError as error:
            raise ConfigError(f"cannot write to {directory}: {error.strerror}", fix="state: DIR") from None
        self._lock.truncate(0)
        self._lock.write(str(os.getpid()))
        self._lock.flush()

    def _held(self, holder: str) -> ConfigError:
        return ConfigError(
            f"pipeline {self._pipeline.name} is running already ({holder})",
            fix="stop it first, or give this run a state of its own with state: DIR",
        )

    def _take_remote(self) -> None:
        """No lock there is sure; sinks fence an older run in any case. This one keeps two from being started by mistake."""
        known = self._read("lock")
        if known is not None and time.time() - known["at"] < LOCK_S:
            raise self._held(f"{known['holder']}, {time.time() - known['at']:.0f} s ago")
        self._holder = f"process {os.getpid()} on {socket.gethostname()}"
        self.renew(now=True)

    def renew(self, *, now: bool = False) -> None:
        """Tell others in time that this run goes on."""
        if self._holder and (now or time.monotonic() - self._renewed_s > LOCK_S / 3):
            self._renewed_s = time.monotonic()
            self._write("lock", {"holder": self._holder, "at": time.time()})

    def is_held(self) -> bool:
        """Whether some run holds it now."""
        if not isinstance(self.store, LocalStore):
            known = self._read("lock")
            return known is not None and time.time() - known["at"] < LOCK_S
        try:
            with (self.store.directory / "lock").open("r+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if self._holder:
            self.store.remove("lock")
            self._holder = ""

    # -- flows

    def checkpoint(self, flow: str) -> str:
        """Where Spark keeps the flow's, as Spark calls it."""
        return f"{self.store.spark_url}/{flow}/checkpoint"

    def has_checkpoint(self, flow: str) -> bool:
        return bool(self.store.names(f"{flow}/checkpoint"))

    def check_changed(self, flow: Flow) -> None:
        """ChangedFlow, with the flag that permits it, for a change that the checkpoint cannot follow."""
        before, now = self._read(self._flow_file(flow)), flow.fingerprint()
        if before is None or not self.has_checkpoint(flow.name):
            return
        shape = flow.batch_shape()  # told apart in unfinished.py: between batches it may change
        changed = sorted(name for name in {*before, *now} - {*shape} if before.get(name) != now.get(name))
        if not changed:
            return
        raise ChangedFlow(
            f"flow {flow.name}: {', '.join(changed)} changed since its checkpoint was written",
            fix=f"--reset {flow.name} starts it over; --accept-change {flow.name} goes on with the checkpoint",
        )

    def check_unchanged(self, flow: Flow, accepted: frozenset[str]) -> None:
        """Before a run: refuse such a change unless it is accepted."""
        if flow.name not in accepted:
            self.check_changed(flow)

    def remember(self, flow: Flow) -> None:
        """What runs from now on."""
        self._write(self._flow_file(flow), {**flow.fingerprint(), **flow.batch_shape()})

    def remembered(self, flow: Flow) -> dict[str, Any] | None:
        """What ran last; None if it never did."""
        return self._read(self._flow_file(flow))

    @staticmethod
    def _flow_file(flow: Flow) -> str:
        return f"{flow.name}/flow.json"

    def reset(self, flow: str) -> bool:
        """Forget the flow's checkpoint; it starts over. Returns whether there was one."""
        if self._pipeline.flow(flow) is None:
            names = ", ".join(one.name for one in self._pipeline.flows)
            raise NotFound(f"pipeline {self._pipeline.name} has no flow {flow!r}; it has {names}")
        return self.store.remove(flow)

    # -- schema and status

    def schema(self, flow: str) -> str:
        return (self.store.read(f"{flow}/schema.ddl") or b"").decode()

    def keep_schema(self, flow: str, ddl: str) -> None:
        self.store.write(f"{flow}/schema.ddl", ddl.encode())

    def keep_status(self, flow: str, status: Mapping[str, Any]) -> None:
        self._write(f"{flow}/status.json", {**status, "at": time.time()})

    def redriven(self, flow: str) -> dict[str, Any] | None:
        """The dead letters that were given back last: see redrive.py."""
        return self._read(f"{flow}/redrive.json")

    def keep_redriven(self, flow: str, span: Mapping[str, Any]) -> None:
        self._write(f"{flow}/redrive.json", span)

    def statuses(self) -> list[dict[str, Any]]:
        """The last known status of each flow; one whose run was killed is told as such."""
        is_held = self.is_held()
        found = []
        for flow in self._pipeline.flows:
            known = self._read(f"{flow.name}/status.json") or {"state": "never ran"}
            if not is_held and known["state"] in RUNNING:
                known = {**known, "state": "killed", "error": known.get("error") or KILLED}
            found.append({"flow": flow.name, **known})
        return found

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = json.loads(self.store.read(name) or b"")
        except ValueError:
            return None
        return content

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        self.store.write(name, json.dumps(content).encode())
