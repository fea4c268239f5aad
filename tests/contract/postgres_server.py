"""A PostgreSQL of the tests' own: Debian's binaries on a temporary directory, a unix socket and no TCP port.

The server refuses to run as root; where the tests do, it runs as `postgres`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path


def binaries() -> Path | None:
    """The newest installed server's, or None."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


class PostgresServer:
    def __init__(self) -> None:
        found = binaries()
        assert found is not None
        self._bin = found
        self.directory = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # short: a socket's path has 107 bytes
        self._as_other: list[str] = []
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(self.directory, user.pw_uid, user.pw_gid)
            ids = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
            self._as_other = ["setpriv", *ids]
        self._run("initdb", "-D", str(self.data), "-U", "mainstem", "--auth=trust", "--no-sync", "-E", "UTF8")
        self.start()

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def dsn(self) -> str:
        return f"postgresql://mainstem@/postgres?host={self.directory}"

    def start(self) -> None:
        options = f"-k {self.directory} -c listen_addresses='' -c fsync=off"
        log = str(self.directory / "log")
        self._run("pg_ctl", "-D", str(self.data), "-l", log, "-w", "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-D", str(self.data), "-m", mode, "-w", "stop")

    def remove(self) -> None:
        self.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)

    def _run(self, command: str, *arguments: str) -> None:
        subprocess.run(
            [*self._as_other, str(self._bin / command), *arguments],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.directory,
        )
