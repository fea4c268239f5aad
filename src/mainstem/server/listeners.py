"""Taking ports: all problems at once, with the owner's name; `up` moves on instead of failing."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mainstem.broker.rights.access import is_loopback
from mainstem.model.errors import ConfigError
from mainstem.server.protocols import doors
from mainstem.server.settings import Listeners

logger = logging.getLogger("mainstem.server")

PORT_TAKEN, UNSAFE_BIND = "MS-4005", "MS-4006"
KEPT = "MAINSTEM_LISTENING"  # in the environment of a process that takes its own place: its listening sockets
LOOPBACK, LOOPBACK_6 = "127.0.0.1", "::1"
MOVED_BY = 10_000  # 1883 → 11883: still recognised by who knows the protocol
LISTENERS = {door.name: f"{door.name}_port" for door in doors()}
TLS_LISTENERS = {door.tls_name: f"{door.tls_name}_port" for door in doors()}
LABELS = {door.name: door.label for door in doors()}
LABELS |= {door.tls_name: f"{door.label} over TLS" for door in doors()}


@dataclass(slots=True)
class Taken:
    """The sockets, not yet listened on, and what was moved where."""

    sockets: dict[str, socket.socket] = field(default_factory=dict)
    twins: list[tuple[str, socket.socket]] = field(default_factory=list)  # the same ports of ::1
    notices: list[str] = field(default_factory=list)

    def close(self) -> None:
        for one in (*self.sockets.values(), *(twin for _, twin in self.twins)):
            one.close()
        self.sockets.clear()
        self.twins.clear()


def check_bind(listeners: Listeners, *, users: bool) -> None:
    """Refuse to serve the network before anyone has to log in."""
    if is_loopback(listeners.host) or users or listeners.allow_anonymous:
        return
    raise ConfigError(
        f"listening on {listeners.host} would let anyone on the network in: no user is defined",
        fix="mainstem user add NAME --admin --data DIR, or on a network you trust: --insecure-allow-anonymous",
        code=UNSAFE_BIND,
    )


def keep_over_exec(sockets: Mapping[str, socket.socket]) -> None:
    """This process is about to replace itself: whoever connects meanwhile waits, instead of being refused."""
    for one in sockets.values():
        one.set_inheritable(True)
    os.environ[KEPT] = json.dumps({name: one.fileno() for name, one in sockets.items()})


def kept_over_exec() -> dict[str, socket.socket]:
    found = {name: socket.socket(fileno=number) for name, number in json.loads(os.environ.pop(KEPT, "{}")).items()}
    for one in found.values():
        one.set_inheritable(False)
        one.setblocking(False)
    return found


def take_ports(
    listeners: Listeners, *, move: bool, tls: bool = False, kept: dict[str, socket.socket] | None = None
) -> Taken:
    """Bind every listener that is switched on; every port that is taken is told, not only the first. `kept` are those of the
    process before this one; those that match are used, the others closed."""
    taken = Taken()
    kept = kept or {}
    for name in [name for name, one in kept.items() if not _still_wanted(listeners, name, one)]:
        kept.pop(name).close()
    problems: list[str] = []
    any_taken = False
    for name, setting in {**LISTENERS, **(TLS_LISTENERS if tls else {})}.items():
        port = getattr(listeners, setting)
        if port is None:
            continue
        if name in kept:
            taken.sockets[name] = kept.pop(name)
            continue
        try:
            taken.sockets[name] = _bind(listeners.host, port)
        except OSError as error:
            any_taken |= error.errno == errno.EADDRINUSE
            if error.errno != errno.EADDRINUSE or not move:
                problems.append(_describe(name, listeners.host, port, error))
                continue
            taken.sockets[name] = moved = _bind_elsewhere(listeners.host, port)
            taken.notices.append(
                f"{port} is used by {owner_of(port)}: {LABELS[name]} moved to {moved.getsockname()[1]}"
            )
    for one in kept.values():
        one.close()
    if problems:
        taken.close()
        fix = f"stop the other process, or choose ports: {', '.join(f'--{name}-port N' for name in LISTENERS)}"
        if not any_taken:
            fix = "--host H with an address of this machine, and ports that this user may take (below 1024: root only)"
        raise ConfigError("\n  ".join(problems), fix=fix, code=PORT_TAKEN)
    return taken


def take_twins(taken: Taken, listeners: Listeners) -> None:
    """Who listens on 127.0.0.1 listens on ::1, too: `localhost` means either, and some clients try one of them only. Where
    the host has no IPv6, or another program has the port there, the first address has to do."""
    for name, one in taken.sockets.items() if listeners.host == LOOPBACK else ():
        try:
            taken.twins.append((name, _bind(LOOPBACK_6, one.getsockname()[1])))
        except OSError as error:
            logger.debug("%s is not on %s: %s", LABELS[name], LOOPBACK_6, error)


def _still_wanted(listeners: Listeners, name: str, one: socket.socket) -> bool:
    host, port = one.getsockname()[:2]
    wanted = getattr(listeners, f"{name}_port", None)
    return wanted is not None and wanted in (0, port) and _address(listeners.host, port)[1][0] == host


def ports_of(taken: Taken) -> Mapping[str, int]:
    return {name: one.getsockname()[1] for name, one in taken.sockets.items()}


def owner_of(port: int) -> str:
    """The process that listens on a port of this machine, as far as this user may know."""
    import psutil

    pid = listening_pid(port)
    try:
        return f"{psutil.Process(pid).name()} (pid {pid})" if pid else "another process"
    except psutil.Error:
        return "another process"


def listening_pid(port: int) -> int | None:
    import psutil

    try:
        found = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return None
    return next((one.pid for one in found if one.status == psutil.CONN_LISTEN and one.laddr.port == port), None)


def _address(host: str, port: int) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return found[0], found[4]


def _bind(host: str, port: int) -> socket.socket:
    family, address = _address(host, port)
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(address)
        # Ours from here on, but nobody is let in before the broker can serve: a port that listens without answering looks
        # like a broker that hangs. Without the option no second binder gets it; `reactor.listen` sets it again.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        one.setblocking(False)
    except OSError:
        one.close()
        raise
    return one


def _bind_elsewhere(host: str, port: int) -> socket.socket:
    if port + MOVED_BY <= 65_535:
        try:
            return _bind(host, port + MOVED_BY)
        except OSError:
            pass
    return _bind(host, 0)


def _describe(name: str, host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} ({LABELS[name]}) is used by {owner_of(port)}"
    return f"port {port} ({LABELS[name]}) on {host}: {error.strerror or error}"
