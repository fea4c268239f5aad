"""A proxy in front of PostgreSQL that can cut a connection after a statement went through and before its answer."""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import tempfile
import threading
from pathlib import Path

SOCKET = ".s.PGSQL.5432"
STATEMENT_BYTES = 64  # an answer to a commit is longer than nothing, a greeting comes before any statement


class CuttingProxy:
    """While `cutting` is set, one answer in `every` is swallowed and its connection ends."""

    def __init__(self, upstream: Path | tuple[str, int], seed: int, every: int = 4, port: int = 0) -> None:
        """In front of a server's socket in that directory, or of its port: then at `port` of every address."""
        self._upstream = upstream
        self.directory = Path(tempfile.mkdtemp(prefix="cut-", dir="/tmp"))
        if isinstance(upstream, Path):
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(self.directory / SOCKET))
            self._listener.listen()
        else:
            self._listener = socket.create_server(("0.0.0.0", port))
        self.cutting = threading.Event()
        self._rng, self._every = random.Random(seed), every
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """From now on connections are refused."""
        with contextlib.suppress(OSError):  # it was closed
            self._listener.shutdown(socket.SHUT_RDWR)  # who accepts would keep it open
        self._listener.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = self._connect()
            except OSError:  # it does not run now
                client.close()
                continue
            threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, True), daemon=True).start()

    def _connect(self) -> socket.socket:
        if not isinstance(self._upstream, Path):
            return socket.create_connection(self._upstream)
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(self._upstream / SOCKET))
        return server

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if answers and self.cutting.is_set() and self._rng.randrange(self._every) == 0:
                    self.cuts += 1
                    break
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
