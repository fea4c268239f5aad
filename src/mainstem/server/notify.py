"""Telling systemd (Type=notify) where the process is in its life. Without systemd it does nothing."""

from __future__ import annotations

import os
import socket


def notify(state: str) -> None:
    """`READY=1`, `STOPPING=1`, `RELOADING=1`, `STATUS=...`."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.connect("\0" + path[1:] if path.startswith("@") else path)
        one.sendall(state.encode())
