"""Keeps deployed pipelines running: a process each, started again with back-off when it ends.

A run that needs a person (a bad file, a changed flow, data that aged out, too many bad records: exit codes 2, 3, 4) is not
started again before it is deployed again. Runs end with their supervisor; the next one waits for them and starts them
anew, where their checkpoints are. The broker is no part of this: while it is away runs wait, or end and are started again.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from mainstem.model.counted import counted
from mainstem_pipeline.deploy.deployments import LOG_BYTES_MAX, RUN, STOP, Deployment, Deployments, Status
from mainstem_pipeline.pipeline.failures import BAD_FILE, BAD_RECORDS, DATA_LOSS

POLL_S = 0.25
PAUSE_S_MIN, PAUSE_S_MAX = 1.0, 300.0
STEADY_S = 300.0  # a run that lasted so long starts the back-off anew
END_S_MAX = 60.0  # a batch may take that long to end before its process is killed
NEEDS_A_PERSON = (BAD_FILE, DATA_LOSS, BAD_RECORDS)
SAID_CHARACTERS_MAX = 500
PR_SET_PDEATHSIG = 1

Command = Callable[[Deployment], list[str]]
_libc = ctypes.CDLL(None)


def run_command(deployment: Deployment) -> list[str]:
    return [sys.executable, "-m", "mainstem", "pipeline", *deployment.arguments, *deployment.first_arguments]


@dataclass(slots=True)
class _Run:
    """A deployment as it is being run."""

    status: Status
    process: subprocess.Popen[bytes] | None = None
    began_s: float = 0.0
    next_s: float = 0.0
    pause_s: float = PAUSE_S_MIN
    kill_s: float = field(default=float("inf"))


class Supervisor:
    def __init__(self, deployments: Deployments, command: Command = run_command) -> None:
        self._deployments, self._command = deployments, command
        self._runs: dict[str, _Run] = {}

    def run(self, stop: threading.Event) -> None:
        """Until `stop`; then all runs are asked to end after their batch, and waited for."""
        try:
            while not stop.wait(POLL_S):
                self.look()
        finally:
            self._end_all()

    def look(self) -> None:
        """Once: start what is due, end what is not wanted, note what ended."""
        wanted = {one.name: one for one in self._deployments.all()}
        for name, deployment in wanted.items():
            run = self._runs.get(name)
            if run is None:
                run = self._runs[name] = _Run(self._deployments.status(name))
            self._follow(deployment, run)
        for name in self._runs.keys() - wanted.keys():  # forgotten meanwhile
            if self._ended(self._runs[name]):
                del self._runs[name]
            else:
                self._ask_to_end(self._runs[name])

    # -- one deployment

    def _follow(self, deployment: Deployment, run: _Run) -> None:
        is_new = run.status.serial != deployment.serial
        if run.process is None and _is_alive(run.status):
            return  # a run of the supervisor before this one: it was told to end when that one did
        if run.process is not None:
            if run.process.poll() is None:
                if deployment.wanted == STOP or is_new:
                    self._ask_to_end(run)
                    self._tell(deployment.name, run, "stopping")
                _trim(self._deployments.log(deployment.name))
                return
            self._note_end(deployment, run)
        if deployment.wanted == STOP:
            self._tell(deployment.name, run, "stopped")
        elif is_new or (run.status.state != "failed" and time.monotonic() >= run.next_s):
            self._start(deployment, run, is_new=is_new)

    def _start(self, deployment: Deployment, run: _Run, *, is_new: bool) -> None:
        if is_new:
            run.pause_s = PAUSE_S_MIN
        if deployment.first_arguments:  # before it begins: a run that is started again must not reset a flow again
            self._deployments.put(replace(deployment, first_arguments=[]))
        restarts = 0 if is_new else run.status.restarts + 1
        log = self._deployments.log(deployment.name)
        with log.open("ab") as out:
            out.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} started\n".encode())
            out.flush()
            process = subprocess.Popen(
                self._command(deployment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=Path(deployment.file).parent,
                env={**os.environ, **deployment.environment},
                start_new_session=True,  # a terminal's Ctrl-C is the supervisor's to pass on
                preexec_fn=_end_with_parent,
            )
        run.process, run.began_s, run.kill_s = process, time.monotonic(), float("inf")
        run.status = Status("running", deployment.serial, process.pid, _born(process.pid), time.time(), restarts)
        self._deployments.put_status(deployment.name, run.status)

    def _note_end(self, deployment: Deployment, run: _Run) -> None:
        assert run.process is not None
        code = run.process.returncode
        run.process = None
        if time.monotonic() - run.began_s >= STEADY_S:
            run.pause_s = PAUSE_S_MIN
        run.next_s = time.monotonic() + run.pause_s
        status = run.status
        status.pid, status.exit_code, status.since_s = 0, code, time.time()
        status.said = _last_line(self._deployments.log(deployment.name))
        if deployment.wanted == STOP:
            status.state, status.said = "stopped", ""
        elif code in NEEDS_A_PERSON:
            status.state = "failed"
        else:
            status.state, status.next_s = "waiting", time.time() + run.pause_s
        run.pause_s = min(run.pause_s * 2, PAUSE_S_MAX)
        self._deployments.put_status(deployment.name, status)

    def _tell(self, name: str, run: _Run, state: str) -> None:
        if run.status.state != state:
            run.status.state = state
            self._deployments.put_status(name, run.status)

    def _ask_to_end(self, run: _Run) -> None:
        assert run.process is not None
        if run.kill_s == float("inf"):
            run.kill_s = time.monotonic() + END_S_MAX
            run.process.terminate()
        elif time.monotonic() > run.kill_s:
            run.process.kill()

    @staticmethod
    def _ended(run: _Run) -> bool:
        return run.process is None or run.process.poll() is not None

    def _end_all(self) -> None:
        left = {name: run for name, run in self._runs.items() if not self._ended(run)}
        while left:
            for run in left.values():
                self._ask_to_end(run)
            time.sleep(POLL_S)
            left = {name: run for name, run in left.items() if not self._ended(run)}
        for name, run in self._runs.items():
            if run.process is not None:
                run.status.state, run.status.pid = "waiting", 0
                self._deployments.put_status(name, run.status)


def _end_with_parent() -> None:
    """In the new process: it is asked to end when its supervisor is gone, however that ended."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _born(pid: int) -> int:
    """When a process began, in ticks since the machine did; 0 if there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def _is_alive(status: Status) -> bool:
    return bool(status.pid) and bool(status.born) and _born(status.pid) == status.born


def _trim(log: Path) -> None:
    """Its process goes on writing to the same file, at its end, wherever that is."""
    try:
        if log.stat().st_size > LOG_BYTES_MAX:
            shutil.copyfile(log, log.with_name("log.1"))
            os.truncate(log, 0)
    except OSError:
        return  # gone meanwhile, or no room for the old one: tried again


def _last_line(log: Path) -> str:
    """What the run said last: its error, if there is one among the last lines."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 8192))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    errors = [one for one in lines if one.startswith("error[")]
    said = errors[-1] if errors else next((one for one in reversed(lines) if one.strip()), "")
    return said[:SAID_CHARACTERS_MAX]


def told(status: Status, *, is_supervised: bool) -> str:
    """How a deployment does, in a few words."""
    state = status.state
    if not is_supervised and state not in ("stopped", "failed"):
        return "not running: no supervisor"
    if state == "waiting" and status.exit_code is not None:
        left = max(0, round(status.next_s - time.time()))
        return f"waiting: ended with {status.exit_code}, starts again in {left} s"
    if state == "failed":
        return f"failed: ended with {status.exit_code}, needs a person"
    restarts = f", {counted(status.restarts, 'restart')}" if status.restarts else ""
    return state + restarts


__all__ = ["RUN", "Supervisor", "run_command", "told"]
