"""Spoilt conversations on every port at once, while a canary asks each port whether it still answers.

`MAINSTEM_FUZZ_S` is how long (30 s by itself; an hour in `make test-all`), `MAINSTEM_FUZZ_SEED` repeats a run.

The spoilt clients are a process of their own: beside six threads that are always busy the canary would wait for the
interpreter, and blame the broker.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import socket
import threading
import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import pytest

from fuzz.streams import PROTOCOLS, one_stream, pieces_of
from mainstem.testing import BrokerProcess
from tests.security.canary import ask_all

SECONDS = float(os.environ.get("MAINSTEM_FUZZ_S", "30"))
SLOW_SECONDS = float(os.environ.get("MAINSTEM_FUZZ_S", "3600"))
HEAR_S = 0.02  # how long a spoilt client waits for words that may not come
PAUSE_S = 0.25  # between two questions of the canary
REPORTS = ("could not be handled", "Exception in ASGI application", "Traceback")  # what nobody expected


def test_the_broker_answers_all_the_while(attacked: BrokerProcess) -> None:
    fuzz(attacked, SECONDS)


@pytest.mark.slow
@pytest.mark.timeout(SLOW_SECONDS + 300)
def test_the_broker_answers_for_an_hour(attacked: BrokerProcess) -> None:
    fuzz(attacked, SLOW_SECONDS)


def fuzz(broker: BrokerProcess, seconds: float) -> None:
    seed = int(os.environ.get("MAINSTEM_FUZZ_SEED", random.randrange(1 << 32)))
    own = multiprocessing.get_context("spawn")
    here, there = own.Pipe()
    spoiling = own.Process(target=spoil_all, args=(broker.ports, seed, there), daemon=True)
    spoiling.start()
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ask_all(broker)
            time.sleep(PAUSE_S)
    except BaseException as error:
        error.add_note(f"MAINSTEM_FUZZ_SEED={seed}; last sent: {_ended(spoiling, here)}")
        raise
    sent = _ended(spoiling, here)
    assert broker.running
    log = broker.log()
    for report in REPORTS:
        at = log.find(report)
        assert at < 0, f"MAINSTEM_FUZZ_SEED={seed}\n" + log[max(0, at - 300) : at + 6000]
    assert all(count for count, _ in sent.values()), "a port was left in peace"


def _ended(spoiling: BaseProcess, here: Connection) -> dict[str, tuple[int, list[bytes]]]:
    """How many streams each port got, and the last of them."""
    here.send("stop")
    sent: dict[str, tuple[int, list[bytes]]] = here.recv()
    spoiling.join(30)
    return sent


def spoil_all(ports: dict[str, int], seed: int, there: Connection) -> None:
    stop = threading.Event()
    sent: dict[str, tuple[int, list[bytes]]] = {protocol: (0, []) for protocol in PROTOCOLS}

    def spoil_one(protocol: str) -> None:
        rng = random.Random(f"{seed} {protocol}")
        while not stop.is_set():
            data = one_stream(protocol, rng)
            count, last = sent[protocol]
            sent[protocol] = count + 1, [*last[-2:], data]
            spoil(ports[protocol], data, rng)

    threads = [threading.Thread(target=spoil_one, args=(protocol,)) for protocol in PROTOCOLS]
    for thread in threads:
        thread.start()
    there.recv()
    stop.set()
    for thread in threads:
        thread.join(30)
    there.send(sent)


def spoil(port: int, data: bytes, rng: random.Random) -> None:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as client:
        client.settimeout(HEAR_S)
        for piece in pieces_of(data, rng):
            client.sendall(piece)
        while client.recv(65_536):
            pass
