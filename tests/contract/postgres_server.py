"""A PostgreSQL of the tests' own: Debian's binaries on a temporary directory, a unix socket and, unless asked, no TCP port.

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
    """`port`: it also listens on all addresses, which only a network of the test's own should have."""

    def __init__(self, port: int = 0, standby_of: PostgresServer | None = None, options: str = "") -> None:
        self._port, self._options = port, options
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
        if standby_of is not None:
            self._copy(standby_of)
            return
        self._run("initdb", "-D", str(self.data), "-U", "mainstem", "--auth=trust", "--no-sync", "-E", "UTF8")
        if port:
            with (self.data / "pg_hba.conf").open("a") as rules:
                rules.write("host all all 0.0.0.0/0 trust\nhost replication all 0.0.0.0/0 trust\n")
        self.start()

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def dsn(self) -> str:
        port = f"&port={self._port}" if self._port else ""
        return f"postgresql://mainstem@/postgres?host={self.directory}{port}"

    def start(self) -> None:
        listen = f"-c listen_addresses='*' -c port={self._port}" if self._port else "-c listen_addresses=''"
        options = f"-k {self.directory} {listen} -c fsync=off {self._options}"
        log = str(self.directory / "log")
        self._run("pg_ctl", "-D", str(self.data), "-l", log, "-w", "-o", options, "start")

    def _copy(self, primary: PostgresServer) -> None:
        """Follow it, from a copy; from now on it commits nothing that is not here as well. Takes its place by `promote`."""
        source = f"host={primary.directory} port={primary.port} user=mainstem application_name=standby"
        self._run("pg_basebackup", "-D", str(self.data), "-R", "-X", "stream", "-c", "fast", "--no-sync", "-d", source)
        self.start()
        primary._options = "-c synchronous_standby_names=standby"
        primary.stop()
        primary.start()

    @property
    def port(self) -> int:
        return self._port or 5432

    def promote(self) -> None:
        self._run("pg_ctl", "-D", str(self.data), "-w", "promote")

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-D", str(self.data), "-m", mode, "-w", "stop")

    def remove(self) -> None:
        if (self.data / "postmaster.pid").exists():
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
