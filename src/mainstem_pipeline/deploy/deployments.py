"""What is deployed on this machine: files that the commands write and the supervisor follows.

<root>/lock                       held by the supervisor while it runs; its process id
<root>/<name>/deployment.json     what is to run: written by `deploy` and `stop`
<root>/<name>/status.json         how it does: written by the supervisor
<root>/<name>/log, log.1          what its runs said, at most LOG_BYTES_MAX each

<root> is $MAINSTEM_DEPLOYMENTS, by default ~/.local/state/mainstem/deployments. A name is deployed once.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from mainstem.model.errors import AlreadyExists, NotFound
from mainstem_pipeline.session import state_directory

LOG_BYTES_MAX = 10 << 20
RUN, STOP = "run", "stop"


def deployments_directory() -> Path:
    given = os.environ.get("MAINSTEM_DEPLOYMENTS")
    return Path(given) if given else state_directory() / "deployments"


@dataclass(frozen=True, slots=True)
class Deployment:
    name: str
    file: str
    wanted: str = RUN  # RUN | STOP
    serial: int = 1  # one more with each `deploy`: a run of an older one is ended
    arguments: list[str] = field(default_factory=list)  # of each run
    first_arguments: list[str] = field(default_factory=list)  # of the first run only: --reset, --accept-change
    environment: dict[str, str] = field(default_factory=dict)
    deployed_s: float = 0.0


@dataclass(slots=True)
class Status:
    """How a deployment does, as its supervisor last wrote it."""

    state: str = "waiting"  # waiting | running | stopping | stopped | failed
    serial: int = 0
    pid: int = 0
    born: int = 0  # when that process began, by the kernel's clock: a process id is used again
    since_s: float = 0.0
    restarts: int = 0
    exit_code: int | None = None
    next_s: float = 0.0  # when it is started again
    said: str = ""  # why it ended


class Deployments:
    def __init__(self, root: Path) -> None:
        self.root = root

    # -- what is deployed

    def all(self) -> Iterator[Deployment]:
        for path in sorted(self.root.glob("*/deployment.json")):
            found = _read(path)
            if found is not None:
                yield Deployment(**found)

    def get(self, name: str) -> Deployment:
        found = _read(self.root / name / "deployment.json") if name and "/" not in name else None
        if found is None:
            known = ", ".join(one.name for one in self.all()) or "none"
            raise NotFound(f"no pipeline {name!r} is deployed here; deployed are {known}", fix="mainstem pipeline ls")
        return Deployment(**found)

    def deploy(self, deployment: Deployment, *, moves: bool = False) -> Deployment:
        """Run it from now on; again with what is new. AlreadyExists if the name belongs to another file."""
        try:
            before: Deployment | None = self.get(deployment.name)
        except NotFound:
            before = None
        if before is not None and before.file != deployment.file and not moves:
            raise AlreadyExists(
                f"pipeline {deployment.name} is deployed from {before.file}",
                fix=f"give this one another name, or deploy it with --replace, or first: "
                f"mainstem pipeline stop {deployment.name} --forget",
            )
        serial = before.serial + 1 if before is not None else 1
        made = replace(deployment, serial=serial, deployed_s=time.time())
        self.put(made)
        return made

    def put(self, deployment: Deployment) -> None:
        _write(self.root / deployment.name / "deployment.json", asdict(deployment))

    def forget(self, name: str) -> None:
        shutil.rmtree(self.root / name, ignore_errors=True)

    # -- how it does

    def status(self, name: str) -> Status:
        return Status(**(_read(self.root / name / "status.json") or {}))

    def put_status(self, name: str, status: Status) -> None:
        _write(self.root / name / "status.json", asdict(status))

    def log(self, name: str) -> Path:
        return self.root / name / "log"

    # -- one supervisor

    def take(self) -> IO[str] | None:
        """The lock of the supervisor, held until it is closed; None if another process has it."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = (self.root / "lock").open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        return file

    def is_supervised(self) -> bool:
        try:
            with (self.root / "lock").open("r+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content


def _write(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all, whenever the machine stops."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_suffix(".new")
    with fresh.open("w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
