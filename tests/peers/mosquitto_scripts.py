"""mosquitto's broker scripts against this broker: python -m tests.peers.mosquitto_scripts CHECKOUT [part of a name]...

A script (test/broker/*.py) starts `mosquitto` with a configuration and speaks to it by raw packets. Here `mosquitto` is a
program that reads that configuration, starts this broker with what it means in our settings, and refuses what it cannot
mean: such scripts are counted apart. Packets are compared by what they mean: of CONNACK and DISCONNECT the reason, because
we say other limits and add words; an acknowledgement of 0x10 (nobody subscribes) is our success, for it is stored.
Messages of different topics may come in another order: MQTT keeps that of each topic.

With MOSQUITTO=/usr/sbin/mosquitto in the environment the original runs the same scripts.

    --one SCRIPT   run one script with these comparisons (what the driver starts for each)
    --broker ...   be `mosquitto`
"""

from __future__ import annotations

import os
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SCRIPT_S_MAX, LOOK_S = 120, 0.5
START_S = 1.0  # between two looks whether it listens; twenty of them
NOT_MEANT = 77
PUBLISH, PINGRESP = 3, 13
OTHER_PROGRAMS = ("06-", "08-", "09-", "13-", "14-", "15-", "16-", "17-", "20-", "21-", "22-", "23-")
SETTINGS = {
    "max_inflight_messages": "mqtt.receive_max={}",
    "max_keepalive": "mqtt.keep_alive_max_s={}",
    "max_connections": "limits.connections_max={}",
    "global_max_connections": "limits.connections_max={}",
    "message_size_limit": "topics.message_bytes_max={}",
    "sys_interval": "mqtt.sys_interval_ms={}000",
}
WITHOUT_MEANING = {
    "listener",
    "port",
    "allow_anonymous",
    "persistence",
    "persistence_file",
    "persistence_location",
    "log_type",
}
WITHOUT_MEANING |= {
    "log_dest",
    "connection_messages",
    "autosave_interval",
    "autosave_on_changes",
    "max_queued_messages",
}


# -- being mosquitto


def be_broker(arguments: list[str]) -> None:
    port, lines = "", []
    while arguments:
        word = arguments.pop(0)
        if word == "-p":
            port = arguments.pop(0)
        elif word == "-c":
            lines = Path(arguments.pop(0)).read_text().split("\n")
    settings, lasting = ["mqtt.topic_alias_max=10", "mqtt.session_expiry_max_ms=4294967295000"], False
    file = Path("mosquitto.db")
    for name, _, value in (line.strip().partition(" ") for line in lines if line.strip() and line[0] != "#"):
        if name in ("listener", "port"):
            port = value.split()[0]
        elif name == "persistence":
            lasting = value == "true"
        elif name == "persistence_file":
            file = Path(value)
        elif name in SETTINGS:
            settings.append(SETTINGS[name].format(value))
        elif name not in WITHOUT_MEANING or (name == "allow_anonymous" and value == "false"):
            Path(os.environ["NOT_MEANT"]).write_text(name)
            sys.exit(NOT_MEANT)
    root = Path(os.environ["BUILD_ROOT"])
    data = root / f"data-{port}" if lasting else Path(tempfile.mkdtemp(dir=root))
    if lasting and not file.exists():  # the script has removed what was persisted
        shutil.rmtree(data, ignore_errors=True)
        file.touch()
    others = ("kafka", "amqp", "nats", "http", "ws")
    command = [sys.executable, "-m", "mainstem", "serve", "--data", str(data), "--mqtt-port", port]
    command += [word for name in others for word in (f"--{name}-port", "off")]
    os.execv(sys.executable, command + [word for one in settings for word in ("--set", one)])


# -- one script


def run_one(script: Path) -> None:
    sys.path[:0] = [str(script.parent), str(script.parents[1])]
    os.chdir(script.parent)
    import mosq_test  # type: ignore[import-not-found]

    started = mosq_test.start_broker
    early: dict[socket.socket, list[bytes]] = {}  # messages that came before those of another topic

    def start_patiently(*args: Any, **options: Any) -> Any:
        return started(*args, **{**options, "timeout": START_S})

    def expect(sock: socket.socket, name: str, expected: bytes) -> bool:
        if not expected:
            return sock.recv(1) == b""
        got = b""
        for wanted in packets(expected):
            got = _next(sock, wanted, early.setdefault(sock, []))
            if meaning(got) != meaning(wanted):
                print(f"{name}: got {got.hex(' ')} instead of {wanted.hex(' ')}")
                raise mosq_test.TestError
        return True

    mosq_test.start_broker, mosq_test.expect_packet = start_patiently, expect
    sys.argv = [str(script), str(_free_port()), str(_free_port())]
    runpy.run_path(str(script), run_name="__main__")


def _next(sock: socket.socket, wanted: bytes, early: list[bytes]) -> bytes:
    for one in early:
        if meaning(one) == meaning(wanted):
            early.remove(one)
            return one
    if early and wanted[0] >> 4 == PINGRESP:  # by which a script makes sure that nothing else came
        return early[0]
    while _topic(got := read_packet(sock)) and _topic(wanted) and _topic(got) != _topic(wanted):
        early.append(got)
    return got


def _topic(packet: bytes) -> bytes:
    """Of a PUBLISH."""
    if packet[0] >> 4 != PUBLISH:
        return b""
    at = 2
    while packet[at - 1] & 0x80:
        at += 1
    return packet[at : at + 2 + int.from_bytes(packet[at : at + 2], "big")]


def packets(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = shift = 0
        at = 1
        while True:
            size |= (data[at] & 0x7F) << shift
            shift += 7
            at += 1
            if data[at - 1] < 0x80:
                break
        found.append(data[: at + size])
        data = data[at + size :]
    return found


def read_packet(sock: socket.socket) -> bytes:
    data = _read(sock, 2)
    while data[-1] & 0x80:
        data += _read(sock, 1)
    size = sum((digit & 0x7F) << 7 * n for n, digit in enumerate(data[1:]))
    return data + _read(sock, size)


def _read(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise BrokenPipeError("the broker hung up")
        data += more
    return data


def meaning(packet: bytes) -> bytes:
    kind = packet[0] >> 4
    if kind == 2:
        return packet[:1] + packet[2:4]
    if kind == 14:
        return packet[:1] + packet[2:3]
    if kind in (4, 5):
        reason = packet[4:5] if packet[4:5] not in (b"\x00", b"\x10") else b""
        return packet[:1] + packet[2:4] + reason
    return packet


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# -- all of them


def main(checkout: Path, names: list[str]) -> int:
    scripts = sorted((checkout / "test" / "broker").glob("[0-2][0-9]-*.py"))
    apart = [one for one in scripts if one.name.startswith(OTHER_PROGRAMS)]
    chosen = [one for one in scripts if one not in apart and (not names or any(name in one.name for name in names))]
    passed, failed, not_meant = 0, 0, 0
    with tempfile.TemporaryDirectory() as root:
        program = Path(root, "src", "mosquitto")
        program.parent.mkdir()
        ours = f'"{sys.executable}" -m tests.peers.mosquitto_scripts --broker'
        program.write_text(f'#!/bin/sh\nexec {os.environ.get("MOSQUITTO") or ours} "$@"\n')
        program.chmod(0o755)
        asked = Path(root, "asked")
        found = os.pathsep.join((str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")))
        environment = {**os.environ, "BUILD_ROOT": root, "NOT_MEANT": str(asked), "PYTHONPATH": found}
        for script in chosen:
            asked.unlink(missing_ok=True)
            command = [sys.executable, "-m", "tests.peers.mosquitto_scripts", "--one", str(script)]
            code, said = _run(command, environment, asked)
            if asked.exists():
                not_meant += 1
                print(f"{script.name}: asks for {asked.read_text()}, which is no setting here", flush=True)
            elif code:
                failed += 1
                told = [line for line in said.strip().split("\n") if ": got" in line] or said.strip().split("\n")[-1:]
                print(f"{script.name}: {told[0][:300]}", flush=True)
            else:
                passed += 1
    print(f"{passed} of {passed + failed} scripts as on mosquitto; {not_meant} ask for what is no setting here;")
    print(f"{len(apart)} are of bridges, TLS, plugins, files, its configuration and its HTTP API, and were not run")
    return failed


def _run(command: list[str], environment: dict[str, str], asked: Path) -> tuple[int, str]:
    """Its exit code and its words; ended early where the script asks for what is not meant, for it waits for the broker."""
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        for _ in range(int(SCRIPT_S_MAX / LOOK_S)):
            try:
                said, _ = process.communicate(timeout=LOOK_S)
                return process.returncode, said.decode(errors="replace")
            except subprocess.TimeoutExpired:
                if asked.exists():
                    break
        process.kill()
    return 1, f"took more than {SCRIPT_S_MAX} s"


if __name__ == "__main__":
    if sys.argv[1] == "--broker":
        be_broker(sys.argv[2:])
    elif sys.argv[1] == "--one":
        run_one(Path(sys.argv[2]).resolve())
    else:
        sys.exit(min(main(Path(sys.argv[1]), sys.argv[2:]), 100))
